"""Interval facts, one step at a time: 'from 1926 to 1929' is four facts when the unit is a year."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import IntArray
from metatkgr.errors import DataError

__all__ = ["MAX_FACTS", "expand", "known_range"]

MAX_FACTS = 2**28
"""Most facts an expansion may give (about 10 GB of columns while they are sorted)."""


def known_range(
    first: IntArray, last: IntArray, known: npt.NDArray[np.bool_]
) -> tuple[int, int] | None:
    """Earliest first moment and latest last moment of the known dates; None without any."""
    if not known.any():
        return None
    return int(first[known].min()), int(last[known].max())


def expand(
    start: IntArray,
    end: IntArray,
    start_known: npt.NDArray[np.bool_],
    end_known: npt.NDArray[np.bool_],
    clip: tuple[int, int],
) -> tuple[IntArray, IntArray]:
    """Every raw time of every interval, start and end inclusive, within ``clip``.

    Args:
        start, end: (N,) raw times.
        start_known, end_known: (N,) False where that end is open; it is then the clip range's.
        clip: first and last raw time, inclusive.

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
    if wanted > MAX_FACTS:
        raise DataError(
            f"the intervals span {wanted:,.0f} steps, more than the {MAX_FACTS:,} that fit: "
            "narrow the range (clip) or choose a coarser unit"
        )
    row = np.repeat(np.arange(len(count), dtype=np.int64), count)
    begins_at = np.cumsum(count) - count
    time = np.arange(len(row), dtype=np.int64) - begins_at[row] + first[row]
    return row, time
