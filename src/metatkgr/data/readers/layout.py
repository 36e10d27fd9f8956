"""Which column of a file is which: delimiter, header, columns, points or intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.times import Kind, kind_of
from metatkgr.errors import DataError

__all__ = ["ROLES", "SAMPLE", "Layout", "find_layout", "has_header", "pick_delimiter"]

ROLES = ("subject", "relation", "object", "time", "end")
SAMPLE = 100
"""How many rows are looked at to guess what the caller did not say."""

_RECOGNISED = {
    "subject": ("subject", "s", "head", "source"),
    "relation": ("relation", "r", "predicate", "rel", "type"),
    "object": ("object", "o", "tail", "target"),
    "time": ("time", "t", "timestamp", "date", "year", "when", "start"),
    "end": ("end", "until", "stop"),
}
_NO_VALUE = {"", "nan", "nat", "null", "none", "na", "n/a", "unknown", "missing", "-", "?"}


@dataclass(frozen=True)
class Layout:
    """Where the columns are.

    Args:
        positions: role to position, in the order of ``ROLES``; has ``end`` only for intervals.
        names: role to what a report calls the column.
    """

    positions: dict[str, int]
    names: dict[str, str]

    @property
    def needed(self) -> int:
        """How many cells a row must have."""
        return max(self.positions.values()) + 1

    @property
    def interval(self) -> bool:
        """Whether rows have a start and an end."""
        return "end" in self.positions


def pick_delimiter(first_line: str, suffix: str) -> str:
    """The delimiter of a file whose name ends in ``suffix`` (see ``ReadOptions.delimiter``)."""
    usual = "," if suffix == ".csv" else "\t"
    if first_line.count(usual) >= 3:
        return usual
    others = sorted("\t,;|", key=first_line.count, reverse=True)
    return others[0] if first_line.count(others[0]) >= 3 else usual


def has_header(rows: Sequence[Sequence[str]], options: ReadOptions) -> bool:
    """Whether the first of ``rows`` (the first hundred or so) holds the columns' names."""
    if options.header is not None:
        return options.header
    if not rows:
        return False
    columns = options.columns or ("0", "1", "2", "3")
    if not all(_is_position(column) for column in columns):
        return True  # columns are asked for by name, so there must be names
    first = [cell.strip() for cell in rows[0]]
    named = sum(role in _recognise(first) for role in ROLES[:4])
    if named == 4 or (named == 3 and not any(_is_time(cell) for cell in first)):
        return True
    *ends, at = [int(column) for column in columns[:4]]
    if max(*ends, at) >= len(first) or not _is_word(first[at]):
        return False
    later = [[cell.strip() for cell in row] for row in rows[1:] if len(row) > max(*ends, at)]
    if not any(_is_time(row[at]) for row in later):
        return False
    # A first row whose time is broken ('unknown') must be reported, not taken for a header. Its
    # names tend to be numbers or to come up again; those of a header do not.
    return all(
        kind_of(first[end]) is not Kind.INTEGER
        and first[end] != ""
        and all(row[end] != first[end] for row in later)
        for end in ends
    )


def find_layout(
    header: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    options: ReadOptions,
    *,
    source: str,
    tuples: bool = False,
) -> Layout:
    """Find the columns.

    Args:
        header: the columns' names, where there are any.
        rows: the first rows, as text, without the header.
        options: what the caller said.
        source: what to call the input in errors.
        tuples: the rows are tuples from Python: five cells then always mean an interval.
    """
    names = [name.strip() for name in header] if header is not None else None
    if options.columns is not None:
        positions = {
            role: _find(column, names, source)
            for role, column in zip(ROLES, options.columns, strict=False)
        }
        if options.interval is False:
            positions.pop("end", None)
    else:
        positions = _by_recognition(names, source)
        if options.interval is False:
            positions.pop("end", None)
        elif "end" not in positions and (
            options.interval or _look_like_intervals(rows, positions["time"], tuples)
        ):
            positions["end"] = positions["time"] + 1
    if names is not None:
        for role, position in positions.items():
            if position >= len(names):
                _missing(role, names, source)
    if len(set(positions.values())) < len(positions):
        raise DataError(f"{source}: two of the columns {_listed(positions)} are the same one")
    called = {
        role: names[position] if names is not None and names[position] else role
        for role, position in positions.items()
    }
    return Layout(positions, called)


def _by_recognition(names: Sequence[str] | None, source: str) -> dict[str, int]:
    """Positions by the header's names if they are recognisable, else the first four columns."""
    usual = {role: at for at, role in enumerate(ROLES[:4])}
    if names is None:
        return usual
    found = _recognise(names)
    missing = [role for role in ROLES[:4] if role not in found]
    if not missing:
        return found
    if all(usual.get(role) == at for role, at in found.items()):
        return usual
    # Some names are clear and not where they usually are, so guessing the others could be wrong.
    _missing(missing[0], names, source)


def _recognise(names: Sequence[str]) -> dict[str, int]:
    """Role to position for each role that a name of the header stands for."""
    folded = [name.casefold() for name in names]
    found: dict[str, int] = {}
    for role, synonyms in _RECOGNISED.items():
        at = next((folded.index(word) for word in synonyms if word in folded), None)
        if at is not None:
            found[role] = at
    if "end" in found and "start" in folded:
        found["time"] = folded.index("start")
    return found


def _find(column: str, names: Sequence[str] | None, source: str) -> int:
    """Position of a column given by name (exactly, else ignoring case) or position."""
    if names is not None:
        if column in names:
            return names.index(column)
        folded = [name.casefold() for name in names]
        if column.casefold() in folded:
            return folded.index(column.casefold())
    if _is_position(column):
        position = int(column)
        if names is None or position < len(names):
            return position
    if names is None:
        raise DataError(
            f"{source} has no header, so there is no column {column!r}: give positions instead"
        )
    _missing(column, names, source)


def _missing(column: str, names: Sequence[str], source: str) -> NoReturn:
    raise DataError(
        f"{source} has no column {column!r}; its columns are {_listed(names)} "
        "(say which to use with the option 'columns')"
    )


def _listed(names: Sequence[str] | dict[str, int]) -> str:
    shown = [repr(name[:40]) for name in names]
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")


def _is_position(column: str) -> bool:
    return column.isascii() and column.isdigit() and len(column) <= 4


def _is_time(cell: str) -> bool:
    return kind_of(cell) in (Kind.INTEGER, Kind.DATE)


def _is_word(cell: str) -> bool:
    """Whether a cell could be the name of a time column: a word, not a time gone wrong."""
    return (
        any(letter.isalpha() for letter in cell)
        and not any(letter.isdigit() or letter == "#" for letter in cell)
        and cell.casefold() not in _NO_VALUE
    )


def _look_like_intervals(rows: Sequence[Sequence[str]], time: int, tuples: bool) -> bool:
    """Whether most rows have dates or #### in both of two last columns."""
    wide = [[cell.strip() for cell in row] for row in rows if len(row) == time + 2]
    if tuples or len(wide) <= len(rows) // 2:
        return tuples and len(wide) > len(rows) // 2
    votes = 0
    for *_, start, end in wide:
        if end == "":
            continue  # an open end, or merely a delimiter at the end of each line
        either_is_clear = any(
            kind_of(cell) is Kind.DATE or cell.startswith("####") for cell in (start, end)
        )
        votes += 1 if either_is_clear and _may_be_end(start) and _may_be_end(end) else -1
    return votes > 0


def _may_be_end(cell: str) -> bool:
    kind = kind_of(cell)
    return kind in (Kind.DATE, Kind.OPEN) or (
        kind is Kind.INTEGER and len(cell.lstrip("+-")) == 4  # a year
    )
