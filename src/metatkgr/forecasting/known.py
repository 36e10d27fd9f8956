"""What a forecaster knows: facts that are observed, corrected, retracted, supposed, looked up."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from metatkgr.data.facts import Column, Facts, Vocabulary
from metatkgr.data.visibility import VisibleFacts
from metatkgr.deadlines import checking
from metatkgr.errors import DataError, FarDateError
from metatkgr.forecasting.explain import FactView, Match, Observed, Retracted, Verbaliser
from metatkgr.forecasting.incoming import (
    NewRelations,
    check_near,
    checked_rows,
    checked_step,
    far_ahead,
    numbered,
    rows_of,
)
from metatkgr.forecasting.live import Snapshot
from metatkgr.forecasting.names import GrowingVocabulary, checked_name, search_names
from metatkgr.graph.index import TemporalIndex

__all__ = ["MOST_RELATIONS", "KnownFacts", "LiveGraph", "matches"]

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

    def unknown(
        self, facts: Iterable[tuple[int, int, int, int]]
    ) -> list[tuple[int, int, int, int]]:
        """Those of some facts that are not there, each once."""
        return list(dict.fromkeys(fact for fact in facts if not self.knows(*fact)))

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


class KnownFacts:
    """Facts that keep coming, and may be taken back. May be used from several threads.

    Args:
        facts: what is known at first.
    """

    takes_relations = False
    """Whether relations may come that nobody has heard of."""

    def __init__(self, facts: Facts) -> None:
        if len(facts) == 0:
            raise DataError("a forecaster needs facts to begin with")
        # Facts arrive while questions are answered: the graph is held for a moment.
        self._arriving = threading.Lock()
        self._graph = LiveGraph(facts)
        self._trained_on = facts

    @property
    def facts(self) -> Facts:
        """Everything known: the facts it began with and those observed, in time order."""
        return self.snapshot().facts

    def snapshot(self) -> Snapshot:
        """Everything known at this moment, the facts that arrived beside those it began with."""
        with self._arriving:
            return self._graph.snapshot()

    def observe(
        self, facts: Any, *, confirm_new: bool | None = None, allow_far: bool = False
    ) -> Observed:
        """Take in facts, all or none; known ones count as duplicates.

        Entities may be new, and relations too where the model takes them.

        Args:
            facts: (subject, relation, object, time) tuples, dictionaries with these keys, a pandas
                or polars frame, or ``Facts``. Times as in :meth:`Forecaster.predict`.
            confirm_new: take new names that are nearly a known one, too; None: of entities, not of
                relations.
            allow_far: take facts that lie far after all others, too.

        Raises:
            DataError: a row is bad: a relation that the graph does not have and that is spelt like
                one of its own, a time before its beginning, an empty name. The message describes
                the first twenty; nothing is taken.
        """
        # Facts are checked before they are let in: others may come meanwhile.
        rows = list(rows_of(facts))
        with self._arriving:
            graph = self._graph
            relations = self._new_relations(confirm_new)
            checked = self._checked(rows, relations)
            new, given = numbered(checked, graph.entities)
            if confirm_new is False:
                check_near(new, graph.entities)
            arrivals = graph.unknown(given)
            if not allow_far:
                self._check_far([fact[3] for fact in arrivals])
            if relations is not None and relations.names:
                graph.admit(relations.names)
            if arrivals:
                graph.add(new, arrivals)
        return Observed(len(arrivals), len(checked) - len(arrivals), tuple(new))

    def _new_relations(self, confirm_new: bool | None) -> NewRelations | None:
        return NewRelations(bool(confirm_new)) if self.takes_relations else None

    def check(self, facts: Any, *, confirm_new: bool = False, allow_far: bool = False) -> None:
        """Raise what :meth:`observe` would, and observe nothing."""
        checked = self._checked(facts, self._new_relations(confirm_new))
        snapshot = self.snapshot()
        if not allow_far:
            self._check_far([step for *_, step in checked])
        if not confirm_new:
            check_near(checking(numbered(checked, snapshot.entities)[0]), snapshot.entities)

    def _check_far(self, steps: Sequence[int]) -> None:
        last, calendar = self._graph.last_step, self._trained_on.calendar
        step = far_ahead(steps, last, calendar)
        if step is not None:
            raise FarDateError(
                f"{calendar.label(step)} is {step - last:,} steps after the last fact "
                f"({calendar.label(last)}), and every forecast would be for later still; if it is "
                "right, confirm it (allow_far)"
            )

    def retract(self, facts: Any) -> Retracted:
        """Take facts back, as if they had never been observed; all that are known, or none.

        Facts that it began with can be retracted too, which takes the time of indexing them anew.
        An entity that came with its facts goes with the last of them.

        Args:
            facts: as in :meth:`observe`.
        """
        checked = self._checked(facts)
        with self._arriving:
            graph = self._graph
            _, given = numbered(checked, graph.entities)
            gone = {fact for fact in given if graph.knows(*fact)}
            names = graph.remove(gone) if gone else []
        return Retracted(len(gone), len(checked) - len(gone), tuple(names))

    def correct(self, wrong: Any, right: Any) -> Observed:
        """Put facts in the place of others: nobody sees a state between.

        Args:
            wrong: what is retracted, as in :meth:`observe`; all of it is known, or nothing happens.
            right: what is observed instead.
        """
        back, forth = self._checked(wrong), self._checked(right)
        with self._arriving:
            graph = self._graph
            gone = numbered(back, graph.entities)[1]
            for (subject, *_), fact in zip(back, gone, strict=True):
                if not graph.knows(*fact):
                    raise DataError(f"a fact of {subject!r} is not known; nothing was corrected")
            graph.remove(set(gone))
            new, given = numbered(forth, graph.entities)
            arrivals = graph.unknown(given)
            if arrivals:
                graph.add(new, arrivals)
        return Observed(len(arrivals), len(forth) - len(arrivals), tuple(new))

    def supposing(self, facts: Any) -> Snapshot:
        """Everything known and some facts besides, which are not kept.

        Args:
            facts: as in :meth:`observe`.
        """
        checked = self._checked(facts)
        with self._arriving:
            graph = self._graph
            graph.snapshot()  # arrivals that have become many join the base
            new, given = numbered(checked, graph.entities)
            return graph.supposing(new, graph.unknown(given))

    def _checked(
        self, facts: Any, new: NewRelations | None = None
    ) -> list[tuple[str, int, str, int]]:
        first, relations = self._trained_on, self._graph.relations
        return checked_rows(rows_of(facts), relations, first.calendar, first.steps, new)

    def search(self, text: str, limit: int = 10) -> list[Match]:
        """Entities by name: exact, then beginning with, containing, and spelt like ``text``."""
        snapshot = self.snapshot()
        return matches(snapshot, search_names(snapshot.entities, text, limit))

    def timeline(
        self, entity: str, last: int | None = None, *, before: Any = None
    ) -> list[FactView]:
        """The facts of an entity, oldest first.

        Args:
            entity: its name.
            last: only the last so many; None: all.
            before: only those before a time as :meth:`predict` takes it; None: all.
        """
        snapshot = self.snapshot()
        who = snapshot.entities.id(checked_name(entity, "entity"), "entity")
        words = Verbaliser(snapshot)
        end = None
        if before is not None:
            end = checked_step(before, snapshot.first.calendar, self._trained_on.steps)
        links = snapshot.links(who, last, end).T.tolist()
        return [words.fact(who, relation, other, step) for relation, other, step in links]


def matches(snapshot: Snapshot, entities: Sequence[int]) -> list[Match]:
    """Some entities with the number of their facts and the dates of the first and the last."""
    names, date = snapshot.entities, snapshot.first.calendar.label
    return [
        Match(
            names.name(number),
            names.label(number),
            count,
            date(first) if count else "",
            date(last) if count else "",
        )
        for number, (count, first, last) in zip(entities, snapshot.seen(entities), strict=True)
    ]
