"""What the inner step does to a trained model, measured."""

from __future__ import annotations

from pathlib import Path

import pytest

import metatkgr as mt
from metatkgr.data.world import simulate
from studies.inner_step import inner_step, main

TINY = {"dimension": 8, "translation_epochs": 2, "epochs": 1, "background_epochs": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    mt.MetaTKGR(shots=2, **TINY).fit(simulate(facts=2000, seed=3)).save(folder)
    return folder


def test_no_step_moves_nothing_and_more_steps_move_further(run: Path) -> None:
    from metatkgr.data.tasks import Tasks
    from metatkgr.models.metatkgr.model import MetaTKGR
    from metatkgr.training.runs import load_run

    loaded = load_run(run)
    assert isinstance(loaded.model, MetaTKGR)
    usual = loaded.model.settings
    tasks = Tasks.build(loaded.facts, shots=2, split="meta-validation").sample(40)
    assert len(tasks.questions) == 40
    none, one, many = inner_step(loaded.model, tasks, steps=((0.0, 0), (0.1, 1), (0.1, 4)))
    assert set(none.moved.values()) == {0.0}
    assert 0 < max(one.moved.values()) < max(many.moved.values())
    assert loaded.model.settings == usual


def test_the_table_of_a_run(run: Path) -> None:
    lines = main(str(run), most=20).splitlines()
    assert lines[0].startswith("| η, steps |")
    assert len(lines) == 9
