"""Reasons of MetaTKGR: what is left out is what would be gone, the weight what would be lost."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import metatkgr as mt
from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.forecasting.calibration import Calibration
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.metatkgr.curriculum import sampler_for
from metatkgr.models.metatkgr.explain import LinkReader, as_neighbours
from metatkgr.models.metatkgr.model import MetaTKGR
from metatkgr.models.metatkgr.settings import MetaTKGRSettings

SMALL = {"dimension": 8, "budget": 6, "translation_epochs": 3}


@cache
def world() -> Facts:
    return mt.load("world:1500:1")


def model_of(gate: float, facts: Facts | None = None, **settings: Any) -> MetaTKGR:
    """Trained vectors, and a gate as strong as wanted."""
    trained = mt.Estimator(
        "metatkgr", device="cpu", variant="fine-tuning", **{**SMALL, **settings}
    ).fit(facts or world())
    model = trained.model_
    assert isinstance(model, MetaTKGR)
    with torch.no_grad():
        model.weights["encoder.gate"].fill_(gate)
    return model


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("sampler", ["bfs", "recent"])
def test_fact_by_fact_the_same_is_collected_as_by_the_sampler(sampler: str, window: int) -> None:
    tasks = mt.Tasks.build(world(), shots=3, visibility="streaming")
    settings = MetaTKGRSettings(sampler=sampler, window=window, budget=6)
    index = TemporalIndex.of(tasks.visible)
    generator = np.random.default_rng(0)
    for entity in np.unique(tasks.supports.entity)[::3].tolist():
        time = int(generator.integers(60, world().steps + 1))
        near = LinkReader(index, tasks.supports, settings, time)
        for own in (True, False):
            links = near.sample(entity, own=own)
            found = as_neighbours([links], 6, index.device)
            wanted = sampler_for(index, tasks.supports, settings).sample(
                torch.tensor([entity]), torch.tensor([time]), own=own
            )
            for name in ("entity", "relation", "time", "mask"):
                assert torch.equal(getattr(found, name), getattr(wanted, name))
            for triple in map(near.triple, links):
                left = near.sample(entity, own=own, without=triple)
                again = _without(tasks.visible, tasks.supports, near, triple, settings)
                wanted = again.sample(torch.tensor([entity]), torch.tensor([time]), own=own)
                found = as_neighbours([left], 6, index.device)
                assert torch.equal(found.entity, wanted.entity)
                assert torch.equal(found.time, wanted.time)


def _without(
    visible: VisibleFacts,
    supports: Supports,
    near: LinkReader,
    triple: tuple[int, int, int],
    settings: MetaTKGRSettings,
) -> Any:
    """A sampler over a graph that never had a link's facts."""
    gone = {(*triple, link.time) for link in near.facts(triple)}
    half = len(visible.relations)

    def left(*columns: np.ndarray) -> np.ndarray:
        rows = zip(*(column.tolist() for column in columns), strict=True)
        facts = ((s, r, o, t) if r < half else (o, r - half, s, t) for s, r, o, t in rows)
        return np.array([fact not in gone for fact in facts], bool)

    facts = visible.facts()
    fewer = VisibleFacts.of(facts, left(facts.subject, facts.relation, facts.object, facts.time))
    columns = (supports.entity, supports.relation, supports.other, supports.time)
    mine = left(*columns)
    return sampler_for(
        TemporalIndex.of(fewer), Supports(*(column[mine] for column in columns)), settings
    )


def test_a_weight_is_the_share_of_the_probability_that_is_lost() -> None:
    """Of a newcomer: its row of the table, too, is made of its facts."""
    facts, relation = world(), world().relations[0]
    model = model_of(0.3, inner_rate=0.0)
    now = facts.steps
    clubs = [facts.entities[x] for x in facts.object[facts.relation == 0][[-1, -40]].tolist()]
    first = [("Cy", relation, club, now + n) for n, club in enumerate(clubs)]

    def forecaster_after(arrivals: list[tuple[str, str, str, int]]) -> mt.Forecaster:
        forecaster = mt.Forecaster.of(facts, model, calibration=Calibration())
        forecaster.observe([*arrivals, ("Di", relation, clubs[0], now)])
        return forecaster

    def chance(arrivals: list[tuple[str, str, str, int]], club: str) -> float:
        after = forecaster_after(arrivals)
        found = after.predict("Cy", relation, at=now + 2, top=1000)
        score = {forecast.entity: forecast.score for forecast in found}
        assert len(score) == len(after.facts.entities)
        values = torch.tensor(list(score.values()), dtype=torch.float64)
        return float((score[club] - torch.logsumexp(values, 0)).exp())

    forecaster = forecaster_after(first)
    reasons = [forecaster.explain("Cy", relation, club, at=now + 2) for club in clubs]
    for gone, (club, told) in enumerate(zip(clubs, reasons, strict=True)):
        lost = 1 - chance(first[:gone] + first[gone + 1 :], club) / chance(first, club)
        assert lost > 0.05
        own = next(r for r in told if r.facts[0].subject == "Cy" and r.facts[0].object == club)
        assert own.weight == pytest.approx(lost, rel=0.02)
        assert own.text.endswith(f"without this {own.weight:.0%} less likely")


def test_where_neighbours_have_no_say_the_vectors_are_named() -> None:
    tasks = mt.Tasks.build(world(), shots=3, visibility="streaming")
    model = model_of(0.0, inner_rate=0.0).prepare(tasks.visible).adapt(tasks.supports)
    asked = tasks.questions[np.arange(0, 40, 8)]
    for number, explanations in enumerate(model.reasons(asked, model.score(asked).argmax(1))):
        assert [(explanation.kind, explanation.links) for explanation in explanations] == [
            ("vectors", ())
        ]
        when = int(asked.time[number])
        assert len(explanations[0].entities) == 3
        assert all(world().emerged_at[other] < when for other in explanations[0].entities)


@pytest.mark.parametrize("settings", [{"layers": 2}, {"candidates": "exact"}])
def test_reasons_do_not_depend_on_who_else_is_asked_about(settings: dict[str, Any]) -> None:
    tasks = mt.Tasks.build(world(), shots=3, visibility="entity-split")
    model = model_of(0.3, **settings).prepare(tasks.visible).adapt(tasks.supports)
    asked = tasks.questions[np.arange(0, 60, 10)]
    best = model.score(asked).argmax(1)
    together = model.reasons(asked, best)
    assert any(
        explanation.kind == "fact" for explanations in together for explanation in explanations
    )
    for row in range(len(asked)):
        alone = model.reasons(asked[np.array([row])], best[row : row + 1])[0]
        assert [explanation.links for explanation in alone] == [
            explanation.links for explanation in together[row]
        ]
        assert [explanation.weight for explanation in alone] == pytest.approx(
            [explanation.weight for explanation in together[row]], abs=1e-5
        )
    nothing = Queries(*[np.zeros(0, np.int64)] * 3)
    assert model.reasons(nothing, torch.zeros(0, dtype=torch.int64)) == []
