"""The database under a store of facts: opened, made, checked; one writer at a time.

SQLite in one file by default; PostgreSQL by its URL where several service processes share it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from metatkgr.errors import MetaTKGRError
from metatkgr.forecasting.store_tables import (
    PROBE,
    SCHEMA,
    TABLES,
    VERSION,
    migrate,
    strange_schema,
)

__all__ = ["Database", "StoreError", "store_url"]

_TURN = 0x6D657461
"""Key of PostgreSQL's advisory lock under which writers take turns."""

_CHECKED_BYTES = 1 << 28
"""SQLite files up to this size are looked through when they are opened."""
_BUSY_SECONDS = 10
"""How long a writer waits for its turn."""


class StoreError(MetaTKGRError):
    """The database cannot be reached, or does not answer as it should."""


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


class Database:
    """A database with our tables; usable from several threads and several processes.

    Args:
        where: path of an SQLite file, or a URL (``sqlite:///FILE``, ``postgresql://…``).
        make: make missing folders, files and tables; else a missing file is an error.
    """

    def __init__(self, where: str | Path, *, make: bool = True) -> None:
        self.url = store_url(where)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._file: tuple[Path, int, int] | None = None
        if self.is_sqlite:
            self._make_place(make)
        waiting: dict[str, Any] = (
            {"timeout": _BUSY_SECONDS} if self.is_sqlite else {"connect_timeout": 10}
        )
        try:
            self._engine = sa.create_engine(
                self.url, connect_args=waiting, pool_pre_ping=not self.is_sqlite
            )
        except ImportError as error:
            raise StoreError(
                f"PostgreSQL needs psycopg ({error}): pip install 'metatkgr[postgresql]'"
            ) from None
        if self.is_sqlite:
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

    def probe(self) -> None:
        """Write something and read it back.

        Raises:
            StoreError: it cannot be written (the disk is full, the file is gone, …) or read.
        """
        with self.writing() as connection:
            connection.execute(sa.update(PROBE).values(writes=PROBE.c.writes + 1))
            written = connection.scalar(sa.select(PROBE.c.writes))
        with self.reading() as connection:
            kept = connection.scalar(sa.select(PROBE.c.writes))
        if written is None or kept is None or kept < written:
            raise StoreError(f"the store {self.name} does not keep what is written")

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection; what goes wrong with it is a :class:`StoreError`."""
        try:
            with self._engine.connect() as connection:
                yield connection
        except (sa.exc.SQLAlchemyError, UnicodeError) as error:
            # The driver cannot even put some of the errors of a damaged file into words.
            raise self._store_error(error) from error

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that no other writer, of this process or another, overlaps."""
        self._check_file()
        with self.reading() as connection:
            connection = connection.execution_options(metatkgr_writes=True)
            with connection.begin():
                if not self.is_sqlite:
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
        for suffix in ("", "-journal", "-wal", "-shm"):  # SQLite would wait for a pipe for ever
            beside = Path(f"{place}{suffix}")
            if beside.exists() and not beside.is_file():
                raise StoreError(f"{beside} is not an ordinary file: name another store")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # for nobody else; what SQLite puts beside it is alike
                os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
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
        with self.writing() as connection:
            if self.is_sqlite and (fault := strange_schema(connection)):
                raise StoreError(f"{self.name} is not a store of facts: {fault}; name another file")
            if self.is_sqlite:
                self._check_whole(connection)
            TABLES.create_all(connection)
            version = connection.scalar(sa.select(sa.func.max(SCHEMA.c.version)))
            if version is None:
                connection.execute(sa.insert(SCHEMA).values(version=VERSION))
            elif not 1 <= version <= VERSION:
                raise StoreError(
                    f"{self.name} has tables of version {version}, this program writes version "
                    f"{VERSION}: use the metatkgr that made it, or another store"
                )
            else:
                migrate(connection, version)
            if connection.scalar(sa.select(PROBE.c.writes)) is None:
                connection.execute(sa.insert(PROBE).values(writes=0))
        if self.is_sqlite:
            path = Path(str(self.url.database)).absolute()
            if Path(f"{path}-wal").exists():
                opened = os.stat(path)
                self._file = path, opened.st_dev, opened.st_ino

    def _check_whole(self, connection: sa.Connection) -> None:
        """Refuse a damaged file: rows behind the damage would be missing without a word."""
        if os.path.getsize(str(self.url.database)) > _CHECKED_BYTES:
            return
        found = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
        if found != "ok":
            raise StoreError(
                f"the store {self.name} is damaged ({found.splitlines()[0][:200]}); put back a "
                "copy that is whole"
            )

    def _store_error(self, error: Exception) -> StoreError:
        """A database's error as one line that names the store and not its password."""
        cause = getattr(error, "orig", None) or error
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        if "not a database" in reason or "no such column" in reason:
            return StoreError(f"{self.name} is not a store of facts ({reason}); name another file")
        return StoreError(f"the store {self.name} does not answer: {reason}")


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
