"""Facts that a service has observed, kept in a database so that none is lost.

SQLite in one file by default; PostgreSQL by its URL where several service processes share the
facts. A fact is kept as the words it was told in (the names of a graph, not its ids), so a store
outlives the run that it was made with.

- *Durable*: :meth:`FactStore.add` returns once the database has committed to disk. Threads that
  add at the same time are committed together, so that many writers cost few synced writes.
- *Idempotent*: the same (subject, relation, object, time) is kept once, whoever tells it again.
- *Nothing is forgotten*: a fact is never changed or removed. It is told and retracted, and each of
  these changes is kept with who said so, when that one observed it, and when it came here. A
  correction is a retraction and a new fact at once.
- *Readable in order*: each change has a sequence number. Writers take turns, so numbers become
  visible in growing order, and a reader that asks for what came :meth:`~FactStore.since` the last
  number it saw misses nothing, whichever process wrote it.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from metatkgr.data.facts import Facts
from metatkgr.errors import DataError
from metatkgr.forecasting.database import Database, StoreError, store_url
from metatkgr.forecasting.explain import FactView, Observed, Retracted
from metatkgr.forecasting.store_tables import (
    CHANGES,
    FACTS,
    LAST,
    LOG,
    NOW,
    STATES,
    Amounts,
    Spending,
    checked_fact,
    checked_text,
    claim,
    digest_of,
    spend,
    used_today,
)

__all__ = ["FactStore", "StoreError", "StoredFact", "store_url"]

_AT_ONCE = 500
"""Facts that are looked up in one go."""
_ROWS = 10_000
"""Changes that are held at once by who reads all."""


class StoredFact(NamedTuple):
    """One change: a fact that was told or retracted."""

    sequence: int
    """Of the change."""
    fact: FactView
    """With the time at which it holds."""
    id: int
    """Of the fact, whatever is said about it."""
    retracted: bool
    source: str
    """Who said so; may be empty."""
    observed: str
    """When the source observed it, in its own words; may be empty."""
    received: dt.datetime
    """When it came into the store, in UTC."""


@dataclass(eq=False)
class _Told:
    """Facts that a caller adds or retracts, and what came of it."""

    rows: dict[str, FactView]
    """By their digests."""
    retracted: bool
    source: str
    observed: str
    spending: Spending | None = None
    """Of a quota; the same object in changes that belong together."""
    accepted: int | None = None
    error: BaseException | None = None


class FactStore:
    """A database of facts; usable from several threads and several processes.

    Args:
        where: path of an SQLite file, or a URL (``sqlite:///FILE``, ``postgresql://…``).
        make: make missing folders, files and tables; else a missing file is an error.
    """

    def __init__(self, where: str | Path, *, make: bool = True) -> None:
        self.committed = 0
        """The highest number that this object has given out."""
        self._turn, self._queue = threading.Lock(), threading.Lock()
        self._waiting: list[_Told] = []
        self._database = Database(where, make=make)

    @property
    def name(self) -> str:
        """Where the facts are, without a password."""
        return self._database.name

    def add(
        self,
        facts: Iterable[Sequence[str]],
        *,
        source: str = "",
        observed: str = "",
        spending: Spending | None = None,
    ) -> Observed:
        """Keep facts: all of them, on disk, when this returns; none of them when it raises.

        Args:
            facts: (subject, relation, object, time) each.
            source: who says so.
            observed: when that one observed it.
            spending: what this takes of a quota, which is counted in the same transaction.

        Raises:
            QuotaError: it is more than is left.
        """
        return self._tell(facts, False, source, observed, spending)

    def retract(
        self,
        facts: Iterable[Sequence[str]],
        *,
        source: str = "",
        observed: str = "",
        spending: Spending | None = None,
    ) -> Retracted:
        """Take facts back; also such as were never told here but stand in the graph.

        Args:
            facts, source, observed, spending: as in :meth:`add`.
        """
        told = self._tell(facts, True, source, observed, spending)
        return Retracted(told.accepted, told.duplicates)

    def correct(
        self,
        wrong: Sequence[str],
        right: Sequence[str],
        *,
        source: str = "",
        observed: str = "",
        spending: Spending | None = None,
    ) -> Observed:
        """Put a fact in the place of another, in one change that nobody sees half of."""
        said = (checked_text(source, "source"), checked_text(observed, "time"), spending)
        told = [
            _Told({digest_of(row): row}, retracted, *said)
            for row, retracted in ((checked_fact(wrong), True), (checked_fact(right), False))
        ]
        self._write(told)
        accepted = int(told[1].accepted or 0)
        return Observed(accepted, 1 - accepted)

    def _tell(
        self,
        facts: Iterable[Sequence[str]],
        retracted: bool,
        source: str,
        observed: str,
        spending: Spending | None,
    ) -> Observed:
        rows: dict[str, FactView] = {}
        given = 0
        for fact in facts:
            row = checked_fact(fact)
            rows.setdefault(digest_of(row), row)
            given += 1
        if not rows:
            return Observed(0, given)
        source, observed = checked_text(source, "source"), checked_text(observed, "time")
        told = _Told(rows, retracted, source, observed, spending)
        self._write([told])
        accepted = int(told.accepted or 0)
        return Observed(accepted, given - accepted)

    def _write(self, changes: list[_Told]) -> None:
        with self._queue:
            self._waiting += changes
        # Whoever gets the turn commits what all others have brought meanwhile.
        with self._turn:
            if changes[-1].accepted is None and changes[-1].error is None:
                with self._queue:
                    together, self._waiting = self._waiting, []
                self._commit(together)
        if changes[-1].error is not None:
            raise changes[-1].error

    def _commit(self, together: list[_Told]) -> None:
        kind = sqlite if self._database.is_sqlite else postgresql
        statement = kind.insert(FACTS).on_conflict_do_nothing(index_elements=["digest"])
        received = dt.datetime.now(dt.UTC)
        try:
            with self._database.writing() as connection:
                refused = spend(connection, [told.spending for told in together if told.spending])
                for told in together:
                    told.error = refused.get(id(told.spending))
                together = [told for told in together if told.error is None]
                rows = {digest: row for told in together for digest, row in told.rows.items()}
                if not rows:
                    return
                connection.execute(
                    statement, [{"digest": d, **row._asdict()} for d, row in rows.items()]
                )
                states = self._states(connection, list(rows))
                accepted, log = [], []
                for told in together:
                    about = (told.retracted, told.source, told.observed, received)
                    new = [d for d in told.rows if states[d][1] is not told.retracted]
                    log += [(states[d][0], *about) for d in new]
                    states.update({d: (states[d][0], told.retracted) for d in new})
                    accepted.append(len(new))
                if log:
                    columns = ("fact", "retracted", "source", "observed", "received")
                    connection.execute(
                        sa.insert(CHANGES), [dict(zip(columns, row, strict=True)) for row in log]
                    )
                last = self._last(connection)
        except BaseException as error:
            for told in together:
                told.error = error
            return
        self.committed = max(self.committed, last)
        for told, count in zip(together, accepted, strict=True):
            told.accepted = count

    @staticmethod
    def _states(
        connection: sa.Connection, digests: list[str]
    ) -> dict[str, tuple[int, bool | None]]:
        """Number of each fact by its digest, and whether it is retracted; None: never heard of."""
        return {
            digest: (number, retracted)
            for begin in range(0, len(digests), _AT_ONCE)
            for digest, number, retracted in connection.execute(
                STATES, {"digests": digests[begin : begin + _AT_ONCE]}
            )
        }

    def belong_to(self, graph: Facts, *, adopt: bool = False) -> None:
        """Be the store of a graph, which is noted the first time.

        Args:
            graph: it may have grown since.
            adopt: be its store from now on, whatever graph it was made for.

        Raises:
            DataError: it was made for another.
        """
        with self._database.writing() as connection:
            if not claim(connection, graph, adopt=adopt):
                raise DataError(
                    f"the store {self.name} was made for another graph than {graph.name or 'this'}"
                    ": give --store another file or database, or --adopt-store to use it all the "
                    "same"
                )

    def used_today(self) -> dict[str, Amounts]:
        """What each token has taken of its quota today, in UTC."""
        with self._database.reading() as connection:
            return used_today(connection)

    def probe(self) -> None:
        """Write something and read it back.

        Raises:
            StoreError: it cannot be written (the disk is full, the file is gone, …) or read.
        """
        self._database.probe()

    def since(self, sequence: int = 0, limit: int | None = None) -> list[StoredFact]:
        """Changes with a number above ``sequence``, in the order of their numbers."""
        wanted = LOG.where(CHANGES.c.number > sequence)
        return list(self._read(wanted if limit is None else wanted.limit(limit)))

    def now(self, known_at: dt.datetime | None = None) -> Iterator[StoredFact]:
        """The facts that hold, in the order in which they were told.

        Args:
            known_at: by what was known then; None: by all that is.
        """
        last = NOW
        if known_at is not None:
            last = last.where(CHANGES.c.received <= known_at.astimezone(dt.UTC))
        return self._read(LOG.where(CHANGES.c.number.in_(last), ~CHANGES.c.retracted))

    def log(self, known_at: dt.datetime | None = None) -> Iterator[StoredFact]:
        """All changes, or those that had come by a moment."""
        if known_at is None:
            return self._read(LOG)
        return self._read(LOG.where(CHANGES.c.received <= known_at.astimezone(dt.UTC)))

    def history(self, number: int) -> list[StoredFact]:
        """What was said about a fact, oldest first; nothing, where there is no such fact."""
        return list(self._read(LOG.where(CHANGES.c.fact == number)))

    def ids(self, facts: Iterable[Sequence[str]]) -> dict[FactView, int]:
        """The numbers of those of some facts that the store has and that are not retracted."""
        rows = {digest_of(row): row for row in map(checked_fact, facts)}
        with self._database.reading() as connection:
            states = self._states(connection, list(rows))
        return {rows[d]: number for d, (number, retracted) in states.items() if retracted is False}

    def _read(self, wanted: sa.Select[Any]) -> Iterator[StoredFact]:
        with self._database.reading() as connection:
            found = connection.execute(wanted.execution_options(yield_per=_ROWS))
            while True:
                try:
                    row = next(found, None)
                    if row is None:
                        return
                    change = _change(*row)
                except (TypeError, ValueError) as error:
                    raise StoreError(f"the store {self.name} is damaged: {error}") from None
                yield change

    def last(self) -> int:
        """The highest number given out; 0 for an empty store."""
        with self._database.reading() as connection:
            return self._last(connection)

    def __len__(self) -> int:
        """How many facts hold."""
        held = sa.select(sa.func.count()).where(CHANGES.c.number.in_(NOW), ~CHANGES.c.retracted)
        with self._database.reading() as connection:
            return int(connection.scalar(held) or 0)

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()

    def __enter__(self) -> FactStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _last(connection: sa.Connection) -> int:
        return int(connection.scalar(LAST) or 0)


def _change(number: int, *words: Any) -> StoredFact:
    """A row of the log, which may be anything where a file is damaged."""
    *texts, fact, retracted, source, observed, received = words
    if not all(isinstance(text, str) for text in (*texts, source, observed)):
        raise TypeError(f"its change {number} is not of texts")
    if not isinstance(received, dt.datetime) or not isinstance(fact, int):
        raise TypeError(f"its change {number} has no time or no fact")
    at = received if received.tzinfo else received.replace(tzinfo=dt.UTC)
    view = FactView(*texts)
    return StoredFact(number, view, fact, bool(retracted), source, observed, at)
