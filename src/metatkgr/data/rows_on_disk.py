"""The first half of ``data.ingest``: the rows of some files, checked, and written down in between.

A piece of a file is in memory at a time. Its facts are written down with the piece's own numbers
for names, since what number a name has in the end is known only when all rows have been read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr.data.calendar import Calendar
from metatkgr.data.engine import Engine, Table
from metatkgr.data.facts import IntArray, Vocabulary
from metatkgr.data.manifest import KINDS
from metatkgr.data.readers import facts_of_rows
from metatkgr.data.readers.bad_rows import BadRows
from metatkgr.data.readers.checks import CheckedRows, check_rows
from metatkgr.data.readers.formats import kind_of_file, pieces
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.tables import Rows
from metatkgr.data.readers.times import Moments, UnitFinder
from metatkgr.data.readers.vocabularies import mostly_ids, numbered_up_to, vocabularies_beside
from metatkgr.errors import DataError

__all__ = ["RowsOnDisk", "Scan", "scan"]

_RAW = {"subject": "int32", "relation": "int32", "object": "int32", "time": "int64"}


_DISTINCT_TIMES = 1 << 20
"""So many different times are counted when integers and dates are counted against each other."""
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
    notes: tuple[str, ...] = ()
    """What was taken for something that it does not say it is."""


def scan(files: list[Path], options: ReadOptions, rows: int) -> Scan:
    """Find out what the options leave open; reads the files only where that is needed."""
    first = next(pieces(files[0], options, min(rows, _FIRST_ROWS)), None)
    if first is None:
        raise DataError(f"{files[0]} holds no rows")
    vocabularies = vocabularies_beside(files[0].parent, options.ids)
    ids = options.ids
    if ids is None:
        names = (first.columns[role].texts for role in ("subject", "relation", "object"))
        ids = None not in vocabularies and mostly_ids(chain.from_iterable(names))
    interval = first.layout.interval
    unit, notes = options.unit, first.layout.notes
    if unit == "auto":
        finder = _times_of(files, options, rows)
        unit = finder.unit(interval=interval)
        notes += finder.notes(unit)
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
    return Scan(unit, interval, ids, vocabularies, span, notes)


def _times_of(files: list[Path], options: ReadOptions, rows: int) -> UnitFinder:
    finder, seen = UnitFinder(), set[str]()
    for file in files:
        for part in pieces(file, options, rows, times_only=True):
            columns = [part.columns[role] for role in ("time", "end") if role in part.columns]
            texts = {text.strip() for column in columns for text in column.texts if text}
            new = [text for text in texts if text not in seen]
            if len(seen) < _DISTINCT_TIMES:
                seen.update(new)
            finder.add(Moments.parse(new))
    return finder


class RowsOnDisk:
    """The facts of some files, in the order of their rows, with repetitions.

    Args:
        files: the parts of one graph, in order.
        options: how to read them.
        found: what is known of the files before.
        work: a folder for the facts.
        engine: gets the names.
        rows: how many rows are in memory at a time, in a few copies.
    """

    def __init__(
        self,
        files: list[Path],
        options: ReadOptions,
        found: Scan,
        work: Path,
        engine: Engine,
        rows: int,
    ) -> None:
        self.files, self.options, self.found = files, options, found
        self.engine, self.rows, self.work = engine, rows, work
        self._file = work / "rows.arrow"
        self.label = str(files[0]) if len(files) == 1 else f"{len(files)} files"
        plain = files[0].resolve().parent.name if len(files) > 1 else kind_of_file(files[0])[0]
        self.name = options.name or plain
        self.report = BadRows(self.label, 0, (), 0, notes=found.notes)
        self.facts, self.origin, self.stride, self.latest = 0, 0, 0, 0
        self._seen = dict.fromkeys(KINDS, 0)
        self._first_seen: list[tuple[int, int]] = []
        """For each piece the numbers that its first names have among all appearances."""
        self._largest = dict.fromkeys(KINDS, -1)

    def read(self, progress: Callable[[int], None] | None) -> None:
        """Read and check all rows; raises what ``read_facts`` would."""
        import pyarrow as pa

        # Bad rows are reported first, as everywhere, so this waits for the end.
        all_open = self.found.interval and not self.options.clip and self.found.span is None
        schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in _RAW.items()])
        with pa.OSFile(str(self._file), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            for path in self.files:
                for part in pieces(path, self.options, self.rows):
                    checked = self._check(part)
                    if progress:
                        progress(len(part) + part.bad_total)
                    if len(checked.first) and not all_open:
                        facts = self._facts_of(checked)
                        arrays = [pa.array(facts[column.name], column.type) for column in schema]
                        stream.write_batch(pa.record_batch(arrays, schema=schema))
        self.report.check(skip=self.options.skip_bad_rows)
        if all_open:
            raise DataError(f"{self.label}: all intervals are open; say which range to fill (clip)")
        if self.facts == 0:
            raise self.report.no_facts()
        if self.found.ids:
            self._see_ids()
        pa.default_memory_pool().release_unused()  # what comes next has a bound of its own

    def _check(self, part: Rows) -> CheckedRows:
        if part.layout.interval != self.found.interval:
            raise DataError(f"{self.label}: some files have intervals and some do not")
        checked = check_rows(
            [part],
            source=self.label,
            unit=self.found.unit,
            ids=self.found.ids,
            vocabularies=self.found.vocabularies,
        )
        self.report = self.report.plus(checked.report)
        return replace(checked, span=self.found.span)

    def _facts_of(self, checked: CheckedRows) -> Table:
        """The facts of a piece, with ids, or the piece's own numbers for names."""
        row, when = facts_of_rows(checked, self.options, self.label)
        used = row[np.flatnonzero(np.diff(row, prepend=-1))]
        outside = len(checked.first) - len(used)
        self.report = replace(self.report, outside=self.report.outside + outside)
        self._first_seen.append((self._seen["entities"], self._seen["relations"]))
        if self.found.ids:
            columns = [checked.names[role] for role in ("subject", "relation", "object")]
            subject, relation, other = (int(column.max()) for column in columns)
            for kind, largest in zip(KINDS, (max(subject, other), relation), strict=True):
                self._largest[kind] = max(self._largest[kind], largest)
        else:
            columns, *names = checked.by_appearance(used)
            for kind, vocabulary in zip(KINDS, names, strict=True):
                self._see(kind, vocabulary)
        if len(when):
            self._note_times(when)
        self.facts += len(when)
        return dict(zip(_RAW, (*(column[row] for column in columns), when), strict=True))

    def _note_times(self, when: IntArray) -> None:
        if self.facts == 0:
            self.origin = self.latest = int(when[0])
        # Differences to any one time have the same divisor as differences to the first.
        self.stride = math.gcd(self.stride, int(np.gcd.reduce(when - self.origin)))
        self.origin = min(self.origin, int(when.min()))
        self.latest = max(self.latest, int(when.max()))

    def _see(self, kind: str, names: Vocabulary) -> None:
        for low in range(0, len(names), self.rows):
            some = names.names[low : low + self.rows]
            self.engine.see(kind, self._seen[kind], some)
            self._seen[kind] += len(some)

    def _see_ids(self) -> None:
        """Where names are ids, the vocabulary is a given one, or numbers."""
        for kind, given in zip(KINDS, self.found.vocabularies, strict=True):
            self._see(kind, given or numbered_up_to(self._largest[kind], self.report.rows_read))

    def in_steps(
        self, ids: dict[str, IntArray], calendar: Calendar, first_row: int
    ) -> Iterator[Table]:
        """All facts with the ids of their names and the steps of a calendar, piece by piece.

        Args:
            ids: by ``entities`` and ``relations`` the id of each appearance.
            calendar: that fits all times.
            first_row: what to number the facts from.
        """
        import pyarrow as pa

        with pa.OSFile(str(self._file)) as file, pa.ipc.open_stream(file) as stream:
            for batch, (entity, relation) in zip(stream, self._first_seen, strict=True):
                column: dict[str, Any] = {name: batch.column(name).to_numpy() for name in _RAW}
                yield {
                    "subject": ids["entities"][entity:][column["subject"]],
                    "relation": ids["relations"][relation:][column["relation"]],
                    "object": ids["entities"][entity:][column["object"]],
                    "time": (column["time"] - calendar.origin) // calendar.stride,
                    "row": np.arange(first_row, first_row + batch.num_rows),
                }
                first_row += batch.num_rows
