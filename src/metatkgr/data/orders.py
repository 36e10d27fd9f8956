"""Links in the orders in which they are kept: those of all facts in memory, or blocks for a folder.

A *link* is a fact seen from one of its ends: source, directed relation, target, time. All orders
but two go by source first, so they can be made of a few sources after another: ``index_writer``
does that, ``graph`` makes them of all at once and looks things up in them. Positions are those
within what is given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metatkgr.data.manifest import EVERY, StoredLinks

__all__ = [
    "DECAYS",
    "by_beginning",
    "by_cell",
    "cells",
    "distinct_links",
    "found",
    "inverse",
    "narrow",
    "neighbour_rows",
    "neighbours",
    "pack",
    "renumbered",
    "running_sums",
    "stored_columns",
    "times_of_slots",
]

DECAYS = (2.0, 10.0, 50.0)
"""τ of the decayed counts that a folder keeps."""


def pack(*columns_and_sizes: tuple[Tensor, int]) -> Tensor:
    """One int64 key per row that orders rows like the columns do, left to right.

    Args:
        columns_and_sizes: pairs of a column (values 0..size-1) and its size.

    Raises:
        OverflowError: if the largest possible key does not fit into 63 bits.
    """
    room = 1
    for _, size in columns_and_sizes:
        room *= max(size, 1)
    if room >= 2**63:
        sizes = [size for _, size in columns_and_sizes]
        raise OverflowError(f"a key over columns of sizes {sizes} does not fit into 63 bits")
    # In place: of the links of a large graph, every copy counts.
    key = columns_and_sizes[0][0].to(torch.int64, copy=True)
    for column, size in columns_and_sizes[1:]:
        key.mul_(size).add_(column)
    return key


def found(ascending: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) positions of some values among distinct ones, and which of them are there."""
    if not ascending.numel():
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(ascending, wanted).clamp_(max=ascending.numel() - 1)
    return place, ascending.index_select(0, place) == wanted


def narrow(positions: Tensor) -> Tensor:
    """Positions in half the width, where they fit: ``len`` of them, none larger."""
    return positions.int() if len(positions) < 2**31 else positions


def distinct_links(
    source: Tensor, relation: Tensor, target: Tensor, time: Tensor, entities: int, relations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Links by (source, relation, target, time).

    Args:
        source: (D,) ascending.
        relation: (D,) directed.
        target: (D,).
        time: (D,) ascending within each source. A link of an entity with itself is given in one
            direction, and is seen from both ends here.
        entities: E.
        relations: 2R.

    Returns:
        link: (P,) int64 distinct ``(source * 2R + relation) * E + target``, ascending.
        start: (P + 1,) int64 where the times of each begin.
        time: (D and one for each link of an entity with itself,) int32, ascending within each.
    """
    both = torch.nonzero(source == target).squeeze(1)
    link = pack((source, entities), (relation, relations), (target, entities))
    link = torch.cat([link, link[both] + relations // 2 * entities])
    time = torch.cat([time, time[both]])
    link, order = torch.sort(link, stable=True)
    time = time[order].int()
    del order
    link, count = torch.unique_consecutive(link, return_counts=True)
    return link, torch.cat([count.new_zeros(1), count.cumsum(0)]), time


def by_beginning(group: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of links by (group, first step), and these first steps.

    Args:
        group: (P,) ascending.
        first: (P,) the step at which each link began.
    """
    steps = int(first.max()) + 1 if len(first) else 1
    number = torch.unique_consecutive(group, return_inverse=True)[1]
    order = torch.sort(number.mul_(steps).add_(first), stable=True).indices
    return order, first[order]


def times_of_slots(slot: Tensor, time: Tensor) -> Tensor:
    """(D,) int32 times of links by (slot, time).

    Args:
        slot: (D,) ``source * 2R + relation``, ascending.
        time: (D,).
    """
    steps = int(time.max()) + 1 if len(time) else 1
    group = torch.unique_consecutive(slot, return_inverse=True)[1].mul_(steps)
    return torch.sort(group + time).values.sub_(group).int()


def running_sums(
    time: Tensor, group: Tensor, decays: tuple[float, ...], offset: int = 0
) -> list[Tensor]:
    r"""Decayed counts within groups, at every eighth position of a group, at its own time.

    .. math:: d_i = 1 + d_{i-1} e^{-(t_i - t_{i-1}) / \tau}

    Between two kept positions the sum is taken as it stands. What the sum before adds to the next
    is a factor; factors of 1, 2, 4, … kept positions are put together until all reach beyond the
    beginning of a group or are too small to count. Positions are those within a group, so that a
    sum is the same to the last bit whatever other groups there are, and whatever comes later.

    Args:
        time: (D,) ascending within a group.
        group: (D,) ascending; whole groups.
        decays: τ of each.
        offset: the position of the first of them, where these are some of many.

    Returns:
        For each τ float32; that of the position 8 k of a group which begins at b is at
        b // 8 + k - 1, counted from ``offset // 8``: no two are at one place. There is none of
        k = 0, and places may be empty.
    """
    room = (offset + len(time)) // EVERY - offset // EVERY
    all_sums = [torch.zeros(room, dtype=torch.float32, device=time.device) for _ in decays]
    size = torch.unique_consecutive(group, return_counts=True)[1]
    if not bool((size > EVERY).any()):
        return all_sums
    begin, many = size.cumsum(0).sub_(size), (size + EVERY - 1) // EVERY
    # Of each group every eighth position from its beginning on.
    begin = torch.repeat_interleave(begin, many)
    place = torch.arange(len(begin), device=time.device)
    place -= torch.repeat_interleave(many.cumsum(0).sub_(many), many)
    kept = begin + place * EVERY
    before = kept[:, None] - torch.arange(EVERY, device=time.device)
    other = before < begin[:, None]
    ages = (
        (time[kept][:, None] - time[before.clamp_(min=0)]).double().masked_fill_(other, torch.inf)
    )
    age = (time[kept[1:]] - time[kept[:-1]]).double().masked_fill_(place[1:] == 0, torch.inf)
    later = place > 0
    place = (offset + begin[later]) // EVERY - offset // EVERY + place[later] - 1
    for decay, sums in zip(decays, all_sums, strict=True):
        total = (ages / -decay).exp_().sum(1)
        factor = torch.zeros_like(total)
        factor[1:] = (age / -decay).exp_()
        reach = 1
        while reach < len(kept) and bool((factor > 0).any()):
            total[reach:] += factor[reach:] * total[:-reach]
            factor[reach:] = factor[reach:] * factor[:-reach]
            reach *= 2
        sums[place] = total[later].float()
    return all_sums


def neighbours(
    link: Tensor, first: Tensor, entities: int, relations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Who is linked to whom at all.

    Args:
        link: (P,) distinct links, as above.
        first: (P,) the step at which each began.
        entities: E.
        relations: 2R.

    Returns:
        source, target, first: (N,) int64 distinct pairs by (source, target), and the first step.
    """
    ends = link // (entities * relations) * entities + link % entities
    pair, member = torch.unique(ends, return_inverse=True)
    began = torch.full_like(pair, 2**31 - 1).scatter_reduce_(0, member, first.long(), "amin")
    return pair // entities, pair % entities, began


def neighbour_rows(
    source: Tensor, target: Tensor, first: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same by (source, first step, target).

    Returns:
        source, target, first: (N,) int64, int32 and int32.
        position: (N,) of the pairs by (source, target).
    """
    order, first = by_beginning(source, first)
    rank = torch.arange(len(order), device=order.device)
    position = torch.empty_like(order).scatter_(0, order, rank)
    return source, target[order].int(), first.int(), position


def inverse(relation: Tensor, relations: int) -> Tensor:
    """The other direction of directed relations; ``relations`` is 2R."""
    return (relation + relations // 2) % relations


def renumbered(relation: Tensor, now: int, then: int) -> Tensor:
    """Directed relations as they were numbered when there were fewer; -1: there was none.

    Args:
        relation: of 0..now-1.
        now: 2R.
        then: 2R at that time.
    """
    if now == then:
        return relation
    kind = relation % (now // 2)
    old = torch.where(relation < now // 2, kind, kind + then // 2)
    return torch.where(kind < then // 2, old, -1)


def cells(slot: Tensor, relations: int, room: int) -> Tensor:
    """Relation and ordinal of links by (source, relation, time).

    Who fills the far slot of a relation is the source of links by its inverse; the ordinal counts
    the earlier facts of the same filler.

    Args:
        slot: (D,) ``source * 2R + relation``, ascending.
        relations: 2R.
        room: more than any ordinal.

    Returns:
        (D,) ``relation * room + ordinal``, the relation being the one whose far slot is filled.
    """
    group, count = torch.unique_consecutive(slot, return_counts=True)
    relation = inverse(group % relations, relations)
    offset = relation * room - (count.cumsum(0) - count)
    return torch.arange(len(slot), device=slot.device).add_(torch.repeat_interleave(offset, count))


def by_cell(cell: Tensor, time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Links by (cell, time), where a cell is a relation and an ordinal.

    Args:
        cell: (D,).
        time: (D,).

    Returns:
        cell: (C,) distinct, ascending.
        start: (C + 1,) where the times of each begin.
        time: (D,) int32, ascending within each.
    """
    room, steps = (int(column.max()) + 1 if len(column) else 1 for column in (cell, time))
    key = pack((cell, room), (time, steps)).sort().values
    time = (key % steps).int()
    cell, count = torch.unique_consecutive(
        key.div_(steps, rounding_mode="floor"), return_counts=True
    )
    return cell, torch.cat([count.new_zeros(1), count.cumsum(0)]), time


def stored_columns(stored: StoredLinks, device: torch.device, *names: str) -> list[Tensor]:
    """Columns that a folder holds, where they lie on a CPU: nothing is read before it is used."""
    return [torch.from_numpy(stored.columns[name]).to(device) for name in names]
