"""How to read a file of facts: every choice in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from metatkgr.data.calendar import UNITS
from metatkgr.errors import DataError, SettingsError, UnknownNameError

__all__ = ["Budget", "ReadOptions"]

_BYTES_PER_CELL = 16
_BYTES_PER_STEP = 64
"""While the facts of intervals are sorted."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read a file; every field has a default that works."""

    columns: tuple[str, ...] | None = None
    """Names, or positions counted from 0, of subject, relation, object, time and, for intervals,
    end. None: by the header's names, where they are known words (``readers.headers``: ``subject``,
    s, head, source; ``relation``, r, predicate …); those of a raw GDELT export; positions 0, 1, 2,
    3 (and 4) otherwise, unless no row has a time there."""
    delimiter: str | None = None
    """One character. None: a comma in .csv and a tab in other files, unless the first line has
    fewer than four cells that way: then whichever of tab, comma, semicolon and pipe gives most. One
    that gives nine lines in ten as many cells wins over one that does not. Cells may be quoted
    unless the delimiter is a tab."""
    header: bool | None = None
    """Whether the first row holds names. None: yes if it has names for subject, relation, object
    and time as above (or for three of them and no number or date anywhere); or if its time cell is
    a word without digits while a later row has a time there, and its subject, relation and object
    are no numbers and do not come up again in the next hundred rows."""
    unit: str = "auto"
    """hour, day, week, month, year, step (plain integers) or auto. Auto: integers are steps, unless
    most are dates as yyyymmdd or seconds or milliseconds since 1970; points in time take the finest
    unit that any of them needs (dates a day, datetimes at different hours an hour), intervals the
    coarsest that any of them states."""
    ids: bool | None = None
    """Whether names are integer ids. None: yes if entity2id.txt and relation2id.txt lie beside the
    data and most distinct names are integers (the others are then bad rows)."""
    interval: bool | None = None
    """Whether rows have a start and an end. None: yes if an end column is named, or tuples have
    five cells, or there are five columns and the last two hold dates or ####."""
    clip: tuple[str, str] | None = None
    """First and last moment to keep, inclusive; open ends reach to them. None: the range of the
    dates in the data."""
    skip_bad_rows: bool = False
    """Go on without the rows that cannot be read, instead of stopping."""
    name: str | None = None
    """What to call the graph; None: the name of the file or folder."""
    most_bytes: int = 1 << 32
    """Memory that the content of a file may take, whatever the file's own size: its uncompressed
    text, 16 bytes for each cell, 64 for each step of an interval. What would take more is refused
    before it is taken."""

    def __post_init__(self) -> None:
        if isinstance(self.most_bytes, bool) or not 0 < self.most_bytes < 2**63:
            raise SettingsError(f"most_bytes is a number of bytes, not {self.most_bytes!r}")
        if self.unit != "auto" and self.unit not in UNITS:
            raise UnknownNameError("time unit", str(self.unit), ["auto", *UNITS])
        if self.columns is not None:
            columns = tuple(str(column) for column in self.columns)
            if isinstance(self.columns, str) or len(columns) not in (4, 5):
                raise SettingsError(
                    "columns must be four or five names or positions (subject, relation, object, "
                    f"time[, end]), not {self.columns!r}"
                )
            if len(columns) == 4 and self.interval:
                raise SettingsError("interval facts need five columns: name the end column too")
            object.__setattr__(self, "columns", columns)
        if self.delimiter is not None and not _is_delimiter(self.delimiter):
            raise SettingsError(
                f"a delimiter is one character such as a comma or a tab, not {self.delimiter!r}"
            )
        if self.clip is not None:
            if isinstance(self.clip, str) or len(tuple(self.clip)) != 2:
                raise SettingsError(f"clip must be two moments, first and last, not {self.clip!r}")
            object.__setattr__(self, "clip", tuple(str(moment).strip() for moment in self.clip))

    @classmethod
    def of(cls, options: ReadOptions | None, changes: Mapping[str, Any]) -> ReadOptions:
        """``options`` (or the defaults) with some fields changed; unknown ones are an error."""
        known = [field.name for field in fields(cls)]
        for name in changes:
            if name not in known:
                raise UnknownNameError("option", name, known)
        return replace(options or cls(), **changes)


class Budget:
    """The memory that is left for what is read from one input.

    A few kilobytes can unpack to any size: compressed text, runs of equal cells in Parquet,
    intervals over thousands of years.

    Args:
        source: what to call the input.
        options: say how much there is.
    """

    def __init__(self, source: str, options: ReadOptions) -> None:
        self.source, self.most, self._left = source, options.most_bytes, float(options.most_bytes)

    def take(self, what: str, *, size: float = 0, cells: float = 0, steps: float = 0) -> None:
        """Take the memory of some bytes, cells and steps of intervals.

        Raises:
            DataError: there is not as much left.
        """
        self._left -= size + _BYTES_PER_CELL * cells + _BYTES_PER_STEP * steps
        if self._left < 0:
            raise DataError(
                f"{self.source}: {what} would take more than {self.most:,} bytes of memory; "
                "allow more with --most-bytes (most_bytes) if you know the file"
            )


def _is_delimiter(text: str) -> bool:
    # Letters, digits, '#' and '-' occur inside dates; quotes and line breaks have their own roles.
    return len(text) == 1 and text.isascii() and (text in "\t ,;|:~^!&$%*@=/\\" or text == "_")
