"""Numbers of thousands of entities in a few kilobytes of text."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import numpy.typing as npt

from metatkgr.errors import DataError

__all__ = ["SCALE", "pack", "unpack"]

SCALE = 250
"""An entity's mean reciprocal rank is kept in so many parts of 1: one byte. Rounding moves the mean
over thousands of entities by less than 0.0001."""


def pack(values: npt.ArrayLike) -> str:
    """Whole numbers as text: little-endian 32 bits, bytes of equal weight together, zlib, base64.

    Args:
        values: (n,) integers.
    """
    plain = np.asarray(values, "<i4")
    # High bytes are nearly all zero; side by side they take no room.
    planes = plain.view(np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b64encode(zlib.compress(planes, 9)).decode("ascii")


def unpack(text: str) -> npt.NDArray[np.int64]:
    """What :func:`pack` was given."""
    try:
        planes = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), np.uint8)
        plain = np.ascontiguousarray(planes.reshape(4, -1).T).view("<i4").reshape(-1)
    except (ValueError, TypeError, zlib.error) as error:
        raise DataError(f"packed numbers cannot be read: {error}") from None
    return plain.astype(np.int64)
