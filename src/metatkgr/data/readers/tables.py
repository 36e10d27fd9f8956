"""Rows that are not text: tuples and dictionaries from Python, frames and tables."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.data.readers.bad_rows import FIRST, BadRow, shorten
from metatkgr.data.readers.layout import ROLES, SAMPLE, Layout, find_layout
from metatkgr.data.readers.options import ReadOptions
from metatkgr.errors import DataError

__all__ = [
    "Coded",
    "Coder",
    "Rows",
    "cell_text",
    "is_frame",
    "rows_of_frame",
    "rows_of_mappings",
    "rows_of_tuples",
]


def cell_text(value: Any) -> str | None:
    """What a CSV file would say for ``value``; None for a missing one (None, NaN, NaT)."""
    if isinstance(value, str):
        return value
    if value is None or value is Ellipsis:
        return None
    if isinstance(value, (int, np.integer)):
        return str(value)
    if isinstance(value, (float, np.floating)):
        if math.isnan(value):
            return None
        # A column of integers becomes one of floats as soon as a value is missing.
        return str(int(value)) if float(value).is_integer() else str(value)
    if isinstance(value, (dt.datetime, dt.date)):
        text = value.isoformat()
        return None if text == "NaT" else text
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if type(value).__name__ in ("NAType", "NaTType"):
        return None  # pandas' own; naming them would import pandas
    return str(value)


def rows_of_tuples(tuples: Iterable[Any], options: ReadOptions) -> Rows:
    """Rows from (s, r, o, t) or (s, r, o, start, end) tuples."""
    source = options.name or "tuples"
    listed = list(tuples)
    sample = [_sample_text(row) for row in listed[:SAMPLE] if _is_row(row)]
    layout = find_layout(None, sample, options, source=source, tuples=True)
    kept: list[Any] = []
    numbers: list[int] = []
    bad: list[BadRow] = []
    bad_total = 0
    for number, row in enumerate(listed, 1):
        if _is_row(row) and len(row) >= layout.needed:
            kept.append(row)
            numbers.append(number)
            continue
        bad_total += 1
        if len(bad) < FIRST:
            column, reason = _why_not_a_row(row, layout)
            value = shorten(repr(row))
            bad.append(BadRow(source, "row", number, column, value, reason))
    columns = {
        role: Coded.of(cell_text(row[position]) for row in kept)
        for role, position in layout.positions.items()
    }
    places = np.asarray(numbers, np.int64)
    return Rows(source, "row", layout, columns, places, tuple(bad), bad_total)


def _is_row(row: Any) -> bool:
    return isinstance(row, (tuple, list)) or (isinstance(row, np.ndarray) and row.ndim == 1)


def _why_not_a_row(row: Any, layout: Layout) -> tuple[str, str]:
    if not _is_row(row):
        return layout.names["subject"], f"not a tuple but a {type(row).__name__}"
    missing = min(
        (position, role) for role, position in layout.positions.items() if position >= len(row)
    )[1]
    return layout.names[missing], (f"too few columns: {len(row)}, and {layout.needed} are needed")


def _sample_text(row: Sequence[Any]) -> list[str]:
    return [cell_text(cell) or "" for cell in row]


def rows_of_mappings(
    mappings: Iterable[Any],
    options: ReadOptions,
    *,
    source: str = "",
    layout: Layout | None = None,
    numbers: Sequence[int] | None = None,
) -> Rows:
    """Rows from dictionaries, whose keys are the columns; what is not there is a missing value.

    Args:
        mappings: one for each row.
        options: how to read them.
        source: what reports call them.
        layout: of rows that came before; None: by the keys of the first hundred.
        numbers: of the rows; None: from 1.
    """
    listed = list(mappings)
    source = source or options.name or "dictionaries"
    if layout is None:
        sample = [row for row in listed[:SAMPLE] if isinstance(row, Mapping)]
        seen = dict.fromkeys(key for row in sample for key in row)
        keys = [key for key in seen if isinstance(key, str) and key and key == key.strip()]
        texts = [[_value_text(row.get(key)) or "" for key in keys] for row in sample]
        layout = find_layout(keys, texts, options, source=source, look=False)
    kept: list[Mapping[str, Any]] = []
    places: list[int] = []
    bad: list[BadRow] = []
    for number, row in zip(numbers or range(1, len(listed) + 1), listed, strict=True):
        if isinstance(row, Mapping):
            kept.append(row)
            places.append(number)
            continue
        column, value = layout.names["subject"], shorten(repr(row))
        reason = f"not a dictionary but a {type(row).__name__}"
        bad.append(BadRow(source, "row", number, column, value, reason))
    columns = {
        role: Coded.of(_value_text(row.get(name)) for row in kept)
        for role, name in layout.names.items()
    }
    at = np.asarray(places, np.int64)
    return Rows(source, "row", layout, columns, at, tuple(bad[:FIRST]), len(bad))


def _value_text(value: Any) -> str | None:
    """As ``cell_text``; what holds other values names nobody and no time."""
    return None if isinstance(value, (list, dict, bool)) else cell_text(value)


def is_frame(source: Any) -> bool:
    """Whether ``source`` is a pandas or polars frame or a pyarrow table."""
    package = type(source).__module__.partition(".")[0]
    return package in ("pandas", "polars", "pyarrow") and type(source).__name__ in (
        "DataFrame",
        "LazyFrame",
        "Table",
        "RecordBatch",
    )


def rows_of_frame(frame: Any, options: ReadOptions) -> Rows:
    """Rows of a pandas or polars frame or a pyarrow table; only the columns needed are touched."""
    source = options.name or "table"
    if type(frame).__name__ == "LazyFrame":
        frame = frame.collect()
    if type(frame).__module__.startswith("pyarrow"):
        names, column = list(frame.schema.names), frame.column
        return _rows(source, [str(n) for n in names], frame.num_rows, column, options)
    names = [str(name) for name in frame.columns]
    if type(frame).__module__.startswith("pandas"):
        return _rows(source, names, len(frame), lambda at: frame.iloc[:, at], options)
    return _rows(source, names, len(frame), lambda at: frame.to_series(at), options)


def _rows(
    source: str,
    names: list[str],
    count: int,
    column: Callable[[int], Any],
    options: ReadOptions,
) -> Rows:
    if options.header is False:
        options = ReadOptions.of(options, {"header": None})  # columns of a table have names anyway
    layout = _layout_of_table(source, names, column, options)
    columns = {role: _coded(column(at), source) for role, at in layout.positions.items()}
    for role, coded in columns.items():
        if len(coded.codes) != count:
            raise DataError(
                f"{source}: the column {layout.names[role]!r} has {len(coded.codes):,} rows "
                f"instead of {count:,}"
            )
    return Rows(source, "row", layout, columns, np.arange(1, count + 1, dtype=np.int64))


def _layout_of_table(
    source: str, names: list[str], column: Callable[[int], Any], options: ReadOptions
) -> Layout:
    sample: list[list[str]] = []
    if options.columns is None:
        heads = [_head(column(at)) for at in range(len(names))]
        sample = [_sample_text(row) for row in zip(*heads, strict=True)]
    look = len(names) == len(ROLES)
    return find_layout(names, sample, options, source=source, look=look)


def _head(column: Any) -> list[Any]:
    return list(_values(column[:SAMPLE]))


def _values(column: Any) -> list[Any]:
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    raise DataError(f"cannot read a column of type {type(column).__name__}")


def _coded(column: Any, source: str) -> Coded:
    """Code a column of any kind: each distinct value is turned into text once."""
    try:
        coded = _coded_by_arrow(column)
    except ImportError:
        coded = None
    if coded is not None:
        return coded
    try:
        return Coded.of(cell_text(value) for value in _values(column))
    except (ValueError, OverflowError) as error:
        raise DataError(f"{source}: a column holds values out of range: {error}") from None


def _coded_by_arrow(column: Any) -> Coded | None:
    """Code a column with pyarrow, or None where it cannot (mixed types, nested values)."""
    import pyarrow as pa

    try:
        if not isinstance(column, (pa.Array, pa.ChunkedArray)):
            is_polars = type(column).__module__.startswith("polars")
            column = column.to_arrow() if is_polars else pa.array(column, from_pandas=True)
        if isinstance(column, pa.ChunkedArray):
            column = column.unify_dictionaries().combine_chunks()
            if isinstance(column, pa.ChunkedArray):  # too large for one array
                column = pa.concat_arrays(column.chunks)
        if pa.types.is_timestamp(column.type):
            # Python's datetimes have microseconds; finer is no use here and fails to convert.
            column = column.cast(pa.timestamp("us"), safe=False)  # in UTC
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode(null_encoding="encode")
        texts = [cell_text(value) for value in column.dictionary.to_pylist()]
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return None
    codes = column.indices.cast(pa.int64()).fill_null(len(texts))
    return Coded(np.asarray(codes, dtype=np.int64), [*texts, None])


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of text whose distinct values are stored once.

    Args:
        codes: (N,) position in ``texts`` of each row's cell.
        texts: the cells; None stands for a missing value. They need not be distinct or all used.
    """

    codes: IntArray
    texts: Sequence[str | None]

    @classmethod
    def of(cls, cells: Iterable[str | None]) -> Coded:
        """Code a plain column."""
        coder = Coder()
        coder.add(list(cells))
        return coder.done()


class Coder:
    """Builds a :class:`Coded` column piece by piece."""

    def __init__(self) -> None:
        self._ids: defaultdict[str | None, int] = defaultdict()
        self._ids.default_factory = self._ids.__len__
        self._parts: list[IntArray] = [np.zeros(0, np.int64)]

    @property
    def texts(self) -> list[str | None]:
        """The distinct cells so far."""
        return list(self._ids)

    def codes(self, cells: Sequence[str | None]) -> IntArray:
        """(N,) position of each cell in ``texts``, where new ones come last."""
        return np.fromiter(map(self._ids.__getitem__, cells), np.int64, len(cells))

    def add(self, cells: Sequence[str | None]) -> None:
        """Add cells below the others."""
        self._parts.append(self.codes(cells))

    def done(self) -> Coded:
        """The column."""
        return Coded(np.concatenate(self._parts), self.texts)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one input that could be split into columns, and those that could not."""

    source: str
    """What reports call the input."""
    place: str
    """``line`` or ``row``: what ``numbers`` count."""
    layout: Layout
    columns: dict[str, Coded]
    """Role to column."""
    numbers: IntArray
    """(N,) 1-based line or row number of each row."""
    bad: tuple[BadRow, ...] = ()
    """The first twenty bad rows."""
    bad_total: int = 0

    def __len__(self) -> int:
        return len(self.numbers)
