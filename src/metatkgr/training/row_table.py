"""A table of vectors on disk: rows are read and written when they are asked for, and it grows.

For vocabularies whose vectors, with what the optimiser remembers of each, do not fit into memory. A
training step touches the rows of its batch and no others; new entities are appended at the end of
the file, and nothing is rewritten.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.large.columns import Column, ColumnWriter, grow_column
from metatkgr.errors import DataError

__all__ = ["RowTable"]

_ROWS_AT_ONCE = 1 << 16


class RowTable:
    """(N, d) float32 rows in a file.

    Args:
        path: a file that :meth:`create` has made.
        width: d.
        writable: whether rows may be replaced; otherwise the file may be one that only can be read.

    Raises:
        DataError: there is no such file, or it does not hold rows of this width.
    """

    def __init__(self, path: str | Path, width: int, *, writable: bool = True) -> None:
        self.path, self.width, self._writable = Path(path), width, writable
        self._map()

    def _map(self) -> None:
        column = Column(self.path)
        if len(column) % self.width or column.dtype != np.float32:
            raise DataError(f"{self.path} does not hold rows of {self.width} numbers")
        try:
            values: npt.NDArray[np.float32] = column.map(writable=self._writable)
        except OSError as error:
            raise DataError(f"cannot open {self.path}: {error.strerror or error}") from error
        self._rows = torch.from_numpy(values).view(-1, self.width)

    @classmethod
    def create(
        cls, path: str | Path, rows: int, width: int, generator: torch.Generator | None = None
    ) -> RowTable:
        """A new table: normal with variance 1/d where there is a generator, else zeros.

        Args:
            path: the file to write.
            rows: N.
            width: d.
            generator: the source of randomness, on the CPU.
        """
        with ColumnWriter(path, np.float32) as column:
            for low in range(0, rows, _ROWS_AT_ONCE):
                count = min(_ROWS_AT_ONCE, rows - low)
                if generator is None:
                    part = torch.zeros(count, width)
                else:
                    part = torch.randn(count, width, generator=generator) * width**-0.5
                column.append(part.view(-1).numpy())
        return cls(path, width)

    def __len__(self) -> int:
        return len(self._rows)

    def all(self) -> Tensor:
        """(N, d) the whole table, mapped: only what is looked at is read."""
        return self._rows

    def read(self, ids: Tensor) -> Tensor:
        """(n, d) copies of rows."""
        return self._rows[ids]

    def write(self, ids: Tensor, values: Tensor) -> None:
        """Replace rows; an id may occur once."""
        self._rows[ids] = values

    def append(self, values: Tensor) -> None:
        """Add rows at the end; those that are there stay where they are.

        Args:
            values: (n, d).
        """
        if values.dim() != 2 or values.shape[1] != self.width:
            raise DataError(f"rows have {self.width} numbers, not {tuple(values.shape)}")
        del self._rows
        grow_column(self.path, values.float().contiguous().view(-1).numpy())
        self._map()
