"""Runs of MetaTKGR on a folder of facts: stopped, killed, moved, and from the command line."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from disk_world import SMALL_META as SMALL
from disk_world import ingested_world

from command_line import Run
from metatkgr.data.large.store import FactStore
from metatkgr.data.problem import Problem
from metatkgr.errors import DataError
from metatkgr.training.disk_run import load_disk_run
from metatkgr.training.disk_tables import tables_of
from metatkgr.training.on_disk import configure_on_disk, report_on_disk, train_on_disk
from metatkgr.training.trace import read_trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ingested_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that went through without a stop."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    run = configure_on_disk(FactStore(folder), SMALL, model="metatkgr", shots=2, seed=5)
    train_on_disk(out, run)
    return out


class StoppedError(Exception):
    """Stands for a process that ends."""


def plain(out: Path) -> list[dict[str, Any]]:
    lines = list(read_trace(out / "trace.jsonl"))
    return [{k: v for k, v in line.items() if "seconds" not in k} for line in lines]


def test_an_interrupted_training_ends_in_the_same_bits(
    folder: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = configure_on_disk(FactStore(folder), SMALL, model="metatkgr", shots=2, seed=5)
    cut = tmp_path / "cut"

    def after(calls: int, function: Any) -> Any:
        def stop(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls -= 1
            if calls < 0:
                raise StoppedError
            return function(*given, **named)

        return stop

    # In the tables, between two indexes, in an epoch, between two epochs, at the very end.
    places = (
        ("metatkgr.training.translation_on_disk.save_checkpoint", 2),
        ("metatkgr.training.meta_on_disk.build_index", 1),
        ("metatkgr.models.metatkgr.curriculum.query_loss", 3),
        ("metatkgr.training.loop.save_checkpoint", 1),
        ("metatkgr.training.meta_on_disk.write_tensors", 0),
        ("metatkgr.training.meta_on_disk.write_text", 0),
    )
    for place, calls in places:
        module, name = place.rsplit(".", 1)
        owner = importlib.import_module(module)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, after(calls, getattr(owner, name)))
            with pytest.raises(StoppedError):
                train_on_disk(cut, run, resume=True)
        if name == "query_loss":
            with pytest.raises(DataError, match="no trained encoder yet"):
                report_on_disk(cut, questions=5)
        elif name == "write_tensors":
            assert report_on_disk(cut, questions=5)["questions"] == 5, "what there is can be asked"
    result = train_on_disk(cut, run, resume=True)
    for name in ("tables/entity.safetensors", "encoder.safetensors"):
        assert (cut / name).read_bytes() == (trained / name).read_bytes()
    assert plain(cut) == plain(trained)
    assert [line["phase"] for line in plain(cut)] == ["translation"] * 2 + ["meta"] * 2
    assert "start_validation_mrr" in plain(cut)[2], "what the start can do is known"
    whole = json.loads((trained / "metrics.json").read_text())
    assert result["metrics"] == whole["metrics"]
    kept = {"on-disk.json", "tables", "encoder.safetensors", "trace.jsonl", "metrics.json"}
    assert {path.name for path in cut.iterdir()} == kept
    assert train_on_disk(cut, run, resume=True)["metrics"] == whole["metrics"]


@pytest.mark.slow
def test_a_training_that_is_killed_again_and_again_ends_in_the_same_bits(
    folder: Path, trained: Path, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "metatkgr", "train", str(folder), "--model", "metatkgr"]
    words += ["--on-disk", "--shots", "2", "--seed", "5", "--out", str(tmp_path / "cut")]
    for name, value in dataclasses.asdict(SMALL).items():
        words += ["--set", f"{name}={value}"]
    cut = tmp_path / "cut"
    for sign in ("checkpoint-*", "tables", "indexes/queries*", "meta/checkpoint*"):
        with subprocess.Popen([*words, "--resume"], stderr=subprocess.DEVNULL) as process:
            while not list(cut.glob(sign)) and process.poll() is None:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL, "killed before its end"
    assert subprocess.run([*words, "--resume"]).returncode == 0
    for name in ("tables/entity.safetensors", "encoder.safetensors"):
        assert (cut / name).read_bytes() == (trained / name).read_bytes()
    assert plain(cut) == plain(trained)


def test_the_start_may_see_one_fact_of_each_support(folder: Path, tmp_path: Path) -> None:
    store = FactStore(folder)
    problem = Problem.of(store.facts(), shots=2)
    for one_shot, seen in ((True, problem.one_shot), (False, problem.few_shot)):
        settings = dataclasses.replace(
            SMALL, one_shot=one_shot, variant="fine-tuning", translation_steps=1
        )
        out = tmp_path / str(one_shot)
        train_on_disk(out, configure_on_disk(store, settings, model="metatkgr", shots=2))
        lines = plain(out)
        # One epoch, since a step is enough, and no meta-training.
        assert [line["facts"] for line in lines] == [len(seen) // 2]


def test_facts_and_run_may_move(folder: Path, tmp_path: Path, run: Run, trained: Path) -> None:
    shutil.copytree(folder, tmp_path / "a" / "facts")
    shutil.copytree(trained, tmp_path / "a" / "run")
    about = json.loads((trained / "on-disk.json").read_text())
    assert not Path(about["data"]).is_absolute()
    (tmp_path / "a" / "run" / "on-disk.json").write_text(json.dumps(about | {"data": "../facts"}))
    (tmp_path / "a").rename(tmp_path / "b")
    here = tmp_path / "b" / "run"
    asked = ["evaluate", here, "--questions", 5, "--json", "-"]
    together = run(*asked)
    assert together.code == 0, together.err
    (tmp_path / "b" / "facts").rename(tmp_path / "elsewhere")
    lost = " ".join(run(*asked).err.split())
    assert "--data FOLDER" in lost
    found = run(*asked, "--data", tmp_path / "elsewhere")
    assert found.code == 0, found.err
    assert json.loads(found.out)["metrics"] == json.loads(together.out)["metrics"]
    again = configure_on_disk(
        FactStore(tmp_path / "elsewhere"), SMALL, model="metatkgr", shots=2, seed=5
    )
    train_on_disk(here, again, resume=True)
    assert load_disk_run(here).store().folder == tmp_path / "elsewhere"
    assert run(*asked).code == 0, "a resumed run knows where its facts are"
    assert "--data is for runs" in " ".join(run("evaluate", "world", "--data", here).err.split())


def test_the_command_line_trains_and_evaluates(folder: Path, tmp_path: Path, run: Run) -> None:
    words = ["train", folder, "--model", "metatkgr", "--on-disk", "--shots", 2]
    for name in ("dimension=8", "translation_epochs=1", "epochs=1", "questions=9", "moments=2"):
        words += ["--set", name]
    done = run(*words, "--out", tmp_path / "run", "--json", "-")
    assert done.code == 0, done.err
    assert "meta 1/1" in done.err
    told = json.loads(done.out)
    assert (told["model"], told["split"], told["on_disk"]) == ("metatkgr", "meta-validation", True)
    entity, _ = tables_of(tmp_path / "run", load_disk_run(tmp_path / "run"))
    assert entity.shape == (len(FactStore(folder).entities), 8)
    shown = run("evaluate", tmp_path / "run", "--questions", 6, "--visibility", "streaming")
    assert shown.code == 0, shown.err
    assert "metatkgr on" in shown.out
