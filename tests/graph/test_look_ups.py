"""Look-ups of single entities, slots and neighbours are those of loops over all facts."""

from __future__ import annotations

from collections import Counter
from math import exp

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.visibility import VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.layer import LinkLayer
from references import ENTITIES, RELATIONS, graphs, layered, tuples

Link = tuple[int, int, int, int]
DECAYS = (2.0, 10.0, 50.0)


def links_of(facts: Facts, relations: int) -> list[Link]:
    """Both directions of each fact, in the order of time."""
    return [
        link for s, r, o, t in tuples(facts) for link in ((s, r, o, t), (o, r + relations, s, t))
    ]


def moments(facts: Facts, entities: int) -> tuple[Tensor, Tensor]:
    """Every entity at every time, and at times before and after all facts."""
    times = torch.tensor([-5, *range(facts.steps + 2), 10**9])
    return torch.arange(entities).repeat_interleave(len(times)), times.repeat(entities)


def split_index(facts: Facts, part: np.ndarray) -> TemporalIndex:
    """An index with one layer for each part of the facts."""
    return TemporalIndex(
        [
            LinkLayer(
                VisibleFacts.of(facts.select(part == number)),
                entities=len(facts.entities),
                relations=2 * len(facts.relations),
                device=torch.device("cpu"),
            )
            for number in range(int(part.max()) + 1)
        ]
    )


@st.composite
def in_layers(draw: st.DrawFn) -> tuple[Facts, TemporalIndex]:
    """A graph and its index: of one, two or three layers, some with entities that came later."""
    if draw(st.booleans()):
        facts, visible = draw(layered())
        return facts, TemporalIndex.of(visible)
    facts = draw(graphs())
    parts = st.lists(st.integers(0, 2), min_size=len(facts), max_size=len(facts))
    return facts, split_index(facts, np.array(draw(parts)))


@given(graph=in_layers())
@settings(max_examples=40, deadline=None)
def test_first_and_last_steps(graph: tuple[Facts, TemporalIndex]) -> None:
    facts, index = graph
    entity, time = moments(facts, ENTITIES)
    links = links_of(facts, RELATIONS)
    never = int(index.first_step_of(torch.tensor([ENTITIES])))
    assert never > 2**40
    first = index.first_step_of(entity.view(ENTITIES, -1))
    assert first.shape == (ENTITIES, len(entity) // ENTITIES)
    for e in range(ENTITIES):
        assert int(first[e, 0]) == min((t for s, _, _, t in links if s == e), default=never)
    assert torch.equal(index.first_seen, first[:, 0])
    columns = (entity, time, index.last_step_of(entity, time))
    for e, t, last in zip(*(column.tolist() for column in columns), strict=True):
        assert last == max((u for s, _, _, u in links if s == e and u < t), default=-1)


@given(graph=in_layers(), most=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_neighbours_are_those_of_a_plain_search(
    graph: tuple[Facts, TemporalIndex], most: int
) -> None:
    facts, index = graph
    entity, time = moments(facts, ENTITIES)
    began: dict[tuple[int, int], int] = {}
    for s, _, o, t in links_of(facts, RELATIONS):
        began.setdefault((s, o), t)
    degree = index.neighbours.degree(entity, time)
    every, latest = (index.neighbours.expand(entity, time, n) for n in (None, most))
    for number, (e, t) in enumerate(zip(entity.tolist(), time.tolist(), strict=True)):
        expected = [x for _, x in sorted((u, o) for (s, o), u in began.items() if s == e and u < t)]
        assert int(degree[number]) == len(expected)
        assert every[1][every[0] == number].tolist() == expected
        assert latest[1][latest[0] == number].tolist() == expected[-most:]
    for found in (every, latest):
        assert bool((found[0].diff() >= 0).all())
    source, target, first = (column.tolist() for column in index.neighbours.pairs())
    assert list(zip(zip(source, target, strict=True), first, strict=True)) == sorted(began.items())


@given(graph=in_layers())
@settings(max_examples=20, deadline=None)
def test_usage_of_slots_is_that_of_a_plain_search(graph: tuple[Facts, TemporalIndex]) -> None:
    facts, index = graph
    time = torch.tensor([-5, 0, *range(1, facts.steps + 2, 3), 10**9])
    links = links_of(facts, RELATIONS)
    for relation in range(2 * RELATIONS):
        for t in time.tolist():
            entity = torch.arange(ENTITIES)
            columns = (torch.full_like(entity, relation), torch.full_like(entity, t))
            usage = index.slots.usage(entity, *columns, DECAYS)
            past = [(o, u) for _, r, o, u in links if r == relation and u < t]
            for e in range(ENTITIES):
                steps = [u for o, u in past if o == e]
                assert int(usage.count[e]) == len(steps)
                assert int(usage.last[e]) == max(steps, default=-1)
                for decayed, tau in zip(usage.decayed, DECAYS, strict=True):
                    right = sum(exp(-(t - u) / tau) for u in steps)
                    assert float(decayed[e]) == pytest.approx(right, abs=1e-5)


@given(graph=in_layers(), most=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_the_latest_fillers_of_a_slot(graph: tuple[Facts, TemporalIndex], most: int) -> None:
    facts, index = graph
    time = torch.tensor([0, *range(1, facts.steps + 2), 10**9])
    links = links_of(facts, RELATIONS)
    for relation in range(2 * RELATIONS):
        row, filler, step = index.slots.recent(torch.full_like(time, relation), time, most)
        assert bool((row.diff() >= 0).all())
        for number, t in enumerate(time.tolist()):
            past = [(o, u) for _, r, o, u in links if r == relation and u < t]
            mine = row == number
            found = list(zip(filler[mine].tolist(), step[mine].tolist(), strict=True))
            assert [u for _, u in found] == [u for _, u in past[-most:]]
            # Which of equally late ones came later depends on who tells; what is left does not.
            assert not Counter(found) - Counter(past)


@given(graph=in_layers(), asked=st.lists(st.integers(0, 2 * RELATIONS - 1), max_size=6))
@settings(max_examples=30, deadline=None)
def test_what_is_made_of_a_slot_is_the_same_when_it_is_asked_for_again(
    graph: tuple[Facts, TemporalIndex], asked: list[int]
) -> None:
    facts, index = graph
    made: list[int] = []

    def latest(relation: Tensor, time: Tensor) -> tuple[Tensor, ...]:
        made.extend(relation.tolist())
        return index.slots.recent(relation, time, 3)

    every = torch.arange(2 * RELATIONS)
    for relation in (torch.tensor(sorted(set(asked)), dtype=torch.int64), every, every[1:2]):
        time = torch.full_like(relation, facts.steps)
        found = index.slots.remembered("latest", relation, time, latest)
        for one, other in zip(found, index.slots.recent(relation, time, 3), strict=True):
            assert one.tolist() == other.tolist()
    assert sorted(made) == every.tolist(), "each slot once"
    # Those of queries, in any order and some of them twice.
    relation = torch.tensor([*asked, *asked[:2]], dtype=torch.int64)
    time = torch.full_like(relation, facts.steps)
    found = index.slots.remembered_of_each("latest", relation, time, latest)
    for one, other in zip(found, index.slots.recent(relation, time, 3), strict=True):
        assert one.tolist() == other.tolist()
    assert sorted(made) == every.tolist(), "nothing is made again"


@given(graph=in_layers())
@settings(max_examples=60, deadline=None)
def test_ranks_of_counts_are_those_of_counting(graph: tuple[Facts, TemporalIndex]) -> None:
    facts, index = graph
    links = links_of(facts, RELATIONS)
    asked = [
        (relation, t, count)
        for relation in range(2 * RELATIONS)
        for t in (-1, 0, facts.steps // 2, facts.steps - 1, facts.steps, 10**9)
        for count in range(9)
    ]
    relation, time, count = torch.tensor(asked).T.contiguous()
    more, equal = index.slots.count_ranks(relation, time, count)
    for row, (r, t, c) in enumerate(asked):
        counts = Counter(o for _, kind, o, u in links if kind == r and u < t)
        every = [counts[e] for e in range(ENTITIES)]
        assert int(more[row]) == sum(n > c for n in every)
        assert int(equal[row]) == sum(n == c for n in every)


@pytest.mark.parametrize("block", [1, 100, 1 << 18])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_long_rows_and_many_look_ups_at_once(
    parts: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far more facts of a slot than lie between two kept sums; times that are far apart."""
    for module in ("layer", "usage"):
        monkeypatch.setattr(f"metatkgr.graph.{module}._BLOCK", block)
    rng = np.random.default_rng(parts)
    size = 900
    time = np.sort(np.where(rng.random(size) < 0.5, rng.integers(0, 30, size), 5000))
    time[size // 2 :] += rng.integers(0, 4000, size - size // 2)
    time.sort()
    columns = (rng.integers(0, 4, size), rng.integers(0, 2, size), rng.integers(0, 3, size), time)
    facts = Facts(
        *(c.astype(np.int32) for c in columns), Vocabulary.numbered(4), Vocabulary.numbered(2)
    )
    index = split_index(facts, rng.integers(0, parts, size))
    entity, relation = torch.tensor([(e, r) for e in range(4) for r in range(4)]).T.contiguous()
    entity, relation = entity.repeat(50), relation.repeat(50)
    when = torch.from_numpy(rng.choice(np.r_[time, time + 1, [-1, 9001, 10**7]], len(entity)))
    usage = index.slots.usage(entity, relation, when, DECAYS)
    more, _ = index.slots.count_ranks(relation, when, usage.count)
    links = links_of(facts, 2)
    for row, (e, r, t) in enumerate(
        zip(entity.tolist(), relation.tolist(), when.tolist(), strict=True)
    ):
        past = [(o, u) for _, kind, o, u in links if kind == r and u < t]
        steps = [u for o, u in past if o == e]
        assert int(usage.count[row]) == len(steps)
        assert int(usage.last[row]) == max(steps, default=-1)
        for decayed, tau in zip(usage.decayed, DECAYS, strict=True):
            right = sum(exp(-(t - u) / tau) for u in steps)
            assert float(decayed[row]) == pytest.approx(right, rel=1e-5, abs=1e-6)
        counts = Counter(o for o, _ in past)
        assert int(more[row]) == sum(counts[x] > len(steps) for x in range(4))


@given(case=in_layers())
@settings(max_examples=60, deadline=None)
def test_relations_go_together_by_pairs_that_had_both_before(
    case: tuple[Facts, TemporalIndex],
) -> None:
    facts, index = case
    relations = index.relations
    links = links_of(facts, relations // 2)
    kinds = torch.arange(relations)
    one, other = kinds.repeat_interleave(relations), kinds.repeat(relations)
    for time in (-5, *range(facts.steps + 2), 10**9):
        pairs = [{(a, b) for a, q, b, t in links if q == kind and t < time} for kind in kinds]
        share = index.co_occurrence.share(one, other, torch.full_like(one, time))
        expected = [
            len(pairs[a] & pairs[b]) / (len(pairs[a]) + 5)
            for a, b in zip(one.tolist(), other.tolist(), strict=True)
        ]
        torch.testing.assert_close(share, torch.tensor(expected))
