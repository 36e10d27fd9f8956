"""Probabilities: bounded, in the order of the scores, and as often right as they say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import metatkgr as mt
from metatkgr.errors import DataError
from metatkgr.forecasting.calibrating import _rising, _Sample, expected_calibration_error
from metatkgr.forecasting.calibration import BANDS, SHARES, Calibration
from metatkgr.models import create
from metatkgr.models.base import Graded


@cache
def fitted(model: str) -> Calibration:
    return Calibration.fit(create(model), mt.load("world:30000:2"))


def example(grades: int = 3) -> Calibration:
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(grades + 1, len(BANDS), generator=generator).tolist()
    return Calibration("table", table=tuple(map(tuple, table)), tail=0.01, queries=99)


METHODS = ("table", "softmax", "softmax, corrected")
scores = st.lists(st.integers(0, 12), min_size=1, max_size=60)


@given(rows=st.lists(scores, min_size=1, max_size=3), method=st.sampled_from(METHODS))
def test_probabilities_are_bounded_and_keep_the_order(rows: list[list[int]], method: str) -> None:
    width = min(map(len, rows))
    values = torch.tensor([row[:width] for row in rows])
    if method == "table":
        chance = example().apply(values, torch.tensor([[1, 4, 9]]).expand(len(rows), 3))
    else:
        plain = Calibration("softmax", 2.0)
        corrected = replace(example(len(SHARES)), method="softmax", temperature=2.0)
        chance = (plain if method == "softmax" else corrected).apply(values.double())
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
    chance = example().apply(values, torch.tensor([[1, 4, 9]]))[0]
    assert bool((chance.diff() <= 0).all())
    assert chance[3] == chance[6] == chance[9]


@pytest.mark.parametrize("model", ["paths", "recurrency"])
def test_what_is_said_with_a_probability_is_as_often_true(model: str) -> None:
    calibration = fitted(model)
    assert calibration.queries >= 300
    assert calibration.ece is not None
    assert calibration.ece < 0.1
    assert calibration.ece_top10 is not None
    assert calibration.ece_top10 < 0.02
    # and of entities that came later than those it was fitted to
    tasks = mt.Tasks.build(mt.load("world:30000:2"), shots=3, visibility="streaming")
    chosen = create(model).prepare(tasks.visible).adapt(tasks.supports)
    assert isinstance(chosen, Graded)
    rows = torch.arange(0, len(tasks.answers), 3)[:1500].numpy()
    asked = tasks.questions[tasks.answers.question[rows]]
    values = chosen.score(asked)
    chance = calibration.apply(values, chosen.grades(asked))
    first = values.argmax(1)
    stated = chance.gather(1, first.unsqueeze(1)).squeeze(1)
    correct = first == torch.from_numpy(tasks.answers.answer[rows])
    assert expected_calibration_error(stated, correct) < 0.12


def test_the_temperature_is_found_again() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(800, 40, generator=generator, dtype=torch.float64)
    answer = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator).squeeze(1)
    sample = _Sample(2.5 * logits, None, answer, torch.arange(800) % 2 == 0)
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
    calibration = Calibration.fit(create("paths"), facts)
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
