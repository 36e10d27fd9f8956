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
    FEATURES,
    Hazard,
    _features,
    _Lives,
    _period,
    fit_hazard,
    fit_spans,
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


def test_what_happens_to_everybody_once_does_not_come_again() -> None:
    """A firm is registered when it comes, and never again; its orders go on."""
    facts = business(8000)
    visible = VisibleFacts.of(facts)
    hazard, index = fit_hazard(visible), TemporalIndex.of(visible)
    who = torch.arange(index.entities)
    who = who[index.first_step_of(who) > facts.steps - 120]
    registered, orders = (
        torch.full_like(who, facts.relations.id(name, "relation"))
        for name in ("is registered in", "orders")
    )
    now = torch.full_like(who, facts.steps)
    known = index.slots.usage(who, registered + len(facts.relations), now).count > 0
    once = hazard.within(index, (who, registered, now), [90])[known]
    more = hazard.within(index, (who, orders, now), [90])[known]
    assert int(known.sum()) > 20
    assert float(once.mean()) < 0.1
    assert float(more.mean()) > 0.4


def test_probabilities_are_as_often_right_as_they_say() -> None:
    for facts in (business(8000), mt.load("world:8000:2")):
        for found in within_report(VisibleFacts.of(facts)).values():
            assert found["hazard"]["ece"] < 0.06


def elections() -> Facts:
    """Every other year a third of all seats is filled; few in between."""
    generator = np.random.default_rng(0)
    rows = [
        (f"m{seat}-{year // 12}", "is elected in", f"state {seat % 20}", year)
        for year in range(90)
        for seat in range(60)
        if generator.random() < (0.02 if year % 2 else 0.33)
    ]
    return mt.read_facts(rows)


def test_a_season_is_found_and_counts() -> None:
    """Before, as likely in a year without an election as in one with."""
    facts = elections()
    visible = VisibleFacts.of(facts)
    hazard, index = fit_hazard(visible), TemporalIndex.of(visible)
    assert hazard.period == 2
    who = torch.from_numpy(np.unique(facts.subject[facts.time >= 84]).astype(np.int64))
    for year, low, high in ((88, 0.15, 1.0), (89, 0.0, 0.1)):
        now = torch.full_like(who, year)
        chance = hazard.within(index, (who, torch.zeros_like(who), now), [1])
        assert low < float(chance.mean()) < high
    with_season = within_report(visible)["1"]["hazard"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metatkgr.forecasting.hazard._period", lambda *_: 0)
        without = within_report(visible)["1"]["hazard"]
    assert with_season["log_likelihood"] > without["log_likelihood"] + 0.05
    assert with_season["ece"] < without["ece"]


def test_what_only_grows_has_no_season() -> None:
    days = np.repeat(np.arange(300), np.arange(300) // 20 + 1)
    assert _period(days, 300) == 0
    busy = np.repeat(np.arange(300), np.where(np.arange(300) % 7 < 5, 9, 3))
    assert _period(busy, 300) == 7


def test_what_other_graphs_have_taught_is_better_than_the_cohort_alone() -> None:
    """Where too little is known for a fit: rates of a world of another seed and size."""
    visible = VisibleFacts.of(mt.load("world:2000:4"))
    index, end = TemporalIndex.of(visible), int(visible.base.time[-1])
    lives = _Lives.draw(index, visible, 0, end, 0)
    known = lives.come[:, 4] >= 0
    came = lives.come[known, 4] > 0
    losses = []
    cohort = tuple(float(name == "cohort rate") for name in FEATURES)
    for hazard in (Hazard(), Hazard(cohort)):
        chance = hazard.within(index, lives.columns, [8])[known, 0].clamp(1e-6, 1 - 1e-6)
        losses.append(float(-torch.where(came, chance, 1 - chance).log().mean()))
    assert losses[0] < losses[1] - 0.1


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
    found = fit_spans(rows, size, event)
    assert found[:2].tolist() == pytest.approx([-2, 0.5], abs=0.05)


def test_a_graph_of_two_facts_gives_a_guess() -> None:
    facts = mt.read_facts([("a", "r", "b", 0), ("a", "r", "c", 1)])
    assert fit_hazard(VisibleFacts.of(facts)) == Hazard()
