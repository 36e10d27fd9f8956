"""The dates that nearly all files have, ``2018-01-31`` and ``2018-01-31T23:59:59``, all at once.

An event log may hold a different time in every row. Texts of exactly these two shapes are read as a
matrix of characters; whatever is not one of them, or not a date, is left to ``readers.times``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import IntArray

__all__ = ["DATETIME_LENGTH", "DATE_LENGTH", "read_same_length"]

DATE_LENGTH, DATETIME_LENGTH = len("2018-01-31"), len("2018-01-31T23:59:59")


def read_same_length(texts: Sequence[str], length: int) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Read texts that all have ``length`` characters.

    Args:
        texts: N texts.
        length: ``DATE_LENGTH`` or ``DATETIME_LENGTH``.

    Returns:
        (N,) whether the text is a date of the shape above, and (N,) its minute since 1970.
    """
    # Whatever is not ASCII becomes '?', one byte per character, so the matrix keeps its shape.
    joined = "".join(texts).encode("ascii", "replace")
    grid = np.frombuffer(joined, np.uint8).reshape(len(texts), length)
    valid = np.ones(len(texts), bool)
    for at, separators in ((4, b"-"), (7, b"-"), (10, b"T "), (13, b":"), (16, b":")):
        if at < length:
            valid &= np.isin(grid[:, at], np.frombuffer(separators, np.uint8))

    def number(begin: int, end: int) -> IntArray:
        value = np.zeros(len(texts), np.int64)
        for at in range(begin, end):
            digit = grid[:, at].astype(np.int64) - ord("0")
            np.logical_and(valid, (digit >= 0) & (digit <= 9), out=valid)
            value = value * 10 + digit
        return value

    year, month, day = number(0, 4), number(5, 7), number(8, 10)
    valid &= (month >= 1) & (month <= 12) & (day >= 1)
    months = np.where(valid, (year - 1970) * 12 + month - 1, 0)
    begins = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    next_begins = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    valid &= day <= next_begins - begins
    minute = (begins + day - 1) * (24 * 60)
    if length == DATETIME_LENGTH:
        hours, minutes, seconds = number(11, 13), number(14, 16), number(17, 19)
        valid &= (hours <= 23) & (minutes <= 59) & (seconds <= 60)
        minute += 60 * hours + minutes
    return valid, minute
