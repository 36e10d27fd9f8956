"""What the loop keeps of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from metatkgr.data.problem import Problem
from metatkgr.data.world import simulate
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.models import create
from metatkgr.models.base import TrainableModel
from metatkgr.training.loop import train


def test_a_phase_that_only_spoils_leaves_what_was_learned_before() -> None:
    problem = Problem.of(simulate(facts=3000, seed=1), shots=2)
    settings = {"dimension": 16, "translation_epochs": 25, "epochs": 2, "validate_every": 1}
    model = create("transr", {**settings, "learning_rate": 50.0})
    assert isinstance(model, TrainableModel)

    def validate(candidate: TrainableModel[object]) -> float:
        return evaluate(candidate, problem.validation).summary(resamples=0).mrr or 0.0

    lines = train(model, problem, seed=1, validate=validate)
    spoiled = [line for line in lines if line["phase"] == "triples"]
    start = spoiled[0]["start_validation_mrr"]
    assert all(line["validation_mrr"] < start for line in spoiled)
    assert validate(model) == start


class _KilledError(Exception):
    pass


@pytest.mark.parametrize(
    ("ended", "sampler"),
    [
        ("translation", "bfs"),
        ("background", "bfs"),
        ("meta", "bfs"),
        ("background", "uniform"),
        ("meta", "uniform"),
    ],
)
def test_every_stage_of_the_text_goes_on_exactly(ended: str, sampler: str, tmp_path: Path) -> None:
    """All weights are learned here: an order that changes on loading would show."""
    problem = Problem.of(simulate(facts=2000, seed=1), shots=2)
    settings = {
        "dimension": 8, "translation_epochs": 2, "background_epochs": 2, "epochs": 2,
        "batch_size": 64, "outer_rate": 0.01, "background_steps": 3,
        "sampler": sampler, "budget": 2,
    }  # fmt: skip

    def kill(line: dict[str, Any]) -> None:
        if line["phase"] == ended and line["epoch"] == 1:
            raise _KilledError

    def learn(**how: Any) -> dict[str, torch.Tensor]:
        model = create("metatkgr", settings, preset="paper")
        assert isinstance(model, TrainableModel)
        train(model, problem, seed=1, **how)
        return model.state_dict()

    whole = learn()
    with pytest.raises(_KilledError):
        learn(folder=tmp_path, progress=kill)
    resumed = learn(folder=tmp_path, resume=True)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("transr", {"dimension": 16, "translation_epochs": 1, "epochs": 3, "negatives": 16}),
        ("evidence", {"epochs": 2, "train_queries": 300, "support_queries": 150}),
    ],
)
def test_two_threads_do_not_race(name: str, settings: dict[str, Any]) -> None:
    """Gradients through ``x[rows]`` were added up by threads in the order in which they came."""
    problem = Problem.of(simulate(facts=3000, seed=1), shots=3)

    def learn() -> dict[str, torch.Tensor]:
        model = create(name, {**settings, "patience": 0})
        assert isinstance(model, TrainableModel)
        train(model, problem, seed=0)
        return model.state_dict()

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first, *others = (learn() for _ in range(3))
    finally:
        torch.set_num_threads(threads)
    for name, value in first.items():
        assert all(torch.equal(value, other[name]) for other in others), name


def test_a_training_that_goes_on_has_the_same_examples(tmp_path: Path) -> None:
    problem = Problem.of(simulate(facts=2000, seed=1), shots=3)
    settings = {"epochs": 3, "train_queries": 100, "support_queries": 50, "patience": 0}

    def kill(line: dict[str, Any]) -> None:
        if line["phase"] == "combination" and line["epoch"] == 2:
            raise _KilledError

    def learn(**how: Any) -> dict[str, torch.Tensor]:
        model = create("evidence", settings)
        assert isinstance(model, TrainableModel)
        train(model, problem, seed=1, **how)
        return model.state_dict()

    whole = learn()
    with pytest.raises(_KilledError):
        learn(folder=tmp_path, progress=kill)
    resumed = learn(folder=tmp_path, resume=True)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
