"""Small tools for rows of different length."""

from __future__ import annotations

from bisect import bisect_left

import torch
from torch import Tensor

from metatkgr.data.orders import pack

__all__ = ["best_of_each", "bisect_ranges", "blocks_by_size", "expand_ranges", "pack"]


def expand_ranges(start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """All integers of the ranges [start_i, stop_i), one after another.

    Args:
        start: (Q,) int64 first integer of each range.
        stop: (Q,) int64 end of each range, not included; at least ``start``.

    Returns:
        row: (L,) index i of the range an integer belongs to, non-decreasing.
        position: (L,) the integer itself.
    """
    length = stop - start
    row = torch.repeat_interleave(length)
    before = torch.cumsum(length, 0) - length
    position = torch.arange(len(row), device=start.device) + (start - before)[row]
    return row, position


def best_of_each(most: int, row: Tensor, value: Tensor) -> Tensor:
    """(L,) positions of the largest values of each row, at most so many; ascending positions.

    Args:
        most: how many of a row.
        row: (N,) ascending.
        value: (N,); of equal ones the first are taken.
    """
    order = torch.argsort(value, descending=True, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    place = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    return torch.sort(order[place < most]).values


def bisect_ranges(
    values: Tensor, start: Tensor, stop: Tensor, bound: Tensor, order: Tensor | None = None
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

    Returns:
        (Q,) positions, ``stop`` where all are smaller.
    """
    if not len(values):
        return stop
    last = (stop - 1).clamp(0, len(values) - 1)
    last = values[last if order is None else order[last].long()]
    open_ = torch.nonzero((last >= bound) & (stop > start)).squeeze(1)
    if len(open_) < len(start):
        # Queries about today are the rule: all of a range is before them.
        if not len(open_):
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
