"""What must be known about a whole file before its first row can be read: its time unit, mostly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metatkgr.data.facts import Vocabulary
from metatkgr.data.large.chunks import pieces
from metatkgr.data.readers.checks import check_rows
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.rows import Rows
from metatkgr.data.readers.times import Kind, Moments, Precision
from metatkgr.data.readers.vocabularies import parse_id, vocabularies_beside
from metatkgr.errors import DataError

__all__ = ["Scan", "scan"]

_DISTINCT_TIMES = 1 << 20
"""So many different times are told apart when integers and dates are counted against each other."""
_FIRST_ROWS = 10_000
"""How many rows tell whether names are ids."""

Given = tuple[Vocabulary | None, Vocabulary | None]


@dataclass(frozen=True)
class Scan:
    """What was found out."""

    unit: str
    """One of ``calendar.UNITS``."""
    interval: bool
    ids: bool
    """Whether names are integer ids."""
    vocabularies: Given
    """Of entities and relations, where files beside the data give them."""
    span: tuple[int, int] | None
    """Earliest and latest raw time; only where intervals are to be filled up to it."""


def scan(files: list[Path], options: ReadOptions, rows: int) -> Scan:
    """Find out what the options leave open; reads the files only where that is needed."""
    first = next(pieces(files[0], options, min(rows, _FIRST_ROWS)), None)
    if first is None:
        raise DataError(f"{files[0]} holds no rows")
    vocabularies = vocabularies_beside(files[0].parent, options.ids)
    ids = options.ids
    if ids is None:
        ids = None not in vocabularies and _mostly_integers(first)
    interval = first.layout.interval
    unit = options.unit
    if unit == "auto":
        times = _Times()
        for file in files:
            for part in pieces(file, options, rows, times_only=True):
                times.add(part)
        unit = times.unit(interval=interval)
    span: tuple[int, int] | None = None
    if interval and options.clip is None:
        for file in files:
            for part in pieces(file, options, rows):
                found = check_rows(
                    [part], source=str(file), unit=unit, ids=ids, vocabularies=vocabularies
                ).span
                if found is not None:
                    low, high = span or found
                    span = min(low, found[0]), max(high, found[1])
    return Scan(unit, interval, ids, vocabularies, span)


def _mostly_integers(rows: Rows) -> bool:
    columns = (rows.columns[role] for role in ("subject", "relation", "object"))
    distinct = {text.strip() for column in columns for text in column.texts if text}
    return 2 * sum(parse_id(text) is not None for text in distinct) > len(distinct)


class _Times:
    """Counts what kinds of times there are; ``Moments.auto_unit`` over all pieces."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._integers = self._dates = 0
        self._finest, self._coarsest = int(Precision.YEAR), int(Precision.HOUR)
        self._hours: set[int] = set()

    def add(self, rows: Rows) -> None:
        """Look at the times of a piece."""
        roles = [role for role in ("time", "end") if role in rows.columns]
        self._add({text.strip() for role in roles for text in rows.columns[role].texts if text})

    def _add(self, texts: Iterable[str]) -> None:
        new = [text for text in texts if text not in self._seen]
        if len(self._seen) < _DISTINCT_TIMES:
            self._seen.update(new)
        moments = Moments.parse(new)
        dates = moments.kind == Kind.DATE
        self._integers += int(np.count_nonzero(moments.kind == Kind.INTEGER))
        self._dates += int(np.count_nonzero(dates))
        if dates.any():
            self._finest = max(self._finest, int(moments.precision[dates].max()))
            self._coarsest = min(self._coarsest, int(moments.precision[dates].min()))
            self._hours |= set(np.unique(moments.first[dates] // 60 % 24).tolist())

    def unit(self, *, interval: bool) -> str:
        """The unit to read these times in."""
        if self._integers > self._dates or not self._dates:
            return "step"
        precision = self._coarsest if interval else self._finest
        if precision == Precision.HOUR:
            return "hour" if len(self._hours) > 1 else "day"
        return ("year", "month", "day")[precision]
