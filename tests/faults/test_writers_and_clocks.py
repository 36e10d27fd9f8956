"""Two writers on one folder, clocks that are set, memory that runs out."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metatkgr.data.tasks import Tasks
from metatkgr.data.world import simulate
from metatkgr.errors import MetaTKGRError
from metatkgr.evaluation.evaluator import evaluate, in_chunks
from metatkgr.experiments import leases
from metatkgr.experiments.leases import STALE_SECONDS, Lease
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.store import FactStore, StoreError
from metatkgr.models import create
from metatkgr.models.registry import trainable
from metatkgr.training.estimator import configure, learn
from metatkgr.training.runs import FolderBusyError, only_writer


def test_a_second_writer_is_refused_while_the_first_is_at_work(tmp_path: Path) -> None:
    with only_writer(tmp_path):
        with (
            pytest.raises(FolderBusyError, match="another process is training"),
            only_writer(tmp_path),
        ):
            pass
        assert (tmp_path / ".writer").exists()
    with only_writer(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_two_trainings_in_one_folder_are_one_and_a_refusal(tmp_path: Path) -> None:
    facts = simulate(facts=2000, seed=1)
    refused = []

    def start(progress: Any = None, resume: bool = False) -> list[dict[str, Any]]:
        model = trainable("transe", {"dimension": 4, "epochs": 2, "patience": 0})
        config = configure(model, facts, shots=2)
        return learn(
            model, facts, config, folder=tmp_path / "run", resume=resume, progress=progress
        )

    def meanwhile(_: dict[str, Any]) -> None:
        with pytest.raises(FolderBusyError) as told:
            start(resume=True)
        refused.append(str(told.value))

    assert len(start(meanwhile)) == 2
    assert len(refused) == 2
    assert len((tmp_path / "run" / "trace.jsonl").read_text().splitlines()) == 2


def test_a_store_that_another_holds_is_told_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    from metatkgr.forecasting import database as module

    path = tmp_path / "facts.sqlite"
    with FactStore(path) as made:
        made.add([("Ann", "knows", "Bob", "1")])
    monkeypatch.setattr(module, "_BUSY_SECONDS", 0.2)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        FactStore(path)
    holder.close()
    with FactStore(path) as again:
        assert again.add([("Ann", "knows", "Cid", "1")]).accepted == 1


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_is_set_takes_no_lease_from_who_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    monkeypatch.setattr(leases, "_CLOCK", leases._Clock())
    mine = Lease.take(tmp_path / "cell")
    assert mine is not None
    now = time.time
    monkeypatch.setattr(leases.time, "time", lambda: now() + jump)
    assert Lease.take(tmp_path / "cell") is None, "the owner has had no time to touch it"
    assert not mine.lost


@pytest.mark.parametrize("away", [3600.0, -3600.0])
def test_a_lease_far_from_now_is_stale_while_the_clock_is_steady(
    tmp_path: Path, away: float
) -> None:
    assert Lease.take(tmp_path / "cell") is not None
    then = time.time() + away
    os.utime(tmp_path / "cell" / "0", (then, then))
    assert abs(away) > STALE_SECONDS
    again = Lease.take(tmp_path / "cell")
    assert again is not None
    assert again.generation == 1


class Cramped:
    """Gives a model too little memory for more than a few questions at once."""

    def __init__(self, model: Any, most: int) -> None:
        self.sizes: list[int] = []
        score = model.score

        def cramped(queries: Any) -> torch.Tensor:
            self.sizes.append(len(queries))
            if len(queries) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            return score(queries)

        model.score = cramped


def test_an_evaluation_out_of_memory_goes_on_in_smaller_chunks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = Tasks.build(simulate(facts=3000, seed=1), shots=2)
    whole = evaluate(create("recurrency"), tasks)
    model = create("recurrency")
    seen = Cramped(model, 7)
    done: list[int] = []
    with caplog.at_level(logging.WARNING):
        found = evaluate(model, tasks, progress=done.append)
    for name in whole.ranks:
        assert np.array_equal(found.ranks[name], whole.ranks[name])
    assert sum(done) == len(tasks.questions)
    assert max(seen.sizes) > 7
    assert "out of memory" in caplog.text


def test_forecasts_out_of_memory_come_in_smaller_chunks(caplog: pytest.LogCaptureFixture) -> None:
    facts = simulate(facts=3000, seed=1)
    entity, relation = facts.entities[0], facts.relations[0]
    plain = Forecaster.of(facts, "paths").predict(entity, relation, within=20)
    model = create("paths")
    Cramped(model, 3)
    with caplog.at_level(logging.WARNING):
        found = Forecaster.of(facts, model).predict(entity, relation, within=20)
    assert found == plain
    assert "out of memory" in caplog.text


def test_a_single_question_too_large_is_told_in_a_sentence() -> None:
    def work(begin: int, end: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    with pytest.raises(MetaTKGRError, match="single question"):
        in_chunks(8, 8, work)
