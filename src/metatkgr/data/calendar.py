"""Between what a file calls a time and the integer steps everything else counts in.

A *raw time* is an integer count of one unit:

========  =====================================================
unit      raw time 0 is
========  =====================================================
step      whatever the file's integer 0 means (no calendar)
hour      1970-01-01T00
day       1970-01-01
week      the week that begins on Monday 1969-12-29
month     1970-01
year      the year 0 (raw time *is* the year)
========  =====================================================

A *step* is ``(raw - origin) / stride``: the first step of a dataset is 0, and neighbouring steps
differ by 1 because ``stride`` is the greatest common divisor of all raw time differences.

A bare number states a date in four forms, of different length: yyyymmdd, yyyymmddhhmmss, and
the seconds or milliseconds since 1970.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

import numpy as np
import numpy.typing as npt

from metatkgr.errors import DataError

__all__ = [
    "NUMBER_FORMS",
    "UNITS",
    "Calendar",
    "date_to_raw",
    "minutes_of_numbers",
    "raw_to_label",
]

UNITS = ("step", "hour", "day", "week", "month", "year")
NUMBER_FORMS = ("", "yyyymmdd", "yyyymmddhhmmss", "seconds since 1970", "milliseconds since 1970")
"""How a bare number may state a date; the first stands for: not at all."""

_EPOCH = dt.date(1970, 1, 1)
_FIRST_MINUTE = dt.datetime(1970, 1, 1)
_FIRST_MONDAY = dt.date(1969, 12, 29)
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_YEAR = re.compile(r"[+-]?\d{1,6}")
_Ints = npt.NDArray[np.int64]
_YEAR_MONTH = re.compile(r"(\d{4})-(\d{2})")


def date_to_raw(moment: dt.date | dt.datetime, unit: str) -> int:
    """Raw time of the ``unit`` that contains ``moment`` (time zones are converted to UTC)."""
    if isinstance(moment, dt.datetime) and moment.tzinfo is not None:
        moment = moment.astimezone(dt.UTC)
    day = moment.date() if isinstance(moment, dt.datetime) else moment
    if unit == "hour":
        hour = moment.hour if isinstance(moment, dt.datetime) else 0
        return (day - _EPOCH).days * 24 + hour
    if unit == "day":
        return (day - _EPOCH).days
    if unit == "week":
        return (day - _FIRST_MONDAY).days // 7
    if unit == "month":
        return (day.year - 1970) * 12 + day.month - 1
    if unit == "year":
        return day.year
    raise ValueError(f"the unit {unit!r} has no calendar; choose one of {', '.join(UNITS[1:])}")


@lru_cache(1 << 12)
def raw_to_label(raw: int, unit: str) -> str:
    """How a person writes ``raw``: '2018-03-05', '2018-03-05T14', '2018-03', '1987', '42'."""
    if unit in ("step", "year"):
        return str(raw)
    if unit == "month":
        return f"{1970 + raw // 12:04d}-{raw % 12 + 1:02d}"
    try:
        if unit == "hour":
            return f"{_EPOCH + dt.timedelta(days=raw // 24)}T{raw % 24:02d}"
        if unit == "day":
            return str(_EPOCH + dt.timedelta(days=raw))
        return str(_FIRST_MONDAY + dt.timedelta(weeks=raw))
    except OverflowError:
        return f"{raw} {unit}s"


def _minutes_of_dates(
    year: _Ints, month: _Ints, day: _Ints, hour: _Ints, minute: _Ints, second: _Ints
) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    """(N,) minute since 1970 of each date and time of day, and (N,) whether there is such a one."""
    fine = (month >= 1) & (month <= 12) & (day >= 1)
    fine &= (hour <= 23) & (minute <= 59) & (second <= 60)
    months = np.where(fine, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    begin, end = (m.astype("datetime64[D]").astype(np.int64) for m in (months, months + 1))
    return (begin + day - 1) * 1440 + 60 * hour + minute, fine & (day <= end - begin)


def minutes_of_numbers(values: _Ints) -> tuple[_Ints, npt.NDArray[np.int8]]:
    """The dates that bare numbers state.

    Args:
        values: (N,) numbers.

    Returns:
        (N,) minute since 1970 (of a day, its first; in UTC) and (N,) position in ``NUMBER_FORMS``:
        0 for a number that states no date.
    """
    minutes, form = np.zeros(len(values), np.int64), np.zeros(len(values), np.int8)
    for kind, low, high, per_minute in ((3, 10**8, 10**10, 60), (4, 10**11, 10**13, 60_000)):
        rows = np.flatnonzero((values >= low) & (values < high))
        minutes[rows], form[rows] = values[rows] // per_minute, kind
    for kind, low, per_day in ((1, 10**7, 1), (2, 10**13, 10**6)):
        rows = np.flatnonzero((values >= low) & (values < 10 * low))
        date, clock = values[rows] // per_day, values[rows] % per_day
        at, fine = _minutes_of_dates(
            *(date // 10_000, date // 100 % 100, date % 100),
            *(clock // 10_000, clock // 100 % 100, clock % 100),
        )
        minutes[rows[fine]], form[rows[fine]] = at[fine], kind
    return minutes, form


@dataclass(frozen=True)
class Calendar:
    """Maps the steps of one dataset to dates and back.

    Args:
        unit: what one raw time unit is, one of ``UNITS``.
        origin: raw time of step 0.
        stride: raw units per step, at least 1.
    """

    unit: str = "step"
    origin: int = 0
    stride: int = 1

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise DataError(f"unknown time unit {self.unit!r}; choose one of {', '.join(UNITS)}")
        for name, value in (("origin", self.origin), ("stride", self.stride)):
            if isinstance(value, bool) or not isinstance(value, Integral) or abs(value) > 10**16:
                raise DataError(f"a calendar's {name} is a whole number, not {str(value)[:80]!r}")
        if self.stride < 1:
            raise DataError(f"a calendar's stride must be at least 1, not {self.stride}")

    def label(self, step: int) -> str:
        """The date (or integer) a person would write for ``step``."""
        return raw_to_label(self.origin + int(step) * self.stride, self.unit)

    def raw(self, moment: int | str | dt.date | dt.datetime) -> int:
        """Raw time of a moment written as an integer, an ISO date or datetime, or a date object."""
        if isinstance(moment, (dt.date, dt.datetime)):
            return date_to_raw(moment, self.unit)
        if isinstance(moment, int):
            return moment
        text = moment.strip()
        if self.unit in ("step", "year") and _INTEGER.fullmatch(text):
            return int(text)
        if self.unit == "step":
            raise DataError(f"this graph counts time in plain integers; {moment!r} is not one")
        if match := _YEAR_MONTH.fullmatch(text):
            text = f"{match[1]}-{match[2]}-01"
        elif _YEAR.fullmatch(text):
            text = f"{int(text):04d}-01-01"
        elif _INTEGER.fullmatch(text):
            (minute,), (form,) = minutes_of_numbers(np.array([int(text)]))
            if form:
                return date_to_raw(_FIRST_MINUTE + dt.timedelta(minutes=int(minute)), self.unit)
        try:
            return date_to_raw(dt.datetime.fromisoformat(text), self.unit)
        except ValueError:
            raise DataError(
                f"{moment!r} is not a date; write it like {self.label(0)!r} (unit: {self.unit})"
            ) from None

    def step(self, moment: int | str | dt.date | dt.datetime) -> int:
        """Step that contains ``moment``; negative before the dataset begins."""
        return (self.raw(moment) - self.origin) // self.stride
