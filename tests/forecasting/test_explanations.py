"""Reasons are checked by deletion: without its evidence, a forecast must fall."""

from __future__ import annotations

import numpy as np
import pytest

import metatkgr as mt
from metatkgr.data.facts import Facts
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.views import FactView

QUESTIONS = 60


def forecaster_of(model: str, facts: Facts) -> Forecaster:
    return Forecaster.of(model, facts, calibration=Calibration("table"))


def rank_of(forecaster: Forecaster, asked: tuple[str, str, int], answer: str) -> int:
    found = forecaster.predict(asked[0], asked[1], at=asked[2], top=1000)
    return next(f.rank for f in found if f.entity == answer)


@pytest.mark.parametrize("model", ["recurrency", "paths"])
@pytest.mark.parametrize("place", [0, 2], ids=["best", "third"])
def test_without_its_reasons_a_forecast_falls_more_than_without_other_facts(
    model: str, place: int
) -> None:
    """Two controls: any visible facts, and evidence near at hand: what speaks for the question's
    other forecasts, and what else its entity did."""
    facts = mt.load("world:4000:3")
    whole = forecaster_of(model, facts)
    row_of = {FactView(*facts.describe(row)): row for row in range(len(facts))}
    generator = np.random.default_rng(0)
    asked_rows = generator.choice(np.arange(2000, len(facts)), QUESTIONS, replace=False)
    falls, random_falls, near_falls = [], [], []
    for row in asked_rows:
        subject, relation, _, _ = facts.describe(int(row))
        asked = (subject, relation, int(facts.time[row]))
        found = whole.predict(asked[0], asked[1], at=asked[2], top=10, explain=True)
        forecast = found[place]
        if not forecast.reasons:
            continue
        assert forecast.reasons[0].weight == max(r.weight for r in forecast.reasons)
        evidence = [row_of[fact] for fact in forecast.reasons[0].facts]
        visible = np.setdiff1d(np.flatnonzero(facts.time < asked[2]), evidence)
        others = generator.choice(visible, len(evidence), replace=False)
        about = (facts.subject == facts.subject[row]) | (facts.object == facts.subject[row])
        near = {
            row_of[fact] for other in found for reason in other.reasons for fact in reason.facts
        }
        near |= set(np.flatnonzero(about & (facts.time < asked[2])).tolist())
        pool = np.array(sorted(near - set(evidence)), np.int64)
        close = generator.choice(pool, min(len(evidence), len(pool)), replace=False)
        removals = ((evidence, falls), (others, random_falls), (close, near_falls))
        for removed, result in removals:
            kept = np.setdiff1d(np.arange(len(facts)), removed)
            rank = rank_of(forecaster_of(model, facts.select(kept)), asked, forecast.entity)
            result.append(rank - forecast.rank)
    assert len(falls) > QUESTIONS / 2
    for control in (random_falls, near_falls):
        assert np.mean(falls) > np.mean(control) + 1
        assert np.mean(np.array(falls) > 0) > np.mean(np.array(control) > 0) + 0.2


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
        "linked with x by q in 4",
        "2 others linked by r to m are also linked by it to x: z1 and z2",
        "x was the object of r 2 times before, last in 3",
    ]
    assert [r.kind for r in forecaster.explain("a", "r", "y")] == ["path", "frequency"]
    assert forecaster.explain("a", "q", "m", side="subject")[0].text == "linked with m by r in 1"
    assert forecaster.explain("m", "q", "z1", side="object")[0].kind == "contact"
    assert forecaster_of("recurrency", facts).explain("a", "q", "z1") == ()
    # from the other end: who else is linked to what m's players are linked to
    backwards = forecaster.explain("m", "r", "a", side="subject", at=1)
    assert backwards[0].kind == "repeat"
