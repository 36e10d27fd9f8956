"""How often entities have filled relation slots before a time, plainly and with old facts fading.

:class:`SlotUsage` holds the steps at which each entity of a layer filled each slot,
:class:`SlotOrdinals` how many entities did so how often. Both answer by binary search.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from metatkgr.graph.pairs import PairTimes
from metatkgr.graph.ragged import bisect_ranges, pack

__all__ = ["SlotOrdinals", "SlotUsage", "Usage", "inverse"]

_EVERY = 8
"""A decayed count is kept at every such fact: an eighth of the bytes for a few more exponentials
in a look-up."""


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
    """

    def __init__(self, pairs: PairTimes) -> None:
        self.pairs = pairs
        self._sums: dict[float, Tensor] = {}

    @cached_property
    def time(self) -> Tensor:
        """(D,) int32 steps, ascending within a (source, relation)."""
        count = torch.unique_consecutive(self.slots(), return_counts=True)[1]
        steps = int(self.pairs.time.max()) + 1 if len(self.pairs) else 1
        group = torch.repeat_interleave(count) * steps
        return torch.sort(group + self.pairs.time).values.sub_(group).int()

    def slots(self) -> Tensor:
        """(D,) ``source * 2R + relation``, ascending."""
        pairs = self.pairs
        count = pairs.start(torch.arange(len(pairs) + 1, device=pairs.link.device)).diff()
        return torch.repeat_interleave(pairs.link // pairs.entities, count)

    def of_slot(self, entity: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """(L,) where the steps lie at which entities filled the far slot of a relation."""
        low, high = self.pairs.of_slot(entity, inverse(relation, self.pairs.relations))
        return self.pairs.start(low), self.pairs.start(high)

    def read(
        self, entity: Tensor, relation: Tensor, time: Tensor, decays: tuple[float, ...]
    ) -> Usage:
        """What :meth:`Slots.usage` gives, of this layer."""
        low, high = self.of_slot(entity, relation)
        high = bisect_ranges(self.time, low, high, time)
        if not len(self.time):
            nothing = torch.zeros_like(low, dtype=torch.float32)
            return Usage(high - low, (nothing,) * len(decays), torch.full_like(low, -1))
        last = torch.where(high > low, self.time[(high - 1).clamp(min=0)].long(), -1)
        if not decays:
            return Usage(high - low, (), last)
        # From the last kept sum on, or from the first fact.
        kept = (high - 1).clamp(min=0) // _EVERY
        begin = torch.maximum(kept * _EVERY, low)
        position = begin[:, None] + torch.arange(_EVERY, device=low.device)
        there = position < high[:, None]
        step = self.time[position.clamp_(max=len(self.time) - 1)]
        age = (time[:, None] - step).float().masked_fill_(~there, torch.inf)
        from_sum = kept * _EVERY >= low
        decayed = []
        for decay in decays:
            weight = (age / -decay).exp_()
            weight[:, 0] *= torch.where(from_sum, self.sums(decay)[kept], 1.0)
            decayed.append(weight.sum(1))
        return Usage(high - low, tuple(decayed), last)

    def sums(self, decay: float) -> Tensor:
        """The decayed counts at every eighth fact and its time, of itself and those before it."""
        if decay not in self._sums:
            self._sums[decay] = _running_sums(self.time, self.slots(), decay)
        return self._sums[decay]

    def ordinals(self) -> SlotOrdinals:
        """How often each entity had filled a slot before each fact."""
        pairs = self.pairs
        slot, count = torch.unique_consecutive(self.slots(), return_counts=True)
        begin = count.cumsum(0) - count
        ordinal = torch.arange(len(self.time), device=begin.device)
        ordinal -= torch.repeat_interleave(begin, count)
        relation = torch.repeat_interleave(slot % pairs.relations, count)
        return SlotOrdinals(inverse(relation, pairs.relations), ordinal, self.time)


class SlotOrdinals:
    """Facts by (relation, ordinal, time); the ordinal counts earlier facts of the same filler.

    As many entities filled a slot more than c times before t as there are facts of the ordinal c
    before t.

    Args:
        relation: (D,) directed, whose far slot was filled.
        ordinal: (D,).
        time: (D,).
    """

    def __init__(self, relation: Tensor, ordinal: Tensor, time: Tensor) -> None:
        self._room = int(ordinal.max()) + 2 if len(ordinal) else 1
        steps = int(time.max()) + 1 if len(time) else 1
        relations = int(relation.max()) + 1 if len(relation) else 1
        key = pack((relation, relations), (ordinal, self._room), (time, steps)).sort().values
        self._time = (key % steps).int()
        self._cell, count = torch.unique_consecutive(key // steps, return_counts=True)
        self._start = torch.cat([count.new_zeros(1), count.cumsum(0)])

    def above(self, relation: Tensor, time: Tensor, count: Tensor) -> Tensor:
        """(A,) how many entities filled a slot more than ``count`` times before a time."""
        if not len(self._cell):
            return torch.zeros_like(count)
        cell = relation * self._room + count.clamp(max=self._room - 1)
        position = torch.searchsorted(self._cell, cell).clamp_(max=len(self._cell) - 1)
        there = self._cell[position] == cell
        low, high = self._start[position], self._start[position + 1]
        high = torch.where(there, high, low)
        return bisect_ranges(self._time, low, high, time) - low


def inverse(relation: Tensor, relations: int) -> Tensor:
    """The other direction of directed relations; ``relations`` is 2R."""
    half = relations // 2
    return torch.where(relation < half, relation + half, relation - half)


def _running_sums(time: Tensor, group: Tensor, decay: float) -> Tensor:
    r"""Decayed counts within groups, at every eighth position, at its own time.

    .. math:: d_i = 1 + d_{i-1} e^{-(t_i - t_{i-1}) / \tau}

    Between two kept positions the sum is taken as it stands. What the sum before adds to the next
    is a factor; factors of 1, 2, 4, … kept positions are put together until all reach beyond the
    beginning of a group or are too small to count.

    Args:
        time: (D,) ascending within a group.
        group: (D,) ascending.
        decay: τ.

    Returns:
        (D / 8, rounded up) float32.
    """
    kept = torch.arange(0, len(time), _EVERY, device=time.device)
    before = kept[:, None] - torch.arange(_EVERY, device=time.device)
    place = before.clamp(min=0)
    # Across groups time may run backwards: infinitely old, before anything grows beyond bounds.
    other = (before < 0) | (group[place] != group[kept][:, None])
    age = (time[kept][:, None] - time[place]).double().masked_fill_(other, torch.inf)
    total = (age / -decay).exp_().sum(1)
    other = group[kept[1:]] != group[kept[:-1]]
    age = (time[kept[1:]] - time[kept[:-1]]).double().masked_fill_(other, torch.inf)
    factor = torch.zeros_like(total)
    factor[1:] = (age / -decay).exp_()
    reach = 1
    while reach < len(kept) and bool((factor > 0).any()):
        total[reach:] += factor[reach:] * total[:-reach]
        factor[reach:] = factor[reach:] * factor[:-reach]
        reach *= 2
    return total.float()
