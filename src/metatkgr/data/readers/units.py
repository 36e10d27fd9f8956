"""Which unit to read times in, when nobody chose one."""

from __future__ import annotations

import numpy as np

from metatkgr.data.calendar import NUMBER_FORMS, minutes_of_numbers
from metatkgr.data.readers.times import Kind, Moments, Precision

__all__ = ["UnitFinder"]

_OUR_TIME = -70 * 525_960, 130 * 525_960
"""Minutes: the years from 1900 to 2100."""
_DAY_FORM = NUMBER_FORMS.index("yyyymmdd")


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
