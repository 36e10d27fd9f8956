"""Which relations go together: of the pairs linked by one, how many are also linked by another.

Counted over the distinct links of a bounded sample of entities, so that it costs the same in a
large graph, and at any time: a pair counts from the step at which it had both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from metatkgr.graph.neighbours import NeighbourOrder
from metatkgr.graph.pairs import PairTimes
from metatkgr.graph.ragged import distinct, expand_ranges, pack, some_rows

__all__ = ["CoOccurrence"]

_SAMPLED = 1 << 18
"""Distinct links that are counted, about."""
_OF_ONE = 4096
"""Links of one entity that are counted."""
_OF_A_PAIR = 64
"""Relations of one pair that are counted."""
_AT_ONCE = 4096
"""Pairs looked up in one go; bounds memory."""
_SHRINK = 5.0
"""So many pairs without the other relation are added to each count."""
_NEVER = 1 << 62


@dataclass(frozen=True, eq=False)
class CoOccurrence:
    """Counts of pairs by two relations and by the step at which they had both."""

    relations: int
    """2R."""
    steps: int
    """One more than the last step of a link, or more."""
    stride: int
    """The links of every so many-th entity are counted."""
    key: Tensor
    """(U,) ``(relation * 2R + other) * steps + step``, ascending."""
    before: Tensor
    """(U + 1,) pairs of all smaller keys."""

    @classmethod
    def of(cls, pairs: PairTimes, relations: int, steps: int) -> Self:
        """Of the links of one layer.

        Args:
            pairs: the distinct links.
            relations: 2R, of the index.
            steps: one more than their last step, or more.
        """

        def links_of(entity: Tensor, most: int) -> tuple[Tensor, Tensor]:
            low, high = pairs.of_entity(entity)
            return expand_ranges(low, torch.minimum(high, low + most))

        return cls.sampled(pairs, len(pairs), links_of, relations, steps)

    @classmethod
    def sampled(
        cls,
        pairs: PairTimes,
        count: int,
        links_of: Callable[[Tensor, int], tuple[Tensor, Tensor]],
        relations: int,
        steps: int,
    ) -> Self:
        """Of some of the links of a layer.

        Args:
            pairs: the distinct links.
            count: how many of them there are to be sampled from.
            links_of: rows and positions of the first so many of each entity, in their order.
            relations: 2R, of the index.
            steps: one more than their last step, or more.
        """
        stride = 1 + count // _SAMPLED
        entity = torch.arange(0, pairs.entities, stride, device=pairs.link.device)
        row, position = links_of(entity, _OF_ONE)
        pair = pack((row, len(entity)), (pairs.target(position), pairs.entities))
        # Stable: the relations of a pair stay in their order.
        pair, order = torch.sort(pair, stable=True)
        position = position[order]
        relation, first = pairs.ends(position)[0] % relations, pairs.first(position)
        key = _together(pair, relation, first, relations, steps)
        return cls._counted(relations, steps, stride, key, torch.ones_like(key))

    @classmethod
    def _counted(cls, relations: int, steps: int, stride: int, key: Tensor, count: Tensor) -> Self:
        key, member = distinct(key)
        count = torch.zeros_like(key).index_add_(0, member, count)
        return cls(relations, steps, stride, key, torch.cat([count.new_zeros(1), count.cumsum(0)]))

    def grown(
        self,
        earlier: list[PairTimes],
        met: list[NeighbourOrder],
        latest: PairTimes,
        steps: int,
    ) -> CoOccurrence:
        """The same with the links of one more layer, as if all were counted anew.

        Pairs that the layer has links of are counted with them; those that had links before are
        counted again, and once less without.

        Args:
            earlier: the links that are counted already.
            met: who is linked to whom by them.
            latest: the links of the layer.
            steps: one more than the last step of all, or more.
        """
        slot, target = latest.ends()
        source = slot // self.relations
        sampled = torch.nonzero(source % self.stride == 0).squeeze(1)
        (pair,) = some_rows(sampled, source * latest.entities + target)
        pair, order = torch.sort(pair, stable=True)
        known = torch.zeros_like(pair, dtype=torch.bool)
        for others in met:
            known |= others.find(pair // latest.entities, pair % latest.entities)[1]
        new, position = some_rows(~known, pair, sampled[order])
        both = _together(
            new,
            slot.index_select(0, position) % self.relations,
            latest.first(position),
            self.relations,
            steps,
        )
        keys, counts = [both], [torch.ones_like(both)]
        entry = self.key // self.steps
        keys.append(self.key + entry * (steps - self.steps))
        counts.append(self.before.diff())
        for some in torch.split(torch.unique_consecutive(pair[known]), _AT_ONCE):
            then = _first_steps(earlier, some, latest.entities, self.relations)
            now = torch.minimum(then, _first_steps([latest], some, latest.entities, self.relations))
            for first, sign in ((then, -1), (now, 1)):
                row, relation = torch.nonzero(first < _NEVER, as_tuple=True)
                both = _together(row, relation, first[row, relation], self.relations, steps)
                keys.append(both)
                counts.append(torch.full_like(both, sign))
        return self._counted(self.relations, steps, self.stride, torch.cat(keys), torch.cat(counts))

    def share(self, relation: Tensor, other: Tensor, time: Tensor) -> Tensor:
        """(N,) of the pairs linked by a relation before a time, the share also linked by another.

        Shrunk towards zero, for relations with few links.

        Args:
            relation: (N,) directed.
            other: (N,) directed.
            time: (N,).
        """
        # Pairs that had both before the time: both relations, and the one twice.
        near, time = relation * self.relations, time.clamp(0, self.steps)
        first = torch.cat([near + other, near + relation]) * self.steps
        low = torch.searchsorted(self.key, first)
        high = torch.searchsorted(self.key, first + torch.cat([time, time]))
        count = self.before.index_select(0, high) - self.before.index_select(0, low)
        with_other, own = count.view(2, -1)
        share: Tensor = with_other / (own + _SHRINK)
        return share


def _first_steps(layers: list[PairTimes], pair: Tensor, entities: int, relations: int) -> Tensor:
    """(n, 2R) when the pairs were first linked by each relation."""
    source, target = pair // entities, pair % entities
    slot = (source[:, None] * relations + torch.arange(relations, device=pair.device)).flatten()
    target = target.repeat_interleave(relations)
    first = torch.full_like(slot, _NEVER)
    for layer in layers:
        position, there = layer.find(slot, target)
        if len(layer):
            first = torch.where(there, torch.minimum(first, layer.first(position)), first)
    return first.view(-1, relations)


def _together(pair: Tensor, relation: Tensor, first: Tensor, relations: int, steps: int) -> Tensor:
    """Keys of all two relations of each pair, given its relations one after another."""
    start = torch.searchsorted(pair, pair)
    end = torch.searchsorted(pair, pair, right=True)
    link, other = expand_ranges(start, torch.minimum(end, start + _OF_A_PAIR))
    since = torch.maximum(first[link], first[other])
    return (relation[link] * relations + relation[other]) * steps + since
