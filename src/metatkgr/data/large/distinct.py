"""Drop repeated facts from a stream in time order; the first of each stays, and so does the order.

Only facts of one time can be equal, so a time is dealt with in memory once it is complete; one with
too many facts for that is sorted on disk, so that equal facts come together, and sorted back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from metatkgr.data.facts import IntArray, first_of_each
from metatkgr.data.large.external_sort import ExternalSort

__all__ = ["distinct"]


def distinct(
    blocks: Iterable[IntArray], sizes: tuple[int, int], folder: Path, rows: int
) -> Iterator[IntArray]:
    """The distinct facts of (4, n) blocks of time, subject, relation, object, by time.

    Args:
        blocks: the facts, their times never decreasing; further rows are kept with each fact, and
            make no difference between two.
        sizes: number of entities, number of relations.
        folder: for what does not fit into memory.
        rows: how many facts of one time may be in memory.
    """
    held: list[IntArray] = []
    """Facts of the latest time, which may go on in the next block."""
    crowd: _Crowd | None = None
    for block in blocks:
        if block.shape[1] == 0:
            continue
        first = int(np.searchsorted(block[0], block[0, 0], side="right"))
        last = int(np.searchsorted(block[0], block[0, -1], side="left"))
        if (held or crowd) and _time_held(held, crowd) != block[0, 0]:
            yield from _finished(held, crowd, sizes)
            held, crowd = [], None
        if last == 0:
            held.append(block)  # the whole block is of one time
        elif crowd is None:
            # What is held is of the block's first time, or there is none.
            yield _first(np.concatenate([*held, block[:, :last]], axis=1), sizes)
            held = [block[:, last:]]
        else:
            yield from _finished([*held, block[:, :first]], crowd, sizes)
            if last > first:
                yield _first(block[:, first:last], sizes)
            held, crowd = [block[:, last:]], None
        if sum(part.shape[1] for part in held) > rows:
            crowd = crowd or _Crowd(folder, rows)
            for part in held:
                crowd.add(part)
            held = []
    yield from _finished(held, crowd, sizes)


def _time_held(held: list[IntArray], crowd: _Crowd | None) -> int:
    return crowd.time if crowd is not None else int(held[0][0, 0])


def _finished(
    held: list[IntArray], crowd: _Crowd | None, sizes: tuple[int, int]
) -> Iterator[IntArray]:
    """What is held of one time, without repetitions."""
    if crowd is not None:
        for part in held:
            crowd.add(part)
        yield from crowd.distinct(sizes)
    elif held:
        yield _first(np.concatenate(held, axis=1), sizes)


def _first(facts: IntArray, sizes: tuple[int, int]) -> IntArray:
    """(4 or more, n) facts of any times, each once."""
    time, subject, relation, other = facts[:4]
    entities, relations = sizes
    since = time - time[0]
    keys = [(since, int(since[-1]) + 1), (relation, relations)]
    keep = first_of_each([*keys, (subject, entities), (other, entities)])
    return facts if len(keep) == facts.shape[1] else facts[:, keep]


class _Crowd:
    """More facts of one time than fit into memory."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder, self._rows = folder, rows
        self._by_fact: ExternalSort | None = None
        self._count = 0
        self._columns = 0
        self.time = 0

    def add(self, facts: IntArray) -> None:
        """Take (4 or more, n) facts, all of one time."""
        time, subject, relation, other, *more = facts
        self.time = int(time[0])
        if self._by_fact is None:
            self._columns = len(facts)
            self._by_fact = ExternalSort(self._folder, 1 + self._columns, self._rows)
        row = np.arange(self._count, self._count + len(time))
        # Any number that equal facts share brings them together; it may wrap around.
        self._by_fact.add(subject * 1_000_003 + other, row, subject, relation, other, *more)
        self._count += len(time)

    def distinct(self, sizes: tuple[int, int]) -> Iterator[IntArray]:
        """(4 or more, n) each fact once, in the order in which they came."""
        assert self._by_fact is not None
        by_row = ExternalSort(self._folder, self._columns, self._rows)
        held = np.zeros((1 + self._columns, 0), np.int64)
        for block in self._by_fact.merged():
            rows = np.concatenate([held, block], axis=1)
            cut = int(np.searchsorted(rows[0], rows[0, -1], side="left"))
            by_row.add(*self._first(rows[:, :cut], sizes))
            # What may go on in the next block: few, once each of them is there only once.
            held = rows[:, cut:]
            held = held[:, self._places(held, sizes)]
        by_row.add(*self._first(held, sizes))
        for row, *rest in by_row.merged():
            yield np.stack([np.full_like(row, self.time), *rest])

    def _first(self, rows: IntArray, sizes: tuple[int, int]) -> IntArray:
        return np.asarray(rows[1:, self._places(rows, sizes)])

    @staticmethod
    def _places(rows: IntArray, sizes: tuple[int, int]) -> IntArray:
        entities, relations = sizes
        return first_of_each([(rows[3], relations), (rows[2], entities), (rows[4], entities)])
