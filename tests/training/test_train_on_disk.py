"""Training on a folder of facts: the protocol's ranks, and the same bits after any interruption."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disk_world import ingested_world

from command_line import Run
from metatkgr.data.large.ingest import ingest
from metatkgr.data.large.split import StoredSplit
from metatkgr.data.large.store import FactStore
from metatkgr.data.periods import Period
from metatkgr.data.tasks import Tasks
from metatkgr.errors import DataError, MetaTKGRError, SettingsError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.evaluation.filters import FILTERS
from metatkgr.evaluation.on_disk import TableScorer, evaluate_on_disk
from metatkgr.models import create
from metatkgr.models.trainable import TrainableModel
from metatkgr.training import disk_tables
from metatkgr.training.disk_run import load_disk_run, open_index
from metatkgr.training.disk_settings import DiskRunSettings
from metatkgr.training.disk_tables import tables_of
from metatkgr.training.on_disk import configure_on_disk, report_on_disk, train_on_disk
from metatkgr.training.trace import read_trace

SMALL = DiskRunSettings(
    dimension=8, batch_size=100, negatives=20, block=700, epochs=2, checkpoint_blocks=2, questions=9
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated world of 3,000 facts, ingested, with its index."""
    return ingested_world(tmp_path_factory.mktemp("world"))


def plain(out: Path) -> list[dict[str, Any]]:
    """The trace without times, which are those of the clock."""
    lines = list(read_trace(out / "trace.jsonl"))
    return [{k: v for k, v in line.items() if "seconds" not in k} for line in lines]


def weights(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((out / "tables").glob("[er]*.safetensors"))]


@pytest.mark.parametrize("visibility", ["entity-split", "frozen", "streaming"])
@pytest.mark.parametrize("split", [Period.META_VALIDATION, Period.META_TEST])
def test_the_ranks_are_those_of_the_evaluator_in_memory(
    folder: Path, visibility: str, split: Period
) -> None:
    store = FactStore(folder)
    tasks = Tasks.build(store.facts(), shots=2, visibility=visibility, split=split)
    generator = torch.Generator().manual_seed(0)
    # Small whole numbers: every sum is exact, whatever the order, and there are many ties.
    tables = {
        "entity": torch.randint(-3, 4, (len(store.entities), 4), generator=generator).float(),
        "relation": torch.randint(-3, 4, (len(store.relations), 4), generator=generator).float(),
    }
    model = create("transe", {"dimension": 4})
    assert isinstance(model, TrainableModel)
    model.load_state({name: table.clone() for name, table in tables.items()})
    theirs = evaluate(model, tasks)
    protocol = StoredSplit(store, shots=2, visibility=visibility, rows=500)
    asked = protocol.tasks(split, 10**6)
    scorer = TableScorer(tables["entity"], tables["relation"])
    ours = evaluate_on_disk(scorer, asked.tasks, open_index(store))
    for name in FILTERS:
        assert np.array_equal(ours.ranks[name], theirs.ranks[name])
    assert np.array_equal(ours.novel, theirs.novel)
    assert np.array_equal(ours.entity, theirs.entity)
    assert ours.novel.any()
    assert not ours.novel.all()
    told, whole = ours.to_json(), theirs.to_json()
    assert {k: told[k] for k in told if k != "seconds"} == {
        k: whole[k] for k in whole if k != "seconds"
    }


class StoppedError(Exception):
    """Stands for a process that ends."""


def test_an_interrupted_training_ends_in_the_same_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = configure_on_disk(FactStore(folder), SMALL, shots=2, seed=5)
    result = train_on_disk(tmp_path / "whole", run)
    assert not (tmp_path / "whole" / "working").exists()
    cut = tmp_path / "cut"
    copy = disk_tables._copy
    for number in (1, 2, 3, 4, 1, 2):
        calls = 0

        def stop(*_: object, last: int = number) -> None:
            nonlocal calls
            calls += 1
            if calls > last:
                raise StoppedError

        # In the middle of writing a checkpoint, or after some block.
        with monkeypatch.context() as patch:
            if number < 3:
                patch.setattr(disk_tables, "_copy", lambda *places: (copy(*places), stop()))
            with pytest.raises(StoppedError):
                train_on_disk(cut, run, resume=True, update=None if number < 3 else stop)
    assert (cut / "working").is_dir()
    told = train_on_disk(cut, run, resume=True)
    assert weights(cut) == weights(tmp_path / "whole")
    assert plain(cut) == plain(tmp_path / "whole")
    assert told["metrics"] == result["metrics"]
    assert json.loads((cut / "metrics.json").read_text())["metrics"] == result["metrics"]
    left = {path.name for path in cut.iterdir()}
    assert left == {"on-disk.json", "tables", "trace.jsonl", "metrics.json"}
    again = train_on_disk(cut, run, resume=True)
    assert again["metrics"] == result["metrics"], "a training that is done stays as it is"


def test_it_learns_what_may_be_learned_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    store = FactStore(folder)
    settings = DiskRunSettings(dimension=16, negatives=64, epochs=6, batch_size=128, questions=500)
    run = configure_on_disk(store, settings)
    told: list[dict[str, Any]] = []
    counted: list[tuple[int, int]] = []
    train_on_disk(
        tmp_path, run, progress=told.append, update=lambda n, total: counted.append((n, total))
    )
    assert told == list(read_trace(tmp_path / "trace.jsonl"))
    assert told[-1]["loss"] < 0.8 * told[0]["loss"]
    assert told[-1]["validation_mrr"] > 0.1
    assert sum(n for n, _ in counted) == counted[0][1] == 6 * len(store)
    known = StoredSplit(store).learnable().read(0, len(store))
    assert told[0]["facts"] == len(known[0]) < len(store)
    entity, relation = tables_of(tmp_path, load_disk_run(tmp_path))
    assert len(entity) == len(store.entities)
    assert len(relation) == len(store.relations)
    asked = report_on_disk(tmp_path, questions=50)
    assert asked["questions"] == 50
    assert asked["queries"] < asked["queries_of_split"]


def test_the_command_line_trains_evaluates_and_resumes_after_kill_9(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    words = ["train", str(folder), "--model", "transe", "--on-disk", "--shots", "2"]
    for setting in (
        "epochs=12",
        "dimension=16",
        "block=200",
        "checkpoint_blocks=8",
        "negatives=64",
    ):
        words += ["--set", setting]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    trained = run(*words, "--out", whole, "--json", "-")
    assert trained.code == 0, trained.err
    assert "translation 12/12" in trained.err
    assert json.loads(trained.out)["split"] == "meta-validation"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "metatkgr", *words, "--out", str(cut)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        until = time.monotonic() + 60
        while not list(cut.glob("checkpoint-*")) and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (cut / "tables").exists(), "killed before its end"
    assert run("evaluate", cut, "--questions", 5).code == 0, "what there is can be looked at"
    refused = run(*words, "--out", cut)
    assert refused.code == 2
    assert "already holds a run" in refused.err
    assert "other settings" in run(*words, "--seed", 9, "--out", cut, "--resume").err
    resumed = run(*words, "--out", cut, "--resume")
    assert resumed.code == 0, resumed.err
    assert weights(cut) == weights(whole)
    assert plain(cut) == plain(whole)
    shown = run("evaluate", cut, "--questions", 30, "--split", "meta-test", "--json", "-")
    assert shown.code == 0, shown.err
    result = json.loads(shown.out)
    assert (result["split"], result["questions"], result["shots"]) == ("meta-test", 30, 2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "transe", "--preset", "tuned"], "goes without --preset"),
        (["--model", "transe", "--device", "cuda"], "goes without --device"),
        (["--model", "rotate"], "metatkgr and transe can be trained, not rotate"),
        ([], "not evidence"),
        (["--model", "metatkgr", "--set", "learn_tables=true"], "leave it at False"),
        (["--model", "transe", "--set", "epoch=3"], "did you mean epochs"),
        (["--model", "transe", "--set", "questions=0"], "at least 1"),
    ],
)
def test_mistakes_are_told(
    folder: Path, tmp_path: Path, run: Run, words: list[str], told: str
) -> None:
    shown = run("train", folder, *words, "--on-disk", "--out", tmp_path / "run")
    assert shown.code == 2
    assert told in " ".join(shown.err.split())
    assert not (tmp_path / "run").exists()


def test_facts_that_are_not_there_or_others_are_told(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    shown = run("train", "world", "--model", "transe", "--on-disk", "--out", tmp_path / "run")
    assert "needs a folder of facts" in " ".join(shown.err.split())
    (tmp_path / "few.csv").write_text("s,r,o,t\na,b,c,1\nc,b,d,2\n")
    ingest([tmp_path / "few.csv"], tmp_path / "few")
    few = configure_on_disk(FactStore(tmp_path / "few"), SMALL)
    with pytest.raises(DataError, match="--index"):
        train_on_disk(tmp_path / "run", few)
    many = configure_on_disk(FactStore(folder), SMALL, shots=1000)
    with pytest.raises(MetaTKGRError, match="fewer shots"):
        train_on_disk(tmp_path / "many", many)
    wild = dataclasses.replace(SMALL, learning_rate=1e30)
    with pytest.raises(MetaTKGRError, match="smaller learning_rate"):
        train_on_disk(tmp_path / "wild", configure_on_disk(FactStore(folder), wild))
    train_on_disk(tmp_path / "run", configure_on_disk(FactStore(folder), SMALL))
    for words in (["predict", tmp_path / "run", "--entity", "e1"], ["serve", tmp_path / "run"]):
        assert "which metatkgr evaluate takes" in " ".join(run(*words).err.split())
    about = tmp_path / "run" / "on-disk.json"
    content = json.loads(about.read_text())
    assert "--questions is for runs" in " ".join(
        run("evaluate", folder, "--questions", 3).err.split()
    )
    for change, message in (
        ({"data": str(tmp_path / "gone")}, "not there any more"),
        ({"data": str(tmp_path / "few")}, "other facts"),
        ({"seed": "x"}, "seed is"),
        ({"format_version": 9}, "not written by this version"),
        ({"settings": {"dimension": 9}}, "does not hold rows"),
    ):
        about.write_text(json.dumps(content | change))
        shown = run("evaluate", tmp_path / "run")
        assert shown.code == 2
        assert message in " ".join(shown.err.split())
    with pytest.raises(SettingsError, match="not rotate"):
        configure_on_disk(FactStore(folder), SMALL, model="rotate")
    with pytest.raises(SettingsError, match="not the settings of metatkgr"):
        configure_on_disk(FactStore(folder), SMALL, model="metatkgr")
