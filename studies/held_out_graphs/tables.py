"""Tables out of the files of packages: columns by name, checked to be there."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError

__all__ = ["Row", "Table", "columns_of", "read_csv", "read_json", "read_parquet", "read_sqlite"]

Row = tuple[str, str, str, str]
"""Subject, relation, object, time."""
Table = Mapping[str, Sequence[Any]]
"""Columns by name, of equal length."""

_MOST_ROWS = 10_000_000


def columns_of(table: Table) -> Iterator[tuple[Any, ...]]:
    """The rows of a table."""
    return zip(*table.values(), strict=True)


def read_parquet(content: bytes, columns: list[str], where: str) -> Table:
    """Some columns of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(content))
        if file.metadata.num_rows > _MOST_ROWS:
            raise DataError(f"{where} has {file.metadata.num_rows:,} rows: too many")
        read = file.read(columns=columns).to_pydict()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{where} cannot be read: {error}") from None
    return _of_columns(read, columns, where)


def read_csv(content: bytes, columns: list[str], where: str) -> Table:
    """Some columns of a CSV file."""
    try:
        lines = list(csv.DictReader(io.StringIO(content.decode("utf-8"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{where} cannot be read: {error}") from None
    read = {name: [line[name] for line in lines] for name in columns if lines and name in lines[0]}
    if any(value is None for column in read.values() for value in column):
        raise DataError(f"{where} has a row that is cut short")
    return _of_columns(read, columns, where)


def read_sqlite(content: bytes, table: str, columns: list[str], where: str) -> Table:
    """Some columns of a table of an SQLite database."""
    names = ", ".join(f'"{name}"' for name in columns)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "copy.db"
        path.write_bytes(content)
        try:
            connection = sqlite3.connect(path)
            try:
                rows = connection.execute(f'SELECT {names} FROM "{table}"').fetchall()
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise DataError(f"{where} cannot be read: {error}; of another version?") from None
    return {name: [row[at] for row in rows] for at, name in enumerate(columns)}


def read_json(content: bytes, where: str) -> Any:
    """A JSON file."""
    try:
        return json.loads(content)
    except ValueError as error:
        raise DataError(f"{where} cannot be read: {error}") from None


def _of_columns(read: Mapping[str, Sequence[Any]], columns: list[str], where: str) -> Table:
    missing = [name for name in columns if name not in read]
    if missing:
        raise DataError(f"{where} has no column {missing[0]}: it is of another version")
    return {name: read[name] for name in columns}
