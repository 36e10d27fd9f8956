"""Which column of a file is which: delimiter, header, columns, points or intervals."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from metatkgr.data.readers.cells import sample_cells
from metatkgr.data.readers.headers import (
    GDELT,
    are_events,
    is_gdelt,
    numbers_are_dates,
    recognise,
    recognise_all,
)
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.times import Kind, kind_of
from metatkgr.errors import DataError

__all__ = ["ROLES", "SAMPLE", "Layout", "find_layout", "has_header", "pick_delimiter"]

ROLES = ("subject", "relation", "object", "time", "end")
_CONSISTENT = 0.9
SAMPLE = 100
"""How many rows are looked at to guess what the caller did not say."""

_GDELT_NAMES = {role: name for role, (_, name) in GDELT.items()}
_TOLD = (
    "read as GDELT events: Actor1Name, EventCode, Actor2Name and the day "
    "(--columns 5,26,15,1: the actors' codes instead of their names)",
)
_LIKE_TIMES = (Kind.DATE, Kind.INTEGER, Kind.BAD, Kind.OPEN)
_LIKE_NAMES = (Kind.BAD, Kind.INTEGER, Kind.DATE, Kind.OPEN)
_NO_VALUE = {"", "nan", "nat", "null", "none", "na", "n/a", "unknown", "missing", "-", "?"}


@dataclass(frozen=True)
class Layout:
    """Where the columns are.

    Args:
        positions: role to position, in the order of ``ROLES``; has ``end`` only for intervals.
        names: role to what a report calls the column.
        events: rows without a subject or an object are events with one actor, and no mistakes.
        notes: what to tell of columns that were found in an unusual way.
    """

    positions: dict[str, int]
    names: dict[str, str]
    events: bool = False
    notes: tuple[str, ...] = ()

    @property
    def needed(self) -> int:
        """How many cells a row must have."""
        return max(self.positions.values()) + 1

    @property
    def interval(self) -> bool:
        """Whether rows have a start and an end."""
        return "end" in self.positions


def pick_delimiter(lines: Sequence[str], suffix: str) -> str:
    """The delimiter of a file whose name ends in ``suffix`` (see ``ReadOptions.delimiter``).

    Args:
        lines: the first hundred or so that are not blank.
        suffix: of the file.
    """
    if is_gdelt([line.split("\t") for line in lines]):
        return "\t"  # whatever the suffix: these files are called CSV
    usual = "," if suffix == ".csv" else "\t"
    first_line, others = lines[0], sorted("\t,;|", key=lines[0].count, reverse=True)
    picked = others[0] if first_line.count(others[0]) >= 3 else usual
    picked = usual if first_line.count(usual) >= 3 else picked
    # A text column may hold many commas. Cells are as many in every line.
    share = {delimiter: _alike(lines, delimiter) for delimiter in "\t,;|"}
    best = max(share, key=share.__getitem__)
    return best if share[best] >= _CONSISTENT > share[picked] else picked


def _alike(lines: Sequence[str], delimiter: str) -> float:
    """The share of the lines that have as many cells as most, at least four."""
    cells = Counter(len(sample_cells(line, delimiter)) for line in lines)
    return max((count for width, count in cells.items() if width >= 4), default=0) / len(lines)


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
    named = sum(role in recognise(first) for role in ROLES[:4])
    if (
        named == 4
        or recognise_all(first)
        or (named == 3 and not any(_is_time(cell) for cell in first))
    ):
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
    look: bool = True,
) -> Layout:
    """Find the columns.

    Args:
        header: the columns' names, where there are any.
        rows: the first rows, as text, without the header.
        options: what the caller said.
        source: what to call the input in errors.
        tuples: the rows are tuples from Python: five cells then always mean an interval.
        look: whether an end that has no known name is looked for behind the time.
    """
    names = [name.strip() for name in header] if header is not None else None
    gdelt = names is None and is_gdelt(rows)
    if options.columns is not None:
        positions = {
            role: _find(column, names, source)
            for role, column in zip(ROLES, options.columns, strict=False)
        }
        if options.interval is False:
            positions.pop("end", None)
    else:
        if gdelt:
            return Layout({role: at for role, (at, _) in GDELT.items()}, _GDELT_NAMES, True, _TOLD)
        positions = _by_recognition(names, rows, source)
        if options.interval is False:
            positions.pop("end", None)
        elif "end" not in positions and (
            options.interval or (look and _look_like_intervals(rows, positions["time"], tuples))
        ):
            positions["end"] = positions["time"] + 1
    if names is not None:
        for role, position in positions.items():
            if position >= len(names):
                _missing(role, names, source, rows)
    if len(set(positions.values())) < len(positions):
        raise DataError(f"{source}: two of the columns {_listed(positions)} are the same one")
    called = {
        role: names[position] if names is not None and names[position] else role
        for role, position in positions.items()
    }
    events = gdelt if names is None else are_events(names, positions)
    return Layout(positions, called, events)


def _by_recognition(
    names: Sequence[str] | None, rows: Sequence[Sequence[str]], source: str
) -> dict[str, int]:
    """Positions by the header's names if they are recognisable, else the first four columns."""
    usual = {role: at for at, role in enumerate(ROLES[:4])}
    found = recognise(names or ())
    missing = [role for role in ROLES[:4] if role not in found]
    if not missing:
        return found
    if names is not None and (everything := recognise_all(names)):
        return everything
    if any(usual.get(role) != at for role, at in found.items()):
        # Some names are clear and not where they usually are: guessing the others could be wrong.
        _missing(missing[0], names or (), source, rows)
    if _times_lie_elsewhere(rows, usual["time"]):
        if names is None:
            names, rows = _names_above(rows)
        shown = f"; its columns are {_listed(names)}" if names is not None else ""
        raise DataError(
            f"{source}: cannot tell which columns are subject, relation, object and time{shown}"
            f"{_hint(names, rows)}"
        )
    return usual


def _times_lie_elsewhere(rows: Sequence[Sequence[str]], usual: int) -> bool:
    """Whether no row has a time where it usually is, and most have one in another column."""
    if any(kind_of(row[usual].strip()) is not Kind.BAD for row in rows if len(row) > usual):
        return False
    kinds = _kinds(rows[1:] or rows)  # the first may hold names
    return len(kinds) >= 4 and any(kind in (Kind.DATE, Kind.INTEGER) for kind in kinds)


def _names_above(
    rows: Sequence[Sequence[str]],
) -> tuple[Sequence[str] | None, Sequence[Sequence[str]]]:
    """The first row as names, where it holds words above times; and the other rows."""
    first = [cell.strip() for cell in rows[0]]
    kinds = enumerate(_kinds(rows[1:] or rows))
    timed = [at for at, kind in kinds if kind in (Kind.DATE, Kind.INTEGER)]
    words = all(at < len(first) and _is_word(first[at]) for at in timed)
    return (first, rows[1:]) if words else (None, rows)


def _kinds(rows: Sequence[Sequence[str]]) -> list[Kind]:
    """What most cells of each column are: dates, integers, or something else (``BAD``)."""
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    alike = [[cell.strip() for cell in row] for row in rows if len(row) == width]
    found = []
    for column in zip(*alike, strict=True):
        kinds = [kind_of(cell) for cell in column]
        numbers = {int(c) for c, kind in zip(column, kinds, strict=True) if kind is Kind.INTEGER}
        kind, count = Counter(kinds).most_common(1)[0]
        if kind is Kind.INTEGER and numbers_are_dates(numbers):
            kind = Kind.DATE
        found.append(kind if 2 * count > len(alike) else Kind.BAD)
    return found


def _hint(names: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> str:
    """What to paste: the columns as well as they can be guessed."""
    kinds = _kinds(rows)
    if names is not None:
        kinds = [*kinds, *[Kind.BAD] * len(names)][: len(names)]
    known = recognise(names or ())
    for roles, order in ((("time",), _LIKE_TIMES), (ROLES[:3], _LIKE_NAMES)):
        missing = [role for role in roles if role not in known]
        free = [at for at in range(len(kinds)) if at not in known.values()]
        likely = [at for kind in order for at in free if kinds[at] is kind][: len(missing)]
        known |= dict(zip(missing, sorted(likely), strict=False))
    if any(role not in known for role in ROLES[:4]):
        return " (say which to use with the option 'columns')"
    chosen = [known[role] for role in ROLES if role in known]
    words = [names[at] if names is not None else str(at) for at in chosen]
    if any("," in word or not word.isprintable() or "\ufffd" in word or not word for word in words):
        words = [str(at) for at in chosen]
    return f": say which, as in --columns {shlex.quote(','.join(words))}"


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


def _missing(
    column: str, names: Sequence[str], source: str, rows: Sequence[Sequence[str]] = ()
) -> NoReturn:
    raise DataError(
        f"{source} has no column {column!r}; its columns are {_listed(names)}{_hint(names, rows)}"
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
