"""Columns on disk: safetensors files written piece by piece, read in slices or by memory map.

The tensor library writes a file in one go, from memory. These files are the same, to the byte
layout (8 bytes with the header's length, a JSON header, the values), but a column may be longer
than memory.

A column that grows is written to behind its end, and its header last. Who knows from another file
how long it is (``length``) reads it undisturbed meanwhile, and whatever came of the writing.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import weakref
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from metatkgr.errors import DataError

__all__ = ["Column", "ColumnWriter"]

_TYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U8": np.dtype("u1"),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_COLUMN = "column"
_RESERVED = 4096
"""Bytes kept for the header of a column whose length is not known yet."""
_LARGEST_HEADER = 1 << 24
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)

_NO_HEADER = (
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError),
    *(RecursionError, struct.error),
)
"""What bytes from anywhere may end the reading of a header with."""

Array = npt.NDArray[Any]


def _column_header(length: int, dtype: np.dtype[Any]) -> bytes:
    """The header of a single column, of one size, its numbers always at the same place.

    Half of a new one in front of half of an old one is still a header.
    """
    end = length * dtype.itemsize
    text = (
        f'{{"__metadata__":{{}},"{_COLUMN}":{{"dtype":"{_NAMES[dtype]}","shape":[{length:>20}],'
        f'"data_offsets":[0,{end:>20}]}}}}'
    )
    return struct.pack("<Q", _RESERVED) + text.encode().ljust(_RESERVED)


class ColumnWriter:
    """Writes one column from its beginning to its end, however long it gets.

    Args:
        path: the file.
        dtype: of the values.
        after: go on with a file that is there, behind so many of its values; what it holds beyond
            them is cut off.
        sync: have the column on the disk when the writing ends.

    Raises:
        DataError: the file to be gone on with is shorter, or no such column.
    """

    def __init__(
        self,
        path: str | Path,
        dtype: npt.DTypeLike = np.int64,
        *,
        after: int | None = None,
        sync: bool = False,
    ) -> None:
        self._dtype, self._sync, self.length = np.dtype(dtype), sync, after or 0
        self._done = -1
        """A length with which the file is as it should be."""
        if after is None:
            self._file: BinaryIO = open(path, "wb")  # noqa: SIM115
            self._file.write(b" " * (8 + _RESERVED))
            return
        known = Column(path, length=after)
        if known.dtype != self._dtype or known.offset != 8 + _RESERVED:
            raise DataError(f"{path} is not a column of {self._dtype} that can grow")
        end = known.offset + after * self._dtype.itemsize
        self._file = open(path, "r+b")  # noqa: SIM115
        if known.stated_length == after and self._file.seek(0, os.SEEK_END) == end:
            self._done = after
        self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)

    def append(self, values: Array) -> None:
        """Add values at the end."""
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self.length += len(values)

    def close(self) -> None:
        """End the writing before the block does."""
        self.__exit__(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if self._file.closed:
            return
        try:
            if kind is None and self.length != self._done:
                self._file.seek(0)
                self._file.write(_column_header(self.length, self._dtype))
                if self._sync:
                    self._file.flush()
                    os.fsync(self._file.fileno())
        finally:
            self._file.close()


class Column:
    """The column of a file, which stays open: it can be read also when its name is gone.

    Args:
        path: the file.
        length: how many values to read, where the header may say something else: the column may be
            growing.
        dtype: what the values have to be; None: anything.

    Raises:
        DataError: there is no such file, or it is damaged.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        length: int | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.path = Path(path)
        try:
            # Of a pipe nobody writes to, opening alone would wait for ever.
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | _AT_ONCE)
            weakref.finalize(self, os.close, self._file)
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise ValueError("it is not an ordinary file")
            (size,) = struct.unpack("<Q", os.pread(self._file, 8, 0))
            if size > _LARGEST_HEADER:
                raise ValueError("its header is too long")
            about = json.loads(os.pread(self._file, size, 8))[_COLUMN]
            (self.stated_length,) = map(int, about["shape"])
            low, high = map(int, about["data_offsets"])
            self.dtype = _TYPES[about["dtype"]]
            whole = os.fstat(self._file).st_size
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        except _NO_HEADER as error:
            reason = str(error)[:200]
            raise DataError(f"{path} is damaged or holds no {_COLUMN!r} ({reason})") from error
        self.length, self.offset = self.stated_length if length is None else length, 8 + size + low
        end = self.offset + self.length * self.dtype.itemsize
        fits = high - low == self.stated_length * self.dtype.itemsize or length is not None
        # Behind a header of our own, every value lies where a processor likes it.
        aligned = self.offset % self.dtype.itemsize == 0
        if low < 0 or self.length < 0 or not fits or not aligned or end > whole:
            raise DataError(f"{path} is damaged: {_COLUMN!r} does not fit into the file")
        if dtype is not None and self.dtype != np.dtype(dtype):
            raise DataError(f"{path} is damaged: it holds {self.dtype}, not {np.dtype(dtype)}")

    def __len__(self) -> int:
        return self.length

    def read(self, low: int, high: int) -> Array:
        """Rows ``low`` to ``high``, not included, in memory of their own.

        A map would do too, but the pages that it has touched count as memory of the process.
        """
        values = np.empty(max(min(high, self.length) - low, 0), self.dtype)
        offset = self.offset + low * self.dtype.itemsize
        data = values.view(np.uint8).data
        while data:
            count = os.preadv(self._file, [data], offset)
            if count == 0:
                raise DataError(f"{self.path} is damaged: it has been cut off")
            data, offset = data[count:], offset + count
        return values

    def map(self) -> Array:
        """The column as an array, read when it is looked at; writing to it changes no file."""
        if self.length == 0:
            return np.zeros(0, self.dtype)
        with os.fdopen(os.dup(self._file), "rb") as file:
            # Copy on write, not read only: torch warns of arrays that nobody may write to.
            return np.asarray(np.memmap(file, self.dtype, "c", self.offset, (self.length,)))
