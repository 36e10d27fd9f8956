"""Probabilities: bounded, in the order of the scores, and as often right as they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import metatkgr as mt
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import DataError
from metatkgr.forecasting.calibrating import (
    _rising,
    _Sample,
    expected_calibration_error,
    fit_calibration,
)
from metatkgr.forecasting.calibration import BANDS, SHARES, Calibration, Scored
from metatkgr.models import create
from metatkgr.models.base import Graded
from references import dense


@cache
def fitted(model: str) -> Calibration:
    return fit_calibration(create(model), VisibleFacts.of(mt.load("world:30000:2")))


def example(grades: int = 3) -> Calibration:
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(grades + 1, len(BANDS), generator=generator).tolist()
    return Calibration("table", table=tuple(map(tuple, table)), tail=0.01, queries=99)


def every(calibration: Calibration, scores: Tensor, grades: Tensor | None = None) -> Tensor:
    """(Q, E) probabilities of all candidates."""
    found = calibration.apply(Scored.of(scores, softmax=True), grades)
    behind = found.behind.unsqueeze(1).expand(scores.shape).clone()
    return behind.scatter_(1, found.entity, found.chance)


METHODS = ("table", "softmax", "softmax, corrected")
scores = st.lists(st.integers(0, 12), min_size=1, max_size=60)


@given(rows=st.lists(scores, min_size=1, max_size=3), method=st.sampled_from(METHODS))
def test_probabilities_are_bounded_and_keep_the_order(rows: list[list[int]], method: str) -> None:
    width = min(map(len, rows))
    values = torch.tensor([row[:width] for row in rows])
    if method == "table":
        chance = every(example(), values, torch.tensor([[1, 4, 9]]).expand(len(rows), 3))
    else:
        plain = Calibration("softmax", 2.0)
        corrected = replace(example(len(SHARES)), method="softmax", temperature=2.0)
        chance = every(plain if method == "softmax" else corrected, values.double())
    assert chance.shape == values.shape
    assert bool((chance >= 0).all())
    assert bool((chance.sum(1) <= 1 + 1e-9).all())
    for row, p in zip(values, chance, strict=True):
        order = torch.argsort(row, descending=True, stable=True)
        assert bool((p[order].diff() <= 1e-12).all())
        for value in row.unique():
            assert len(p[row == value].unique()) == 1


def test_candidates_behind_the_head_are_below_those_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metatkgr.forecasting.calibration._HEAD", 5)
    values = torch.tensor([[9, 8, 7, 3, 3, 3, 3, 1, 0, 0]])
    chance = every(example(), values, torch.tensor([[1, 4, 9]]))[0]
    assert bool((chance.diff() <= 0).all())
    assert chance[3] == chance[6] == chance[9]


def interval(measure: Callable[[Tensor], float], entity: np.ndarray) -> tuple[float, float]:
    """95 % interval of a measure of rows, by bootstrap over entities.

    Questions of one entity are not independent.
    """
    generator = np.random.default_rng(0)
    groups = [np.flatnonzero(entity == one) for one in np.unique(entity)]
    values = []
    for _ in range(300):
        drawn = generator.integers(len(groups), size=len(groups))
        values.append(measure(torch.from_numpy(np.concatenate([groups[n] for n in drawn]))))
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


@cache
def later(model: str) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """The first ten forecasts for entities that came after those of the fit.

    Returns:
        Probabilities, (N, 10) each, as fitted and as guessed where nothing can be fitted; which
        forecasts are right, (N, 10) bool; and who asks, (N,).
    """
    tasks = mt.Tasks.build(mt.load("world:30000:2"), shots=3, visibility="streaming")
    chosen = create(model).prepare(tasks.visible).adapt(tasks.supports)
    assert isinstance(chosen, Graded)
    rows = np.arange(0, len(tasks.answers), 3)[:1500]
    asked = tasks.questions[tasks.answers.question[rows]]
    values, grades = dense(chosen, asked), chosen.grades(asked)
    place = torch.topk(values, 10, 1).indices
    stated, guessed = (
        every(one, values, grades).gather(1, place) for one in (fitted(model), Calibration("table"))
    )
    correct = place == torch.from_numpy(tasks.answers.answer[rows]).unsqueeze(1)
    return stated, guessed, correct, asked.entity


@pytest.mark.parametrize("first", [1, 10])
@pytest.mark.parametrize("model", ["paths", "recurrency"])
def test_fitted_probabilities_are_nearer_to_what_happens_than_guessed_ones(
    model: str, first: int
) -> None:
    assert fitted(model).queries >= 300
    stated, guessed, correct, entity = later(model)

    def error(chance: Tensor, some: Tensor) -> float:
        picked, right = chance[some, :first].flatten(), correct[some, :first].flatten()
        return expected_calibration_error(picked, right)

    low, _ = interval(lambda some: error(guessed, some) - error(stated, some), entity)
    everyone = torch.arange(len(entity))
    print(f"error {error(stated, everyone):.4f}, guessed {error(guessed, everyone):.4f}")
    assert low > 0


@pytest.mark.parametrize("model", ["paths", "recurrency"])
def test_probabilities_tell_sure_forecasts_from_unsure_ones(model: str) -> None:
    """The share of correct ones, stated for all alike, has no calibration error, and no use."""
    stated, _, correct, entity = later(model)
    right = correct[:, 0].double()
    gain = (right.mean() - right).square() - (stated[:, 0] - right).square()
    assert interval(lambda some: float(gain[some].mean()), entity)[0] > 0


def test_the_temperature_is_found_again() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(800, 40, generator=generator, dtype=torch.float64)
    answer = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator).squeeze(1)
    true = 2.5 * logits.gather(1, answer.unsqueeze(1)).squeeze(1)
    scored = Scored.of(2.5 * logits, softmax=True)
    sample = _Sample(scored, true, None, answer, torch.arange(800) % 2 == 0)
    fit = sample.fit()
    assert fit.method == "softmax"
    assert fit.temperature == pytest.approx(2.5, rel=0.1)
    first, all_ten = sample.errors()
    assert first is not None
    assert first < 0.06
    assert all_ten is not None
    assert all_ten < 0.02


def test_the_error_of_a_perfect_and_of_a_boastful_forecaster() -> None:
    generator = torch.Generator().manual_seed(0)
    stated = torch.rand(20_000, generator=generator)
    correct = torch.rand(20_000, generator=generator) < stated
    assert expected_calibration_error(stated, correct) < 0.02
    assert expected_calibration_error(torch.ones(4), torch.tensor([1, 0, 0, 0]).bool()) == 0.75


def test_a_graph_without_newcomers_gets_a_guess_that_says_so() -> None:
    facts = mt.read_facts([("a", "r", "b", 0), ("a", "r", "c", 1)])
    calibration = fit_calibration(create("paths"), VisibleFacts.of(facts))
    assert (calibration.queries, calibration.ece, calibration.split) == (0, None, "")
    found = mt.Forecaster.of("paths", facts).predict("a", "r")
    assert found[0].entity == "c"
    assert 0 < found[0].probability < 1
    assert found.calibration["queries"] == 0


def test_a_calibration_is_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    fitted("paths").save(path)
    assert Calibration.load(path) == fitted("paths")
    for content in ("", "[]", "{}", '{"format": 2}', '{"format": 1, "table": 3}'):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match="delete it"):
            Calibration.load(path)


def test_within_a_kind_of_evidence_more_is_never_worse() -> None:
    first = 1
    for grades in create("paths").grade_kinds:  # type: ignore[attr-defined]
        rows = torch.tensor(fitted("paths").table)[first : first + grades]
        assert bool((rows.diff(dim=0) >= -1e-12).all())
        first += grades
    assert first == len(fitted("paths").table)
    rising = _rising(torch.tensor([1.0, 3.0, 2.0, 0.0], dtype=torch.float64), torch.ones(4))
    assert rising.tolist() == [1, 5 / 3, 5 / 3, 5 / 3]
