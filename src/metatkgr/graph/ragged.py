"""Small tools for rows of different length."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.orders import found, pack

_FEW = 4096
"""Ranges, or values, for which the calls take longer than the work."""

_SHORT = 128
"""Values that any way of sorting sorts as fast."""

__all__ = [
    "ascending",
    "best_of_each",
    "bisect_ranges",
    "blocks_by_size",
    "distinct",
    "expand_ranges",
    "found",
    "in_order_of",
    "nothing_in",
    "pack",
    "some_rows",
]


def expand_ranges(start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """All integers of the ranges [start_i, stop_i), one after another.

    Args:
        start: (Q,) int64 first integer of each range.
        stop: (Q,) int64 end of each range, not included; at least ``start``.

    Returns:
        row: (L,) index i of the range an integer belongs to, non-decreasing.
        position: (L,) the integer itself.
    """
    if start.numel() == 1:
        # One query is the rule where somebody waits for it.
        position = torch.arange(int(start), int(stop), device=start.device)
        return torch.zeros_like(position), position
    if start.numel() <= _FEW and not start.is_cuda:
        # The same as below, where a call of numpy takes a third of the time.
        low, many = start.numpy(), (stop - start).numpy()
        rows = np.arange(low.size).repeat(many)
        places = np.arange(rows.size)
        places += (low - many.cumsum() + many).repeat(many)
        return torch.from_numpy(rows), torch.from_numpy(places)
    length = stop - start
    row = torch.repeat_interleave(length)
    offset = start - length.cumsum(0).sub_(length)
    position = torch.arange(row.numel(), device=start.device)
    return row, position.add_(offset.index_select(0, row))


def nothing_in(low: Tensor, high: Tensor) -> bool:
    """Whether all ranges are empty, as most that are looked up in a few recent facts are."""
    return not bool((high > low).any())


def some_rows(which: Tensor | slice, *columns: Tensor) -> tuple[Tensor, ...]:
    """Some rows of columns, given by a mask, by positions or as a slice."""
    if isinstance(which, slice):
        return tuple(column[which] for column in columns)
    if which.dtype == torch.bool:
        which = torch.nonzero(which).squeeze(1)
    # Half the time of ``column[which]`` where there are few.
    return tuple([column.index_select(0, which) for column in columns])


def distinct(values: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct values, ascending, and where each value is among them, as ``torch.unique``.

    Args:
        values: (N,) int64.

    Returns:
        (M,) and (N,) int64.
    """
    if values.numel() <= _SHORT or values.is_cuda:
        unique: tuple[Tensor, Tensor] = torch.unique(values, return_inverse=True)
        return unique
    ordered, order = _sorted(values.numpy())
    new = np.empty(ordered.size, bool)
    new[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    member = np.empty(ordered.size, np.int64)
    member[order] = new.cumsum() - 1
    return torch.from_numpy(ordered[new]), torch.from_numpy(member)


def ascending(values: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers in order, and where each was, as a stable ``torch.sort``: (N,) int64."""
    if values.numel() <= _SHORT or values.is_cuda:
        ordered, order = torch.sort(values, stable=True)
        return ordered, order
    found, place = _sorted(values.numpy())
    return torch.from_numpy(found), torch.from_numpy(place)


def _sorted(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The same for main memory.

    Numpy sorts integers with vector instructions, but not positions by them: so each value takes
    its position along, which is a fifth of the time.
    """
    values, bits = values.astype(np.int64, copy=False), values.size.bit_length()
    if values.size and max(-int(values.min()), int(values.max())) >> (62 - bits):
        order = values.argsort(kind="stable")
        return values[order], order
    key = values << bits
    key |= np.arange(values.size)
    key.sort()
    return key >> bits, key & ((1 << bits) - 1)


def in_order_of(*columns: Tensor) -> Tensor:
    """(N,) positions in the order of columns: the first decides, each next one between equals."""
    if columns[0].numel() <= _SHORT and not columns[0].is_cuda:
        return torch.from_numpy(np.lexsort([column.numpy() for column in columns[::-1]]))
    order = ascending(columns[-1])[1]
    for column in columns[-2::-1]:
        order = order.index_select(0, ascending(column.index_select(0, order))[1])
    return order


def best_of_each(most: int, row: Tensor, value: Tensor) -> Tensor:
    """(L,) positions of the largest values of each row, at most so many; ascending positions.

    Args:
        most: how many of a row.
        row: (N,) ascending.
        value: (N,); of equal ones the first are taken.
    """
    count = row.numel()
    if count <= most:
        return torch.arange(count, device=row.device)
    if not row.is_cuda:
        return torch.from_numpy(_best_of_each(most, row.numpy(), value.numpy()))
    order = torch.argsort(value, descending=True, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    place = torch.arange(count, device=row.device) - torch.searchsorted(row, row)
    return torch.sort(order[place < most]).values


def _best_of_each(most: int, row: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The same without sorting: a row needs to know only how large its last one is."""
    ends = np.flatnonzero(np.diff(row, append=row[-1] + 1)) + 1
    kept = np.ones(row.size, dtype=bool)
    begin = 0
    for end in ends.tolist():
        if most < end - begin:
            some = value[begin:end]
            last = np.partition(some, some.size - most)[some.size - most] if most else np.inf
            larger = some > last
            equal = np.flatnonzero(some == last)[: most - np.count_nonzero(larger)]
            larger[equal] = True
            kept[begin:end] = larger
        begin = end
    return np.flatnonzero(kept)


def bisect_ranges(
    values: Tensor,
    start: Tensor,
    stop: Tensor,
    bound: Tensor,
    order: Tensor | None = None,
    *,
    largest: int | None = None,
) -> Tensor:
    """In each range of ascending values, the position of the first that is at least a bound.

    ``torch.searchsorted`` for ranges of one column: no key that packs range and value is needed,
    which would be twice as wide as the column.

    Args:
        values: (N,) ascending within each range.
        start: (Q,) int64 first position of each range.
        stop: (Q,) int64 end of each range, not included; at least ``start``.
        bound: (Q,) what is looked for.
        order: (N,) where the value of each position is; None: at the position.
        largest: no value is larger; None: it is not known.

    Returns:
        (Q,) positions, ``stop`` where all are smaller.
    """
    if not values.numel() or not stop.numel():
        return stop
    # Queries about today are the rule: all values are before them.
    if largest is not None and int(bound.min()) > largest:
        return stop
    last = (stop - 1).clamp(0, values.numel() - 1)
    last = values[last if order is None else order[last].long()]
    open_ = torch.nonzero((last >= bound) & (stop > start)).squeeze(1)
    if open_.numel() < start.numel():
        if not open_.numel():
            return stop
        rest = bisect_ranges(values, start[open_], stop[open_], bound[open_], order)
        return stop.index_copy(0, open_, rest)
    rounds = int((stop - start).max()).bit_length() if len(start) else 0
    if len(start) <= 4 * rounds and not values.is_cuda:
        # A few are quicker one by one: a round costs five kernels, however few ranges there are.
        numbers = values.numpy()
        asked = zip(bound.tolist(), start.tolist(), stop.tolist(), strict=True)
        if order is None:
            found = [bisect_left(numbers, *one) for one in asked]
        else:
            places = order.numpy()
            found = [bisect_left(places, *one, key=numbers.__getitem__) for one in asked]
        return torch.tensor(found, dtype=torch.int64)
    low, high = start, stop
    for _ in range(rounds):
        # An empty range may end behind the last value.
        middle = (low + high) >> 1
        place = middle.clamp(max=len(values) - 1)
        smaller = (values[place if order is None else order[place].long()] < bound) & (low < high)
        low = torch.where(smaller, middle + 1, low)
        high = torch.where(smaller, high, middle)
    return low


def blocks_by_size(size: Tensor, limit: int) -> list[slice]:
    """Cut rows into consecutive blocks whose sizes add up to at most ``limit``.

    A single row larger than ``limit`` is a block of its own.

    Args:
        size: (Q,) int64 size of each row.
        limit: what a block may hold, at least 1.
    """
    if len(size) == 0 or int(size.sum()) <= limit:
        return [slice(0, len(size))]
    end = torch.cumsum(size, 0)
    blocks, begin, used = [], 0, 0
    while begin < len(size):
        stop = int(torch.searchsorted(end, used + limit, right=True))
        stop = max(stop, begin + 1)
        blocks.append(slice(begin, stop))
        begin, used = stop, int(end[stop - 1])
    return blocks
