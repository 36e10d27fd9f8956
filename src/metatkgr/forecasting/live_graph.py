"""The facts that a forecaster knows, while they come and go."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from metatkgr.data.facts import Column, Facts, Vocabulary
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import DataError
from metatkgr.forecasting.live import Snapshot
from metatkgr.forecasting.names import GrowingVocabulary
from metatkgr.graph.index import TemporalIndex

__all__ = ["MOST_RELATIONS", "LiveGraph"]

_FEW = 20_000
"""Arrivals that are indexed anew at each change; more join the first facts."""
MOST_RELATIONS = 5_000
"""So many of a graph that is at work; each new one costs an index."""
_VERSIONS = itertools.count(1)
"""One for each state of any graph, so that a model knows which it was shown."""
_NUMBERS = itertools.count()
"""One for each arrival at any graph: see ``VisibleFacts.arrival``."""

_NONE = np.zeros((5, 0), np.int32)


class LiveGraph:
    """Facts that come and go. Not for several threads at once: the forecaster locks.

    Args:
        facts: what is known at first.
    """

    def __init__(self, facts: Facts) -> None:
        self._names = facts.entities
        self.entities = GrowingVocabulary(facts.entities)
        self._arrived: Column = _NONE
        """(5, n) subject, relation, object, step and number of each arrival, by step, subject's
        name, relation and object's name. Never changed, since snapshots hold on to it."""
        self._version = next(_VERSIONS)
        self._index: TemporalIndex | None = None
        self._start(facts)

    def _start(self, facts: Facts) -> None:
        if self._index is not None:
            self._index.forget_arrivals()
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
            if self._arrived.shape[1] > max(_FEW, len(self._visible.base) // 8):
                merged = self._snapshot().facts
                self._arrived = _NONE
                self._start(merged)
            self._current = self._snapshot()
        return self._current

    def _snapshot(self) -> Snapshot:
        if not self._arrived.size and len(self.entities) == len(self._visible.entities):
            return Snapshot(self._visible, self.entities, self._version)
        return self._with(self._arrived, self.entities, self._version)

    def _with(self, columns: Column, entities: GrowingVocabulary, version: int) -> Snapshot:
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
        return self._with(self._joined_by(facts, entities), entities, next(_VERSIONS))

    def _joined_by(
        self, facts: Sequence[tuple[int, int, int, int]], entities: GrowingVocabulary
    ) -> Column:
        """The columns of the arrivals and further ones (subject, relation, object, step)."""
        if not facts:
            return self._arrived
        name, known = entities.name, range(self._arrived.shape[1])
        rows = sorted((t, name(s), r, name(o), s, o, next(_NUMBERS)) for s, r, o, t in facts)
        new = np.array([(s, r, o, t, number) for t, _, r, _, s, o, number in rows], np.int32)
        places = [bisect.bisect(known, row[:4], key=self._order) for row in rows]
        return np.insert(self._arrived, places, new.T, axis=1)

    def _order(self, place: int) -> tuple[int, str, int, str]:
        """What an arrival is ordered by."""
        subject, relation, object_, step, _ = self._arrived[:, place].tolist()
        return step, self.entities.name(subject), relation, self.entities.name(object_)

    @property
    def last_step(self) -> int:
        """Step of the last fact."""
        last = int(self._visible.base.time[-1])
        return max(last, int(self._arrived[3, -1])) if self._arrived.size else last

    def knows(self, subject: int, relation: int, object_: int, step: int) -> bool:
        """Whether a fact is there already."""
        if max(subject, object_) >= len(self.entities):
            return False
        if self._has_arrived(subject, relation, object_, step):
            return True
        if max(subject, object_) >= len(self._visible.base.entities):
            return False  # one of them came later than all first facts
        assert self._index is not None
        return self._index.happened(subject, relation, object_, step)

    def _has_arrived(self, subject: int, relation: int, object_: int, step: int) -> bool:
        count, name = self._arrived.shape[1], self.entities.name
        wanted = (step, name(subject), relation, name(object_))
        place = bisect.bisect_left(range(count), wanted, key=self._order)
        return place < count and self._order(place) == wanted

    def add(self, names: Sequence[str], arrivals: Sequence[tuple[int, int, int, int]]) -> None:
        """Take in new names and then distinct facts (subject, relation, object, step)."""
        if names:
            self.entities = self.entities.grown(list(names))
        self._arrived = self._joined_by(arrivals, self.entities)
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
        first = {fact for fact in facts if not self._has_arrived(*fact)}
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
        known = zip(*self._arrived[:4].tolist(), strict=True)
        left = [fact not in facts for fact in known]
        self._arrived = np.compress(left, self._arrived, axis=1)
        gone = self._forget_names({end for fact in facts for end in (fact[0], fact[2])})
        self._changed()
        return gone

    def _forget_names(self, entities: set[int]) -> list[str]:
        """Drop those of some entities that are in no fact, unless they were there at first."""
        first, base = len(self._names), self._visible.base
        gone = {entity for entity in entities if entity >= first}
        gone -= set(self._arrived[[0, 2]].ravel().tolist())
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
        subject, relation, object_, step, _ = self._arrived
        number = list(itertools.islice(_NUMBERS, len(step)))
        columns = [new[subject], relation, new[object_], step, number]
        self._arrived = np.array(columns, np.int32).reshape(5, -1)
        return names
