"""Batched PageRank and its rule equal a walker's literal bookkeeping on random graphs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Tasks
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.pagerank import PageRank, Without
from metatkgr.models import create
from references import (
    ENTITIES,
    RELATIONS,
    LiteralProtocol,
    Query,
    graphs,
    literal_shares,
    recurrency_parts,
    tuples,
)

visibilities = st.sampled_from(["entity-split", "frozen", "streaming"])


def questions(tasks: Tasks) -> list[tuple[int, int, int]]:
    asked = tasks.questions
    columns = (asked.entity, asked.relation, asked.time)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(facts=graphs(), visibility=visibilities, shots=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_shares_are_the_walkers(facts: Facts, visibility: str, shots: int) -> None:
    tasks = Tasks.build(facts, shots=shots, visibility=visibility)
    literal = LiteralProtocol(tuples(facts), RELATIONS, shots=shots, visibility=visibility, split=3)
    pagerank = PageRank(
        TemporalIndex.of(tasks.visible).neighbours,
        tasks.supports,
        restart=0.2,
        steps=5,
        threshold=1e-9,
    )
    asked = tasks.questions
    walks = pagerank.walks(torch.from_numpy(asked.entity), torch.from_numpy(asked.time))
    shares, near = torch.zeros(2, len(asked), ENTITIES)
    shares[walks.row, walks.entity], near[walks.row, walks.entity] = walks.far, walks.near
    for row, (entity, _, time) in enumerate(questions(tasks)):
        expected = literal_shares(literal, entity, time, 0.2, 5)
        assert shares[row].tolist() == pytest.approx(expected, abs=1e-5)
        short = literal_shares(literal, entity, time, 0.2, 3)
        assert near[row].tolist() == pytest.approx(short, abs=1e-5)
        assert float(walks.lost[row]) == pytest.approx(1 - sum(expected), abs=1e-5)


@given(facts=graphs(), visibility=visibilities, shots=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_rule_orders_by_past_then_walk_then_frequency(
    facts: Facts, visibility: str, shots: int
) -> None:
    tasks = Tasks.build(facts, shots=shots, visibility=visibility)
    literal = LiteralProtocol(tuples(facts), RELATIONS, shots=shots, visibility=visibility, split=3)
    scores = (
        create("pagerank")
        .prepare(tasks.visible)
        .adapt(tasks.supports)
        .score(tasks.questions)
        .dense()
    )
    for row, (entity, relation, time) in enumerate(questions(tasks)):
        query = Query(entity, relation, time, answer=-1)
        parts = recurrency_parts(literal, query, ENTITIES, walks=False)
        near = literal_shares(literal, entity, time, 0.15, 12)
        # A hundredth of the walkers that are not home after 12 steps is given out by frequency.
        part = 0.01 * (1 - sum(near)) / max(sum(frequency for *_, frequency in parts), 1)
        for one in range(ENTITIES):
            for other in range(ENTITIES):
                kept = [near[x] + part * parts[x][2] if parts[x][2] else 0.0 for x in (one, other)]
                if abs(kept[0] - kept[1]) < 1e-6:
                    kept = [0.0, 0.0]  # a tie, up to rounding
                left, right = (
                    (*parts[x][:2], share, parts[x][2])
                    for x, share in zip((one, other), kept, strict=True)
                )
                if left[:3] > right[:3]:
                    assert scores[row, one] > scores[row, other]


@given(facts=graphs(), visibility=visibilities, shots=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_without_a_neighbour_of_the_support_walks_are_those_without_that_fact(
    facts: Facts, visibility: str, shots: int
) -> None:
    """Such a neighbour is none of the public ones, whose number must not shrink with it."""
    tasks = Tasks.build(facts, shots=shots, visibility=visibility)
    neighbours, supports = TemporalIndex.of(tasks.visible).neighbours, tasks.supports
    for entity, _, time in questions(tasks):
        start = torch.tensor([entity]), torch.tensor([time])
        public = neighbours.each(neighbours.before(*start))[1].tolist()
        for other in set(supports.other[supports.entity == entity].tolist()) - {*public}:
            rest = supports[(supports.entity != entity) | (supports.other != other)]
            one = Without(torch.tensor([other]), torch.tensor([[True]]))
            left_out = PageRank(neighbours, supports).walks(*start, one)
            never_there = PageRank(neighbours, rest).walks(*start)
            assert left_out.entity.tolist() == never_there.entity.tolist()
            assert left_out.far.tolist() == pytest.approx(never_there.far.tolist())


@given(facts=graphs(), visibility=visibilities, shots=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_walks_without_several_neighbours_are_the_same_together_as_alone(
    facts: Facts, visibility: str, shots: int
) -> None:
    """To the bit: without none, without each neighbour, and without all of them."""
    tasks = Tasks.build(facts, shots=shots, visibility=visibility)
    pagerank = PageRank(TemporalIndex.of(tasks.visible).neighbours, tasks.supports)
    asked = dict.fromkeys((e, t) for e, _, t in questions(tasks))
    for entity, time in asked:
        start = torch.tensor([entity]), torch.tensor([time])
        public = pagerank.neighbours.each(pagerank.neighbours.before(*start))[1]
        own = torch.from_numpy(tasks.supports.other[tasks.supports.entity == entity])
        others = torch.unique(torch.cat([public, own]))
        left = torch.eye(len(others), dtype=torch.bool)
        left = torch.cat([torch.zeros_like(left[:, :1]), left, torch.ones_like(left[:, :1])], 1)
        together = pagerank.walks(*start, Without(others, left))
        for number in range(left.shape[1]):
            (rows,) = torch.nonzero(together.row == number, as_tuple=True)
            some = left[:, number]
            alone = pagerank.walks(*start, Without(others[some], torch.ones_like(left[some, :1])))
            assert together.lost[number] == alone.lost[0]
            for name in ("entity", "far", "near"):
                assert torch.equal(getattr(together, name)[rows], getattr(alone, name))
    if asked:
        # Of several starts the same, one after another.
        who, when = torch.tensor(list(zip(*asked, strict=True)))
        nobody = Without(who[:0], torch.zeros(0, 2, dtype=torch.bool))
        twice, once = pagerank.walks(who, when, nobody), pagerank.walks(who, when)
        assert torch.equal(twice.lost, once.lost.repeat_interleave(2))
        for name in ("entity", "far", "near"):
            both = getattr(twice, name)[twice.row % 2 == 1]
            assert torch.equal(both, getattr(once, name))
