"""Rows that have been split into columns of text, and what is known of those that could not be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.data.readers.bad_rows import BadRow
from metatkgr.data.readers.layout import Layout

__all__ = ["Coded", "Coder", "Rows"]


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
        coder = Coder()
        coder.add(list(cells))
        return coder.done()


class Coder:
    """Builds a :class:`Coded` column piece by piece."""

    def __init__(self) -> None:
        self._ids: defaultdict[str | None, int] = defaultdict()
        self._ids.default_factory = self._ids.__len__
        self._parts: list[IntArray] = [np.zeros(0, np.int64)]

    def add(self, cells: Sequence[str | None]) -> None:
        """Add cells below the others."""
        self._parts.append(np.fromiter(map(self._ids.__getitem__, cells), np.int64, len(cells)))

    def done(self) -> Coded:
        """The column."""
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
