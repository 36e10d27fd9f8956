"""What a forecaster knows: facts that are observed, corrected, retracted, supposed, looked up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from metatkgr.data.facts import Facts
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
from metatkgr.forecasting.live_graph import LiveGraph
from metatkgr.forecasting.names import checked_name, search_names

__all__ = ["KnownFacts"]


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
            arrivals = list(dict.fromkeys(fact for fact in given if not graph.knows(*fact)))
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
            arrivals = list(dict.fromkeys(fact for fact in given if not graph.knows(*fact)))
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
            return graph.supposing(
                new, list(dict.fromkeys(fact for fact in given if not graph.knows(*fact)))
            )

    def _checked(
        self, facts: Any, new: NewRelations | None = None
    ) -> list[tuple[str, int, str, int]]:
        first, relations = self._trained_on, self._graph.relations
        return checked_rows(rows_of(facts), relations, first.calendar, first.steps, new)

    def search(self, text: str, limit: int = 10) -> list[Match]:
        """Entities by name: exact, then beginning with, containing, and spelt like ``text``."""
        snapshot = self.snapshot()
        numbers = search_names(snapshot.entities, text, limit)
        label, entities = snapshot.first.calendar.label, snapshot.entities
        return [
            Match(
                entities.name(number),
                entities.label(number),
                count,
                label(first) if count else "",
                label(last) if count else "",
            )
            for number, (count, first, last) in zip(numbers, snapshot.seen(numbers), strict=True)
        ]

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
