"""From a text file to columns, line by line and exactly; what cannot be split is reported.

The rules, which ``data.fast_rows`` must agree with wherever it dares to read a file:

- One line that is not blank is one row. Lines end in ``\\n`` or ``\\r\\n``; a lone ``\\r`` inside a
  line makes the row bad (it may hide several rows), as does a NUL byte. A line of nothing but
  ASCII whitespace is blank.
- Text is UTF-8, with or without a byte order mark; a line that isn't is a bad row.
- A cell may be quoted, unless the delimiter is a tab: it then begins and ends with ``"`` (spaces
  around it are ignored), may hold the delimiter and doubled quotes, but no line break. A quote
  anywhere else makes the row bad.
- Cells past those needed are ignored. Space around a cell is ignored (by ``data.checks``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.data.readers.bad_rows import FIRST, BadRow, shorten
from metatkgr.data.readers.layout import SAMPLE, Layout

__all__ = ["Coded", "Rows", "TextFile", "sample_cells", "sample_lines", "split_lines"]

BLANK = " \t\r\x0b\x0c"
"""What a blank line consists of."""

_BATCH = 1 << 16


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
        coder = _Coder()
        coder.add(list(cells))
        return coder.done()


class _Coder:
    """Builds a :class:`Coded` column piece by piece."""

    def __init__(self) -> None:
        self._ids: defaultdict[str | None, int] = defaultdict()
        self._ids.default_factory = self._ids.__len__
        self._parts: list[IntArray] = [np.zeros(0, np.int64)]

    def add(self, cells: list[str | None]) -> None:
        self._parts.append(np.fromiter(map(self._ids.__getitem__, cells), np.int64, len(cells)))

    def done(self) -> Coded:
        return Coded(np.concatenate(self._parts), list(self._ids))


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


@dataclass(frozen=True, eq=False)
class TextFile:
    """The bytes of a text file and what is known about them."""

    source: str
    data: bytes
    """Uncompressed, without the byte order mark."""
    delimiter: str
    skip: int = 0
    """Number of the line that holds the header (1-based); 0 without one."""
    layout: Layout = field(default_factory=lambda: Layout({}, {}))

    @property
    def quoting(self) -> bool:
        """Whether cells may be quoted."""
        return self.delimiter != "\t"


class NotARowError(ValueError):
    """Why a line cannot be split into cells.

    Args:
        cell: position of the cell that is to blame.
        value: what it holds.
        reason: why that cannot be read.
    """

    def __init__(self, cell: int, value: str, reason: str) -> None:
        super().__init__(reason)
        self.cell, self.value, self.reason = cell, value, reason


def split_quoted(line: str, delimiter: str) -> list[str]:
    """The cells of one line in which some may be quoted."""
    cells: list[str] = []
    at = 0
    while True:
        begin = at
        while begin < len(line) and line[begin] == " " and delimiter != " ":
            begin += 1
        if line[begin : begin + 1] == '"':
            pieces = []
            at = begin + 1
            while True:
                close = line.find('"', at)
                if close < 0:
                    raise NotARowError(len(cells), line[begin:], "a quote that is never closed")
                pieces.append(line[at:close])
                at = close + 2
                if line[close + 1 : at] != '"':
                    break
            stop = line.find(delimiter, close + 1)
            stop = len(line) if stop < 0 else stop
            if line[close + 1 : stop].strip(" "):
                raise NotARowError(len(cells), line[begin:stop], "text after a closing quote")
            cells.append('"'.join(pieces))
        else:
            stop = line.find(delimiter, at)
            stop = len(line) if stop < 0 else stop
            if '"' in line[at:stop]:
                raise NotARowError(
                    len(cells), line[at:stop], "a quote inside a cell that is not quoted"
                )
            cells.append(line[at:stop])
        if stop == len(line):
            return cells
        at = stop + 1


def sample_lines(data: bytes, limit: int = SAMPLE + 1) -> list[tuple[int, str]]:
    """The first lines that are not blank, with their numbers, decoded as well as possible."""
    found: list[tuple[int, str]] = []
    at, number = 0, 0
    while at < len(data) and len(found) < limit:
        stop = data.find(b"\n", at)
        stop = len(data) if stop < 0 else stop
        number += 1
        line = data[at:stop].decode("utf-8", "replace").strip("\r")
        if line.strip(BLANK):
            found.append((number, line))
        at = stop + 1
    return found


def sample_cells(line: str, delimiter: str) -> list[str]:
    """The cells of a line, for guessing only: never fails."""
    try:
        return split_quoted(line, delimiter) if delimiter != "\t" else line.split("\t")
    except NotARowError:
        return line.split(delimiter)


def split_lines(file: TextFile) -> Rows:
    """Split every line after the header into cells, in plain Python."""
    layout, delimiter = file.layout, file.delimiter
    needed = layout.needed
    coders = {role: _Coder() for role in layout.positions}
    numbers: list[int] = []
    kept: list[list[str]] = []
    bad: list[BadRow] = []
    bad_total = 0

    def flush() -> None:
        for role, position in layout.positions.items():
            coders[role].add([cells[position] for cells in kept])
        kept.clear()

    # One search of the whole file saves several searches of every line.
    careful = b"\r" in file.data or b"\0" in file.data or (file.quoting and b'"' in file.data)
    lines = _decoded_lines(file.data)
    for number, line in enumerate(islice(lines, file.skip, None), file.skip + 1):
        try:
            if isinstance(line, bytes):
                raise _blame_encoding(line, file)
            if not line.strip(BLANK):
                continue
            cells = _split_carefully(line, file) if careful else line.split(delimiter)
            if len(cells) < needed:
                raise NotARowError(
                    len(cells), line, f"too few columns: {len(cells)}, and {needed} are needed"
                )
        except NotARowError as error:
            bad_total += 1
            if len(bad) < FIRST:
                column = _column_name(layout, error)
                value = shorten(error.value.strip())
                bad.append(BadRow(file.source, "line", number, column, value, error.reason))
            continue
        kept.append(cells)
        numbers.append(number)
        if len(kept) == _BATCH:
            flush()
    flush()
    columns = {role: coder.done() for role, coder in coders.items()}
    places = np.asarray(numbers, np.int64)
    return Rows(file.source, "line", layout, columns, places, tuple(bad), bad_total)


def _decoded_lines(data: bytes) -> Iterable[str | bytes]:
    """The lines of a file; those that are not UTF-8 stay bytes."""
    try:
        return data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return map(_decoded_or_not, data.split(b"\n"))


def _decoded_or_not(line: bytes) -> str | bytes:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line


def _split_carefully(line: str, file: TextFile) -> list[str]:
    """The cells of a line that may hold quotes or characters that no row should."""
    line = line.rstrip("\r")
    for character, reason in (
        ("\r", "a carriage return inside a line (rows end in a line feed)"),
        ("\0", "a NUL character"),
    ):
        if character in line:
            cells = line.split(file.delimiter)
            at = next(at for at, cell in enumerate(cells) if character in cell)
            raise NotARowError(at, cells[at], reason)
    if file.quoting and '"' in line:
        return split_quoted(line, file.delimiter)
    return line.split(file.delimiter)


def _blame_encoding(line: bytes, file: TextFile) -> NotARowError:
    """Which cell of a line is not UTF-8."""
    # Latin-1 maps each byte to one character, so the line can be split like any other.
    for at, cell in enumerate(sample_cells(line.decode("latin-1"), file.delimiter)):
        raw = cell.encode("latin-1")
        if isinstance(_decoded_or_not(raw), bytes):
            return NotARowError(at, raw.decode("utf-8", "backslashreplace"), "not valid UTF-8")
    raise AssertionError("a line is valid UTF-8 if all its cells are")  # pragma: no cover


def _column_name(layout: Layout, error: NotARowError) -> str:
    for role, position in layout.positions.items():
        if position == error.cell:
            return layout.names[role]
    later = [role for role, position in layout.positions.items() if position > error.cell]
    if error.reason.startswith("too few"):
        return layout.names[min(later, key=layout.positions.__getitem__)]
    return str(error.cell)
