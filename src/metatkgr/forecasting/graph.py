"""The facts a forecaster knows: those it began with, and those that arrived since.

The first are indexed once. The arrivals are few, lie in a list ordered by time and name (so that
the order in which they came does not matter), and are indexed anew when someone asks; when they
have become many, they join the first. Everything here is immutable but :class:`LiveGraph`.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.forecasting.names import GrowingVocabulary

__all__ = ["Arrival", "LiveGraph", "Snapshot"]

_FEW = 20_000
"""Arrivals that are indexed anew at each change; more join the first facts."""

Arrival = tuple[int, str, int, str, int, int]
"""Step, subject's name, relation, object's name, subject, object; ordered like this."""


class Adjacency:
    """The facts of each entity, oldest first, as directed links.

    Args:
        facts: any facts, in time order.
    """

    def __init__(self, facts: Facts) -> None:
        visible = VisibleFacts.of(facts)
        # A fact of an entity with itself is one fact of that entity.
        twice = (visible.source == visible.target) & (visible.relation >= len(facts.relations))
        if twice.any():
            kept = ~twice
            columns = (visible.source, visible.relation, visible.target, visible.time)
            source, relation, target, time = (column[kept] for column in columns)
        else:
            source, relation = visible.source, visible.relation
            target, time = visible.target, visible.time
        order = np.argsort(source, kind="stable")
        self._source = source[order]
        self._columns = np.stack([relation[order], target[order], time[order]])

    def rows(self, entity: int) -> slice:
        """Where the links of an entity lie."""
        low, high = np.searchsorted(self._source, [entity, entity + 1])
        return slice(int(low), int(high))

    def first(self, wanted: npt.NDArray[np.bool_], count: int) -> Supports:
        """The first ``count`` facts of every entity of a mask."""
        start = np.searchsorted(self._source, np.arange(len(wanted)))
        place = np.arange(len(self._source)) - start[self._source]
        rows = wanted[self._source] & (place < count)
        return Supports(self._source[rows], *self._columns[:, rows])

    def of(self, entity: int) -> IntArray:
        """(3, n) directed relation, other end and step of an entity's facts, oldest first."""
        return np.asarray(self._columns[:, self.rows(entity)])


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All facts at one moment of the forecaster's life; never changes."""

    first: Facts
    """The facts that are indexed once; its vocabulary may be smaller than ``entities``."""
    first_links: Adjacency
    recent: Facts
    """The facts that arrived since, in time order."""
    entities: GrowingVocabulary
    version: int
    """Grows with every change."""
    age: int
    """Grows whenever ``first`` is replaced."""

    @cached_property
    def _recent_links(self) -> Adjacency:
        return Adjacency(self.recent)

    @cached_property
    def recent_visible(self) -> VisibleFacts:
        """The arrivals in both directions."""
        return VisibleFacts.of(self.recent)

    @property
    def last_step(self) -> int:
        """Step of the last fact."""
        last = int(self.first.time[-1])
        return max(last, int(self.recent.time[-1])) if len(self.recent) else last

    def links(self, entity: int) -> IntArray:
        """(3, n) directed relation, other end and step of an entity's facts, oldest first."""
        parts = [self.first_links.of(entity)]
        if len(self.recent):
            parts.append(self._recent_links.of(entity))
        columns = np.concatenate(parts, axis=1)
        return columns[:, np.argsort(columns[2], kind="stable")]

    def supports(self, entities: Sequence[int], shots: int) -> Supports:
        """The first ``shots`` facts of some entities."""
        owners, columns = [], []
        for entity in sorted(set(entities)):
            own = self.links(entity)[:, :shots]
            owners.append(np.full(own.shape[1], entity, np.int64))
            columns.append(own)
        if not columns:
            nothing = np.zeros(0, np.int64)
            return Supports(nothing, nothing, nothing, nothing)
        relation, other, time = np.ascontiguousarray(np.concatenate(columns, axis=1))
        return Supports(np.concatenate(owners), relation, other, time)

    def first_facts(self, wanted: npt.NDArray[np.bool_], shots: int) -> Supports:
        """The same of every entity of an (E,) mask, which may be many."""
        return Adjacency(self.facts).first(wanted, shots)

    @cached_property
    def facts(self) -> Facts:
        """All facts as one."""
        if not len(self.recent):
            return replace(self.first, entities=self.entities)
        place = np.searchsorted(self.first.time, self.recent.time, side="right")

        def merged(name: str) -> IntArray:
            return np.insert(getattr(self.first, name), place, getattr(self.recent, name))

        return replace(
            self.first,
            subject=merged("subject"),
            relation=merged("relation"),
            object=merged("object"),
            time=merged("time"),
            entities=self.entities,
        )

    def relation_counts(self, before: int) -> IntArray:
        """(R,) how many facts of each relation there are before a step."""
        total = np.zeros(len(self.first.relations), np.int64)
        for facts in (self.first, self.recent):
            stop = int(np.searchsorted(facts.time, before))
            total += np.bincount(facts.relation[:stop], minlength=len(total))
        return total


class LiveGraph:
    """Facts to which facts are added. Not for several threads at once: the forecaster locks.

    Args:
        facts: what is known at first.
    """

    def __init__(self, facts: Facts) -> None:
        self.entities = GrowingVocabulary(facts.entities)
        self._arrivals: list[Arrival] = []
        self._known: set[tuple[int, int, int, int]] = set()
        self._version = 0
        self._age = 0
        self._start(facts)

    def _start(self, facts: Facts) -> None:
        self._first = facts
        self._first_links = Adjacency(facts)
        self._current: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """All facts as they are now; the same object until something arrives."""
        if self._current is None:
            if len(self._arrivals) > max(_FEW, len(self._first) // 8):
                whole = self._snapshot().facts
                self._arrivals.clear()
                self._known.clear()
                self._age += 1
                self._start(whole)
            self._current = self._snapshot()
        return self._current

    def _snapshot(self) -> Snapshot:
        columns = [(a[4], a[2], a[5], a[0]) for a in self._arrivals]
        subject, relation, object_, time = (
            np.array(columns, np.int64).T.copy() if columns else np.zeros((4, 0), np.int64)
        )
        recent = replace(
            self._first,
            subject=subject,
            relation=relation,
            object=object_,
            time=time,
            entities=self.entities,
            law=None,
        )
        return Snapshot(
            self._first, self._first_links, recent, self.entities, self._version, self._age
        )

    def knows(self, subject: int, relation: int, object_: int, step: int) -> bool:
        """Whether a fact is there already."""
        if (subject, relation, object_, step) in self._known:
            return True
        links = self._first_links
        low, high = links.rows(subject), links.rows(object_)
        inverse = 0
        if high.stop - high.start < low.stop - low.start and subject != object_:
            subject, object_, inverse = object_, subject, len(self._first.relations)
        found = links.of(subject)
        wanted = np.array([[relation + inverse], [object_], [step]])
        return bool((found == wanted).all(0).any())

    def add(self, names: Sequence[str], arrivals: Sequence[tuple[int, int, int, int]]) -> None:
        """Take in new names and then distinct facts (subject, relation, object, step)."""
        if names:
            self.entities = self.entities.grown(list(names))
        name = self.entities.name
        rows: list[Arrival] = [(t, name(s), r, name(o), s, o) for s, r, o, t in arrivals]
        if len(rows) > 100:
            self._arrivals = sorted(self._arrivals + rows)
        else:
            for row in rows:
                bisect.insort(self._arrivals, row)
        self._known.update(arrivals)
        self._version += 1
        self._current = None
