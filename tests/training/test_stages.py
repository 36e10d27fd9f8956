"""A first stage that several models share is trained once, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from metatkgr.data.problem import Problem
from metatkgr.data.world import simulate
from metatkgr.models import create
from metatkgr.models.base import TrainableModel
from metatkgr.training.loop import train

SETTINGS = {"dimension": 8, "translation_epochs": 3, "epochs": 1}


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem.of(simulate(facts=2000, seed=1), shots=2)


def _train(
    name: str, problem: Problem, stages: Path | None, seed: int = 0, **settings: Any
) -> tuple[TrainableModel[Any], list[dict[str, Any]]]:
    model = create(name, SETTINGS | settings)
    assert isinstance(model, TrainableModel)
    return model, train(model, problem, seed=seed, stages=stages)


def _plain(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]


@pytest.mark.parametrize("name", ["metatkgr", "igen", "tgen", "metadygnn"])
def test_a_kept_stage_gives_the_same_weights(name: str, problem: Problem, tmp_path: Path) -> None:
    _train("metatkgr", problem, tmp_path, variant="static-maml")
    assert len(list(tmp_path.iterdir())) == 1
    alone, its_lines = _train(name, problem, None)
    taking, lines = _train(name, problem, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1, "another stage was trained"
    assert _plain(lines) == _plain(its_lines)
    for key, value in alone.state_dict().items():
        assert torch.equal(value, taking.state_dict()[key]), key


def test_after_a_kept_stage_a_phase_that_only_spoils_leaves_nothing_behind(
    problem: Problem, tmp_path: Path
) -> None:
    _train("metatkgr", problem, tmp_path)
    found = []
    for stages in (None, tmp_path):
        model = create("metatkgr", SETTINGS | {"epochs": 2})
        assert isinstance(model, TrainableModel)
        falling = iter(range(9, 0, -1))
        train(model, problem, stages=stages, validate=lambda _, falling=falling: next(falling))  # type: ignore[misc]
        found.append(model.state_dict())
    for key, value in found[0].items():
        assert torch.equal(value, found[1][key]), key


def test_other_seeds_and_settings_are_other_stages(problem: Problem, tmp_path: Path) -> None:
    _train("metatkgr", problem, tmp_path)
    _train("metatkgr", problem, tmp_path, seed=1)
    _train("metatkgr", problem, tmp_path, translation_rate=0.01)
    _train("metatkgr", problem, tmp_path, one_shot=True)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_spoilt_file_is_trained_anew(problem: Problem, tmp_path: Path) -> None:
    model, _ = _train("metatkgr", problem, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    kept = load(whole)
    path.write_bytes(whole[: len(whole) // 2])
    again, _ = _train("metatkgr", problem, tmp_path)
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
    # Not byte by byte: the file also says how many seconds the training took.
    anew = load(path.read_bytes())
    assert anew.keys() == kept.keys()
    assert all(torch.equal(anew[key], kept[key]) for key in kept)
