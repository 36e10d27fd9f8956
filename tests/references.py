"""Slow, literal references of the protocol, written from its text with loops and sets.

Nothing here shares code with the package: a fast implementation that agrees with these on random
graphs implements the protocol.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st
from torch import Tensor

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import VisibleFacts
from metatkgr.models.base import Model
from metatkgr.models.common.listed import ListedScores

Fact = tuple[int, int, int, int]


def dense(model: Model[Any], queries: Queries) -> Tensor:
    """(Q, E) scores of all entities, also where a model lists only some."""
    scores = model.score(queries)
    return scores.dense() if isinstance(scores, ListedScores) else scores


SHARES = (Fraction(2, 5), Fraction(13, 20), Fraction(3, 4))
META_TRAIN, META_VALIDATION, META_TEST = 1, 2, 3


@dataclass
class Task:
    entity: int
    support: list[Fact] = field(default_factory=list)
    queries: list[Fact] = field(default_factory=list)


@dataclass
class Query:
    entity: int
    relation: int
    """Directed: r for (e, r, ?), r + R for (?, r, e)."""
    time: int
    answer: int


class LiteralProtocol:
    """PROTOCOL, word by word, for facts given as tuples in chronological order."""

    def __init__(
        self, facts: list[Fact], relations: int, *, shots: int, visibility: str, split: int
    ) -> None:
        self.facts, self.relations = facts, relations
        self.shots, self.visibility, self.split = shots, visibility, split
        first_time, last_time = facts[0][3], facts[-1][3]
        self.ends = [first_time + share * (last_time - first_time) for share in SHARES]
        self.emerged: dict[int, int] = {}
        for s, _, o, t in facts:
            for e in (s, o):
                self.emerged.setdefault(e, t)
        self.tasks = self._tasks()
        self.in_support = {fact for task in self.tasks.values() for fact in task.support}
        for task in self.tasks.values():
            task.queries = [f for f in self._facts_of(task.entity) if f not in self.in_support]

    def period(self, entity: int) -> int:
        return sum(self.emerged[entity] > end for end in self.ends)

    def fact_period(self, fact: Fact) -> int:
        return max(self.period(fact[0]), self.period(fact[2]))

    def _facts_of(self, entity: int) -> list[Fact]:
        mine = [
            f for f in self.facts if entity in (f[0], f[2]) and self.fact_period(f) == self.split
        ]
        if self.visibility != "entity-split" and self.split < META_TEST:
            mine = [f for f in mine if f[3] <= self.ends[META_VALIDATION]]
        return mine

    def _tasks(self) -> dict[int, Task]:
        tasks = {}
        for entity in self.emerged:
            if self.period(entity) == self.split:
                facts = self._facts_of(entity)
                if facts:
                    tasks[entity] = Task(entity, support=facts[: self.shots])
        return tasks

    def queries(self) -> list[Query]:
        result = []
        for task in self.tasks.values():
            for s, r, o, t in task.queries:
                if s == task.entity:
                    result.append(Query(task.entity, r, t, o))
                else:
                    result.append(Query(task.entity, r + self.relations, t, s))
        return result

    def visible(self, entity: int, time: int) -> list[Fact]:
        """What a model may see for a query of ``entity`` at ``time``."""
        own = set(self.tasks[entity].support) if entity in self.tasks else set()
        result = []
        for fact in self.facts:
            if fact in own:
                result.append(fact)
            elif fact[3] < time:
                if self.visibility == "entity-split":
                    public = self.fact_period(fact) < self.split
                elif self.visibility == "frozen":
                    public = fact[3] <= self.ends[self.split - 1]
                else:
                    public = True
                if public or fact in self.in_support:
                    result.append(fact)
        return result

    def links(self, facts: list[Fact]) -> list[Fact]:
        """Facts in both directions."""
        both = []
        for s, r, o, t in facts:
            both += [(s, r, o, t), (o, r + self.relations, s, t)]
        return both


def recurrency_parts(
    protocol: LiteralProtocol, query: Query, entities: int, *, walks: bool
) -> list[tuple[int, ...]]:
    """The rule's lexicographic score of every candidate."""
    links = protocol.links(protocol.visible(query.entity, query.time))
    past = [link for link in links if link[3] < query.time]
    scores = []
    for x in range(entities):
        same = [t for s, r, o, t in links if (s, r, o) == (query.entity, query.relation, x)]
        any_link = [t for s, _, o, t in links if (s, o) == (query.entity, x)]
        place = sum(1 for _, r, o, _ in past if (r, o) == (query.relation, x))
        parts = [max(same, default=-1), max(any_link, default=-1)]
        if walks:
            distinct = {(s, o) for s, r, o, _ in past if r == query.relation}
            parts.append(
                sum(
                    1
                    for (a, y) in distinct
                    if a == query.entity
                    for (z, y2) in distinct
                    if y2 == y
                    for (z2, x2) in distinct
                    if z2 == z and x2 == x
                )
            )
        scores.append((*parts, place))
    return scores


def literal_shares(
    protocol: LiteralProtocol, entity: int, time: int, restart: float, steps: int
) -> list[float]:
    """Follow the walker's probability from entity to entity, in dictionaries."""
    links = protocol.links(protocol.visible(entity, time))
    neighbours: dict[int, set[int]] = defaultdict(set)
    for source, _, target, when in links:
        if when < time:
            neighbours[source].add(target)
    first = neighbours[entity] | {target for source, _, target, _ in links if source == entity}
    at = {entity: 1.0}
    shares = [0.0] * ENTITIES
    shares[entity] += restart
    for number in range(steps):
        moved: dict[int, float] = defaultdict(float)
        for place, probability in at.items():
            reachable = first if number == 0 else neighbours[place]
            for target in reachable:
                moved[target] += (1 - restart) * probability / len(reachable)
        at = moved
        for place, probability in at.items():
            shares[place] += restart * probability
    return shares


def literal_rank(scores: list[tuple[int, ...]], query: Query, true: set[int]) -> float:
    """1 + #better + #equal/2 among all candidates except other true answers."""
    better = equal = 0
    for x, score in enumerate(scores):
        if x == query.answer or x in true:
            continue
        better += score > scores[query.answer]
        equal += score == scores[query.answer]
    return 1 + better + equal / 2


def literal_true(protocol: LiteralProtocol, query: Query, name: str) -> set[int]:
    return {
        o
        for s, r, o, t in protocol.links(protocol.facts)
        if (s, r) == (query.entity, query.relation) and (name == "static" or t == query.time)
    }


ENTITIES, RELATIONS = 9, 3


@st.composite
def graphs(draw: st.DrawFn, max_facts: int = 45) -> Facts:
    """Small random graphs in which entities keep emerging."""
    steps = draw(st.integers(8, 24))
    rows = []
    # Most facts are late: queries are facts of entities that emerged in the last quarter.
    moments = st.one_of(st.integers(0, steps), *[st.integers(steps * 3 // 4, steps)] * 2)
    for _ in range(draw(st.integers(8, max_facts))):
        t = draw(moments)
        # Later facts may use later-numbered entities: new ones emerge in every period.
        newest = min(ENTITIES - 1, 1 + t * ENTITIES // (steps + 1))
        s, o = draw(st.integers(0, newest)), draw(st.integers(0, newest))
        rows.append((s, draw(st.integers(0, RELATIONS - 1)), o, t))
    columns = [list(c) for c in zip(*rows, strict=True)]
    return Facts.build(
        *columns,
        entities=Vocabulary.numbered(ENTITIES),
        relations=Vocabulary.numbered(RELATIONS),
    )


@st.composite
def layered(draw: st.DrawFn) -> tuple[Facts, VisibleFacts]:
    """A graph, and the same with some facts, of old and new entities, arrived later."""
    facts = draw(graphs())
    known = draw(st.integers(1, ENTITIES))
    late = np.array(draw(st.lists(st.booleans(), min_size=len(facts), max_size=len(facts))))
    if draw(st.booleans()):  # in the order of time, as most facts arrive
        late[:] = np.arange(len(facts)) >= draw(st.integers(0, len(facts)))
    late |= np.maximum(facts.subject, facts.object) >= known
    first = replace(facts.select(~late), entities=Vocabulary(facts.entities.names[:known]))
    # Arrivals come behind first facts of the same step.
    merged = first.merged(facts.select(late))
    return merged, VisibleFacts.of(first).grown(facts.select(late))


def tuples(facts: Facts) -> list[Fact]:
    columns = (facts.subject, facts.relation, facts.object, facts.time)
    return list(zip(*(c.tolist() for c in columns), strict=True))
