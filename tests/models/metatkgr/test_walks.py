"""Walks whose attention is learned reach candidates beyond what an entity has dealt with."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from torch.nn import functional

from metatkgr.graph.index import TemporalIndex
from metatkgr.models.metatkgr.links import Around, Links, _masses, explore, initial_walk, spread
from models.metatkgr.test_adapted import adapter, built, late, own_links, problem

ALL = 512


def learned(hops: int = 3) -> dict[str, torch.Tensor]:
    """Values that are all different, so that none can stand in for another."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: value + 0.5 * torch.randn(value.shape, generator=generator)
        for name, value in initial_walk(hops).items()
    }


def read(pool: int = ALL) -> tuple[TemporalIndex, Around]:
    tasks = problem().train
    index = TemporalIndex.of(tasks.visible)
    row = torch.zeros(index.entities, dtype=torch.bool)
    return index, Around(index, tasks.supports, row, budget=ALL, contrast=4)


def public_links(time: int) -> dict[int, dict[tuple[int, int], int]]:
    """By entity: its distinct links before a time, with the step at which each was seen last."""
    seen = problem().train.visible
    found: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    columns = (seen.source, seen.relation, seen.target, seen.time)
    for source, relation, target, step in zip(*(c.tolist() for c in columns), strict=True):
        if step < time:
            known = found[source].get((relation, target), -1)
            found[source][relation, target] = max(known, step)
    return found


def literal(
    phi: dict[str, torch.Tensor], entity: int, relation: int, time: int, half: int
) -> dict[int, float]:
    """The text of ``links.py``, one link at a time."""
    public = public_links(time)

    def kind(other: int) -> int:
        return 0 if other == relation else 1 if other % half == relation % half else 2

    states = {(entity, -1): 1.0}
    reached: dict[int, float] = defaultdict(float)
    for hop in range(len(phi["walk_hop"])):
        fade = float(functional.softplus(phi["walk_fade"][hop]))
        norm = float(torch.sigmoid(phi["walk_norm"][hop]))
        after: dict[tuple[int, int], float] = defaultdict(float)
        for (place, came), mass in states.items():
            links = [(r, x, float(time - last)) for (r, x), last in public[place].items()]
            if hop == 0:
                links = own_links(entity, time)
            else:
                links = [link for link in links if link[1] != entity]
            logits = []
            for r, _, age in links:
                first = phi["walk_first"][kind(r)]
                turn = first if hop == 0 else phi["walk_turn"][hop - 1, came, kind(r)]
                logits.append(float(turn) - fade * math.log1p(age))
            total = sum(math.exp(value) for value in logits)
            for (r, x, _), value in zip(links, logits, strict=True):
                after[x, kind(r)] += mass * math.exp(value) / total**norm
        for (x, _), mass in after.items():
            reached[x] += math.exp(float(phi["walk_hop"][hop])) * mass
        states = after
    floor = math.exp(float(phi["walk_floor"]))
    weight = float(functional.softplus(phi["walk_weight"]))
    return {x: weight * math.log1p(mass / floor) for x, mass in reached.items()}


@pytest.mark.parametrize("hops", [1, 3])
def test_walks_are_those_of_the_text(hops: int) -> None:
    phi, (index, around), time = learned(hops), read(), late()
    half = index.relations // 2
    entities = [e for e in range(index.entities) if own_links(e, time)][::25]
    for entity in entities:
        asked = torch.tensor([entity, entity])
        relation = torch.tensor([0, half])
        links = around.own(torch.tensor([entity]), time).of(torch.tensor([0, 0]))
        walks = explore(
            phi, index, asked, relation, torch.full((2,), time), links, pool=ALL, budget=ALL
        )
        found = spread(phi, walks)
        for row, directed in enumerate(relation.tolist()):
            mine = found.query == row
            values = dict(zip(found.entity[mine].tolist(), found.value[mine].tolist(), strict=True))
            assert values == pytest.approx(literal(phi, entity, directed, time, half), rel=1e-3)


def test_only_the_states_with_the_largest_mass_go_on() -> None:
    phi, (index, around), time = learned(), read(), late()
    entity = max(range(index.entities), key=lambda e: len(own_links(e, time)))
    links = around.own(torch.tensor([entity]), time)
    one = (index, torch.tensor([entity]), torch.tensor([0]), torch.tensor([time]), links)
    whole, cut = (explore(phi, *one, pool=ALL, budget=budget) for budget in (ALL, 2))
    mass = _masses(phi, 0, whole.hops[0], torch.ones(1))
    assert len(mass) > 2
    best = torch.argsort(mass, descending=True)[:2].sort().values
    assert cut.hops[1].kept.tolist() == best.tolist()


def test_only_some_of_the_links_of_an_entity_are_looked_at() -> None:
    phi, (index, around), time = learned(), read(), late()
    entity = next(e for e in range(index.entities) if own_links(e, time))
    links = around.own(torch.tensor([entity]), time)
    one = (index, torch.tensor([entity]), torch.tensor([0]), torch.tensor([time]), links)
    hops = explore(phi, *one, pool=2, budget=ALL).hops
    for hop in hops[1:]:
        assert int(torch.bincount(hop.source).max()) <= 2


def test_who_has_no_links_reaches_nobody() -> None:
    phi, (index, _), time = learned(), read(), late()
    nothing = torch.zeros(0, dtype=torch.int64)
    links = Links(nothing, nothing, nothing, nothing.float())
    asked = torch.tensor([0])
    walks = explore(phi, index, asked, asked, torch.tensor([time]), links, pool=4, budget=4)
    assert len(spread(phi, walks).entity) == 0


def test_the_outer_gradient_teaches_where_to_walk() -> None:
    """The slope of the loss in each part of the attention, against a difference of two losses."""
    model, phases = built(hops=3, inner_steps=0, variant="no-regulariser", walkers=ALL, pool=ALL)
    phase, generator = phases[-1], torch.Generator().manual_seed(0)
    batch = list(phase.batches(generator))[-1]  # type: ignore[attr-defined]
    phase.loss(batch, generator).value.backward()  # type: ignore[attr-defined]
    for name in ("first", "turn", "fade", "norm", "hop", "floor", "weight"):
        weight = model.weights[f"inner.walk_{name}"]
        assert weight.grad is not None
        place = (0,) * weight.dim()
        with torch.no_grad():
            values = []
            for change in (0.05, -0.1):
                weight[place] += change
                values.append(float(phase.loss(batch, generator).value))  # type: ignore[attr-defined]
            weight[place] += 0.05
        slope = (values[0] - values[1]) / 0.1
        assert float(weight.grad[place]) == pytest.approx(slope, rel=0.05, abs=3e-4), name


@torch.no_grad()
def test_walks_are_added_to_the_scores() -> None:
    model, _ = built(hops=2, inner_steps=0)
    with_walks, without = adapter(model), adapter(model, hops=0)
    time = late()
    moment = with_walks.around.at(time)
    everyone = with_walks.everyone(moment)
    entity = next(e for e in range(len(model.entity)) if own_links(e, time))
    asked = (torch.tensor([entity]), torch.tensor([0]))
    more = with_walks.logits(moment, everyone, *asked) - without.logits(moment, everyone, *asked)
    phi, half = with_walks.learned, len(everyone.relation)
    expected = literal(phi, entity, 0, time, half)
    found = {x: value for x, value in enumerate(more[0].tolist()) if abs(value) > 1e-4}
    wanted = {x: value for x, value in expected.items() if value > 1e-4}
    assert found == pytest.approx(wanted, rel=1e-3, abs=1e-3)
