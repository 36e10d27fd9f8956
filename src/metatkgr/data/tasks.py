"""Few-shot tasks: for each new entity its first K facts (support) and all later ones (queries)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import Column, Facts, IntArray
from metatkgr.data.orders import pack
from metatkgr.data.periods import Period, Periods, Shots
from metatkgr.data.visibility import (
    Supports,
    Visibility,
    VisibleFacts,
    directed,
    public_facts,
)
from metatkgr.errors import SettingsError

__all__ = ["Answers", "NewEntities", "Queries", "Tasks", "distinct_queries"]


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries (e, r, ?, t), without their answers: all that a model gets to see of them.

    A query for the subject, (?, r, e, t), has the inverse relation r + R.
    """

    entity: IntArray
    """(Q,) the query entity, a new one."""
    relation: IntArray
    """(Q,) directed relation, 0..2R-1."""
    time: IntArray
    """(Q,) step."""

    def __len__(self) -> int:
        return len(self.time)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Queries:
        return Queries(self.entity[rows], self.relation[rows], self.time[rows])

    def columns(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """(Q,) each as tensors; made once, as a model looks up many things for the same queries."""
        if device not in self._columns:
            entity, relation, time = (
                torch.from_numpy(np.ascontiguousarray(column)).to(device)
                for column in (self.entity, self.relation, self.time)
            )
            self._columns[device] = entity, relation, time
        return self._columns[device]

    @cached_property
    def _columns(self) -> dict[torch.device, tuple[Tensor, Tensor, Tensor]]:
        return {}


@dataclass(frozen=True, eq=False)
class Answers:
    """The gold answers. One query of the protocol is one row: a question and one answer to it."""

    question: IntArray
    """(A,) row of the question in ``Tasks.questions``, non-decreasing."""
    answer: IntArray
    """(A,) entity id of the answer."""
    fact: IntArray
    """(A,) row of the fact in ``Tasks.facts``."""
    later: npt.NDArray[np.bool_]
    """(A,) whether the query is later than its entity's last support fact."""

    def __len__(self) -> int:
        return len(self.answer)


@dataclass(frozen=True, eq=False)
class Tasks:
    """All few-shot tasks of one split, with what a model may see while solving them."""

    facts: Facts
    periods: Periods
    split: Period
    shots: int | str
    """K; where it is not the same for all, its range as text ('random': 1-5)."""
    visibility: Visibility
    supports: Supports
    """The supports of every new entity of the split, also of those without a query."""
    support_facts: IntArray
    """Rows of ``facts`` that are in anyone's support."""
    questions: Queries
    """Distinct (e, r, ?, t), ordered by (relation, time, entity) so that neighbours share work."""
    answers: Answers
    visible: VisibleFacts
    """The public facts."""

    @classmethod
    def build(
        cls,
        facts: Facts,
        *,
        shots: int | str | Shots | IntArray = 3,
        visibility: Visibility | str = Visibility.ENTITY_SPLIT,
        split: Period | str = Period.META_TEST,
        periods: Periods | None = None,
        seed: int = 0,
    ) -> Tasks:
        """Make the tasks of one split.

        Args:
            facts: the whole graph.
            shots: K, how many first facts of an entity are its support; 'random' (1-5) or a range
                as '2-4': each entity's K is drawn; or (E,) one K per entity.
            visibility: which facts are public.
            split: the period whose new entities the queries are about (not background).
            periods: the periods of ``facts``, when they are at hand already.
            seed: of each entity's K, where it is drawn.
        """
        split = Period.parse(split) if isinstance(split, str) else split
        visibility = Visibility.parse(visibility) if isinstance(visibility, str) else visibility
        if split is Period.BACKGROUND:
            raise SettingsError("background entities are not new: choose a meta split")
        new = NewEntities.of(facts, periods or Periods.of(facts), split, visibility)
        return new.tasks(shots, seed)

    def sample(self, most: int, seed: int = 0) -> Self:
        """The same tasks with at most so many queries, drawn evenly, and all their answers."""
        count = len(self.questions)
        if count <= most:
            return self
        drawn = np.random.default_rng(seed).permutation(count)[:most]
        return self.only(np.sort(drawn).astype(np.int64))

    def only(self, rows: IntArray) -> Self:
        """The same tasks with some of the queries, by their ascending rows, and all answers."""
        new_row = np.full(len(self.questions), -1, np.int64)
        new_row[rows] = np.arange(len(rows))
        old = self.answers
        kept = new_row[old.question] >= 0
        columns = (old.answer[kept], old.fact[kept], old.later[kept])
        answers = Answers(new_row[old.question[kept]], *columns)
        return replace(self, questions=self.questions[rows], answers=answers)

    def about(self) -> dict[str, Any]:
        """Under which conditions they are evaluated."""
        return {
            "shots": self.shots,
            "visibility": self.visibility.value,
            "split": self.split.label,
            "support_facts": len(self.support_facts),
        }

    @property
    def count(self) -> int:
        """Number of tasks that are evaluated: entities with at least one query."""
        return len(np.unique(self.questions.entity))


@dataclass(frozen=True, eq=False)
class NewEntities:
    """The facts of the entities that emerged in a split, from each new end: what tasks of any K
    are cut from. Ordered by (entity, fact, relation).

    As narrow as facts: of a large graph this is a good part of what a training holds. What is cut
    from it is wide, so that products of ids do not overflow.
    """

    facts: Facts
    periods: Periods
    split: Period
    visibility: Visibility
    entity: Column
    """(L,) the new entity."""
    relation: Column
    """(L,) directed relation, from its side."""
    other: Column
    """(L,) the other end."""
    fact: Column | IntArray
    """(L,) row of the fact."""
    ordinal: Column
    """(L,) 0 for an entity's first fact, 1 for its second, …"""

    @classmethod
    def of(
        cls, facts: Facts, periods: Periods, split: Period, visibility: Visibility
    ) -> NewEntities:
        """Collect them."""
        in_task = periods.of_fact == split
        if visibility is not Visibility.ENTITY_SPLIT and split < Period.META_TEST:
            in_task &= facts.time <= periods.last_step[Period.META_VALIDATION]
        rows = np.flatnonzero(in_task)
        source, relation, target, _ = directed(facts.select(rows), np.int32)
        fact: Column | IntArray = np.repeat(rows, 2)
        fact = fact.astype(np.int32) if len(facts) < 2**31 else fact
        new = np.flatnonzero(periods.of_entity[source] == split)
        # Rows come by (fact, relation); a stable sort leaves those of an entity in this order.
        order = new[torch.sort(torch.from_numpy(source[new]), stable=True).indices.numpy()]
        entity, fact = source[order], fact[order]
        ordinal = _position_in_group(entity, fact)
        columns = (entity, relation[order], target[order], fact, ordinal)
        return cls(facts, periods, split, visibility, *columns)

    def first(self, most: int) -> Self:
        """The same with so many first facts of each entity alone."""
        kept = np.flatnonzero(self.ordinal < most)
        names = ("entity", "relation", "other", "fact", "ordinal")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})

    def in_support(
        self, shots: int | str | Shots | IntArray, seed: int = 0
    ) -> npt.NDArray[np.bool_]:
        """(N,) mask of the facts that are in anyone's support, with K as for ``Tasks.build``."""
        mask = np.zeros(len(self.facts), bool)
        mask[self.fact[self._owned(shots, seed)[0]]] = True
        return mask

    def supports(self, shots: int | str | Shots | IntArray, seed: int = 0) -> Supports:
        """The first K facts of each entity."""
        owned = self._owned(shots, seed)[0]
        columns = (self.entity[owned], self.relation[owned], self.other[owned])
        time = self.facts.time[self.fact[owned]]
        return Supports(*(column.astype(np.int64) for column in (*columns, time)))

    def tasks(self, shots: int | str | Shots | IntArray, seed: int = 0) -> Tasks:
        """The tasks, with what is visible while solving them."""
        facts = self.facts
        supports, in_support = self.supports(shots, seed), self.in_support(shots, seed)
        support_facts = np.flatnonzero(in_support)
        last_support = np.full(len(facts.entities), -1)
        np.maximum.at(last_support, supports.entity, supports.time)
        # A fact of an entity with itself makes one query, in its own direction.
        itself = (self.entity == self.other) & (self.relation >= len(facts.relations))
        in_query = ~in_support[self.fact] & ~itself
        questions, answers = distinct_queries(
            facts,
            self.entity[in_query],
            self.relation[in_query],
            self.other[in_query],
            self.fact[in_query],
            last_support,
        )
        rule = public_facts(self.periods, self.split, self.visibility, support_facts)
        return Tasks(
            facts,
            self.periods,
            self.split,
            self._owned(shots, seed)[1],
            self.visibility,
            supports,
            support_facts,
            questions,
            answers,
            VisibleFacts.by_rule(facts, rule),
        )

    def _owned(
        self, shots: int | str | Shots | IntArray, seed: int
    ) -> tuple[npt.NDArray[np.bool_], int | str]:
        """(L,) which rows are in their entity's support, and what to call K."""
        shots_of, label = _shots_of_each(shots, len(self.facts.entities), seed)
        return self.ordinal < shots_of[self.entity], label


def _shots_of_each(
    shots: int | str | Shots | IntArray, entities: int, seed: int
) -> tuple[IntArray, int | str]:
    """(E,) K of each entity, and what to call it."""
    if isinstance(shots, np.ndarray) and shots.ndim:
        if len(shots) == 0 or shots.min() < 1:
            raise SettingsError(f"shots must be at least 1, not {shots}")
        return shots, Shots(int(shots.min()), int(shots.max())).label
    wanted = Shots.parse(shots if isinstance(shots, int | str | Shots) else int(shots))
    drawn = np.asarray(wanted.of_entities(entities, seed), np.int64)
    return np.broadcast_to(drawn, entities), wanted.label


def _position_in_group(entity: Column, fact: Column | IntArray) -> Column:
    """0 for an entity's first fact, 1 for its second, …; both rows of a self-link count as one."""
    if len(entity) == 0:
        return np.zeros(0, np.int32)
    new_entity = np.ones(len(entity), bool)
    new_entity[1:] = entity[1:] != entity[:-1]
    new_fact = new_entity.copy()
    new_fact[1:] |= fact[1:] != fact[:-1]
    number = np.cumsum(new_fact) - 1
    start = number[new_entity]
    return np.asarray(number - start[np.cumsum(new_entity) - 1], np.int32)


def distinct_queries(
    facts: Facts,
    entity: Column | IntArray,
    relation: Column | IntArray,
    answer: Column | IntArray,
    fact: Column | IntArray,
    last_support: IntArray,
) -> tuple[Queries, Answers]:
    """Distinct (e, r, ?, t) and the answers that belong to each.

    Args:
        facts: the whole graph.
        entity, relation, answer, fact: (L,) by fact, at least those of one entity.
        last_support: (E,) the last step of each entity's support.
    """
    step = facts.time[fact]
    columns = (
        (relation, 2 * len(facts.relations)),
        (step, facts.steps),
        (entity, len(facts.entities)),
    )
    # Stable: the facts of a query stay in their order.
    key = pack(*((torch.from_numpy(column), size) for column, size in columns))
    order = torch.sort(key, stable=True).indices.numpy()
    columns_in_order: list[IntArray] = [
        column[order].astype(np.int64) for column in (entity, relation, answer, fact, step)
    ]
    entity, relation, answer, fact, time = columns_in_order
    first = np.ones(len(order), bool)
    first[1:] = (
        (entity[1:] != entity[:-1]) | (relation[1:] != relation[:-1]) | (time[1:] != time[:-1])
    )
    queries = Queries(entity[first], relation[first], time[first])
    question = (np.cumsum(first) - 1).astype(np.int64)
    return queries, Answers(question, answer, fact, time > last_support[entity])
