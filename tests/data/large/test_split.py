"""The protocol on a folder of facts is the protocol in memory: same facts, supports, queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.large.split import LearnableFacts, StoredSplit
from metatkgr.data.large.store import FactStore
from metatkgr.data.periods import Period, Periods
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.errors import SettingsError
from references import graphs

SPLITS = (Period.META_TRAIN, Period.META_VALIDATION, Period.META_TEST)
VISIBILITIES = st.sampled_from(["entity-split", "frozen", "streaming"])


class Held:
    """Facts in memory that are read as a folder is."""

    def __init__(self, facts: Facts) -> None:
        self.entities, self.relations, self.calendar = (
            facts.entities,
            facts.relations,
            facts.calendar,
        )
        self.name, self.steps, self._facts = facts.name, facts.steps, facts

    def __len__(self) -> int:
        return len(self._facts)

    def read(self, low: int, high: int) -> tuple[IntArray, ...]:
        part = self._facts.select(np.arange(low, high))
        return part.subject, part.relation, part.object, part.time

    def blocks(self, rows: int) -> Iterator[tuple[IntArray, ...]]:
        for low in range(0, len(self), rows):
            yield self.read(low, min(low + rows, len(self)))


def split_of(facts: Facts, rows: int, **options: Any) -> StoredSplit:
    return StoredSplit(cast(FactStore, Held(facts)), rows=rows, **options)


def links(learnable: LearnableFacts, rows: int) -> set[tuple[int, ...]]:
    """Everything that is read, in both directions; each fact once."""
    seen: set[tuple[int, ...]] = set()
    relations = len(learnable.relations)
    for low in range(0, len(learnable), rows):
        for s, r, o, t in zip(*learnable.read(low, min(low + rows, len(learnable))), strict=True):
            assert (s, r, o, t) not in seen or s == o
            seen |= {(s, r, o, t), (o, r + relations, s, t)}
    return seen


def rows_of(facts: VisibleFacts) -> set[tuple[int, ...]]:
    columns = facts.source, facts.relation, facts.target, facts.time
    return set(zip(*(c.tolist() for c in columns), strict=True))


def supports_of(tasks: Tasks) -> list[tuple[int, ...]]:
    own = tasks.supports
    columns = (own.entity, own.relation, own.other, own.time)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def queries_of(tasks: Tasks) -> list[tuple[int, ...]]:
    """In order: entity, relation, time, answer, and whether it is later than the support."""
    asked, given_ = tasks.questions, tasks.answers
    columns = [c[given_.question] for c in (asked.entity, asked.relation, asked.time)]
    return list(zip(*(c.tolist() for c in (*columns, given_.answer, given_.later)), strict=True))


@given(
    facts=graphs(),
    rows=st.integers(1, 40),
    visibility=VISIBILITIES,
    shots=st.sampled_from([1, 3, "random"]),
    test_shots=st.sampled_from([None, 2]),
)
@settings(max_examples=40, deadline=None)
def test_nothing_is_seen_that_would_not_be_in_memory(
    facts: Facts, rows: int, visibility: str, shots: int | str, test_shots: int | None
) -> None:
    options = {"shots": shots, "test_shots": test_shots, "visibility": visibility, "seed": 4}
    problem, split = Problem.of(facts, **options), split_of(facts, rows, **options)  # type: ignore[arg-type]
    whole = Periods.of(facts)
    assert np.array_equal(split.periods.of_entity, whole.of_entity)
    assert np.array_equal(split.periods.last_step, whole.last_step)
    assert links(split.learnable(), rows) == rows_of(problem.known)
    assert links(split.learnable(Period.META_TRAIN), rows) == rows_of(problem.few_shot)
    for period, theirs in ((SPLITS[0], problem.train), (SPLITS[1], problem.validation)):
        ours = split.tasks(period, 10_000)
        assert supports_of(ours.tasks) == supports_of(theirs)
        assert queries_of(ours.tasks) == queries_of(theirs)
        assert ours.queries == len(theirs.answers)
    assert np.array_equal(split.tasks(SPLITS[2], 1).tasks.supports.time, problem.newest.time)


def test_some_questions_are_drawn_evenly_with_all_their_answers() -> None:
    facts = simulate(facts=3000, seed=1)
    split = split_of(facts, 700)
    whole = split.tasks(Period.META_TEST, 10**6)
    every = queries_of(whole.tasks)
    times = np.zeros(facts.steps)
    for seed in range(40):
        some = split.tasks(Period.META_TEST, 50, seed)
        assert some.queries == whole.queries == len(every)
        assert len(some.tasks.questions) == 50
        asked = {row[:3] for row in queries_of(some.tasks)}
        assert queries_of(some.tasks) == [row for row in every if row[:3] in asked]
        assert supports_of(some.tasks) == supports_of(whole.tasks)
        np.add.at(times, some.tasks.questions.time, 1)
    mean = np.average(np.arange(facts.steps), weights=times)
    assert mean == pytest.approx(whole.tasks.questions.time.mean(), rel=0.01)
    again = split_of(facts, 64).tasks(Period.META_TEST, 50, 39).tasks
    assert queries_of(again) == queries_of(some.tasks), "whatever the blocks"
    with pytest.raises(SettingsError, match="at least one"):
        split.tasks(Period.META_TEST, 0)
