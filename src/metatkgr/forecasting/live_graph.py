"""The facts that a forecaster knows, while they come and go."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from metatkgr.data.facts import Facts, IntArray, Vocabulary
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import DataError
from metatkgr.forecasting.live import Snapshot
from metatkgr.forecasting.names import GrowingVocabulary
from metatkgr.graph.index import TemporalIndex

__all__ = ["MOST_RELATIONS", "Arrival", "LiveGraph"]

_FEW = 20_000
"""Arrivals that are indexed anew at each change; more join the first facts."""
MOST_RELATIONS = 5_000
"""So many of a graph that is at work; each new one costs an index."""
_VERSIONS = itertools.count(1)
"""One for each state of any graph, so that a model knows which it was shown."""
_NUMBERS = itertools.count()
"""One for each arrival at any graph: see ``VisibleFacts.arrival``."""

Arrival = tuple[int, str, int, str, int, int, int]
"""Step, subject's name, relation, object's name, subject, object; ordered like this. Then a number
of its own."""


class LiveGraph:
    """Facts that come and go. Not for several threads at once: the forecaster locks.

    Args:
        facts: what is known at first.
    """

    def __init__(self, facts: Facts) -> None:
        self._names = facts.entities
        self.entities = GrowingVocabulary(facts.entities)
        self._arrivals: list[Arrival] = []
        self._columns = _columns([])
        self._known: set[tuple[int, int, int, int]] = set()
        self._version = next(_VERSIONS)
        self._start(facts)

    def _start(self, facts: Facts) -> None:
        self._visible = VisibleFacts.of(facts)
        # Held here, so that snapshots that come and go share the layer of the first facts.
        self._index = TemporalIndex.of(self._visible)
        self._current: Snapshot | None = None

    @property
    def relations(self) -> Vocabulary:
        """Those of the facts and those that came since."""
        return self._visible.base.relations

    def snapshot(self) -> Snapshot:
        """All facts as they are now; the same object until something arrives."""
        if self._current is None:
            if len(self._arrivals) > max(_FEW, len(self._visible.base) // 8):
                merged = self._snapshot().facts
                self._arrivals.clear()
                self._columns = _columns([])
                self._known.clear()
                self._start(merged)
            self._current = self._snapshot()
        return self._current

    def _snapshot(self) -> Snapshot:
        if not self._arrivals and len(self.entities) == len(self._visible.entities):
            return Snapshot(self._visible, self.entities, self._version)
        return self._with(self._columns, self.entities, self._version)

    def _with(self, columns: IntArray, entities: GrowingVocabulary, version: int) -> Snapshot:
        """The first facts and others, (5, n) columns in time order."""
        subject, relation, object_, time, arrival = columns
        recent = replace(
            self._visible.base,
            subject=subject,
            relation=relation,
            object=object_,
            time=time,
            entities=entities,
            law=None,
        )
        return Snapshot(self._visible.grown(recent, arrival), entities, version)

    def supposing(
        self, names: Sequence[str], facts: Sequence[tuple[int, int, int, int]]
    ) -> Snapshot:
        """All facts as they are now and some besides, with new names; nothing of it is kept."""
        entities = GrowingVocabulary(self.entities).grown(list(names)) if names else self.entities
        both = sorted(self._arrivals + _arrivals(facts, entities))
        return self._with(_columns(both), entities, next(_VERSIONS))

    @property
    def last_step(self) -> int:
        """Step of the last fact."""
        last = int(self._visible.base.time[-1])
        return max(last, self._arrivals[-1][0]) if self._arrivals else last

    def knows(self, subject: int, relation: int, object_: int, step: int) -> bool:
        """Whether a fact is there already."""
        if (subject, relation, object_, step) in self._known:
            return True
        if max(subject, object_) >= len(self._visible.base.entities):
            return False  # one of them came later than all first facts
        return self._index.happened(subject, relation, object_, step)

    def add(self, names: Sequence[str], arrivals: Sequence[tuple[int, int, int, int]]) -> None:
        """Take in new names and then distinct facts (subject, relation, object, step)."""
        if names:
            self.entities = self.entities.grown(list(names))
        rows = _arrivals(arrivals, self.entities)
        if len(rows) > 100:
            self._arrivals = sorted(self._arrivals + rows)
            self._columns = _columns(self._arrivals)
        else:
            for row in rows:
                place = bisect.bisect(self._arrivals, row)
                self._arrivals.insert(place, row)
                # A new array: snapshots hold on to the old one.
                self._columns = np.insert(self._columns, place, _columns([row])[:, 0], axis=1)
        self._known.update(arrivals)
        self._changed()

    def admit(self, relations: Sequence[str]) -> None:
        """Take in relations that nobody has heard of; all facts are indexed anew.

        Unless a folder holds their index, which has room for them.
        """
        base = self._visible.base
        known = base.relations
        if len(known) + len(relations) > MOST_RELATIONS:
            raise DataError(f"a graph has at most {MOST_RELATIONS:,} relations")
        grown = Vocabulary([*known.names, *relations], known.labels, known.aliases)
        self._start(replace(base, relations=grown))
        self._changed()

    def _changed(self) -> None:
        self._version = next(_VERSIONS)
        self._current = None

    def remove(self, facts: set[tuple[int, int, int, int]]) -> list[str]:
        """Take back known facts (subject, relation, object, step).

        Names that came with facts go with the last of them. Facts of the base are taken out of a
        copy of it, which is indexed anew.

        Returns:
            the names that are gone.
        """
        first = facts - self._known
        if first:
            base = self._visible.base
            kept = np.ones(len(base), bool)
            for fact in first:
                rows = slice(*np.searchsorted(base.time, [fact[3], fact[3] + 1]))
                columns = (base.subject[rows], base.relation[rows], base.object[rows])
                same = np.logical_and.reduce(
                    [column == part for column, part in zip(columns, fact[:3], strict=True)]
                )
                kept[rows] &= ~same
            if not kept.any():
                raise DataError("a forecaster needs facts: the last one stays")
            self._start(base.select(kept))
        self._known -= facts
        left = [row for row in self._arrivals if (row[4], row[2], row[5], row[0]) not in facts]
        self._arrivals, self._columns = left, _columns(left)
        gone = self._forget_names({end for fact in facts for end in (fact[0], fact[2])})
        self._changed()
        return gone

    def _forget_names(self, entities: set[int]) -> list[str]:
        """Drop those of some entities that are in no fact, unless they were there at first."""
        first, base = len(self._names), self._visible.base
        gone = {entity for entity in entities if entity >= first}
        gone -= {end for row in self._arrivals for end in row[4:6]}
        if gone and len(base.entities) > first:  # arrivals have joined the base
            gone -= {e for e in gone if (base.subject == e).any() or (base.object == e).any()}
        if not gone:
            return []
        names = [self.entities.name(entity) for entity in sorted(gone)]
        new = np.arange(len(self.entities)) - np.searchsorted(
            sorted(gone), np.arange(len(self.entities)), side="left"
        )
        kept = [self.entities.name(n) for n in range(first, len(self.entities)) if n not in gone]
        self.entities = GrowingVocabulary(self._names).grown(kept)
        if len(base.entities) > first:
            subject, object_ = new[base.subject], new[base.object]
            self._start(replace(base, subject=subject, object=object_, entities=self.entities))
        arrivals = [(int(new[s]), r, int(new[o]), t) for t, _, r, _, s, o, _ in self._arrivals]
        self._arrivals = _arrivals(arrivals, self.entities)
        self._columns = _columns(self._arrivals)
        self._known = set(arrivals)
        return names


def _arrivals(
    facts: Iterable[tuple[int, int, int, int]], entities: GrowingVocabulary
) -> list[Arrival]:
    name = entities.name
    return [(t, name(s), r, name(o), s, o, next(_NUMBERS)) for s, r, o, t in facts]


def _columns(arrivals: Sequence[Arrival]) -> IntArray:
    """(5, n) subject, relation, object, step and number."""
    rows = [(a[4], a[2], a[5], a[0], a[6]) for a in arrivals]
    return np.ascontiguousarray(np.array(rows, np.int32).reshape(-1, 5).T)
