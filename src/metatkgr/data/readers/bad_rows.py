"""Rows that cannot be read: the report of which, where and why."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError
from metatkgr.files import write_text

__all__ = ["FIRST", "BadRow", "BadRows", "BadRowsError", "merge_first", "shorten"]

FIRST = 20
"""How many bad rows a report describes one by one; the rest are counted."""

_WIDEST = 80


def shorten(value: str, width: int = _WIDEST) -> str:
    """``value`` cut to ``width`` characters, the last of which says that something is missing."""
    return value if len(value) <= width else value[: width - 1] + "…"


@dataclass(frozen=True)
class BadRow:
    """One row that cannot be read.

    Args:
        source: the file, or a word for what was read (``table``, ``tuples``).
        place: ``line`` for text files, ``row`` for everything else.
        number: 1-based line (in the uncompressed text) or row.
        column: name of the offending column.
        value: what is there, shortened to 80 characters.
        reason: why it cannot be read.
    """

    source: str
    place: str
    number: int
    column: str
    value: str
    reason: str

    def text(self) -> str:
        """The row's problem on one line, without control characters."""
        return (
            f"{self.source}, {self.place} {self.number}, column {self.column!r}: "
            f"{self.value!r}: {self.reason}"
        )


@dataclass(frozen=True)
class BadRows:
    """What came of every row: ``rows_read + total == rows_in_file``, always.

    Args:
        source: what was read.
        total: number of bad rows.
        first: the first twenty of them, in the order of the input.
        rows_read: number of rows that could be read.
        outside: how many of the rows read lie wholly outside the clip range and give no fact.
        one_sided: how many of the rows read are events with one actor only, which give no fact.
        notes: what was taken for something that the input does not say it is, a sentence each.
    """

    source: str
    total: int
    first: tuple[BadRow, ...]
    rows_read: int
    outside: int = 0
    one_sided: int = 0
    notes: tuple[str, ...] = ()

    @property
    def rows_in_file(self) -> int:
        """Number of rows there are, good or bad (blank lines and headers are not rows)."""
        return self.rows_read + self.total

    def plus(self, later: BadRows) -> BadRows:
        """This report of the first rows and another of those behind them, as one."""
        return replace(
            self,
            total=self.total + later.total,
            first=(*self.first, *later.first)[:FIRST],
            rows_read=self.rows_read + later.rows_read,
            one_sided=self.one_sided + later.one_sided,
        )

    def check(self, *, skip: bool) -> None:
        """Raise unless one can go on with the rows that could be read.

        Args:
            skip: go on without the others.
        """
        if self.rows_in_file == 0:
            raise DataError(f"{self.source} holds no rows")
        if self.rows_read == 0:
            raise BadRowsError(self, "No row can be read: check the options that say how to.")
        if self.total and not skip:
            raise BadRowsError(self, "Correct them, or use --skip-bad-rows to go on without them.")

    def no_facts(self) -> DataError:
        """What to raise where rows can be read and none of them gives a fact."""
        why = "are events with one actor only" if self.one_sided else "lie outside the clip range"
        return DataError(f"{self.source}: all {self.rows_read:,} rows {why}")

    def text(self) -> str:
        """The report for a person, one line per bad row."""
        if self.total == 0:
            return f"{self.source}: all {self.rows_in_file:,} rows could be read"
        lines = [f"{self.source}: {self.total:,} of {self.rows_in_file:,} rows cannot be read:"]
        lines += [f"  {row.text()}" for row in self.first]
        if self.total > len(self.first):
            lines.append(f"  … and {self.total - len(self.first):,} more")
        return "\n".join(lines)

    def remarks(self) -> list[str]:
        """What a person should know of how the rows were read; no lines where nothing is odd."""
        lines = [f"{self.source}: {note}" for note in self.notes]
        if self.one_sided:
            lines.append(
                f"{self.source}: {self.one_sided:,} of {self.rows_in_file:,} events name one actor "
                "only and give no fact"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """The report as plain values for ``json.dump``."""
        return {
            "source": self.source,
            "rows_in_file": self.rows_in_file,
            "rows_read": self.rows_read,
            "rows_bad": self.total,
            "rows_outside": self.outside,
            "rows_one_sided": self.one_sided,
            "notes": list(self.notes),
            "first": [asdict(row) for row in self.first],
        }

    def write(self, path: str | Path) -> None:
        """Write the report: JSON if the name ends in ``.json``, else text.

        A crash leaves the old file or the new one, never half of one.
        """
        path = Path(path)
        if path.suffix.lower() == ".json":
            content = json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"
        else:
            content = self.text() + "\n"
        write_text(path, content)


class BadRowsError(DataError):
    """Some rows cannot be read, and nobody asked to go on without them.

    Args:
        report: which rows; also kept as ``report``.
        hint: what to do about it.
    """

    def __init__(self, report: BadRows, hint: str) -> None:
        super().__init__(f"{report.text()}\n{hint}")
        self.report = report


def merge_first(rows: Iterable[tuple[int, BadRow]]) -> tuple[BadRow, ...]:
    """The first twenty of ``rows``, given as (position of its source, row), in input order."""
    ordered = sorted(rows, key=lambda pair: (pair[0], pair[1].number))
    return tuple(row for _, row in ordered[:FIRST])
