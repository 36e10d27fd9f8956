"""What a service knows, to look at: the graph, newcomers, the facts of an entity, its health."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy as np

from metatkgr.data.facts import Vocabulary
from metatkgr.forecasting.explain import FactView, Match
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.known import matches
from metatkgr.forecasting.store import FactStore
from metatkgr.serving.schemas import GraphOut, RelationOut, TimelineOut

__all__ = ["Views"]

_LOG = logging.getLogger(__name__)
_PROBE_SECONDS = 1.0
"""How long what a probe of the store said is taken for true."""
_PATIENCE = 1.5
"""Seconds after which a probe that has not come back is told as such."""


class Views:
    """Looks at a forecaster and its store.

    Args:
        forecaster: knows the facts.
        store: has those that were told.
        model: what to call the model.
    """

    def __init__(self, forecaster: Forecaster, store: FactStore, model: str) -> None:
        self.forecaster = forecaster
        self.store = store
        self.model = model
        self.observed = 0
        """Facts that came out of the store and hold, less the graph's own that are retracted."""
        self._base = forecaster.facts
        self._relation_counts: tuple[int, list[RelationOut]] = (-1, [])
        self._probing = threading.Lock()
        self._probe: _Probe | None = None

    @property
    def unit(self) -> str:
        """Of the graph's time."""
        return self._base.calendar.unit

    def _name(self, text: str) -> str:
        """The name of a known entity, where its label or alias was told."""
        return _name(self._base.entities, text)

    def _relation(self, text: str) -> str:
        return _name(self._base.relations, text)

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
            return TimelineOut(entity=entity, total=len(known), facts=known[-limit:], ids=[])
        facts = self.forecaster.timeline(entity, limit)
        snapshot = self.forecaster.snapshot()
        count, *_ = snapshot.seen([snapshot.entities.id(entity.strip())])[0]
        # The store knows names, the timeline shows labels.
        named = [
            FactView(self._name(s), self._relation(r), self._name(o), t) for s, r, o, t in facts
        ]
        numbers = self.store.ids(named)
        return TimelineOut(
            entity=entity, total=count, facts=facts, ids=[numbers.get(fact) for fact in named]
        )

    def newcomers(self, limit: int = 8) -> list[Match]:
        """Entities that emerged last, latest first; one fact is enough."""
        snapshot = self.forecaster.snapshot()
        first = snapshot.index.first_seen.numpy()
        emerged = np.flatnonzero(first <= snapshot.last_step)  # all others have no fact
        latest = emerged[np.argsort(-first[emerged], kind="stable")][:limit]
        return matches(snapshot, latest.tolist())

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
            recent=first.calendar.label(last - last // 10),
            next=first.calendar.label(last + 1),
            relations=self.relations(),
        )

    async def problem(self) -> str:
        """What keeps the service from working, known within two seconds; empty where nothing does.

        The store is written and read back for it, at most once a second, by a thread of its own: a
        store that is locked or hangs holds up nobody who asks, and who asks needs no thread.
        """
        with self._probing:
            probe = self._probe
            if probe is None or (probe.ended.done() and probe.age() > _PROBE_SECONDS):
                probe = self._probe = _Probe(self.store)
                probe.start()
        await asyncio.wait([asyncio.wrap_future(probe.ended)], timeout=_PATIENCE)
        if not probe.ended.done():
            return f"the store of facts has not answered for {probe.age():.0f} s"
        return "" if probe.ended.result() else "the store of facts does not take writes"


class _Probe(threading.Thread):
    """Whether a store takes and gives."""

    def __init__(self, store: FactStore) -> None:
        super().__init__(name="store-probe", daemon=True)
        self.ended: Future[bool] = Future()
        """Whether it does, once that is known."""
        self._store = store
        self._began = time.monotonic()

    def age(self) -> float:
        """Seconds since it was begun."""
        return time.monotonic() - self._began

    def run(self) -> None:
        try:
            self._store.probe()
        except Exception as error:
            _LOG.error("%s", error)
            self.ended.set_result(False)
        else:
            self.ended.set_result(True)


def _name(known: Vocabulary, text: str) -> str:
    """The name of what is called so."""
    called_otherwise = known.labels or known.aliases
    return str(known[known.id(text)]) if called_otherwise and text in known else text
