"""Facts on their way in: rows of any kind are checked, and taken all or not at all."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.readers.bad_rows import FIRST, shorten
from metatkgr.data.readers.headers import recognise, recognise_all
from metatkgr.data.readers.inputs import TAKEN, holds_rows, rows_in_memory
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.tables import cell_text
from metatkgr.errors import DataError, NearNameError, nearest
from metatkgr.forecasting.names import GrowingVocabulary, checked_name, near_name

__all__ = [
    "NewRelations",
    "check_near",
    "checked_rows",
    "checked_step",
    "far_ahead",
    "numbered",
    "rows_of",
    "steps_of",
]

FURTHEST = 1 << 20
"""Steps: a fact or query further from the graph's beginning (or, in a longer graph, further than
16 times its length) is refused as a misread date."""

_NEAR = {"hour": 8784, "day": 366, "week": 53, "month": 12, "year": 5, "step": 100}
"""A gap before a fact that nobody need confirm, or a tenth of the graph's length where that is
more."""

Row = tuple[Any, Any, Any, Any]
_KEYS = ("subject", "relation", "object", "time")
_DURATION = re.compile(r"(\d{1,9})\s*([hdwy])")
_LENGTHS: Mapping[str, Mapping[str, int]] = {
    "hour": {"h": 1, "d": 24, "w": 168},
    "day": {"d": 1, "w": 7},
    "week": {"w": 1},
    "month": {"y": 12},
    "year": {"y": 1},
}
"""Units of raw time in an hour, day, week or year, by the unit of the graph."""


def rows_of(facts: Any) -> list[Row]:
    """(subject, relation, object, time) of each row of anything that holds facts.

    Args:
        facts: ``Facts``, or what ``read_facts`` takes besides files. Times of tuples and
            dictionaries may be dates and numbers of Python's.

    Raises:
        DataError: it holds something else.
    """
    if isinstance(facts, Facts):
        return [_described(facts, row) for row in range(len(facts))]
    if holds_rows(facts):
        table = rows_in_memory(facts, ReadOptions(interval=False))
        columns = [table.columns[key] for key in _KEYS]
        cells = [[column.texts[code] for code in column.codes.tolist()] for column in columns]
        return list(zip(*cells, strict=True))
    if isinstance(facts, Mapping):
        facts = [facts]
    if isinstance(facts, tuple) and len(facts) == 4 and not _is_row(facts[0]):
        facts = [facts]
    if isinstance(facts, (str, bytes)) or not isinstance(facts, Iterable):
        raise DataError(f"cannot read facts from a {type(facts).__name__}: give Facts, {TAKEN}")
    return [_row(row, number) for number, row in enumerate(facts, 1)]


def _described(facts: Facts, row: int) -> Row:
    return (
        facts.entities[int(facts.subject[row])],
        facts.relations[int(facts.relation[row])],
        facts.entities[int(facts.object[row])],
        facts.calendar.label(int(facts.time[row])),
    )


def _is_row(row: Any) -> bool:
    return isinstance(row, (tuple, list, Mapping))


def _row(row: Any, number: int) -> Row:
    if isinstance(row, Mapping):
        if not all(key in row for key in _KEYS):
            row = _with_usual_keys(row)
        missing = [key for key in _KEYS if key not in row]
        if missing:
            raise DataError(
                f"fact {number} lacks {' and '.join(missing)}: a fact has subject, relation, "
                "object and time"
            )
        return row["subject"], row["relation"], row["object"], row["time"]
    if not isinstance(row, (tuple, list)):
        raise DataError(f"fact {number} is a {type(row).__name__}, not a tuple or a dictionary")
    if len(row) != 4:
        raise DataError(
            f"fact {number} has {len(row)} parts; a fact is subject, relation, object and time"
        )
    return row[0], row[1], row[2], row[3]


def _with_usual_keys(row: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """A dictionary whose keys are other words for subject, relation, object and time."""
    keys = [key for key in row if isinstance(key, str)]
    found = recognise_all(keys) or recognise(keys)
    return {role: row[keys[at]] for role, at in found.items()}


_SLIP = 0.8
"""Names that are so much alike are taken to be one and a slip of it."""


@dataclass
class NewRelations:
    """Relations that nobody has heard of, and that may come with facts."""

    confirmed: bool = False
    """Whether those that are spelt like a known one are meant, too."""
    names: list[str] = field(default_factory=list)
    """They are numbered behind the known ones, in this order."""


def checked_relation(
    value: Any, relations: Vocabulary, *, new: NewRelations | None = None, hints: bool = True
) -> int:
    """Id of a relation.

    Args:
        value: its name.
        relations: that are known.
        new: takes an unknown one; None: it is refused, because the model has learned none.
        hints: say which it is like, which takes a while.
    """
    name = checked_name(value, "relation")
    if name in relations:
        return relations.id(name)
    if new is not None and name in new.names:
        return len(relations) + new.names.index(name)
    if not hints:
        raise DataError("unknown relation")
    known = [*relations.names, *relations.labels.values()]
    if new is not None and (new.confirmed or not nearest(name, known, likeness=_SLIP)):
        if len(new.names) == FIRST:
            raise DataError(f"more than {FIRST} new relations at once; check the columns")
        new.names.append(name)
        return len(relations) + len(new.names) - 1
    close = nearest(name, known)
    hint = (
        f"did you mean {' or '.join(repr(c) for c in close)}?"
        if close
        else f"known are {', '.join(sorted(relations.names)[:10])}"
        + (", …" if len(relations) > 10 else "")
    )
    raise DataError(f"unknown relation {shorten(name)!r}; {hint}")


def checked_step(value: Any, calendar: Calendar, steps: int, what: str = "time") -> int:
    """The step of a date, a step or a number.

    In a graph that counts time in plain integers or years, a number is what its files would say; in
    a graph with dates, a number is a step, counted from the graph's first.

    Args:
        value: text, an integer, a date or a datetime.
        calendar: of the graph.
        steps: length of the graph.
        what: is asked for, for the message.

    Raises:
        DataError: it is no time, before the graph begins, or absurdly late.
    """
    if isinstance(value, bool) or value is None:
        raise DataError(f"the {what} is missing" if value is None else f"the {what} is no switch")
    if isinstance(value, (float, np.floating)):
        if not math.isfinite(value) or value != int(value):
            raise DataError(f"the {what} {value} is not a date or a whole number")
        value = int(value)
    if isinstance(value, np.datetime64):
        value = cell_text(value)
    if isinstance(value, (int, np.integer)):
        plain = calendar.unit in ("step", "year")
        step = calendar.step(int(value)) if plain else int(value)
    elif isinstance(value, (str, dt.date, dt.datetime)):
        if isinstance(value, str) and len(value) > 64:
            raise DataError(f"the {what} {shorten(value, 40)!r} is not a date")
        try:
            step = calendar.step(value)
        except (ValueError, OverflowError):
            raise DataError(f"the {what} {str(value)!r} is not a date") from None
    else:
        raise DataError(f"the {what} is a {type(value).__name__}; write a date or a number")
    if step < 0:
        raise DataError(f"the {what} {value} is before the graph begins ({calendar.label(0)})")
    if step > max(FURTHEST, 16 * steps):
        raise DataError(
            f"the {what} {value} is {step - steps + 1:,} steps after the graph's last fact "
            f"({calendar.label(steps - 1)}); check how it is written"
        )
    return step


def checked_rows(
    rows: Iterable[Row],
    relations: Vocabulary,
    calendar: Calendar,
    steps: int,
    new: NewRelations | None = None,
) -> list[tuple[str, int, str, int]]:
    """(subject's name, relation, object's name, step) of every row; all, or an error.

    Args:
        rows: what was given.
        relations: that are known.
        calendar: of the graph.
        steps: of the graph.
        new: takes unknown relations; None: they are refused.

    Raises:
        DataError: some rows are bad; it describes the first twenty.
    """
    good: list[tuple[str, int, str, int]] = []
    bad: list[str] = []
    total = 0
    for number, (subject, relation, object_, time) in enumerate(rows, 1):
        try:
            good.append(
                (
                    checked_name(subject, "subject"),
                    # Who sends a thousand unknown relations is not worth a thousand searches.
                    checked_relation(relation, relations, new=new, hints=total < FIRST),
                    checked_name(object_, "object"),
                    checked_step(time, calendar, steps),
                )
            )
        except DataError as error:
            total += 1
            if len(bad) < FIRST:
                bad.append(f"fact {number}: {error}")
    if not total:
        return good
    more = f"\n… and {total - len(bad)} more" if total > len(bad) else ""
    raise DataError("nothing was taken in: " + "\n".join(bad) + more)


def numbered(
    rows: Iterable[tuple[str, int, str, int]], entities: GrowingVocabulary
) -> tuple[list[str], list[tuple[int, int, int, int]]]:
    """New names, and (subject, relation, object, step) of rows in numbers; new ones come last."""
    new: dict[str, int] = {}

    def number(name: str) -> int:
        known = entities.find(name)
        return new.setdefault(name, len(entities) + len(new)) if known is None else known

    facts = [(number(s), r, number(o), t) for s, r, o, t in rows]
    return list(new), facts


def far_ahead(steps: Iterable[int], last: int, calendar: Calendar) -> int | None:
    """The first of some steps that lies far after the last fact and after all of them before it.

    A mistyped year does; facts that go on from day to day do not, however many they are.
    """
    room = max(_NEAR[calendar.unit] // calendar.stride, (last + 1) // 10, 1)
    for step in sorted(set(steps)):
        if step > last + room:
            return step
        last = max(last, step)
    return None


def check_near(names: Iterable[str], entities: GrowingVocabulary) -> None:
    """Ask back where a new name is nearly that of a known entity.

    Raises:
        NearNameError: it names both.
    """
    close = [(name, near) for name in names if (near := near_name(entities, name)) is not None]
    if close:
        raise NearNameError(close)


def steps_of(duration: str, calendar: Calendar) -> int | None:
    """How many steps '30d' is, and so for hours, weeks and years; None: it is no such text.

    Raises:
        DataError: the graph does not count time like this.
    """
    found = _DURATION.fullmatch(duration.strip())
    if found is None:
        return None
    lengths = _LENGTHS.get(calendar.unit, {})
    if found[2] not in lengths:
        ways = " or ".join(f"30{letter}" for letter in lengths) or "a number"
        raise DataError(f"the graph counts time in {calendar.unit}s: write {ways}, not {duration}")
    return -(-int(found[1]) * lengths[found[2]] // calendar.stride)
