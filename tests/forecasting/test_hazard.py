"""Whether and when a fact comes: as often as it is said, and better than two simple ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import metatkgr as mt
from metatkgr.data.facts import Facts
from metatkgr.data.visibility import VisibleFacts
from metatkgr.forecasting.hazard import (
    BASELINES,
    Hazard,
    _features,
    _fit,
    fit_hazard,
    within_report,
)
from metatkgr.graph.index import TemporalIndex
from studies.probabilities import business


def rhythm() -> Facts:
    """Some pay each day, some each week, some once; new ones come all the time."""
    generator = np.random.default_rng(0)
    rows = []
    for number in range(400):
        start, kind = int(generator.integers(0, 330)), number % 3
        days = {0: range(start, 400), 1: range(start, 400, 7), 2: [start]}[kind]
        rows += [(f"p{number}", "pays", f"shop {number % 9}", day) for day in days]
    return mt.read_facts(rows)


def test_it_is_better_than_a_constant_rate_and_than_the_last_gap() -> None:
    for facts in (rhythm(), business(8000)):
        report = within_report(VisibleFacts.of(facts))
        assert {"1", "7", "30"} <= set(report)
        for found in report.values():
            for baseline in BASELINES:
                assert found["hazard"]["log_likelihood"] > found[baseline]["log_likelihood"]
                assert found["hazard"]["brier"] < found[baseline]["brier"]


def test_who_pays_daily_pays_sooner_than_who_paid_once() -> None:
    facts = rhythm()
    visible = VisibleFacts.of(facts)
    hazard, index = fit_hazard(visible), TemporalIndex.of(visible)
    who = torch.tensor([facts.entities.id(f"p{number}", "entity") for number in (0, 1, 2)])
    now = torch.full_like(who, 400)
    found = hazard.within(index, (who, torch.zeros_like(who), now), [1, 7, 30])
    daily, weekly, once = found.tolist()
    assert daily[0] > 0.8
    assert weekly[0] < 0.5 < weekly[1]
    assert once[2] < 0.2


def test_what_comes_later_does_not_show() -> None:
    facts = rhythm()
    early = facts.select(np.flatnonzero(facts.time < 200))
    who = torch.arange(20)
    queries = (who, torch.zeros_like(who), torch.full_like(who, 200))
    both = [_features(TemporalIndex.of(VisibleFacts.of(some)), *queries) for some in (facts, early)]
    known = TemporalIndex.of(VisibleFacts.of(early)).first_step_of(who) < 200
    torch.testing.assert_close(both[0][known], both[1][known])
    before = [
        fit_hazard(VisibleFacts.of(facts), until=190),
        fit_hazard(VisibleFacts.of(early), until=190),
    ]
    np.testing.assert_allclose(before[0].weights, before[1].weights, rtol=1e-6, atol=1e-9)


def test_a_rate_is_found_again() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.zeros(20_000, len(Hazard().weights), dtype=torch.float64)
    rows[:, 0] = 1
    rows[:, 1] = torch.randn(20_000, generator=generator, dtype=torch.float64)
    size = torch.randint(1, 5, (20_000,), generator=generator).double()
    chance = -torch.expm1(-size * (-2 + 0.5 * rows[:, 1]).exp())
    event = (torch.rand(20_000, generator=generator) < chance).double()
    found = _fit(rows, size, event)
    assert found[:2].tolist() == pytest.approx([-2, 0.5], abs=0.05)


def test_a_graph_of_two_facts_gives_a_guess() -> None:
    facts = mt.read_facts([("a", "r", "b", 0), ("a", "r", "c", 1)])
    assert fit_hazard(VisibleFacts.of(facts)) == Hazard()
