"""The temporal index holds every link once, in time order; with recent facts, as built anew."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.layer import LinkLayer
from metatkgr.graph.ragged import bisect_ranges
from metatkgr.graph.sampler import SAMPLERS
from references import ENTITIES, RELATIONS, graphs, layered, tuples

FACT = ("subject", "relation", "object", "time")


def drawn() -> Facts:
    #  0 --0 (t=0)--> 1,  2 --1 (t=1)--> 0,  1 --1 (t=1)--> 1
    columns = np.array([(0, 0, 1, 0), (2, 1, 0, 1), (1, 1, 1, 1)]).T
    return Facts(*columns, Vocabulary.numbered(3), Vocabulary.numbered(2))


def test_a_drawn_graph_by_eye() -> None:
    index = TemporalIndex.of(VisibleFacts.of(drawn()))
    links = index.by_time
    assert links.start.tolist() == [0, 2, 4, 5]
    assert links.target.tolist() == [1, 2, 0, 1, 0]
    assert links.relation.tolist() == [0, 3, 2, 1, 1]
    assert (links.key % links.steps).tolist() == [0, 1, 0, 1, 1]
    assert len(index) == 5, "a fact of an entity with itself is one link"


def links_of(facts: Facts) -> dict[int, list[tuple[int, int, int]]]:
    """By entity: target, directed relation and time, oldest first."""
    links: dict[int, list[tuple[int, int, int]]] = {e: [] for e in range(ENTITIES)}
    for s, r, o, t in tuples(facts):
        links[s].append((o, r, t))
        if s != o:
            links[o].append((s, r + RELATIONS, t))
    return links


def moments(facts: Facts) -> tuple[torch.Tensor, torch.Tensor]:
    """Every entity at every time, and at times before and after all facts."""
    times = torch.tensor([-5, *range(facts.steps + 2), 10**9])
    return torch.arange(ENTITIES).repeat_interleave(len(times)), times.repeat(ENTITIES)


@given(facts=graphs(), window=st.one_of(st.none(), st.integers(1, 30)))
@settings(max_examples=60, deadline=None)
def test_the_links_of_a_moment_are_those_of_a_plain_search(
    facts: Facts, window: int | None
) -> None:
    index, expected = TemporalIndex.of(VisibleFacts.of(facts)), links_of(facts)
    entity, time = moments(facts)
    public, late = index.before(entity, time, window), index.since(entity, time)
    order = index.by_time
    link = list(zip(*(c.tolist() for c in (order.target, order.relation, order.key)), strict=True))
    for row, (e, t) in enumerate(zip(entity.tolist(), time.tolist(), strict=True)):
        for (low, high), right in (
            (public, [x for x in expected[e] if x[2] < t and (not window or x[2] > t - window)]),
            (late, [x for x in expected[e] if x[2] >= t]),
        ):
            got = link[int(low[row]) : int(high[row])]
            assert [(x, r, key - e * order.steps) for x, r, key in got] == right


def test_a_key_that_does_not_fit_is_an_error() -> None:
    facts = replace(drawn(), relations=range(2**23))  # type: ignore[arg-type]
    entities = range(2**20)
    visible = VisibleFacts.of(replace(facts, entities=entities))  # type: ignore[arg-type]
    with pytest.raises(OverflowError, match="63 bits"):
        TemporalIndex.of(visible).pairs.last_contacts(torch.tensor([0]), torch.tensor([1]))


@given(graph=layered(), most=st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_with_recent_facts_it_answers_as_an_index_built_anew(
    graph: tuple[Facts, VisibleFacts], most: int
) -> None:
    facts, visible = graph
    anew, grown = TemporalIndex.of(VisibleFacts.of(facts)), TemporalIndex.of(visible)
    assert (len(grown), grown.entities, grown.relations) == (len(anew), ENTITIES, 2 * RELATIONS)
    assert grown.steps == anew.steps
    entity, time = moments(facts)
    relation = torch.arange(len(entity)) % (2 * RELATIONS)
    low, high = anew.before(entity, time)
    for window in (None, 2):
        for one, other in zip(
            anew.before(entity, time, window), grown.before(entity, time, window), strict=True
        ):
            assert torch.equal(one, other)
    position = high[:, None] - 1 - torch.arange(3)
    mask = position >= low[:, None]
    for one, other in zip(
        anew.read(entity, position, mask), grown.read(entity, position, mask), strict=True
    ):
        assert torch.equal(one, other)
    assert torch.equal(
        anew.targets(entity, position, mask)[mask], grown.targets(entity, position, mask)[mask]
    )
    sources = entity[:, None].expand_as(mask)[mask]
    for one, other in zip(
        anew.about(sources, position[mask]), grown.about(sources, position[mask]), strict=True
    ):
        assert torch.equal(one, other)
    for name in ("key", "relation", "target", "start"):
        assert torch.equal(getattr(anew.by_time, name), getattr(grown.by_time, name))
    assert torch.equal(anew.first_seen, grown.first_seen)
    assert torch.equal(anew.last_step_of(entity, time), grown.last_step_of(entity, time))
    one, other = (index.slots.usage(entity, relation, time, (2.0,)) for index in (anew, grown))
    assert torch.equal(one.count, other.count)
    assert torch.equal(one.last, other.last)
    assert torch.allclose(one.decayed[0], other.decayed[0])
    counted = (index.slots.facts_before(relation, time) for index in (anew, grown))
    assert torch.equal(*counted)
    for along in (relation, None):
        one, other = (
            index.pairs.latest_links(entity, along, time, most) for index in (anew, grown)
        )
        for name in ("row", "relation", "target", "first", "last"):
            assert torch.equal(getattr(one, name), getattr(other, name))
    for one, other in zip(anew.neighbours.pairs(), grown.neighbours.pairs(), strict=True):
        assert torch.equal(one, other)
    position = high[:, None] - most + torch.arange(most)
    mask = position >= low[:, None]
    last = tuple(column[mask] for column in anew.read(entity, position, mask))
    for index in (anew, grown):
        assert torch.equal(index.facts_before(entity, time), high - low)
        found = index.last_facts(entity, time, most)
        for one, other in zip((found.target, found.relation, found.time), last, strict=True):
            assert torch.equal(one, other)
    for one, other in ((anew, grown), (grown, anew)):
        found = one.first_facts(torch.arange(ENTITIES), most)
        again = other.first_facts(torch.arange(ENTITIES), most)
        assert torch.equal(found.target, again.target)
        assert torch.equal(found.time, again.time)


@given(graph=layered())
@settings(max_examples=40, deadline=None)
def test_pairs_slots_and_single_facts_are_those_of_a_plain_search(
    graph: tuple[Facts, VisibleFacts],
) -> None:
    facts, visible = graph
    index = TemporalIndex.of(visible)
    both = [
        link for s, r, o, t in tuples(facts) for link in ((s, r, o, t), (o, r + RELATIONS, s, t))
    ]
    now = facts.steps // 2 + 1
    entity = torch.arange(ENTITIES)
    time = torch.full_like(entity, now)
    for relation in range(2 * RELATIONS):
        asked = torch.full_like(entity, relation)
        past = [(s, o, t) for s, r, o, t in both if r == relation and t < now]
        links = index.pairs.last_links(entity, asked, time)
        found: dict[tuple[int, int], int] = {}
        for e, x, step in zip(
            links.query.tolist(), links.candidate.tolist(), links.step.tolist(), strict=True
        ):
            found[e, x] = max(step, found.get((e, x), -1))
        assert found == {(s, o): max(t for a, b, t in past if (a, b) == (s, o)) for s, o, _ in past}
        counts = Counter(o for _, o, _ in past)
        usage = index.slots.usage(entity, asked, time)
        assert usage.count.tolist() == [counts[x] for x in range(ENTITIES)]
        last = [max((t for _, o, t in past if o == x), default=-1) for x in range(ENTITIES)]
        assert usage.last.tolist() == last
    for s, r, o, t in tuples(facts):
        assert index.happened(s, r, o, t)
        assert index.happened(s, r, o, t + 1) == ((s, r, o, t + 1) in set(tuples(facts)))


def test_who_asks_again_shares_the_layer_until_nobody_uses_it() -> None:
    visible = VisibleFacts.of(drawn())
    one, other = TemporalIndex.of(visible), TemporalIndex.of(visible.grown(drawn().select([])))
    assert other._layers[0] is one._layers[0]
    assert len(visible.layers) == 1
    del one, other
    gc.collect()
    assert len(visible.layers) == 0


def test_a_mask_hides_what_is_not_public() -> None:
    index = TemporalIndex.of(VisibleFacts.of(drawn(), np.array([True, False, True])))
    assert len(index) == 3
    assert index.pairs.last_contacts(torch.tensor([2]), torch.tensor([9])).step.tolist() == []


def test_samplers_read_recent_facts_too() -> None:
    facts = drawn()
    visible = VisibleFacts.of(facts.select(np.array([0]))).grown(facts.select(np.array([1, 2])))
    for kind in SAMPLERS.values():
        generator = torch.Generator().manual_seed(0)
        sampler = kind(TemporalIndex.of(visible), Supports.none(), budget=4, generator=generator)
        found = sampler.sample(torch.tensor([0]), torch.tensor([9]))
        assert sorted(found.entity[found.mask].tolist())[-2:] == [1, 2]


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_bisection_of_ranges_is_searchsorted_of_each(sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randint(5, (n,), generator=generator).sort().values for n in sizes]
    values = torch.cat(parts).int()
    stop = torch.tensor(sizes).cumsum(0)
    start = stop - torch.tensor(sizes)
    for bound in range(-1, 7):
        pairs = zip(start.tolist(), parts, strict=True)
        wanted = [first + int(torch.searchsorted(part, bound)) for first, part in pairs]
        for copies in (1, 30):  # few, one by one; many, all at once
            asked = torch.full((copies * len(start),), bound)
            ranges = start.repeat(copies), stop.repeat(copies)
            found = bisect_ranges(values, *ranges, asked)
            assert found.tolist() == copies * wanted


def test_a_layer_keeps_ids_in_half_the_width() -> None:
    layer = LinkLayer(VisibleFacts.of(drawn()), entities=3, relations=4, device=torch.device("cpu"))
    narrow = (layer.by_time.relation, layer.by_time.target, layer.pairs.time, layer.slots.time)
    assert {column.dtype for column in narrow} == {torch.int32}


@given(facts=graphs(), data=st.data())
@settings(max_examples=40, deadline=None)
def test_arrivals_that_were_indexed_before_are_not_indexed_again(
    facts: Facts, data: st.DataObject
) -> None:
    """Facts keep arriving, some of them late: what is found is what an index of all of them has."""
    base = np.array(data.draw(st.lists(st.booleans(), min_size=len(facts), max_size=len(facts))))
    visible, held = VisibleFacts.of(facts.select(base)), []
    rows = np.flatnonzero(~base)
    if data.draw(st.booleans()):
        rows = np.array(data.draw(st.permutations(rows.tolist())), np.int64)
    entity, time = moments(facts)
    relation = torch.arange(len(entity)) % (2 * RELATIONS)
    with patch("metatkgr.graph.index._FEW", 3):
        for count in range(0, len(rows) + 1, 2):
            order = np.argsort(rows[:count])
            arrived = facts.select(rows[:count][order])
            held.append(TemporalIndex.of(visible.grown(arrived, order)))
            grown = held[-1]
            anew = TemporalIndex.of(VisibleFacts.of(facts.select(base).merged(arrived)))
            for along in (relation, None):
                one, other = (i.pairs.latest_links(entity, along, time, 3) for i in (anew, grown))
                for name in ("row", "relation", "target", "first", "last"):
                    assert torch.equal(getattr(one, name), getattr(other, name))
            for one, other in zip(anew.neighbours.pairs(), grown.neighbours.pairs(), strict=True):
                assert torch.equal(one, other)
            usage = [i.slots.usage(entity, relation, time, (2.0,)) for i in (anew, grown)]
            assert torch.equal(usage[0].count, usage[1].count)
            assert torch.equal(usage[0].last, usage[1].last)
            assert torch.allclose(usage[0].decayed[0], usage[1].decayed[0])
            ranks = [i.slots.count_ranks(relation, time, usage[0].count) for i in (anew, grown)]
            assert torch.equal(ranks[0][0], ranks[1][0])
            for read in (
                lambda i: i.last_facts(entity, time, 2),
                lambda i: i.first_facts(entity, 2),
            ):
                one, other = read(anew), read(grown)
                for name in ("row", "relation", "target", "time"):
                    assert torch.equal(getattr(one, name), getattr(other, name))
            for one, other in zip(
                *(i.slots.recent(relation, time, 2) for i in (anew, grown)), strict=True
            ):
                assert torch.equal(one, other)
            assert torch.equal(anew.by_time.key, grown.by_time.key)
            assert torch.equal(anew.before(entity, time)[1], grown.before(entity, time)[1])


def test_only_the_latest_arrivals_are_indexed_anew_whatever_their_time() -> None:
    facts = drawn().select(np.array([0]))
    visible = VisibleFacts.of(facts)
    held, number = [TemporalIndex.of(visible)], np.arange(1000)
    columns = np.stack([number % 3, 0 * number, (number + 1) % 3, 5 + number * 7 % 1000])
    for size in (10, 600, 601, 850, 1000):
        arrival = np.argsort(columns[3, :size])
        some = columns[:, arrival].astype(np.int32)
        recent = replace(facts, **dict(zip(FACT, some, strict=True)))
        held.append(TemporalIndex.of(visible.grown(recent, arrival)))
    sizes = [[len(layer) for layer in index._layers] for index in held[1:]]
    assert sizes == [[2, 20], [2, 1200], [2, 1200, 2], [2, 1200, 500], [2, 2000]]
    assert held[2]._layers[1] is held[3]._layers[1] is held[4]._layers[1]
    gone = replace(recent, **{name: getattr(recent, name)[1:] for name in FACT})
    fewer = TemporalIndex.of(visible.grown(gone, arrival[1:]))
    assert [len(layer) for layer in fewer._layers] == [2, 1998]


def test_a_few_recent_facts_cost_nothing_that_grows_with_the_entities() -> None:
    facts = replace(drawn(), entities=range(10**9))  # type: ignore[arg-type]
    index = TemporalIndex.of(VisibleFacts.of(facts))
    entity, time = torch.tensor([0, 1, 5, 10**9 - 1]), torch.full((4,), 9)
    assert index.neighbours.degree(entity, time).tolist() == [2, 2, 0, 0]
    assert index.neighbours.expand(entity, time)[1].tolist() == [1, 2, 0, 1]
    assert index.last_step_of(entity, time).tolist() == [1, 1, -1, -1]
    assert index.facts_of(entity, time).target.tolist() == [1, 2, 0, 1]
    relation = torch.ones_like(entity)
    assert index.slots.usage(entity, relation, time, (2.0,)).count.tolist() == [1, 1, 0, 0]
    assert index.pairs.latest_links(entity, None, time, 1).target.tolist() == [2, 1]
    (layer,) = index._layers
    assert layer.neighbours.start is None
    assert "start" not in vars(layer.by_time)
