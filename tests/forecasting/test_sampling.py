"""Queries to calibrate by are what is asked live, drawn without reading a large graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import metatkgr as mt
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.periods import Period, Periods
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.forecasting.sampling import DrawnQueries
from metatkgr.graph.index import TemporalIndex

SPLITS = [Period.META_TRAIN, Period.META_VALIDATION, Period.META_TEST]


def drawn(facts: Facts, split: Period, shots: int | str, **arguments: Any) -> DrawnQueries:
    index = TemporalIndex.of(VisibleFacts.of(facts))
    return DrawnQueries.of(facts, index, split, shots, **arguments)


def rows_of(found: DrawnQueries) -> list[tuple[int, ...]]:
    columns = (found.queries.relation, found.queries.time, found.queries.entity, found.answer)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def wanted(facts: Facts, split: Period, shots: int | str) -> tuple[list[tuple[int, ...]], Any]:
    """Those of the tasks, and what is in a support of the answer but not of the query entity."""
    tasks = Tasks.build(facts, shots=shots, visibility="streaming", split=split)
    asked = tasks.questions[tasks.answers.question]
    columns = (asked.relation, asked.time, asked.entity, tasks.answers.answer)
    found = set(zip(*(column.tolist() for column in columns), strict=True))
    own = tasks.supports
    kept = set(zip(*map(np.ndarray.tolist, own.directed()), strict=True))
    period, half = Periods.of(facts).of_entity, len(facts.relations)
    last = Periods.last_steps(facts)[max(split, Period.META_VALIDATION)]
    for s, r, o, t in zip(facts.subject, facts.relation, facts.object, facts.time, strict=True):
        for e, relation, x in {(int(s), int(r), int(o)), (int(o), int(r) + half, int(s))}:
            itself = e == x and relation >= half
            mine = period[e] == split and period[x] <= split and t <= last and not itself
            if mine and (e, relation, x, int(t)) not in kept:
                found.add((relation, int(t), e, x))
    return sorted(found, key=lambda row: row[:3]), own


facts = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 1), st.integers(0, 9), st.integers(0, 20)),
    min_size=2,
    max_size=60,
)


@given(rows=facts, split=st.sampled_from(SPLITS), shots=st.sampled_from([1, 2, "1-3"]))
def test_in_a_small_graph_all_queries_are_drawn(
    rows: list[Any], split: Period, shots: int | str
) -> None:
    names = Vocabulary.numbered(10), Vocabulary.numbered(2)
    graph = Facts.build(*map(list, zip(*rows, strict=True)), entities=names[0], relations=names[1])
    found = drawn(graph, split, shots)
    answers, supports = wanted(graph, split, shots)
    assert sorted(rows_of(found)) == sorted(answers)
    assert [row[:3] for row in rows_of(found)] == [row[:3] for row in answers]
    for name in ("entity", "relation", "other", "time"):
        assert getattr(found.supports, name).tolist() == getattr(supports, name).tolist()


@pytest.mark.parametrize("split", SPLITS)
def test_of_a_large_period_some_facts_are_looked_at(split: Period) -> None:
    graph = mt.load("world:20000:1")
    answers, supports = wanted(graph, split, 3)
    found = rows_of(drawn(graph, split, 3, most=300))
    assert 0 < len(found) <= 600
    assert set(found) <= set(answers)
    other = rows_of(drawn(graph, split, 3, most=300, seed=1))
    assert other != found
    assert rows_of(drawn(graph, split, 3, most=300)) == found
    own = drawn(graph, split, 3, most=300).supports
    assert set(np.unique(own.entity)) <= set(np.unique(supports.entity))
    assert own.of(int(own.entity[0])).time.tolist() == supports.of(int(own.entity[0])).time.tolist()
