"""Columns on disk: safetensors files written piece by piece, read in slices or by memory map.

The tensor library writes a file in one go, from memory. These files are the same, to the byte
layout (8 bytes with the header's length, a JSON header, the columns one after another), but a
column may be longer than memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

import numpy as np
import numpy.typing as npt

from metatkgr.errors import DataError

__all__ = ["Column", "ColumnWriter", "TableWriter", "grow_column"]

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

Array = npt.NDArray[Any]


def _header(
    lengths: Mapping[str, int], dtypes: Mapping[str, np.dtype[Any]], about: Mapping[str, str]
) -> bytes:
    """The JSON header, padded so that the columns begin at a multiple of 8 bytes."""
    content: dict[str, Any] = {"__metadata__": dict(about)}
    at = 0
    for name, length in lengths.items():
        end = at + length * dtypes[name].itemsize
        content[name] = {
            "dtype": _NAMES[dtypes[name]],
            "shape": [length],
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(content, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


class TableWriter:
    """Writes columns of known length, any part of any of them at any time.

    Args:
        path: the file; it should be a temporary name (see ``files.atomic_path``).
        lengths: how many int64 each column holds.
        about: what the file says about itself.
    """

    def __init__(
        self, path: str | Path, lengths: Mapping[str, int], about: Mapping[str, str]
    ) -> None:
        dtype = np.dtype("<i8")
        header = _header(lengths, dict.fromkeys(lengths, dtype), about)
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115
        self._file.write(struct.pack("<Q", len(header)) + header)
        self._start: dict[str, int] = {}
        at = 8 + len(header)
        for name, length in lengths.items():
            self._start[name] = at
            at += length * dtype.itemsize
        self._file.truncate(at)

    def write(self, name: str, position: int, values: Array) -> None:
        """Put ``values`` at ``position`` of a column."""
        self._file.seek(self._start[name] + 8 * position)
        self._file.write(np.ascontiguousarray(values, np.dtype("<i8")).data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


class ColumnWriter:
    """Writes one column from its beginning to its end, however long it gets.

    Args:
        path: the file.
        dtype: of the values.
    """

    def __init__(self, path: str | Path, dtype: npt.DTypeLike = np.int64) -> None:
        self._dtype = np.dtype(dtype)
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115
        self._file.write(b" " * (8 + _RESERVED))
        self.length = 0

    def append(self, values: Array) -> None:
        """Add values at the end."""
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self.length += len(values)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            header = _header({_COLUMN: self.length}, {_COLUMN: self._dtype}, {})
            self._file.seek(0)
            self._file.write(struct.pack("<Q", _RESERVED) + header.ljust(_RESERVED))
        self._file.close()


class Column:
    """One column of a file.

    Args:
        path: the file.
        name: the column; the only one, where there is one.

    Raises:
        DataError: there is no such file or column, or it is damaged.
    """

    def __init__(self, path: str | Path, name: str = _COLUMN) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                if size > _LARGEST_HEADER:
                    raise ValueError("its header is too long")
                about = json.loads(file.read(size))[name]
                (self.length,) = map(int, about["shape"])
                low, high = map(int, about["data_offsets"])
                self.dtype = _TYPES[about["dtype"]]
                file.seek(0, 2)
                whole = file.tell()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise DataError(f"{path} is damaged or holds no {name!r} ({error})") from error
        self._offset = 8 + size + low
        if low < 0 or high - low != self.length * self.dtype.itemsize or 8 + size + high > whole:
            raise DataError(f"{path} is damaged: {name!r} does not fit into the file")

    def __len__(self) -> int:
        return self.length

    def read(self, low: int, high: int) -> Array:
        """Rows ``low`` to ``high``, not included, in memory of their own.

        A map would do too, but the pages that it has touched count as memory of the process.
        """
        offset = self._offset + low * self.dtype.itemsize
        return np.fromfile(self.path, self.dtype, max(high - low, 0), offset=offset)

    def map(self, *, writable: bool = False) -> Array:
        """The column as an array that is read when it is looked at.

        Args:
            writable: what is written to the array goes into the file; otherwise it stays in memory.
        """
        if self.length == 0:
            return np.zeros(0, self.dtype)
        # Copy on write, not read only: torch warns of arrays that nobody may write to.
        mode: Literal["r+", "c"] = "r+" if writable else "c"
        return np.asarray(np.memmap(self.path, self.dtype, mode, self._offset, (self.length,)))


def grow_column(path: str | Path, values: Array) -> None:
    """Add values at the end of a column that a :class:`ColumnWriter` has written.

    The header is written last: a crash before that leaves the column as it was.
    """
    column = Column(path)
    with open(path, "r+b") as file:
        file.seek(8 + _RESERVED + len(column) * column.dtype.itemsize)
        file.write(np.ascontiguousarray(values, column.dtype).data)
        file.flush()
        header = _header({_COLUMN: len(column) + len(values)}, {_COLUMN: column.dtype}, {})
        file.seek(8)
        file.write(header.ljust(_RESERVED))
