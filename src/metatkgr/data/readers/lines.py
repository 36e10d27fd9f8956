"""From lines of text to columns of cells; what cannot be split is reported.

The rules:

- One line that is not blank is one row. Lines end in ``\\n`` or ``\\r\\n``; a lone ``\\r`` inside a
  line makes the row bad (it may hide several rows), as does a NUL byte. A line of nothing but
  ASCII whitespace is blank.
- Text is UTF-8, with or without a byte order mark; a line that isn't is a bad row.
- A cell may be quoted, unless the delimiter is a tab: it then begins and ends with ``"`` (spaces
  around it are ignored), may hold the delimiter and doubled quotes, but no line break. A quote
  anywhere else makes the row bad.
- Cells past those needed are ignored. Space around a cell is ignored (by ``readers.checks``).

Lines for which the rules of pyarrow cannot differ from these are split by it, many times faster:
valid UTF-8 with as many cells as most, without NUL bytes, carriage returns but at the end, spaces
around quotes. All others go through ``readers.cells``, one by one.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import IntArray
from metatkgr.data.readers.bad_rows import FIRST, BadRow, shorten
from metatkgr.data.readers.cells import NotARowError, decoded, sample_cells, split_line
from metatkgr.data.readers.layout import Layout
from metatkgr.data.readers.tables import Coded, Coder, Rows

__all__ = ["BLANK", "TextFile", "split"]

BLANK = " \t\r\x0b\x0c"
"""What a blank line consists of."""
_BLOCK = 1 << 23
_BATCH = 1 << 16
_LINES = 1 << 18
"""Bytes of lines whose quotes are looked at together."""
_QUOTE, _LINE_END = ord('"'), ord("\n")


@dataclass(frozen=True, eq=False)
class TextFile:
    """Whole lines of a text file and what is known about them."""

    source: str
    data: bytes
    """Uncompressed, without the byte order mark."""
    delimiter: str
    layout: Layout

    @property
    def quoting(self) -> bool:
        """Whether cells may be quoted."""
        return self.delimiter != "\t"


def split(file: TextFile, skip: int = 0, before: int = 0, *, fast: bool = True) -> Rows:
    """Split every line into cells.

    Args:
        file: the lines.
        skip: how many of them to leave out: the header, and blank ones before it.
        before: how many lines of the file came before them.
        fast: use pyarrow where it can be.
    """
    for _ in range(skip):
        file = replace(file, data=file.data.partition(b"\n")[2])
    before, data = before + skip, file.data
    if not fast or file.delimiter not in "\t,;|" or not _has_arrow():
        return _split_each(file, _all_lines(data), before)
    usual = None
    if not _has_unusual_bytes(file):
        # Of many files this is all: every line is as wide as the first, and none is blank.
        lines = data.count(b"\n") + (not data.endswith(b"\n"))
        stop = len(data)
        while stop and data[stop - 1] in b"\r\n":
            stop -= 1
        trailing = data.count(b"\n", stop)
        usual = _split_by_arrow(file, data, lines - max(trailing - 1, 0))
        if usual is not None and not file.quoting and _has_blank(usual["subject"]):
            usual = None  # tabs and nothing else are cells to pyarrow and a blank line to us
    if usual is not None:
        numbers = before + 1 + np.arange(len(usual["subject"].codes))
        return Rows(file.source, "line", file.layout, usual, numbers)
    begin, end = _bounds(data)
    alike = _usual_lines(file, begin, end)
    chosen, others = np.flatnonzero(alike), np.flatnonzero(~alike)
    usual = _split_by_arrow(file, _joined(data, begin, end, chosen), len(chosen))
    if usual is None:
        return _split_each(file, _all_lines(data), before)
    places = ((int(at) + 1, data[begin[at] : end[at]]) for at in others)
    return _merged(usual, chosen + before + 1, _split_each(file, places, before))


def _merged(usual: dict[str, Coded], numbers: IntArray, others: Rows) -> Rows:
    """The rows of pyarrow among the others, in the order of their lines."""
    every = np.concatenate([numbers, others.numbers])
    order = np.argsort(every)
    columns = {}
    for role, coded in usual.items():
        other = others.columns[role]
        codes = np.concatenate([coded.codes, other.codes + len(coded.texts)])
        columns[role] = Coded(codes[order], [*coded.texts, *other.texts])
    return replace(others, columns=columns, numbers=every[order])


def _split_each(file: TextFile, lines: Iterable[tuple[int, str | bytes]], before: int) -> Rows:
    """Split numbered lines into cells, in plain Python."""
    layout, needed = file.layout, file.layout.needed
    coders = {role: Coder() for role in layout.positions}
    numbers: list[int] = []
    kept: list[list[str]] = []
    bad: list[BadRow] = []
    bad_total = 0

    def flush() -> None:
        for role, position in layout.positions.items():
            coders[role].add([cells[position] for cells in kept])
        kept.clear()

    # One search of the whole text saves several searches of every line.
    plain = not (b"\r" in file.data or b"\0" in file.data or (file.quoting and b'"' in file.data))
    for number, line in lines:
        try:
            if isinstance(line, bytes):
                line = decoded(line, file.delimiter)
            if not line.strip(BLANK):
                continue
            cells = line.split(file.delimiter) if plain else split_line(line, file.delimiter)
            if len(cells) < needed:
                raise NotARowError(
                    len(cells), line, f"too few columns: {len(cells)}, and {needed} are needed"
                )
        except NotARowError as error:
            bad_total += 1
            if len(bad) < FIRST:
                column, value = _column_name(layout, error), shorten(error.value.strip())
                place = before + number
                bad.append(BadRow(file.source, "line", place, column, value, error.reason))
            continue
        kept.append(cells)
        numbers.append(before + number)
        if len(kept) == _BATCH:
            flush()
    flush()
    columns = {role: coder.done() for role, coder in coders.items()}
    places = np.asarray(numbers, np.int64)
    return Rows(file.source, "line", layout, columns, places, tuple(bad), bad_total)


def _all_lines(data: bytes) -> Iterable[tuple[int, str | bytes]]:
    """The lines of a text with their numbers; bytes, where not all of it is UTF-8."""
    try:
        return enumerate(data.decode("utf-8").split("\n"), 1)
    except UnicodeDecodeError:
        return enumerate(data.split(b"\n"), 1)


def _column_name(layout: Layout, error: NotARowError) -> str:
    for role, position in layout.positions.items():
        if position == error.cell:
            return layout.names[role]
    later = [role for role, position in layout.positions.items() if position > error.cell]
    if error.reason.startswith("too few"):
        return layout.names[min(later, key=layout.positions.__getitem__)]
    return str(error.cell)


def _has_arrow() -> bool:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def _has_unusual_bytes(file: TextFile) -> bool:
    """Whether some lines are certainly not for pyarrow."""
    data = file.data
    return (
        b"\0" in data
        or data.startswith(BOM_UTF8)  # a second byte order mark, which pyarrow would skip
        or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n"))
        or not _is_utf8(data)
        or (file.quoting and b'"' in data and not _is_well_quoted(file))
    )


def _is_utf8(data: bytes) -> bool:
    try:
        if not data.isascii():
            data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _bounds(data: bytes) -> tuple[IntArray, IntArray]:
    """Where each line begins and ends, without its line feed."""
    end = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    if not data.endswith(b"\n"):
        end = np.append(end, len(data))
    return np.concatenate([[0], end[:-1] + 1]), end


def _is_well_quoted(file: TextFile) -> bool:
    """Whether pyarrow splits all lines by our rules, as far as quotes go (see ``_quotes``).

    Some lines at a time, so that what is made of them stays near the processor.
    """
    text, begin = file.data, 0
    data = np.frombuffer(text, np.uint8)
    while begin < len(text):
        stop = text.find(b"\n", begin + _LINES) + 1 or len(text)
        lines = data[begin:stop]
        at = np.flatnonzero(lines == _QUOTE)
        ends = np.append(np.flatnonzero(lines == _LINE_END), len(lines))
        if (np.searchsorted(at, ends) % 2).any() or not (
            _in_place(lines, file.delimiter, at[::2], opening=True).all()
            and _in_place(lines, file.delimiter, at[1::2], opening=False).all()
        ):
            return False
        begin = stop
    return True


def _in_place(
    data: npt.NDArray[np.uint8], delimiter: str, at: IntArray, *, opening: bool
) -> npt.NDArray[np.bool_]:
    """Whether each quote stands where one that opens (or closes) may, in whole lines."""
    allowed = np.zeros(256, bool)
    allowed[[_QUOTE, _LINE_END, ord(delimiter)]] = True
    allowed[ord("\r")] = not opening  # of a line's end: others are unusual anyway
    # Beside the first and the last byte there is nothing: clipped, the quote stands for it.
    return allowed[data.take(at - 1 if opening else at + 1, mode="clip")]


def _quotes(
    file: TextFile, begin: IntArray, end: IntArray
) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """What the quotes of each line mean for it.

    From one quote to the next, text is outside and inside of quotes by turns: doubled quotes leave
    and come back at once. So those that open stand at the beginning of a cell, those that close at
    its end, and both beside another one.

    Returns:
        (L,) whether pyarrow may split a line otherwise, and (L,) how many delimiters are in quotes.
    """
    data = np.frombuffer(file.data, np.uint8)
    at = np.flatnonzero(data == _QUOTE)
    before = np.searchsorted(at, begin)  # quotes in earlier lines
    line = np.searchsorted(end, at)
    opens = (np.arange(len(at)) - before[line]) % 2 == 0
    odd = np.bincount(line, minlength=len(end)) % 2 == 1
    for opening in (True, False):
        some = opens == opening
        misplaced = ~_in_place(data, file.delimiter, at[some], opening=opening)
        odd[line[some][misplaced]] = True
    cut = np.flatnonzero(data == ord(file.delimiter))
    inside = (np.searchsorted(at, cut) - before[np.searchsorted(end, cut)]) % 2 == 1
    return odd, np.bincount(np.searchsorted(end, cut[inside]), minlength=len(end))


def _usual_lines(file: TextFile, begin: IntArray, end: IntArray) -> npt.NDArray[np.bool_]:
    """(L,) which lines pyarrow splits by our rules."""
    data = np.frombuffer(file.data, np.uint8)

    def counts(byte: bytes) -> IntArray:
        """(L,) how often each line has it."""
        if byte not in file.data:
            return np.zeros(len(end), np.int64)
        return np.diff(np.searchsorted(np.flatnonzero(data == byte[0]), end), prepend=0)

    cells, odd = counts(file.delimiter.encode()), np.zeros(len(end), bool)
    if file.quoting and b'"' in file.data:
        odd, inside = _quotes(file, begin, end)
        cells = cells - inside
    enough = cells[cells + 1 >= file.layout.needed]
    if not len(enough):
        return np.zeros(len(end), bool)
    usual: npt.NDArray[np.bool_] = cells == np.bincount(enough).argmax()
    usual &= (counts(b"\0") == 0) & ~odd
    returned = counts(b"\r")
    ends_so = np.zeros(len(end), bool)
    ends_so[end > begin] = data[end[end > begin] - 1] == ord("\r")
    usual &= (returned == 0) | ((returned == 1) & ends_so)
    usual &= data[np.minimum(begin, len(data) - 1)] != BOM_UTF8[0]
    if not _is_utf8(file.data):
        high = np.searchsorted(end, np.flatnonzero(data >= 0x80))
        usual[high] = False
    if not file.quoting:  # tabs alone are a blank line
        not_blank = np.ones(256, bool)
        not_blank[list(f"{BLANK}\n".encode())] = False
        usual &= np.add.reduceat(not_blank[data], np.minimum(begin, len(data) - 1)) > 0
    return usual


def _joined(data: bytes, begin: IntArray, end: IntArray, lines: IntArray) -> bytes:
    """Some of the lines, one after another."""
    last = np.flatnonzero(np.diff(lines, append=-1) != 1)  # of each run of neighbours
    first = np.concatenate([[0], last[:-1] + 1]) if len(lines) else last
    runs = zip(begin[lines[first]].tolist(), end[lines[last]].tolist(), strict=True)
    return b"".join([data[low : high + 1] for low, high in runs])


def _split_by_arrow(file: TextFile, data: bytes, rows: int) -> dict[str, Coded] | None:
    """Split lines that are all alike by pyarrow; None where it finds other than so many."""
    import pyarrow as pa
    from pyarrow import csv

    end = data.find(b"\n")
    first = data[: end if end >= 0 else len(data)].decode("utf-8", "replace")
    width = len(sample_cells(first, file.delimiter))
    quoted = file.quoting and b'"' in data
    if width < file.layout.needed or rows == 0:
        return None
    names = [str(position) for position in range(width)]
    wanted = [str(position) for position in file.layout.positions.values()]
    coded = pa.dictionary(pa.int32(), pa.string())
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            read_options=csv.ReadOptions(column_names=names, block_size=_BLOCK),
            parse_options=csv.ParseOptions(
                delimiter=file.delimiter,
                quote_char='"' if quoted else False,
                double_quote=quoted,
                escape_char=False,
                newlines_in_values=False,
                ignore_empty_lines=True,
            ),
            convert_options=csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, coded),
                null_values=[],
                strings_can_be_null=False,
                check_utf8=True,
            ),
        ).unify_dictionaries()
    except (pa.ArrowException, ValueError, OverflowError):
        return None  # lines of different lengths, or longer than a block
    # pyarrow leaves out empty lines without a word; line numbers need to know of them.
    if table.num_rows != rows:
        return None
    columns = {}
    for role, position in file.layout.positions.items():
        array = table.column(str(position)).combine_chunks()
        if array.null_count:
            return None
        texts = array.dictionary.to_pylist()
        # As an array, it would import pandas, if that is there: a quarter of a second.
        columns[role] = Coded(np.from_dlpack(array.indices).astype(np.int64), texts)
    return columns


def _has_blank(column: Coded) -> bool:
    return not all(text and text.strip(BLANK) for text in column.texts)
