"""What the service does, apart from HTTP: a forecaster that reads along with a store."""

from __future__ import annotations

import ctypes
import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from metatkgr.deadlines import check, checking, holding
from metatkgr.errors import DataError, MetaTKGRError, UnknownNameError
from metatkgr.forecasting.explain import FactView, Forecasts, Observed, Retracted
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.incoming import NewRelations, checked_rows
from metatkgr.forecasting.known import MOST_RELATIONS
from metatkgr.forecasting.ranking import Question
from metatkgr.forecasting.store import FactStore, StoredFact, StoreError
from metatkgr.forecasting.store_tables import Amounts, Spending
from metatkgr.recent import Recent
from metatkgr.serving.auth import ASKING, Role
from metatkgr.serving.limits import Limits
from metatkgr.serving.schemas import PredictIn
from metatkgr.serving.views import Views

__all__ = ["Service"]

_LOG = logging.getLogger(__name__)
_READ_AT_ONCE = 20_000
_TAKEN_AT_ONCE = 5000
"""Of what had been told at a moment."""
_TRIM_SECONDS = 20.0
_RESERVED = 200
"""Relations for which a graph keeps room, beyond those that are let in."""


class Service(Views):
    """A forecaster whose observed facts are kept in a store, and come from it.

    A fact goes one way, whoever sends it: checked, committed to the store, read back by its
    number, observed. Facts of other processes take the second half of that way.

    Args:
        forecaster: answers; usable from several threads.
        store: keeps what is observed.
        model: what to call the model.
        limits: bounds on what is accepted.
        adopt: take the store for this graph's, whatever graph it was made for.
        poll_seconds: how often to look for facts of other processes.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        store: FactStore,
        *,
        model: str,
        limits: Limits | None = None,
        adopt: bool = False,
        poll_seconds: float = 0.2,
    ) -> None:
        super().__init__(forecaster, store, model)
        self.limits = limits or Limits()
        self.refused = 0
        """Facts of the store that the forecaster cannot take (another graph's)."""
        self._adopt = adopt
        self._poll_seconds = poll_seconds
        self._seen = 0
        self._reading = threading.Lock()
        self._stop = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="store-poller", daemon=True)
        graph = self._base
        self._new_names: set[str] = set()
        self._names_bytes = 0
        self._last_step = graph.steps - 1 + max(1, int(graph.steps * self.limits.steps_ahead))
        self._looking_back = threading.Lock()
        self._told_by = Recent(self._told_at, 2)

    def start(self) -> None:
        """Observe what the store holds, then follow it."""
        self.catch_up()
        if self.refused:
            raise DataError(
                f"{self.refused} of the facts in {self.store.name} do not fit this graph "
                "(relations unknown or dates too early): give --store another file or database"
            )
        self.store.belong_to(self._base, adopt=self._adopt)
        self._poller.start()

    def stop(self) -> None:
        """Stop following the store and close it."""
        self._stop.set()
        if self._poller.ident is not None:
            self._poller.join(timeout=10)
        self.store.close()

    def about(self) -> list[str]:
        """What is served, a line each."""
        kept = f"{len(self.store):,} observed facts in {self.store.name}"
        return [f"{self.model} on {self._base}", kept]

    def answer(self, questions: Sequence[PredictIn]) -> list[Forecasts | MetaTKGRError]:
        """An answer or an error for each of some questions."""
        return self.forecaster.predict_many([_question(one) for one in questions])

    def look_back(self, question: PredictIn) -> Forecasts | MetaTKGRError:
        """The answer to a question about the past, which may take a while."""
        forecaster = self.forecaster
        if question.known_at is not None:
            with holding(self._looking_back):
                forecaster = self._told_by(question.known_at)
        return forecaster.predict_many([_question(question)])[0]

    def _told_at(self, moment: dt.datetime) -> Forecaster:
        """A forecaster that has been told what the store held at a moment."""
        past = self.forecaster.anew(self._base)
        state = {row.fact: row.retracted for row in checking(self.store.log(moment))}
        rest = iter(state.items())
        while some := dict(islice(rest, _TAKEN_AT_ONCE)):
            check()
            for _ in _taken(past, some):
                pass
        return past

    def add(
        self,
        facts: Iterable[Sequence[str | int]],
        *,
        source: str = "",
        observed: str = "",
        confirm_new: bool = False,
        allow_far: bool = False,
        replaces: int | None = None,
    ) -> Observed:
        """Keep facts and observe them: on disk, and part of every later answer.

        What they take is counted against the quota of who asks.

        Args:
            facts: (subject, relation, object, time) each.
            source: who says so; where it is empty, who asks.
            observed: when the source observed it.
            confirm_new: take new names that are nearly known ones, too.
            allow_far: take dates far after the last fact, too.
            replaces: number of a fact that is retracted for it.

        Raises:
            NearNameError, FarDateError: it is asked back.
        """
        new_relations = NewRelations(confirm_new) if self.forecaster.takes_relations else None
        rows = self._checked([(s, r, o, t) for s, r, o, t in facts], new_relations)
        self.forecaster.check(rows, confirm_new=confirm_new, allow_far=allow_far)
        names = dict.fromkeys(name for row in rows for name in (row.subject, row.object))
        known = self._base.entities
        new = tuple(name for name in names if name not in known and name not in self._new_names)
        if new and self._names_bytes + _size(new) > self.limits.new_names_bytes:
            raise DataError(
                f"the names of new entities have taken {self._names_bytes:,} of the "
                f"{self.limits.new_names_bytes:,} bytes that this service keeps for them; facts "
                "about known entities are still welcome (--new-names-bytes allows more)"
            )
        about = _about(source, observed, len(rows), len(new))
        check()  # who is told that it took too long is told the truth: nothing is kept
        if replaces is None:
            added = self.store.add(rows, **about)
        else:
            added = self.store.correct(self.history(replaces)[-1].fact, rows[0], **about)
        self._catch_up_or_later()
        return Observed(added.accepted, added.duplicates, new)

    def retract(
        self, facts: Iterable[Sequence[str | int]], *, source: str = "", observed: str = ""
    ) -> Retracted:
        """Take facts back, those of the graph too: on disk, and part of no later answer."""
        rows = self._checked([(s, r, o, t) for s, r, o, t in facts], None)
        done = self.store.retract(rows, **_about(source, observed, len(rows), 0))
        self._catch_up_or_later()
        return done

    def history(self, number: int) -> list[StoredFact]:
        """What was said about a fact.

        Raises:
            UnknownNameError: there is no such fact.
        """
        changes = self.store.history(number)
        if not changes:
            raise UnknownNameError("fact", str(number), [], among=len(self.store))
        return changes

    def _catch_up_or_later(self) -> None:
        try:
            self.catch_up(self.store.committed)
        except StoreError as error:
            # It is kept; whoever follows the store observes it a moment later.
            _LOG.warning("%s", error)

    def catch_up(self, number: int | None = None) -> None:
        """Observe the facts that were added to the store since the last time.

        Args:
            number: enough is known once the fact with this number is.
        """
        # Whoever waits here finds its facts observed together with everyone else's.
        with self._reading:
            if number is not None and self._seen >= number:
                return
            more = True
            while more and (rows := self.store.since(self._seen, _READ_AT_ONCE)):
                # Of each fact the last change counts.
                for done in _taken(self.forecaster, {row.fact: row.retracted for row in rows}):
                    self._count(done)
                self._seen = rows[-1].sequence
                more = len(rows) == _READ_AT_ONCE

    def _count(self, done: Observed | Retracted | MetaTKGRError) -> None:
        """What came of some facts of the store."""
        if isinstance(done, Observed):
            self.observed += done.accepted
            self._new_names.update(done.new_entities)
            self._names_bytes += _size(done.new_entities)
        elif isinstance(done, Retracted):
            self.observed -= done.retracted
            self._new_names.difference_update(done.gone_entities)
            self._names_bytes -= _size(done.gone_entities)
        else:
            self.refused += 1
            _LOG.warning("a fact of the store is left out: %s", done)

    def _poll(self) -> None:
        trimmed = time.monotonic()
        while not self._stop.wait(self._poll_seconds):
            if time.monotonic() > trimmed + _TRIM_SECONDS:
                _trim()
                trimmed = time.monotonic()
            try:
                self.catch_up()
            except StoreError as error:
                _LOG.warning("%s", error)
            except Exception:
                # Following must go on; the next turn tries the same facts again.
                _LOG.exception("facts of the store could not be observed")

    def _checked(
        self, facts: list[tuple[Any, Any, Any, Any]], new: NewRelations | None
    ) -> list[FactView]:
        """Facts in the graph's own words: names, not labels or aliases; a step's date.

        Args:
            facts: as they were told.
            new: takes unknown relations; None: they are refused.
        """
        graph = self._base
        calendar = graph.calendar
        rows = []
        # What the forecaster would refuse must not get into the store.
        relations = self.forecaster.snapshot().first.relations
        good = checked_rows(checking(facts), relations, calendar, graph.steps, new)
        names_of_relations = [*relations.names, *(new.names if new is not None else ())]
        # Several may come at once, here and in other processes: all of them fit into the graph.
        room = min(len(graph.relations) + self.limits.new_relations, MOST_RELATIONS - _RESERVED)
        if new is not None and new.names and len(names_of_relations) > room:
            raise DataError(
                f"this service takes up to {self.limits.new_relations:,} new relations and "
                f"{len(relations) - len(graph.relations):,} have come; facts with known ones are "
                "still welcome (--new-relations allows more)"
            )
        for subject, relation, other, step in good:
            if step > self._last_step:
                raise DataError(
                    f"{calendar.label(step)} is too far in the future; this graph takes facts up "
                    f"to {calendar.label(self._last_step)}"
                )
            names = (self._name(subject), names_of_relations[relation], self._name(other))
            rows.append(FactView(*names, calendar.label(step)))
        return rows


def _taken(
    forecaster: Forecaster, state: Mapping[FactView, bool]
) -> Iterator[Observed | Retracted | MetaTKGRError]:
    """Observe facts of a store, and retract those whose state says so.

    Yields:
        what came of each part of them; an error: of a single one, which is left out.
    """

    def halved(
        take: Callable[[list[FactView]], Observed | Retracted], facts: list[FactView]
    ) -> Iterator[Observed | Retracted | MetaTKGRError]:
        try:
            done: list[Observed | Retracted | MetaTKGRError] = [take(facts)] if facts else []
        except MetaTKGRError as error:
            if len(facts) > 1:
                # Halves, so that one bad fact among many costs few attempts.
                half = len(facts) // 2
                yield from halved(take, facts[:half])
                yield from halved(take, facts[half:])
                return
            done = [error]
        yield from done

    # Of a relation that has never come into this graph there is nothing to take back.
    known = forecaster.snapshot().first.relations
    gone = [fact for fact, retracted in state.items() if retracted and fact.relation in known]
    yield from halved(forecaster.retract, gone)
    held = [fact for fact, retracted in state.items() if not retracted]
    yield from halved(partial(forecaster.observe, confirm_new=True, allow_far=True), held)


def _trim() -> None:
    """Give free memory back to the system.

    glibc has an arena for each of many threads and keeps what is free in it. As a graph grows, the
    next array fits into none of the gaps: two hours of arriving facts cost 400 MB of them.
    """
    with suppress(OSError, AttributeError):  # another library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _question(asked: PredictIn) -> Question:
    words = {name: value for name, value in asked if name not in ("known_at", "what_if")}
    supposed = tuple((f.subject, f.relation, f.object, f.time) for f in asked.what_if)
    return Question(**words, what_if=supposed)


def _about(source: str, observed: str, facts: int, new: int) -> dict[str, Any]:
    """Who says so, and what it takes of the quota of who asks."""
    who, size = ASKING.get()
    if who is not None and who.role < Role.WRITE:
        raise DataError(f"this needs the role write; {who.name} has {who.entry.role}")
    spending = None
    if who is not None and who.bounded:
        spending = Spending(who.name, Amounts(facts, new, size), who.most)
    named = "" if who is None else who.name
    return {"source": source or named, "observed": observed, "spending": spending}


def _size(names: Iterable[str]) -> int:
    """About what names take in a vocabulary and its index."""
    return sum(len(name.encode()) + 64 for name in names)
