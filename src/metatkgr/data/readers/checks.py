"""From rows of text to checked columns: what each cell means, and which rows make no sense.

Files, frames and tuples all come through here, so they follow the same rules. Each distinct cell is
looked at once; everything per row is vectorised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import IntArray, Vocabulary
from metatkgr.data.readers.bad_rows import FIRST, BadRow, BadRows, merge_first, shorten
from metatkgr.data.readers.layout import ROLES
from metatkgr.data.readers.options import Budget
from metatkgr.data.readers.tables import Coded, Coder, Rows
from metatkgr.data.readers.times import Kind, Moments, UnitFinder, why_not_a_time
from metatkgr.data.readers.vocabularies import by_first_appearance, mostly_ids, parse_id
from metatkgr.errors import DataError

__all__ = ["CheckedRows", "check_rows", "expand"]

Mask = npt.NDArray[np.bool_]
Why = Callable[[str | None], str]

_NAMES = ROLES[:3]


@dataclass(frozen=True, eq=False)
class CheckedRows:
    """The rows that can be read, as positions in lists of names and as raw times."""

    names: dict[str, IntArray]
    """subject, relation, object: (N,) ids, or positions in ``texts``."""
    texts: dict[str, list[str | None]]
    """The same roles: distinct names; empty lists when names are ids."""
    first: IntArray
    """(N,) raw time of the fact or of the interval's start."""
    last: IntArray
    """(N,) raw time of the fact or of the interval's end."""
    first_known: Mask
    """(N,) whether there is a start."""
    last_known: Mask
    """(N,) whether there is an end."""
    span: tuple[int, int] | None
    """Earliest and latest raw time that any row states; None if all are open."""
    interval: bool
    unit: str
    ids: bool
    report: BadRows

    def by_appearance(self, used: IntArray) -> tuple[list[IntArray], Vocabulary, Vocabulary]:
        """Subjects, relations and objects numbered by their first appearance in ``used`` rows.

        Returns:
            The three (N,) columns, and the names of entities and of relations.
        """
        subject, relation, other = (self.names[role] for role in _NAMES)
        texts = self.texts
        (subject, other), entities = by_first_appearance([subject, other], texts["subject"], used)
        (relation,), relations = by_first_appearance([relation], texts["relation"], used)
        return [subject, relation, other], entities, relations


@dataclass(eq=False)
class _Checker:
    """Which rows are still good, and the first problems found by each check."""

    parts: Sequence[Rows]
    codes: dict[str, IntArray]
    """Role to (N,) positions in that role's texts."""
    texts: dict[str, list[str | None]]
    ok: Mask
    found: list[tuple[int, BadRow]] = field(default_factory=list)
    one_sided: int = 0

    def reject(self, role: str, bad: Mask, why: Callable[[int, str | None], str]) -> None:
        """Rows where ``bad`` is set, and that no earlier check rejected, are bad in ``role``.

        Args:
            role: whose cell is to blame.
            bad: (N,) mask.
            why: the reason, given the row's position and its cell.
        """
        rows = np.flatnonzero(bad & self.ok)
        self.ok[rows] = False
        starts = np.cumsum([0, *(len(part) for part in self.parts)])
        for row in rows[:FIRST].tolist():
            at = int(np.searchsorted(starts, row, side="right")) - 1
            part, text = self.parts[at], self.texts[role][self.codes[role][row]]
            number = int(part.numbers[row - starts[at]])
            shown = "null" if text is None else shorten(text)
            column = part.layout.names[role]
            problem = BadRow(part.source, part.place, number, column, shown, why(row, text))
            self.found.append((at, problem))

    def reject_texts(self, role: str, why: Why) -> None:
        """Rows whose cell ``why`` gives a reason for are bad in ``role``."""
        texts = self.texts[role]
        wrong = np.fromiter((why(text) != "" for text in texts), bool, len(texts))
        self.reject(role, wrong[self.codes[role]], lambda _, text: why(text))

    def leave_out_one_sided(self) -> None:
        """Events in which nobody acts, or on nobody, are no facts and no mistakes."""
        sizes = [len(part) for part in self.parts]
        lacking = np.repeat([part.layout.events for part in self.parts], sizes)
        if lacking.any():
            nobody = [not text or text == "None" for text in self.texts["subject"]]
            unnamed = np.asarray(nobody, bool)
            lacking &= unnamed[self.codes["subject"]] | unnamed[self.codes["object"]]
            self.ok &= ~lacking
            self.one_sided = int(np.count_nonzero(lacking))

    def report(self, source: str, notes: tuple[str, ...]) -> BadRows:
        bad = int(np.count_nonzero(~self.ok)) - self.one_sided
        total = bad + sum(part.bad_total for part in self.parts)
        split = [(at, row) for at, part in enumerate(self.parts) for row in part.bad]
        read = int(np.count_nonzero(self.ok)) + self.one_sided
        first = merge_first([*split, *self.found])
        return BadRows(source, total, first, read, one_sided=self.one_sided, notes=notes)


def check_rows(
    parts: Sequence[Rows],
    *,
    source: str,
    unit: str,
    ids: bool | None,
    vocabularies: tuple[Vocabulary | None, Vocabulary | None],
) -> CheckedRows:
    """Find out what every cell means.

    Args:
        parts: the inputs, in order, all with the same roles.
        source: what to call them together.
        unit: one of ``calendar.UNITS`` or ``auto``.
        ids: whether names are integer ids; None: if most are and there are vocabularies.
        vocabularies: of entities and of relations, where files give them.
    """
    interval = parts[0].layout.interval
    if any(part.layout.interval != interval for part in parts):
        raise DataError(f"{source}: some files have intervals and some do not")
    checker = _gather(parts)
    if ids is None:
        names = (text for role in _NAMES for text in checker.texts[role])
        ids = None not in vocabularies and mostly_ids(names)
    checker.leave_out_one_sided()
    numbers = _check_names(checker, ids, vocabularies)
    moments, notes = Moments.parse(checker.texts["time"]), parts[0].layout.notes
    if unit == "auto":
        finder = UnitFinder()
        finder.add(moments)
        unit = finder.unit(interval=interval)
        notes += finder.notes(unit)
    first, last, known = moments.in_unit(unit)
    if interval:
        _check_intervals(checker, moments, unit)
    else:
        last = first  # a point in time is its first moment, however vaguely it is dated
        wrong = ~known[checker.codes["time"]]
        checker.reject("time", wrong, lambda _, text: why_not_a_time(text, unit))

    ok = checker.ok
    start = checker.codes["time"][ok]
    end = checker.codes["end"][ok] if interval else start
    stated = np.concatenate([start, end])
    return CheckedRows(
        {role: column[ok] for role, column in numbers.items()},
        {role: [] if ids else checker.texts[role] for role in numbers},
        first[start],
        last[end],
        known[start],
        known[end],
        _known_range(first[stated], last[stated], known[stated]),
        interval,
        unit,
        ids,
        checker.report(source, notes),
    )


def _gather(parts: Sequence[Rows]) -> _Checker:
    """All rows of all parts under one numbering of their cells; nothing is checked yet."""
    entity, relation, time = Coder(), Coder(), Coder()
    coder = dict(zip(ROLES, (entity, relation, entity, time, time), strict=True))
    roles = [role for role in ROLES if role in parts[0].layout.positions]
    codes = {role: _stripped(coder[role], [part.columns[role] for part in parts]) for role in roles}
    texts = {role: coder[role].texts for role in roles}
    return _Checker(parts, codes, texts, np.ones(len(codes["subject"]), bool))


def _stripped(coder: Coder, columns: Sequence[Coded]) -> IntArray:
    """Codes of the cells of columns, one below the other, without the space around them."""
    parts = [np.zeros(0, np.int64)]
    for column in columns:
        cells = [text if text is None else text.strip() for text in column.texts]
        parts.append(coder.codes(cells)[column.codes])
    return np.concatenate(parts)


def _check_names(
    checker: _Checker, ids: bool, vocabularies: tuple[Vocabulary | None, Vocabulary | None]
) -> dict[str, IntArray]:
    """Reject rows by their names; the ids of the others, or the positions of their names."""
    entities, relations = vocabularies
    names = {}
    for role, vocabulary in zip(_NAMES, (entities, relations, entities), strict=True):
        checker.reject_texts(role, _why_not_an_id(vocabulary) if ids else _why_not_a_name)
        names[role] = checker.codes[role]
        if ids:
            values = [parse_id(text) or 0 for text in checker.texts[role]]
            names[role] = np.asarray(values, np.int64)[names[role]]
    return names


def _check_intervals(checker: _Checker, moments: Moments, unit: str) -> None:
    """Reject rows with a start or an end that is no time, or an end before the start."""
    first, last, known = moments.in_unit(unit)
    wrong = ~known & (moments.kind != Kind.OPEN)
    for role in ("time", "end"):
        bad = wrong[checker.codes[role]]
        checker.reject(role, bad, lambda _, text: why_not_a_time(text, unit))
    start, end = checker.codes["time"], checker.codes["end"]
    date = moments.kind == Kind.DATE
    backwards = known[start] & known[end] & (last[end] < first[start])
    # Within one unit, dates still tell which came first.
    backwards |= date[start] & date[end] & (moments.last[end] < moments.first[start])
    checker.reject("end", backwards, lambda row, _: f"before the start {moments.texts[start[row]]}")


def _why_not_a_name(text: str | None) -> str:
    """Why ``text`` cannot be a name; empty if it can."""
    if not text:
        return "no name"
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return "not valid text"
    return ""


def _why_not_an_id(vocabulary: Vocabulary | None) -> Why:
    def why(text: str | None) -> str:
        if not text:
            return "no id"
        value = parse_id(text)
        if value is None:
            return "not an integer id"
        if value < 0:
            return "a negative id"
        if vocabulary is not None and value >= len(vocabulary):
            return f"an id outside the vocabulary of {len(vocabulary):,} names"
        return ""

    return why


def _known_range(first: IntArray, last: IntArray, known: Mask) -> tuple[int, int] | None:
    """Earliest first moment and latest last moment of the known dates; None without any."""
    if not known.any():
        return None
    return int(first[known].min()), int(last[known].max())


def expand(
    start: IntArray,
    end: IntArray,
    start_known: Mask,
    end_known: Mask,
    clip: tuple[int, int],
    budget: Budget,
) -> tuple[IntArray, IntArray]:
    """Every raw time of every interval, start and end inclusive, within ``clip``.

    Args:
        start, end: (N,) raw times.
        start_known, end_known: (N,) False where that end is open; it is then the clip range's.
        clip: first and last raw time, inclusive.
        budget: what M facts may take.

    Returns:
        (M,) row that each fact comes from, non-decreasing, and (M,) its raw time, ascending within
        a row. A row that lies wholly outside ``clip``, or ends before it starts, has none.
    """
    low, high = clip
    first = np.maximum(np.where(start_known, start, low), low)
    last = np.minimum(np.where(end_known, end, high), high)
    count = np.maximum(last - first + 1, 0)
    # In floating point, because a handful of wide intervals overflow an int64 sum.
    wanted = float(count.sum(dtype=np.float64))
    what = f"{wanted:,.0f} steps of intervals (a clip or a coarser unit has fewer)"
    budget.take(what, steps=wanted)
    row = np.repeat(np.arange(len(count), dtype=np.int64), count)
    begins_at = np.cumsum(count) - count
    time = np.arange(len(row), dtype=np.int64) - begins_at[row] + first[row]
    return row, time
