"""What ``data.ingest`` has DuckDB do: number names, order facts and links, drop repeated facts.

DuckDB keeps to a bound of memory and writes what does not fit into a folder. Rows go in and come
out as batches of Arrow columns; nothing here knows of the files that they come from or go to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import IntArray
from metatkgr.errors import DataError, need

__all__ = ["Engine"]

_BYTES_PER_ROW = 256
_LEAST_MEMORY = 1 << 26
_AT_ONCE = 1 << 17
"""How many rows come out at a time: more would be no faster."""
_MOST_THREADS = 4
"""Each needs memory of its own to sort and to group in."""

_FACT = "subject, relation, object, time"
_ROWS = {**dict.fromkeys(_FACT.split(", "), "int32"), "row": "int64"}
_NAMES = {"name": "large_string", "id": "int32"}
_LINKS = {"key": "int64", "relation": "int32", "target": "int32", "row": "int64"}
_TIMES = {"cell": "int64", "time": "int32"}
_DISTINCT = f"SELECT {_FACT}, min(row) AS row FROM rows GROUP BY {_FACT}"

Table = Mapping[str, Any]
"""Columns of one length, by name."""
Texts = tuple[IntArray, npt.NDArray[np.uint8]]
"""Names: where each begins and ends in their UTF-8 text, one number more than names; that text."""


class Engine:
    """A DuckDB without a database: what it is given ends with it.

    Args:
        work: an empty folder for what does not fit into memory.
        rows: how many rows come and go at a time; memory is bounded by a multiple of them.

    Raises:
        DataError: DuckDB is not installed.
    """

    def __init__(self, work: Path, rows: int) -> None:
        duckdb = need("duckdb")
        self.rows, self.work, self._failed = min(rows, _AT_ONCE), work, duckdb.Error
        self._full = (duckdb.IOException, duckdb.OutOfMemoryException)
        self._error: BaseException | None = None
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{max(rows * _BYTES_PER_ROW, _LEAST_MEMORY)}B",
            "temp_directory": str(work),
            "threads": min(os.cpu_count() or 1, _MOST_THREADS),
            "preserve_insertion_order": False,  # where an order matters, it is asked for
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        self._database = duckdb.connect(config=settings)
        # It would be printed where results are.
        self._database.execute("SET enable_progress_bar = false")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()

    def see(self, kind: str, first: int, names: Sequence[str]) -> None:
        """Take names as they appear, some of them for a second time.

        Args:
            kind: ``entities`` or ``relations``.
            first: the number of the first appearance; the others follow.
            names: the names.
        """
        rows = {"row": np.arange(first, first + len(names)), "name": names}
        self._give("seen", {"row": "int64", "name": "large_string"}, [rows])
        self._run(f"CREATE TABLE IF NOT EXISTS {kind}_seen (row BIGINT, name VARCHAR)")
        self._run(f"INSERT INTO {kind}_seen SELECT row, name FROM seen")

    def number(self, kind: str, known: Iterable[Texts], count: int) -> int:
        """Number the names that were seen by first appearance; those that are known keep their ids.

        Args:
            kind: ``entities`` or ``relations``.
            known: names that have ids, in the order of these.
            count: how many those are; the first new name gets this id.

        Returns:
            How many names there are now.
        """
        self._give("known", _NAMES, _with_ids(known))
        self._run(
            f"CREATE TABLE {kind} AS SELECT name, coalesce(known.id, {count} - 1 + "
            "row_number() OVER (PARTITION BY known.id IS NULL ORDER BY first)) AS id "
            f"FROM (SELECT name, min(row) AS first FROM {kind}_seen GROUP BY name) "
            "LEFT JOIN known USING (name)"
        )
        (new,) = self._counts(f"SELECT count(*) FROM {kind} WHERE id >= {count}")
        return count + new

    def ids(self, kind: str) -> Iterator[IntArray]:
        """The id of each appearance, in order."""
        seen = f"SELECT id, row FROM {kind}_seen JOIN {kind} USING (name)"
        for (ids,) in self._columns(f"SELECT id FROM ({seen}) ORDER BY row"):
            yield ids

    def new_names(self, kind: str, count: int) -> Iterator[Texts]:
        """The names with ids from ``count`` on, in the order of these."""
        for batch in self._batches(f"SELECT name FROM {kind} WHERE id >= {count} ORDER BY id"):
            yield _texts(batch.column(0))

    def in_order(self, names: Iterable[Texts]) -> Iterator[IntArray]:
        """The ids of names, which are given in the order of these, by their UTF-8 bytes."""
        self._give("names", _NAMES, _with_ids(names))
        for (ids,) in self._columns("SELECT id FROM names ORDER BY name"):
            yield ids

    def facts(self, rows: Iterable[Table]) -> Iterator[list[IntArray]]:
        """Each fact once, by time and then by the first of its rows.

        Args:
            rows: ``subject``, ``relation``, ``object``, ``time`` and ``row``.

        Yields:
            Subjects, relations, objects and times.
        """
        self._give("rows", _ROWS, rows)
        yield from self._columns(f"SELECT {_FACT} FROM ({_DISTINCT}) ORDER BY time, row")

    def keep_fresh(self, rows: Iterable[Table], old: Iterable[Table], last: int) -> tuple[int, int]:
        """Keep each fact once that is not an old one, for :meth:`fresh`.

        Args:
            rows: as :meth:`facts` takes them.
            old: the same.
            last: a time.

        Returns:
            How many there are, and how many of them are before ``last``.
        """
        self._give("rows", _ROWS, rows)
        self._run(f"CREATE TABLE new AS {_DISTINCT}")
        self._give("old", _ROWS, old)
        repeated = f"SELECT new.row FROM old JOIN new USING ({_FACT})"
        self._run(f"CREATE TABLE repeated AS {repeated}")
        self._run("CREATE TABLE fresh AS SELECT * FROM new ANTI JOIN repeated USING (row)")
        counts = self._counts(f"SELECT count(*), count(*) FILTER (time < {last}) FROM fresh")
        return counts[0], counts[1]

    def fresh(self, old: Iterable[Table] = ()) -> Iterator[list[IntArray]]:
        """The facts that were kept, as :meth:`facts` gives them, among old ones of lower rows."""
        self._give("old", _ROWS, old)
        both = f"SELECT {_FACT}, row FROM old UNION ALL SELECT {_FACT}, row FROM fresh"
        yield from self._columns(f"SELECT {_FACT} FROM ({both}) ORDER BY time, row")

    def links(self, links: Iterable[Table]) -> Iterator[list[IntArray]]:
        """Keys, relations and targets of links by their keys, those of one key by ``row``."""
        self._give("links", _LINKS, links)
        yield from self._columns("SELECT key, relation, target FROM links ORDER BY key, row")

    def fillers(self, facts: Iterable[Table]) -> Iterator[list[IntArray]]:
        """Objects, subjects and times of facts by (relation, row); facts come as :meth:`facts`."""
        self._give("rows", _ROWS, facts)
        yield from self._columns("SELECT object, subject, time FROM rows ORDER BY relation, row")

    def times(self, times: Iterable[Table]) -> Iterator[list[IntArray]]:
        """Cells and times by both."""
        self._give("times", _TIMES, times)
        yield from self._columns("SELECT cell, time FROM times ORDER BY cell, time")

    def _give(self, name: str, types: Mapping[str, str], batches: Iterable[Table]) -> None:
        """Have rows be a table that the next statement can read, once."""
        import pyarrow as pa

        schema = pa.schema([(column, pa.type_for_alias(kind)) for column, kind in types.items()])

        def record_batches() -> Iterator[Any]:
            # What fails while DuckDB asks for more would come back as an error of DuckDB's.
            try:
                for batch in batches:
                    columns = [pa.array(batch[column.name], column.type) for column in schema]
                    yield pa.record_batch(columns, schema=schema)
            except BaseException as error:
                self._error = error
                raise

        self._database.register(name, pa.RecordBatchReader.from_batches(schema, record_batches()))

    def _run(self, statement: str) -> None:
        try:
            self._database.execute(statement)
        except self._failed as error:
            raise self._told(error) from error

    def _counts(self, query: str) -> list[int]:
        return [int(column[0]) for column in next(self._columns(query))]

    def _batches(self, query: str) -> Iterator[Any]:
        try:
            yield from self._database.sql(query).to_arrow_reader(self.rows)
        except (self._failed, OSError) as error:
            raise self._told(error) from error

    def _columns(self, query: str) -> Iterator[list[IntArray]]:
        for batch in self._batches(query):
            yield [np.asarray(column) for column in batch.columns]

    def _told(self, error: Exception) -> BaseException:
        """What to raise for an error of DuckDB's: what it stems from, or that the disk is full."""
        if self._error is not None:
            return self._error
        full = isinstance(error, self._full)
        return OSError(" ".join(str(error).split())[:300]) if full else error


def _with_ids(names: Iterable[Texts]) -> Iterator[Table]:
    """Names and their ids, for DuckDB."""
    import pyarrow as pa

    first = 0
    for bounds, text in names:
        size = len(bounds) - 1
        buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds)), pa.py_buffer(text)]
        array = pa.Array.from_buffers(pa.large_string(), size, buffers)
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise DataError(f"the names of the folder are damaged: {error}") from None
        yield {"name": array, "id": np.arange(first, first + size)}
        first += size


def _texts(names: Any) -> Texts:
    """An Arrow array of names as their text."""
    import pyarrow as pa

    array = names.cast(pa.large_string())
    _, bounds, text = array.buffers()
    offsets = np.frombuffer(bounds, np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(text or b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], data
