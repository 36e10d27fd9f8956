"""Facts that a service has observed, kept in a database so that none is lost.

SQLite in one file by default; PostgreSQL by its URL where several service processes share the
facts. A fact is kept as the words it was told in (the names of a graph, not its ids), so a store
outlives the run that it was made with.

- *Durable*: :meth:`FactStore.add` returns once the database has committed to disk. Threads that
  add at the same time are committed together, so that many writers cost few synced writes.
- *Idempotent*: the same (subject, relation, object, time) is kept once, whoever tells it again.
- *Readable in order*: each fact has a sequence number. Writers take turns, so numbers become
  visible in growing order, and a reader that asks for what came :meth:`~FactStore.since` the last
  number it saw misses nothing, whichever process wrote it.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.forecasting.explain import FactView, Observed
from metatkgr.forecasting.store_tables import (
    DIGESTS_SINCE,
    FACTS,
    LAST,
    PROBE,
    SCHEMA,
    SINCE,
    TABLES,
    VERSION,
    strange_schema,
)

__all__ = ["FactStore", "StoreError", "StoredFact", "store_url"]

_TURN = 0x6D657461
"""Key of PostgreSQL's advisory lock under which writers take turns."""

_BUSY_SECONDS = 10
"""How long a writer waits for its turn."""


class StoreError(MetaTKGRError):
    """The database cannot be reached, or does not answer as it should."""


class StoredFact(NamedTuple):
    """One fact of the store."""

    sequence: int
    fact: FactView


@dataclass(eq=False)
class _Told:
    """What one caller of :meth:`FactStore.add` adds, and what came of it."""

    rows: dict[str, dict[str, str]]
    """By their digests."""
    accepted: int | None = None
    error: BaseException | None = None


def store_url(where: str | Path) -> sa.URL:
    """The URL of a store: a path is an SQLite file; PostgreSQL is spoken to through psycopg."""
    text = str(where)
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError:
        raise StoreError(
            "the store's URL cannot be read; write sqlite:///FILE or "
            "postgresql://USER@HOST:PORT/DATABASE"
        ) from None
    kind = url.get_backend_name()
    if kind in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if kind != "sqlite":
        raise StoreError(f"a store is kept in sqlite or postgresql, not in {kind}")
    return url


class FactStore:
    """A database of facts; usable from several threads and several processes.

    Args:
        where: path of an SQLite file, or a URL (``sqlite:///FILE``, ``postgresql://…``).
        make: make missing folders, files and tables; else a missing file is an error.
    """

    def __init__(self, where: str | Path, *, make: bool = True) -> None:
        self.url = store_url(where)
        self.committed = 0
        """The highest number that this object has given out."""
        self._turn, self._queue = threading.Lock(), threading.Lock()
        self._waiting: list[_Told] = []
        self._is_sqlite = self.url.get_backend_name() == "sqlite"
        self._file: tuple[Path, int, int] | None = None
        if self._is_sqlite:
            self._make_place(make)
        waiting: dict[str, Any] = (
            {"timeout": _BUSY_SECONDS} if self._is_sqlite else {"connect_timeout": 10}
        )
        try:
            self._engine = sa.create_engine(
                self.url, connect_args=waiting, pool_pre_ping=not self._is_sqlite
            )
        except ImportError as error:
            raise StoreError(
                f"PostgreSQL needs psycopg ({error}): pip install 'metatkgr[serve]'"
            ) from None
        if self._is_sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        try:
            self._make_tables()
        except BaseException:
            self.close()  # or its connection would hold on to the file
            raise

    @property
    def name(self) -> str:
        """Where the facts are, without a password."""
        return self.url.render_as_string(hide_password=True)

    def add(self, facts: Iterable[Sequence[str]]) -> Observed:
        """Keep facts: all of them, on disk, when this returns; none of them when it raises."""
        rows: dict[str, dict[str, str]] = {}
        given = 0
        for fact in facts:
            row = _checked(fact)
            rows.setdefault(_digest(row), row._asdict())
            given += 1
        if not rows:
            return Observed(0, given)
        told = _Told(rows)
        with self._queue:
            self._waiting.append(told)
        # Whoever gets the turn commits what all others have brought meanwhile.
        with self._turn:
            if told.accepted is None and told.error is None:
                with self._queue:
                    together, self._waiting = self._waiting, []
                self._commit(together)
        if told.error is not None:
            raise told.error
        accepted = int(told.accepted or 0)
        return Observed(accepted, given - accepted)

    def _commit(self, together: list[_Told]) -> None:
        kind = sqlite if self._is_sqlite else postgresql
        statement = kind.insert(FACTS).on_conflict_do_nothing(index_elements=["digest"])
        rows = [{"digest": d, **row} for told in together for d, row in told.rows.items()]
        try:
            with self._writing() as connection:
                before = self._last(connection)
                connection.execute(statement, rows)
                # Writers take turns: what came after ``before`` is ours.
                ours = connection.execute(DIGESTS_SINCE, {"sequence": before}).all()
        except BaseException as error:
            for told in together:
                told.error = error
            return
        self.committed = max(self.committed, before, *(number for number, _ in ours))
        new = {digest for _, digest in ours}
        for told in together:
            told.accepted = len(new & told.rows.keys())
            new -= told.rows.keys()

    def probe(self) -> None:
        """Write something and read it back.

        Raises:
            StoreError: it cannot be written (the disk is full, the file is gone, …) or read.
        """
        with self._writing() as connection:
            connection.execute(sa.update(PROBE).values(writes=PROBE.c.writes + 1))
            written = connection.scalar(sa.select(PROBE.c.writes))
        with self._connection() as connection:
            kept = connection.scalar(sa.select(PROBE.c.writes))
        if written is None or kept is None or kept < written:
            raise StoreError(f"the store {self.name} does not keep what is written")

    def since(self, sequence: int = 0, limit: int | None = None) -> list[StoredFact]:
        """Facts with a number above ``sequence``, in the order of their numbers."""
        wanted = SINCE if limit is None else SINCE.limit(limit)
        with self._connection() as connection:
            found = connection.execute(wanted, {"sequence": sequence})
            stored = [StoredFact(n, FactView(*words)) for n, *words in found]
        for n, fact in stored:
            if not all(isinstance(text, str) for text in fact):
                raise StoreError(f"the store {self.name} is damaged: its fact {n} is not of texts")
        return stored

    def last(self) -> int:
        """The highest number given out; 0 for an empty store."""
        with self._connection() as connection:
            return self._last(connection)

    def __len__(self) -> int:
        with self._connection() as connection:
            return int(connection.scalar(sa.select(sa.func.count()).select_from(FACTS)) or 0)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def __enter__(self) -> FactStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _last(connection: sa.Connection) -> int:
        return int(connection.scalar(LAST) or 0)

    @contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except (sa.exc.SQLAlchemyError, UnicodeError) as error:
            # The driver cannot even put some of the errors of a damaged file into words.
            raise self._store_error(error) from error

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction that no other writer, of this process or another, overlaps."""
        self._check_file()
        with self._connection() as connection:
            connection = connection.execution_options(metatkgr_writes=True)
            with connection.begin():
                if not self._is_sqlite:
                    # A number is drawn before it is committed. Were two writers at work at once,
                    # a reader could see the higher number first and never ask for the lower.
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TURN)))
                yield connection
        self._check_file()

    def _make_place(self, make: bool) -> None:
        if self.url.database in (None, "", ":memory:"):
            raise StoreError("a store in memory would keep nothing; name a file")
        place = Path(str(self.url.database))
        if not make and not place.exists():
            raise StoreError(f"the store {self.name} is gone")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make a store at {self.name}: {error}") from None

    def _check_file(self) -> None:
        """An SQLite file that was removed can still be written to, and nobody will ever read it."""
        if self._file is None:
            return
        path, *opened = self._file
        try:
            now = os.stat(path)
            os.stat(f"{path}-wal")
        except OSError:
            now = None
        if now is None or [now.st_dev, now.st_ino] != opened:
            raise StoreError(
                f"the store {self.name} was removed or replaced since it was opened: put it back "
                "and start again"
            )

    def _make_tables(self) -> None:
        with self._writing() as connection:
            if self._is_sqlite and (fault := strange_schema(connection)):
                raise StoreError(f"{self.name} is not a store of facts: {fault}; name another file")
            TABLES.create_all(connection)
            version = connection.scalar(sa.select(sa.func.max(SCHEMA.c.version)))
            if version is None:
                connection.execute(sa.insert(SCHEMA).values(version=VERSION))
            if connection.scalar(sa.select(PROBE.c.writes)) is None:
                connection.execute(sa.insert(PROBE).values(writes=0))
        if version not in (None, VERSION):
            self.close()
            raise StoreError(
                f"{self.name} has tables of version {version}, this program writes version "
                f"{VERSION}: use the metatkgr that made it, or another store"
            )
        if self._is_sqlite:
            path = Path(str(self.url.database)).absolute()
            if Path(f"{path}-wal").exists():
                opened = os.stat(path)
                self._file = path, opened.st_dev, opened.st_ino

    def _store_error(self, error: Exception) -> StoreError:
        """A database's error as one line that names the store and not its password."""
        cause = getattr(error, "orig", None) or error
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        if "not a database" in reason or "no such column" in reason:
            return StoreError(f"{self.name} is not a store of facts ({reason}); name another file")
        return StoreError(f"the store {self.name} does not answer: {reason}")


def _checked(fact: Sequence[str]) -> FactView:
    """A fact whose texts any database can hold."""
    if not isinstance(fact, (tuple, list)) or len(fact) != len(FactView._fields):
        raise DataError(f"a fact is (subject, relation, object, time), not {fact!r}")
    for what, text in zip(FactView._fields, fact, strict=True):
        if not isinstance(text, str):
            raise DataError(f"a fact's {what} is a text, not {text!r}")
        if not text.strip():
            raise DataError(f"a fact's {what} is empty")
        if "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise DataError(f"a fact's {what} holds a character that is none: {text!a}")
    return FactView(*fact)


def _digest(fact: FactView) -> str:
    return hashlib.sha256(json.dumps(fact).encode()).hexdigest()


def _prepare_sqlite(connection: Any, _: object) -> None:
    """Readers beside a writer (WAL), and a commit that is on the disk when it returns (FULL).

    What the file's own schema calls is not trusted: it may be anyone's.
    """
    # The driver's own transactions would begin at the first write, too late to take turns.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("trusted_schema=OFF", "journal_mode=WAL", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("metatkgr_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
