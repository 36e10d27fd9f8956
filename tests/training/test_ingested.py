"""A folder made by ``data ingest`` is data like any other: train, resume, evaluate, predict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from command_line import Run, lines_of
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import append, ingest
from metatkgr.data.sources import load
from metatkgr.data.world import simulate
from metatkgr.errors import DataError
from metatkgr.files import write_signature
from metatkgr.training.opening import open_model
from metatkgr.training.runs import load_run, save_manifest

QUICK = {
    "transe": {"epochs": 3, "dimension": 8},
    "renet": {"epochs": 1, "dimension": 8, "global_epochs": 1},
    "metatkgr": {"epochs": 1, "dimension": 8, "translation_epochs": 2},
    "evidence": {"epochs": 1},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated world as a file of names."""
    world = simulate(facts=2000, seed=2)
    columns = (world.subject, world.relation, world.object, world.time)
    rows = [tuple(row) for row in np.stack(columns, axis=1).tolist()]
    # A few facts of entities with themselves, which the protocol has rules of its own for.
    own = [(s, r, s, t) for s, r, _, t in rows[::40]]
    lines = [f"e{s},r{r},e{o},{t}" for s, r, o, t in sorted(rows + own, key=lambda row: row[3])]
    path = tmp_path_factory.mktemp("world") / "facts.csv"
    path.write_text("\n".join(["s,r,o,t", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(file: Path) -> Path:
    """The same facts, ingested."""
    ingest([file], file.with_suffix(""))
    return file.with_suffix("")


def words_of(model: str, **changed: int) -> list[str]:
    settings = {**QUICK[model], **changed}
    chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["--model", model, "--shots", "2", "--device", "cpu", *chosen]


@pytest.mark.parametrize("model", list(QUICK))
def test_training_on_the_folder_is_training_on_the_file(
    model: str, file: Path, folder: Path, tmp_path: Path, run: Run
) -> None:
    told = []
    for data in (file, folder):
        out = tmp_path / data.name
        trained = run("train", data, *words_of(model), "--out", out, "--json", "-")
        assert trained.code == 0, trained.err
        told.append(json.loads(trained.out)["metrics"])
    assert told[0] == told[1]
    weights = [tmp_path / data.name / "model.safetensors" for data in (file, folder)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    shown = run("evaluate", tmp_path / folder.name, "--questions", 30, "--json", "-")
    assert shown.code == 0, shown.err
    result = json.loads(shown.out)
    assert (result["split"], result["questions"], result["shots"]) == ("meta-test", 30, 2)
    assert 30 <= result["queries"] < result["queries_of_split"]
    asked = run("predict", tmp_path / folder.name, "--entity", "e1", "--json", "-")
    assert asked.code == 0, asked.err
    assert json.loads(asked.out)["forecasts"]


@pytest.mark.parametrize("model", ["renet", "evidence"])
def test_a_large_folder_is_learned_from_with_its_links_on_disk(
    model: str, folder: Path, tmp_path: Path, run: Run
) -> None:
    weights = []
    for name, least in (("held", 1 << 40), ("mapped", 1)):
        with patch("metatkgr.graph.layer._LARGE", least):
            trained = run("train", folder, *words_of(model), "--out", tmp_path / name)
        assert trained.code == 0, trained.err
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_a_run_reads_the_folder_it_was_trained_on_while_that_is_as_it_was(
    file: Path, tmp_path: Path, run: Run
) -> None:
    """With its index; the copy in the run holds the same facts, and stands in once they differ."""
    folder, out, key = tmp_path / "facts", tmp_path / "run", tmp_path / "key"
    ingest([file], folder)
    assert run("train", folder, *words_of("transe"), "--out", out).code == 0
    opened, own = load_run(out).facts, load_run(out, own_facts=True).facts
    assert (opened.folder.folder, own.folder) == (folder, None)
    assert opened.fingerprint == own.fingerprint == load(str(folder)).fingerprint
    assert opened.folder.links() is not None
    # Who asks for a signature is given what was signed.
    key.write_text("k" * 40)
    write_signature(out / "MANIFEST", key)
    assert open_model(out, verify=key).facts.folder is None
    told = [run("evaluate", out, "--questions", 30, "--json", "-").out]
    more = tmp_path / "more.csv"
    more.write_text("s,r,o,t\ne1,r0,e2,10000\n")
    append([more], folder)
    assert load_run(out).facts.folder is None
    assert load_run(out).facts.fingerprint == own.fingerprint
    told.append(run("evaluate", out, "--questions", 30, "--json", "-").out)
    assert json.loads(told[0])["metrics"] == json.loads(told[1])["metrics"]
    # What says where the facts are is as little to be trusted as they are.
    (out / "folder.json").write_text("{}")
    with pytest.raises(DataError, match=r"folder.json is damaged"):
        load_run(out)
    state = FactFolder(folder).state
    forged = {"path": str(folder), "state": state, "fingerprint": "/../../../a"}
    (out / "folder.json").write_text(json.dumps(forged))
    save_manifest(out)
    with pytest.raises(DataError, match="its fingerprint is none"):  # it would name the store
        load_run(out)


@pytest.mark.parametrize("model", ["recurrency", "paths"])
def test_rules_answer_from_the_folder_as_from_the_file(
    model: str, file: Path, folder: Path, run: Run
) -> None:
    told = []
    for data in (file, folder):
        shown = run("evaluate", data, "--model", model, "--json", "-")
        assert shown.code == 0, shown.err
        asked = run("predict", data, "--model", model, "--entity", "e1", "--json", "-")
        assert asked.code == 0, asked.err
        told.append((json.loads(shown.out)["metrics"], json.loads(asked.out)["forecasts"]))
    assert told[0] == told[1]


def test_a_sample_of_questions_is_drawn_by_the_seed(folder: Path, run: Run) -> None:
    words = ("evaluate", folder, "--model", "recurrency", "--json", "-", "--questions")
    first, again, other = (
        json.loads(run(*words, 40, "--seed", seed).out)["metrics"] for seed in (1, 1, 2)
    )
    assert first == again != other
    whole = json.loads(run(*words[:-1]).out)
    every = json.loads(run(*words, 10**6).out)
    assert every["metrics"] == whole["metrics"]
    assert every["queries"] == every["queries_of_split"] == whole["queries"]
    assert "questions" not in whole


@pytest.mark.parametrize("model", ["evidence", "metatkgr"])
def test_after_kill_9_a_training_on_the_folder_ends_in_the_same_bits(
    model: str, folder: Path, tmp_path: Path, run: Run
) -> None:
    words = ["train", str(folder), *words_of(model, epochs=4), "--set", "patience=9"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run(*words, "--out", whole).code == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "metatkgr", *words, "--out", str(cut)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 120
        while not (cut / "checkpoint.safetensors").exists() and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (cut / "model.safetensors").exists(), "killed before its end"
    resumed = run(*words, "--out", cut, "--resume")
    assert resumed.code == 0, resumed.err
    name = "model.safetensors"
    assert (cut / name).read_bytes() == (whole / name).read_bytes()
    assert losses(cut) == losses(whole)


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in lines_of(out / "trace.jsonl")]
