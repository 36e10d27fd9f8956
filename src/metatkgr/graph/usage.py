"""How often entities have filled relation slots before a time, plainly and with old facts fading.

:class:`SlotUsage` holds the steps at which each entity of a layer filled each slot,
:class:`SlotOrdinals` how many entities did so how often. Both answer by binary search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from metatkgr.data.manifest import EVERY, StoredLinks
from metatkgr.data.orders import (
    DECAYS,
    by_cell,
    cells,
    inverse,
    renumbered,
    running_sums,
    stored_columns,
    times_of_slots,
)
from metatkgr.graph.pairs import PairTimes, Ranges
from metatkgr.graph.ragged import bisect_ranges

__all__ = ["SlotOrdinals", "SlotUsage", "Usage"]

_BLOCK = 1 << 18
"""How many facts are ordered in one go; bounds memory."""


@dataclass(frozen=True, eq=False)
class Usage:
    """How entities have filled slots before a time, (L,) each."""

    count: Tensor
    """int64, how often."""
    decayed: tuple[Tensor, ...]
    """float32, the same with a fact τ steps old counting 1/e, for each τ."""
    last: Tensor
    """int64, the last step; -1: never."""


class SlotUsage:
    """The steps at which entities filled slots: links by (source, relation, time).

    Who fills the far slot of a relation is the source of links by its inverse.

    Args:
        pairs: the links, whose order by (source, relation, target) begins like this one.
        relations: 2R of the index; there may be fewer in these links.
        stored: the folder's index that holds them.
    """

    def __init__(self, pairs: PairTimes, relations: int, stored: StoredLinks | None = None) -> None:
        self.pairs, self.relations, self._stored = pairs, relations, stored
        self.device = pairs.link.device
        self._sums: dict[float, Tensor] = {}

    @cached_property
    def time(self) -> Tensor:
        """(D,) int32 steps, ascending within a (source, relation)."""
        if self._stored is not None:
            return stored_columns(self._stored, self.device, "usage_time")[0]
        time = torch.empty_like(self.pairs.time)
        for slot, steps in self._blocks():
            time[steps] = times_of_slots(slot, self.pairs.time[steps])
        return time

    def slots(self) -> Tensor:
        """(D,) ``source * 2R + relation``, ascending, with the 2R of these links."""
        return torch.cat([slot for slot, _ in self._blocks()] or [self.pairs.link])

    def _blocks(self) -> Iterator[tuple[Tensor, slice]]:
        """The same, some slots at a time, and the positions of their steps."""
        pairs = self.pairs
        for links, steps in pairs.blocks(_BLOCK):
            position = torch.arange(links.start, links.stop + 1, device=self.device)
            slot = pairs.link[links] // pairs.entities
            yield torch.repeat_interleave(slot, pairs.start(position).diff()), steps

    @property
    def last_step(self) -> int:
        """No step is later."""
        return self.pairs.last_step

    def of_slot(self, entity: Tensor, relation: Tensor) -> Ranges:
        """(L,) where the steps lie at which entities filled the far slot of a relation."""
        low, high = self.pairs.of_slot(entity, inverse(relation, self.relations))
        return self.pairs.start(low), self.pairs.start(high)

    def read(self, steps: Ranges, time: Tensor, decays: tuple[float, ...]) -> Usage:
        """What :meth:`Slots.usage` gives, of this layer.

        Args:
            steps: where these lie: what :meth:`of_slot` gave.
            time: (L,).
            decays: τ of each decayed count.
        """
        low, high = steps
        high = bisect_ranges(self.time, low, high, time, largest=self.last_step)
        if not self.time.numel():
            nothing = tuple(torch.zeros_like(low, dtype=torch.float32) for _ in decays)
            return Usage(high - low, nothing, torch.full_like(low, -1))
        count = high - low
        last = self.time.index_select(0, (high - 1).clamp_(min=0)).long()
        last = torch.where(count > 0, last, -1)
        if not decays:
            return Usage(count, (), last)
        # From the last kept sum on, or from the first fact.
        kept = (count - 1).clamp_(min=0) // EVERY
        position = (low + kept * EVERY)[:, None] + torch.arange(EVERY, device=low.device)
        beyond = position >= high[:, None]
        step = torch.take(self.time, position.clamp_(max=self.time.numel() - 1))
        age = (time[:, None] - step).float().masked_fill_(beyond, torch.inf)
        from_sum, place = kept > 0, low // EVERY + kept - 1
        place.clamp_(0, max(self.sums(decays[0]).numel() - 1, 0))
        decayed = []
        for decay in decays:
            weight, sums = (age / -decay).exp_(), self.sums(decay)
            if sums.numel():
                before = sums.index_select(0, place)
                weight[:, 0] *= torch.where(from_sum, before, 1.0)
            decayed.append(weight.sum(1))
        return Usage(count, tuple(decayed), last)

    def sums(self, decay: float) -> Tensor:
        """The decayed counts at every eighth fact of a slot: see :func:`running_sums`."""
        if decay not in self._sums:
            name = f"usage_sum_{decay:.0f}"
            self._sums[decay] = (
                stored_columns(self._stored, self.device, name)[0]
                if self._stored is not None and decay in DECAYS
                else torch.cat(
                    [
                        running_sums(self.time[steps], slot, (decay,), steps.start)[0]
                        for slot, steps in self._blocks()
                    ]
                    or [self.time.float()]
                )
            )
        return self._sums[decay]

    def ordinals(self) -> SlotOrdinals:
        """How often each entity had filled a slot before each fact."""
        room, then = max(len(self.time), 1), self.pairs.relations
        if self._stored is not None:
            names = ("ordinal_cell", "ordinal_start", "ordinal_time")
            cell, start, time = stored_columns(self._stored, self.device, *names)
        else:
            cell, start, time = by_cell(cells(self.slots(), then, room), self.time)
        return SlotOrdinals(cell, start, time, room, then, self.relations)


class SlotOrdinals:
    """Facts by (relation, ordinal, time); the ordinal counts earlier facts of the same filler.

    As many entities filled a slot more than c times before t as there are facts of the ordinal c
    before t.

    Args:
        cell: (C,) distinct ``relation * room + ordinal``, ascending; the relation is directed, and
            its far slot is filled.
        start: (C + 1,) where the steps of each begin.
        time: (D,) int32 steps, ascending within a cell.
        room: more than any ordinal.
        relations: 2R; there may be more in the index.
        now: 2R of the index.
    """

    def __init__(
        self, cell: Tensor, start: Tensor, time: Tensor, room: int, relations: int, now: int
    ) -> None:
        self._cell, self._start, self._time = cell, start, time
        self._room, self._relations, self._now = room, relations, now

    def above(self, relation: Tensor, time: Tensor, count: Tensor) -> Tensor:
        """(A,) how many entities filled a slot more than ``count`` times before a time."""
        if not self._cell.numel():
            return torch.zeros_like(count)
        relation = renumbered(relation, self._now, self._relations)
        cell = relation * self._room + count.clamp(max=self._room - 1)
        position = torch.searchsorted(self._cell, cell).clamp_(max=self._cell.numel() - 1)
        there = (self._cell[position] == cell) & (count < self._room)
        low, high = self._start[position], self._start[position + 1]
        high = torch.where(there, high, low)
        return bisect_ranges(self._time, low, high, time) - low
