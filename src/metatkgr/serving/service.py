"""What the service does, apart from HTTP: a forecaster that reads along with a store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from metatkgr.deadlines import check
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.forecasting.explain import FactView, Forecasts, Match, Observed
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.incoming import checked_rows
from metatkgr.forecasting.ranking import Question
from metatkgr.forecasting.store import FactStore, StoreError
from metatkgr.forecasting.store_tables import Amounts, Spending
from metatkgr.serving.auth import ASKING
from metatkgr.serving.limits import Limits
from metatkgr.serving.schemas import GraphOut, PredictIn, RelationOut, TimelineOut

__all__ = ["Service"]

_LOG = logging.getLogger(__name__)
_READ_AT_ONCE = 20_000
_A_FEW = 3
"""Facts that a newcomer has at least, to be worth a look."""
_LOOKED_AT = 256
"""Entities that are looked at together in the search for newcomers."""
_PROBE_SECONDS = 1.0
"""How long what a probe of the store said is taken for true."""
_PATIENCE = 1.5
"""Seconds after which a probe that has not come back is told as such."""


class Service:
    """A forecaster whose observed facts are kept in a store, and come from it.

    A fact goes one way, whoever sends it: checked, committed to the store, read back by its
    number, observed. Facts of other processes take the second half of that way.

    Args:
        forecaster: answers; usable from several threads.
        store: keeps what is observed.
        model: what to call the model.
        limits: bounds on what is accepted.
        poll_seconds: how often to look for facts of other processes.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        store: FactStore,
        *,
        model: str,
        limits: Limits | None = None,
        poll_seconds: float = 0.2,
    ) -> None:
        self.forecaster = forecaster
        self.store = store
        self.model = model
        self.limits = limits or Limits()
        self.observed = 0
        """Facts that came out of the store and hold, less the graph's own that are retracted."""
        self.refused = 0
        """Facts of the store that the forecaster cannot take (another graph's)."""
        self._poll_seconds = poll_seconds
        self._seen = 0
        self._reading = threading.Lock()
        self._stop = threading.Event()
        self._probing = threading.Lock()
        self._probe: _Probe | None = None
        self._poller = threading.Thread(target=self._poll, name="store-poller", daemon=True)
        self._base = graph = forecaster.facts
        self._new_names: set[str] = set()
        self._names_bytes = 0
        self._last_step = graph.steps - 1 + max(1, int(graph.steps * self.limits.steps_ahead))
        self._relation_counts: tuple[int, list[RelationOut]] = (-1, [])

    def start(self) -> None:
        """Observe what the store holds, then follow it."""
        self.catch_up()
        if self.refused:
            raise DataError(
                f"{self.refused} of the facts in {self.store.name} do not fit this graph "
                "(relations unknown or dates too early): give --store another file or database"
            )
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

    def problem(self) -> str:
        """What keeps the service from working, known within two seconds; empty where nothing does.

        The store is written and read back for it, at most once a second, by a thread of its own: a
        store that is locked or hangs holds up nobody who asks.
        """
        with self._probing:
            probe = self._probe
            if probe is None or (not probe.is_alive() and probe.age() > _PROBE_SECONDS):
                probe = self._probe = _Probe(self.store)
                probe.start()
        probe.join(_PATIENCE)
        if probe.is_alive():
            return f"the store of facts has not answered for {probe.age():.0f} s"
        return "the store of facts does not take writes" if probe.failed else ""

    def answer(self, questions: Sequence[PredictIn]) -> list[Forecasts | MetaTKGRError]:
        """An answer or an error for each of some questions."""
        return self.forecaster.predict_many([Question(**dict(one)) for one in questions])

    def add(self, facts: Iterable[Sequence[str | int]]) -> Observed:
        """Keep facts and observe them: on disk, and part of every later answer.

        What they take is counted against the quota of who asks.
        """
        rows = self._checked([(s, r, o, t) for s, r, o, t in facts])
        names = dict.fromkeys(name for row in rows for name in (row.subject, row.object))
        known = self._base.entities
        new = tuple(name for name in names if name not in known and name not in self._new_names)
        if new and self._names_bytes + _size(new) > self.limits.new_names_bytes:
            raise DataError(
                f"the names of new entities have taken {self._names_bytes:,} of the "
                f"{self.limits.new_names_bytes:,} bytes that this service keeps for them; facts "
                "about known entities are still welcome (--new-names-bytes allows more)"
            )
        who, size = ASKING.get()
        spending = None
        if who is not None and who.bounded:
            spending = Spending(who.name, Amounts(len(rows), len(new), size), who.most)
        added = self.store.add(rows, spending=spending)
        try:
            self.catch_up(self.store.committed)
        except StoreError as error:
            # They are kept; whoever follows the store observes them a moment later.
            _LOG.warning("%s", error)
        return Observed(added.accepted, added.duplicates, new)

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
                state = {row.fact: row.retracted for row in rows}
                self._take([fact for fact, retracted in state.items() if retracted], False)
                self._take([fact for fact, retracted in state.items() if not retracted], True)
                self._seen = rows[-1].sequence
                more = len(rows) == _READ_AT_ONCE

    def _take(self, facts: list[FactView], hold: bool) -> None:
        """Observe facts that hold, retract those that do not."""
        if not facts:
            return
        try:
            if hold:
                told = self.forecaster.observe(facts)
                self.observed += told.accepted
                self._new_names.update(told.new_entities)
                self._names_bytes += _size(told.new_entities)
            else:
                back = self.forecaster.retract(facts)
                self.observed -= back.retracted
                self._new_names.difference_update(back.gone_entities)
                self._names_bytes -= _size(back.gone_entities)
        except MetaTKGRError as error:
            if len(facts) == 1:
                self.refused += 1
                _LOG.warning("a fact of the store is left out: %s", error)
                return
            # Halves, so that one bad fact among many costs few attempts.
            half = len(facts) // 2
            self._take(facts[:half], hold)
            self._take(facts[half:], hold)

    def _poll(self) -> None:
        while not self._stop.wait(self._poll_seconds):
            try:
                self.catch_up()
            except StoreError as error:
                _LOG.warning("%s", error)
            except Exception:
                # Following must go on; the next turn tries the same facts again.
                _LOG.exception("facts of the store could not be observed")

    def _checked(self, facts: list[tuple[Any, Any, Any, Any]]) -> list[FactView]:
        """Facts in the graph's own words: names, not labels or aliases; a step's date."""
        graph = self._base
        calendar = graph.calendar
        rows = []
        # What the forecaster would refuse must not get into the store.
        good = checked_rows(facts, graph.relations, calendar, graph.steps)
        for subject, relation, other, step in good:
            if step > self._last_step:
                raise DataError(
                    f"{calendar.label(step)} is too far in the future; this graph takes facts up "
                    f"to {calendar.label(self._last_step)}"
                )
            names = (self._name(subject), graph.relations[relation], self._name(other))
            rows.append(FactView(*names, calendar.label(step)))
        return rows

    def _name(self, text: str) -> str:
        """The name of a known entity, where its label or alias was told."""
        known = self._base.entities
        return str(known[known.id(text)]) if text in known else text

    def relations(self) -> list[RelationOut]:
        """Relations with the number of their facts, most frequent first."""
        snapshot = self.forecaster.snapshot()
        version, known = self._relation_counts
        if version != snapshot.version:
            names = snapshot.first.relations
            counts = snapshot.relation_counts(snapshot.last_step + 1)
            known = [
                RelationOut(name=names[n], label=names.label(n), facts=int(counts[n]))
                for n in np.argsort(-counts, kind="stable").tolist()
            ]
            self._relation_counts = (snapshot.version, known)
        return known

    def timeline(self, entity: str, limit: int, before: Any = None) -> TimelineOut:
        """The last facts of an entity, all or those before a time, and how many there are."""
        if before is not None:
            known = self.forecaster.timeline(entity, before=before)
            return TimelineOut(entity=entity, total=len(known), facts=known[-limit:])
        facts = self.forecaster.timeline(entity, limit)
        snapshot = self.forecaster.snapshot()
        count, *_ = snapshot.seen([snapshot.entities.id(entity.strip())])[0]
        return TimelineOut(entity=entity, total=count, facts=facts)

    def newcomers(self, limit: int = 8) -> list[Match]:
        """Entities that emerged last and are in a few facts already, latest first."""
        snapshot = self.forecaster.snapshot()
        entities, label = snapshot.entities, snapshot.first.calendar.label
        latest = np.argsort(-snapshot.index.first_seen.numpy(), kind="stable")
        matches: list[Match] = []
        for begin in range(0, len(latest), _LOOKED_AT):
            check()
            some = latest[begin : begin + _LOOKED_AT].tolist()
            for number, (count, first, last) in zip(some, snapshot.seen(some), strict=True):
                if count >= _A_FEW:
                    name, shown = entities.name(number), entities.label(number)
                    matches.append(Match(name, shown, count, label(first), label(last)))
                if len(matches) == limit:
                    return matches
        return matches

    def describe(self) -> GraphOut:
        """The graph in a few words."""
        snapshot = self.forecaster.snapshot()
        first, last = snapshot.first, snapshot.last_step
        return GraphOut(
            dataset=first.name,
            model=self.model,
            facts=sum(map(len, snapshot.parts)),
            entities=len(snapshot.entities),
            observed=self.observed,
            unit=first.calendar.unit,
            first=first.calendar.label(0),
            last=first.calendar.label(last),
            next=first.calendar.label(last + 1),
            relations=self.relations(),
        )


class _Probe(threading.Thread):
    """Whether a store takes and gives."""

    def __init__(self, store: FactStore) -> None:
        super().__init__(name="store-probe", daemon=True)
        self.failed = False
        self._store = store
        self._began = time.monotonic()

    def age(self) -> float:
        """Seconds since it was begun."""
        return time.monotonic() - self._began

    def run(self) -> None:
        try:
            self._store.probe()
        except StoreError as error:
            self.failed = True
            _LOG.error("%s", error)


def _size(names: Iterable[str]) -> int:
    """About what names take in a vocabulary and its index."""
    return sum(len(name.encode()) + 64 for name in names)
