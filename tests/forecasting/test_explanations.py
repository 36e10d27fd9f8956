"""Reasons are checked by deletion: without its evidence, a forecast must fall."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

import metatkgr as mt
from metatkgr.data.facts import Facts
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.explain import Forecast
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.models.base import Model
from studies.faithfulness import Query, falls, falls_of_model, main, new_entity_rows

QUESTIONS = 60


def forecaster_of(model: str, facts: Facts) -> Forecaster:
    return Forecaster.of(facts, model, calibration=Calibration())


def standing(forecaster: Forecaster, query: Query, forecast: Forecast) -> float:
    """Minus the rank."""
    found = forecaster.predict(query[0], query[1], at=query[2], top=1000)
    return -next(f.rank for f in found if f.entity == forecast.entity)


@pytest.mark.parametrize("model", ["recurrency", "paths"])
@pytest.mark.parametrize("place", [0, 2], ids=["best", "third"])
def test_without_its_reasons_a_forecast_falls_more_than_without_other_facts(
    model: str, place: int
) -> None:
    facts = mt.load("world:4000:3")
    generator = np.random.default_rng(0)
    rows = generator.choice(np.arange(2000, len(facts)), QUESTIONS, replace=False).tolist()
    found = falls(lambda some: forecaster_of(model, some), standing, facts, rows, place)
    assert len(found.own) > QUESTIONS / 2
    for control in (found.random, found.near):
        assert np.mean(found.own) > np.mean(control) + 1
        assert np.mean(np.array(found.own) > 0) > np.mean(np.array(control) > 0) + 0.2


@pytest.fixture(scope="module")
def weighed() -> tuple[Model[object], Facts]:
    """An evidence model that has learned from a few questions."""
    facts = mt.load("world:3000:3")
    few = {"train_queries": 200, "earlier_queries": 200, "support_queries": 100, "epochs": 3}
    return mt.Estimator("evidence", device="cpu", **few).fit(facts).model_, facts


@pytest.mark.parametrize("place", [0, 2], ids=["best", "third"])
def test_without_its_reasons_a_weighed_forecast_falls_too(
    weighed: tuple[Model[object], Facts], place: int
) -> None:
    model, facts = weighed

    def make(some: Facts) -> Forecaster:
        return Forecaster.of(some, deepcopy(model), calibration=Calibration())

    found = falls(make, standing, facts, new_entity_rows(facts, 30), place)
    assert len(found.own) > 20
    for control in (found.random, found.near):
        assert np.mean(found.own) > np.mean(control) + 1
        assert np.mean(np.array(found.own) > 0) > np.mean(np.array(control) > 0) + 0.2


@pytest.fixture(scope="module")
def trained() -> tuple[Model[object], Facts]:
    """A MetaTKGR whose encoder has learned a little."""
    facts = mt.load("world:2000:3")
    small = mt.Estimator(
        "metatkgr", device="cpu", dimension=16, translation_epochs=10, epochs=4, patience=0
    )
    return small.fit(facts).model_, facts


@pytest.mark.parametrize("place", [0, 2], ids=["best", "third"])
def test_without_its_reasons_a_learned_forecast_falls_too(
    trained: tuple[Model[object], Facts], place: int
) -> None:
    """The same check for MetaTKGR, by log-probability: what moves it may leave the rank as it is.

    Only newcomers are asked about. Vectors stay as they were learned; all else follows the facts.
    """
    model, facts = trained
    rows = new_entity_rows(facts, 20)
    found = falls_of_model(model, facts, rows, place)
    own, least = np.array(found.own), -np.log(0.99)
    print(
        f"{len(own)} of {len(rows)} have reasons; mean fall {own.mean():.3f}, random "
        f"{np.mean(found.random):.3f}, near {np.mean(found.near):.3f}"
    )
    assert len(own) > len(rows) / 2
    for control in map(np.array, (found.random, found.near)):
        assert own.mean() > control.mean() + least
        assert np.mean(own > least) > np.mean(control > least) + 0.3
        assert np.mean(own > control) > 0.75


def test_the_table_of_a_run(tmp_path: Path) -> None:
    small = mt.MetaTKGR(device="cpu", dimension=8, translation_epochs=3, epochs=1)
    small.fit(mt.load("world:2000:3")).save(tmp_path / "run")
    lines = main(str(tmp_path / "run"), most=3).splitlines()
    assert lines[0].startswith("| 3 questions | have reasons |")
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "first forecast",
        "third forecast",
    ]


def test_the_heaviest_reason_comes_first() -> None:
    forecaster = forecaster_of("paths", mt.load("world:4000:3"))
    name = forecaster.facts.describe(3000)[0]
    for forecast in forecaster.predict(name, explain=True):
        weights = [reason.weight for reason in forecast.reasons]
        assert weights
        assert weights[0] == max(weights)


def test_every_reason_is_visible_to_its_question() -> None:
    facts = mt.load("world:4000:3")
    forecaster = forecaster_of("paths", facts)
    row = 3000
    subject, relation, _, _ = facts.describe(row)
    at = int(facts.time[row])
    own = forecaster.timeline(subject)[:3]
    now = facts.calendar.label(at)
    for side in ("object", "subject"):
        for forecast in forecaster.predict(subject, relation, at=at, side=side, explain=True):
            for reason in forecast.reasons:
                assert reason.facts
                assert all(fact.time < now or fact in own for fact in reason.facts)


def test_explain_answers_about_any_candidate() -> None:
    facts = mt.read_facts(
        [
            ("a", "r", "m", 1),
            ("z1", "r", "m", 2),
            ("z2", "r", "m", 2),
            ("z1", "r", "x", 3),
            ("z2", "r", "x", 3),
            ("a", "q", "x", 4),
            ("z2", "r", "y", 5),
        ]
    )
    forecaster = forecaster_of("paths", facts)
    kinds = [reason.kind for reason in forecaster.explain("a", "r", "x")]
    assert kinds == ["contact", "path", "frequency"]
    texts = [reason.text for reason in forecaster.explain("a", "r", "x")]
    assert texts == [
        "facts with x by “q” in 4",
        "2 others of “… r m” are also in “… r x”: z1 and z2",
        "“… r x” 2 times before, last in 3",
    ]
    assert [r.kind for r in forecaster.explain("a", "r", "y")] == ["frequency", "path"]
    assert forecaster.explain("a", "q", "m", side="subject")[0].text == "facts with m by “r” in 1"
    assert forecaster.explain("m", "q", "z1", side="object")[0].kind == "contact"
    assert forecaster_of("recurrency", facts).explain("a", "q", "z1") == ()
    # from the other end: who else is linked to what m's players are linked to
    backwards = forecaster.explain("m", "r", "a", side="subject", at=1)
    assert backwards[0].kind == "repeat"
