"""Snapshots and active steps against loops over facts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.snapshots import ActiveSteps, Snapshots
from references import ENTITIES, RELATIONS, graphs


def some_facts(rows: list[tuple[int, int, int, int]], entities: int = 5) -> VisibleFacts:
    """Facts (s, r, o, t) of two relations."""
    subject, relation, obj, time = (list(column) for column in zip(*rows, strict=True))
    names = Vocabulary.numbered(entities), Vocabulary.numbered(2)
    facts = Facts.build(subject, relation, obj, time, entities=names[0], relations=names[1])
    return VisibleFacts.of(facts)


#   step 0: 0 -r0-> 1            step 2: 2 -r1-> 0, 1 -r1-> 0            step 3: 0 -r0-> 1
ROWS = [(0, 0, 1, 0), (2, 1, 0, 2), (1, 1, 0, 2), (0, 0, 1, 3)]


def test_a_window_holds_the_last_steps_with_facts_strictly_before_a_time() -> None:
    snapshots = Snapshots(some_facts(ROWS))
    assert snapshots.steps.tolist() == [0, 2, 3]
    window = snapshots.window(torch.tensor([0, 1, 2, 3, 4, 99]), 2)
    assert window.tolist() == [[-1, -1], [-1, 0], [-1, 0], [0, 1], [1, 2], [1, 2]]


@given(graphs(), st.lists(st.integers(-1, 3), min_size=1, max_size=4))
def test_copies_of_snapshots_hold_the_facts_of_their_steps(facts: Facts, wanted: list[int]) -> None:
    visible = VisibleFacts.of(facts)
    snapshots = Snapshots(visible)
    chosen = [min(number, len(snapshots) - 1) for number in wanted]
    graph = snapshots.graph(torch.tensor(chosen))
    columns = (visible.source, visible.relation, visible.target, visible.time)
    links = list(zip(*(column.tolist() for column in columns), strict=True))
    expected, members = [], []
    for copy, number in enumerate(chosen):
        here = [link for link in links if number >= 0 and link[3] == snapshots.steps[number]]
        for s, r, o, _ in here:
            degree = sum(link[2] == o for link in here)
            row = (copy * ENTITIES + s, copy * 2 * RELATIONS + r, copy * ENTITIES + o)
            expected.append((*row, pytest.approx(1 / degree)))
        for relation in range(RELATIONS):
            ends = {s for s, r, _, _ in here if r % RELATIONS == relation}
            members += [
                (copy * RELATIONS + relation, copy * ENTITIES + e, pytest.approx(1 / len(ends)))
                for e in sorted(ends)
            ]
    found = (graph.source, graph.relation, graph.target, graph.share[:, 0])
    assert list(zip(*(c.tolist() for c in found), strict=True)) == expected
    found = (graph.member_relation, graph.member_entity, graph.member_share[:, 0])
    assert list(zip(*(c.tolist() for c in found), strict=True)) == members


def history_of(active: ActiveSteps, entity: int, time: int, length: int) -> list[tuple[int, bool]]:
    """(step, whether it is an own step) of a question's history, oldest first."""
    node, mask = active.before(torch.tensor([entity]), torch.tensor([time]), length)
    seen = node[0][mask[0]]
    assert (active.entity[seen] == entity).all()
    own = seen >= active.first_own
    return list(zip(active.time[seen].tolist(), own.tolist(), strict=True))


@given(graphs(), st.integers(0, ENTITIES - 1), st.integers(0, 30), st.integers(1, 4))
def test_a_history_is_the_last_active_steps_before_a_time(
    facts: Facts, entity: int, time: int, length: int
) -> None:
    visible = VisibleFacts.of(facts)
    active = ActiveSteps(TemporalIndex.of(visible))
    mine = visible.time[(visible.source == entity) & (visible.time < time)]
    expected = [(int(step), False) for step in np.unique(mine)[-length:]]
    assert history_of(active, entity, time, length) == expected


def test_own_supports_that_are_not_public_yet_end_the_owners_history_only() -> None:
    visible = some_facts(ROWS)
    supports = Supports(*(np.array(c) for c in ([1, 1, 1], [2, 1, 2], [0, 0, 0], [0, 2, 3])))
    active = ActiveSteps(TemporalIndex.of(visible), supports)
    assert history_of(active, 1, 2, 10) == [(0, False), (2, True), (3, True)]
    assert history_of(active, 1, 2, 2) == [(2, True), (3, True)]
    assert history_of(active, 1, 9, 10) == [(0, False), (2, False), (3, False)]
    assert history_of(active, 0, 2, 10) == [(0, False)]


def test_whom_one_met_in_a_step_that_is_not_public_yet_has_no_links() -> None:
    supports = Supports(*(np.array(c) for c in ([1], [1], [0], [2])))
    active = ActiveSteps(TemporalIndex.of(some_facts(ROWS)), supports)
    node, mask = active.before(torch.tensor([1]), torch.tensor([1]), 1)
    assert mask.all()
    _, link = active.links(node[0], 9)
    met = active.met[link]
    assert active.entity[met].tolist() == [0]
    assert active.degree[met].tolist() == [0]


def test_links_lead_to_the_other_entity_in_the_same_step() -> None:
    active = ActiveSteps(TemporalIndex.of(some_facts(ROWS)))
    node, _ = active.before(torch.tensor([0]), torch.tensor([3]), 1)
    row, link = active.links(node[0], 9)
    assert row.tolist() == [0, 0]
    assert active.relation[link].tolist() == [3, 3]
    assert active.entity[active.met[link]].tolist() == [2, 1]
    assert active.time[active.met[link]].tolist() == [2, 2]
    _, last = active.links(node[0], 1)
    assert active.entity[active.met[last]].tolist() == [1]


def test_no_facts_make_no_snapshots() -> None:
    nothing = some_facts(ROWS)
    nothing = VisibleFacts.of(nothing.base, np.zeros(len(nothing.base), bool))
    snapshots = Snapshots(nothing)
    assert len(snapshots) == 0
    assert snapshots.window(torch.tensor([5]), 2).tolist() == [[-1, -1]]
    assert len(snapshots.graph(torch.tensor([-1])).source) == 0
    active = ActiveSteps(TemporalIndex.of(nothing))
    assert not active.before(torch.tensor([1]), torch.tensor([5]), 2)[1].any()
