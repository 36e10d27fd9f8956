"""From what a cell says about time to raw times (see ``data.calendar``), and in which unit.

A cell may hold

- an integer: a step, or a date by the forms of ``data.calendar`` (yyyymmdd, seconds since 1970 …),
- an ISO date, month or datetime, with or without a zone (zones are converted to UTC),
- a date known in part: ``1987-##-##``, ``1987-05-##``, ``198#-##-##``, ``-431-##-##``,
- nothing known: ``####-##-##``, ``####`` or an empty cell (an open end, for intervals only).

A date is kept as its first and last minute, so that one known in part can start (or end) an
interval in any unit: a start takes the first moment it may mean, an end the last one.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from metatkgr.data.calendar import NUMBER_FORMS, minutes_of_numbers
from metatkgr.data.facts import IntArray

__all__ = ["MAX_RAW", "Kind", "Moments", "Precision", "UnitFinder", "kind_of", "why_not_a_time"]

MAX_RAW = 10**15
"""Largest raw time either side of zero: differences and products with it stay within int64."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_OPEN = re.compile(r"####(-##){0,2}")
_DATE = re.compile(
    r"([+-]?[0-9]{1,4}|[0-9]{1,3}#{1,3})"  # year, decade or century
    r"(?:-([0-9]{2}|##)(?:-([0-9]{2}|##)"  # month, day
    r"(?:[Tt ]([0-9]{2})(?::?([0-9]{2})(?::?([0-9]{2})(?:[.,][0-9]+)?)?)?"  # hour, minute, second
    r" ?([Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?)?)?)?"  # zone
)
_DATE_ONLY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE_AND_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}")
"""Dates as nearly all files have them, which numpy reads as we do."""
_DAY = 24 * 60
_MANY = 1000  # fewer texts than this are read as fast one by one
_EPOCH = dt.date(1970, 1, 1).toordinal()
_DAYS_IN_400_YEARS = 146_097
_DAY_FORM = NUMBER_FORMS.index("yyyymmdd")
_OUR_TIME = -70 * 525_960, 130 * 525_960
"""Minutes: the years from 1900 to 2100."""


class Kind(IntEnum):
    """What sort of thing a time cell holds."""

    BAD = 0
    OPEN = 1
    INTEGER = 2
    DATE = 3


class Precision(IntEnum):
    """How much of a date is known."""

    YEAR = 0
    MONTH = 1
    DAY = 2
    HOUR = 3


class _NotATimeError(ValueError):
    """Carries the reason why a text is not a time."""


def _day_number(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the Gregorian calendar, for any year (0 is 1 BC)."""
    # The calendar repeats every 400 years, and `datetime` only knows the years 1 to 9999.
    cycles = (year - 400) // 400
    ordinal = dt.date(year - 400 * cycles, month, day).toordinal()
    return ordinal + _DAYS_IN_400_YEARS * cycles - _EPOCH


def _month_start(year: int, month: int) -> int:
    """First day of a month; month 13 is the next January."""
    return _day_number(year + 1, 1, 1) if month > 12 else _day_number(year, month, 1)


def _zone_minutes(zone: str | None) -> int:
    if zone is None or zone in "Zz":
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    if hours > 23 or minutes > 59:
        raise _NotATimeError(f"there is no time zone {zone}")
    return (-1 if zone[0] == "-" else 1) * (60 * hours + minutes)


def _read_date(text: str) -> tuple[int, int, Precision]:
    """First minute, last minute and precision of a date; the reason it isn't one otherwise."""
    match = _DATE.fullmatch(text)
    if match is None:
        if text.lower() in ("nan", "nat"):
            raise _NotATimeError("not a number")
        raise _NotATimeError("not an integer, a date or a datetime")
    year_text, month_text, day_text, hour, minute, second, zone = match.groups()
    if "#" in year_text:
        if len(year_text) != 4 or (month_text or "##") != "##" or (day_text or "##") != "##":
            raise _NotATimeError("a date without its year")
        low, high = int(year_text.replace("#", "0")), int(year_text.replace("#", "9"))
        return _day_number(low, 1, 1) * _DAY, _day_number(high + 1, 1, 1) * _DAY - 1, Precision.YEAR
    year = int(year_text)
    if month_text in (None, "##"):
        if day_text not in (None, "##"):
            raise _NotATimeError("a day without its month")
        first, last = _day_number(year, 1, 1), _day_number(year + 1, 1, 1)
        return first * _DAY, last * _DAY - 1, Precision.YEAR
    month = int(month_text)
    if not 1 <= month <= 12:
        raise _NotATimeError(f"there is no month {month_text}")
    if day_text in (None, "##"):
        first, last = _month_start(year, month), _month_start(year, month + 1)
        return first * _DAY, last * _DAY - 1, Precision.MONTH
    if len(year_text) < 3:
        # 18-01-05 could be a day, a month and a year in any order.
        raise _NotATimeError("write the year of a date with four digits")
    try:
        day = _day_number(year, month, int(day_text))
    except ValueError:
        raise _NotATimeError(f"there is no day {day_text} in that month") from None
    if hour is None:
        return day * _DAY, day * _DAY + _DAY - 1, Precision.DAY
    if int(hour) > 23 or int(minute or 0) > 59 or int(second or 0) > 60:
        raise _NotATimeError("there is no such time of day")
    moment = day * _DAY + 60 * int(hour) + int(minute or 0) - _zone_minutes(zone)
    return moment, moment if minute else moment + 59, Precision.HOUR


def _read_integer(text: str) -> int:
    # Python refuses to convert thousands of digits; nothing that long is in range anyway.
    value = int(text) if len(text) <= 24 else MAX_RAW + 1
    if abs(value) > MAX_RAW:
        raise _NotATimeError("beyond ±10^15")
    return value


def _read_year(text: str) -> tuple[int, int, Precision]:
    """An integer among dates that is in no form of ``NUMBER_FORMS``: a year, or unclear."""
    digits = text.lstrip("+-")
    if len(digits) == 4:
        return _read_date(text)
    if len(digits) == 8 and digits == text:  # no such day: says why
        return _read_date(f"{text[:4]}-{text[4:6]}-{text[6:]}")
    raise _NotATimeError(
        "a bare number is a date only as a year of four digits or as yyyymmdd "
        "(the unit 'step' counts plain integers)"
    )


def _read(text: str | None) -> tuple[Kind, int, int, int, Precision]:
    """Kind, integer, first and last minute and precision of a cell; the reason it has none."""
    if text is None or text == "" or _OPEN.fullmatch(text):
        return Kind.OPEN, 0, 0, 0, Precision.YEAR
    if _INTEGER.fullmatch(text):
        return Kind.INTEGER, _read_integer(text), 0, 0, Precision.YEAR
    return Kind.DATE, 0, *_read_date(text)


def kind_of(text: str | None) -> Kind:
    """What sort of time ``text`` is."""
    try:
        return _read(text)[0]
    except _NotATimeError:
        return Kind.BAD


def why_not_a_time(text: str | None, unit: str) -> str:
    """The reason why ``text`` cannot be read as a time in ``unit``."""
    if not text:
        return "no time"
    try:
        kind = _read(text)[0]
        if kind is Kind.OPEN:
            return "an unknown time (only intervals may be open)"
        if kind is Kind.INTEGER:
            _read_year(text)
    except _NotATimeError as error:
        return str(error)
    return "not an integer" if unit == "step" else f"not a time in the unit {unit!r}"


@dataclass(frozen=True, eq=False)
class Moments:
    """The distinct times of a file, parsed once each.

    Args:
        texts: (K,) the cells.
        kind: (K,) a :class:`Kind` each.
        value: (K,) the integer, where it is one.
        first: (K,) first minute since 1970 (UTC) of a date.
        last: (K,) last minute of a date.
        precision: (K,) a :class:`Precision` each, for dates.
    """

    texts: Sequence[str | None]
    kind: npt.NDArray[np.int8]
    value: IntArray
    first: IntArray
    last: IntArray
    precision: npt.NDArray[np.int8]

    @classmethod
    def parse(cls, texts: Sequence[str | None]) -> Moments:
        """Parse each of ``texts`` (already stripped): the usual ones at once, then the others."""
        size = len(texts)
        kind, precision = np.zeros(size, np.int8), np.zeros(size, np.int8)
        value, first, last = (np.zeros(size, np.int64) for _ in range(3))
        # An event log may hold a different time in every row: one by one they would take long.
        for shape, known, span in (
            (_DATE_ONLY, Precision.DAY, _DAY - 1),
            (_DATE_AND_TIME, Precision.HOUR, 0),
        ):
            usual = [at for at, text in enumerate(texts) if text and shape.fullmatch(text)]
            if len(usual) < _MANY:
                continue
            try:
                seconds = np.array([texts[at] for at in usual], "datetime64[s]").astype(np.int64)
            except ValueError:
                continue  # there is no such day or time among them
            kind[usual], precision[usual] = Kind.DATE, known
            first[usual], last[usual] = seconds // 60, seconds // 60 + span
        for at in np.flatnonzero(kind == Kind.BAD).tolist():
            try:
                kind[at], value[at], first[at], last[at], precision[at] = _read(texts[at])
            except _NotATimeError:
                kind[at] = Kind.BAD
        return cls(texts, kind, value, first, last, precision)

    def in_unit(self, unit: str) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
        """Raw times in ``unit``.

        Returns:
            (K,) raw time of the first moment, (K,) raw time of the last, (K,) whether there is one.
        """
        integer = self.kind == Kind.INTEGER
        if unit == "step":
            return self.value, self.value, integer
        first, last = self.first.copy(), self.last.copy()
        known = self.kind == Kind.DATE
        minutes, form = minutes_of_numbers(np.where(integer, self.value, 0))
        first, last = np.where(form > 0, minutes, first), np.where(form > 0, minutes, last)
        last[form == _DAY_FORM] += _DAY - 1
        known = known | (form > 0)
        years = integer & (form == 0)
        if unit != "year":
            for at in np.flatnonzero(years).tolist():
                try:
                    first[at], last[at], _ = _read_year(str(self.texts[at]))
                    known[at] = True
                except _NotATimeError:
                    pass
        first, last = _minutes_to_raw(first, unit), _minutes_to_raw(last, unit)
        if unit == "year":
            first, last = np.where(years, self.value, first), np.where(years, self.value, last)
            known = known | years
        return first, last, known


def _minutes_to_raw(minutes: IntArray, unit: str) -> IntArray:
    """Raw time of the ``unit`` that contains each minute since 1970."""
    if unit == "hour":
        return minutes // 60
    day = minutes // _DAY
    if unit == "day":
        return day
    if unit == "week":
        return (day + 3) // 7  # weeks begin on Mondays; 1970-01-01 was a Thursday
    month = day.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    return month if unit == "month" else month // 12 + 1970


class UnitFinder:
    """Finds the unit to read times in when nobody chose one.

    Integers (when there are more of them than dates) are steps, unless most of them state a date of
    our time in a form of ``NUMBER_FORMS``. Points in time take the finest unit that any of them
    needs. Intervals take the coarsest, the one unit that all their ends state: a single full date
    among years must not turn years into days.
    """

    def __init__(self) -> None:
        self._integers = self._dates = 0
        self._precisions: set[int] = set()
        self._hours: set[int] = set()
        self._forms = np.zeros(len(NUMBER_FORMS), np.int64)
        self._number_hours: set[int] = set()
        self._earliest: tuple[int, int] | None = None
        """Minute and number."""

    def add(self, moments: Moments) -> None:
        """Take some more times."""
        dates, integers = moments.kind == Kind.DATE, moments.kind == Kind.INTEGER
        self._integers += int(np.count_nonzero(integers))
        self._dates += int(np.count_nonzero(dates))
        self._precisions.update(np.unique(moments.precision[dates]).tolist())
        self._hours.update(np.unique(moments.first[dates] // 60 % 24).tolist())
        values = moments.value[integers]
        minutes, form = minutes_of_numbers(values)
        # A few digits less are read as seconds where dates are asked for, but are no sign of them.
        form[(minutes < _OUR_TIME[0]) | (minutes >= _OUR_TIME[1])] = 0
        form[(form > 2) & (values < np.where(form == 3, 10**9, 10**12))] = 0
        self._forms += np.bincount(form, minlength=len(NUMBER_FORMS))
        self._number_hours.update(np.unique(minutes[form > 0] // 60 % 24).tolist())
        if form.any():
            at = int(np.where(form > 0, minutes, _OUR_TIME[1]).argmin())
            found = int(minutes[at]), int(values[at])
            self._earliest = min(self._earliest or found, found)

    def unit(self, *, interval: bool) -> str:
        """The unit to read all of them in."""
        precisions, hours = self._precisions, self._hours
        if self._integers > self._dates or not self._dates:
            if not self._are_dates():
                return "step"
            of_numbers = {Precision.DAY} if self._forms[_DAY_FORM] else set()
            of_numbers |= {Precision.HOUR} if self._forms[_DAY_FORM + 1 :].any() else set()
            precisions, hours = precisions | of_numbers, hours | self._number_hours
        precision = min(precisions) if interval else max(precisions)
        if precision == Precision.HOUR:
            return "hour" if len(hours) > 1 else "day"
        return ("year", "month", "day")[precision]

    def notes(self, unit: str) -> tuple[str, ...]:
        """What to tell of numbers that were taken for dates; nothing where none were."""
        least = self._earliest
        numbers = self._integers > self._dates and self._are_dates()
        if unit == "step" or least is None or not numbers:
            return ()
        form = NUMBER_FORMS[1 + int(self._forms[1:].argmax())]
        return (
            f"times like {least[1]} are read as {form}, in the unit {unit!r} "
            "(--time-unit step: as plain numbers)",
        )

    def _are_dates(self) -> bool:
        return bool(2 * self._forms[1:].sum() > self._integers)
