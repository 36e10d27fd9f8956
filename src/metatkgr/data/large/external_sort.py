"""Sorting more rows than fit into memory: sorted runs on disk, merged block by block.

Rows are int64 columns. The first is the key; rows of one key stay in the order in which they came.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from metatkgr.data.facts import IntArray

__all__ = ["ExternalSort", "merge"]

_SMALLEST_BLOCK = 1 << 12


class ExternalSort:
    """Takes rows in any order, gives them back by their key.

    Args:
        folder: where the runs go; it must exist.
        columns: how many columns a row has, the key included.
        rows: how many rows may be in memory at a time (a few copies of them are, for a moment).
    """

    def __init__(self, folder: Path, columns: int, rows: int) -> None:
        self._parent, self._folder = folder, folder
        self._columns, self._rows = columns, max(rows, 1)
        self._waiting: list[IntArray] = []
        self._count = 0
        self._runs: list[tuple[Path, int]] = []

    def add(self, *columns: IntArray) -> None:
        """Take (N,) keys and the other columns of the same rows."""
        rows = np.stack(columns)  # (columns, N): each column lies in one piece
        if rows.shape[0] != self._columns:
            raise ValueError(f"rows have {self._columns} columns, not {rows.shape[0]}")
        at = 0
        while at < rows.shape[1]:
            part = rows[:, at : at + self._rows - self._count]
            self._waiting.append(part)
            self._count += part.shape[1]
            at += part.shape[1]
            if self._count == self._rows:
                self._spill()

    def _sorted(self) -> IntArray:
        rows = np.concatenate(self._waiting, axis=1)
        self._waiting, self._count = [], 0
        return _by_key(rows)

    def _spill(self) -> None:
        rows = self._sorted()
        if not self._runs:
            self._folder = Path(tempfile.mkdtemp(prefix="sort-", dir=self._parent))
        path = self._folder / str(len(self._runs))
        # Row after row, so that a block of the run is one read.
        np.ascontiguousarray(rows.T).tofile(path)
        self._runs.append((path, rows.shape[1]))

    def merged(self) -> Iterator[IntArray]:
        """All rows by key, in blocks of (columns, n); the runs are deleted as they are used up."""
        if not self._runs:
            if self._count:
                yield self._sorted()
            return
        if self._count:
            self._spill()
        size = max(self._rows // len(self._runs), _SMALLEST_BLOCK)
        runs, self._runs = self._runs, []
        yield from merge([self._blocks(path, count, size) for path, count in runs])

    def _blocks(self, path: Path, count: int, size: int) -> Iterator[IntArray]:
        """A run in blocks of (columns, n); it is deleted at its end."""
        for low in range(0, count, size):
            number, offset = min(size, count - low) * self._columns, low * self._columns * 8
            flat = np.fromfile(path, np.int64, number, offset=offset)
            yield np.ascontiguousarray(flat.reshape(-1, self._columns).T)
        path.unlink()


def merge(streams: Iterable[Iterable[IntArray]]) -> Iterator[IntArray]:
    """The rows of sorted streams by their key, in blocks of (columns, n).

    Of equal keys those of earlier streams come first. One block of each stream is in memory.

    Args:
        streams: of (columns, n) blocks, the first of the columns never decreasing.
    """
    runs = [run for run in map(_Run, streams) if run.fill()]
    while runs:
        # The block that ends first, in the order of the rows, says how far all is known.
        bound, first = min((run.last, number) for number, run in enumerate(runs))
        parts = [run.take(bound, number <= first) for number, run in enumerate(runs)]
        yield _by_key(np.concatenate(parts, axis=1))
        runs = [run for run in runs if run.fill()]


class _Run:
    """A sorted stream, of which one block is in memory."""

    def __init__(self, blocks: Iterable[IntArray]) -> None:
        self._blocks = iter(blocks)
        self._block: IntArray = np.zeros((0, 0), np.int64)

    def fill(self) -> bool:
        """Read the next block where this one is used up; False at the end of the stream."""
        while self._block.shape[1] == 0:
            following = next(self._blocks, None)
            if following is None:
                return False
            self._block = following
        return True

    @property
    def last(self) -> int:
        """The last key of the block in memory."""
        return int(self._block[0, -1])

    def take(self, bound: int, equal: bool) -> IntArray:
        """The rows with a key below ``bound``, or at most that if ``equal``."""
        stop = int(np.searchsorted(self._block[0], bound, "right" if equal else "left"))
        taken, self._block = self._block[:, :stop], self._block[:, stop:]
        return taken


def _by_key(rows: IntArray) -> IntArray:
    """(columns, N) rows in the order of their keys."""
    key = rows[0]
    if len(key) < 2 or bool((key[1:] >= key[:-1]).all()):
        return rows
    return np.asarray(rows[:, np.argsort(key, kind="stable")])
