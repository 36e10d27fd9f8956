"""The public facts, as evidence is read from them.

They lie in one or two layers: those that are indexed once, and those that arrived since. Every
look-up asks both and puts the answers together, and gives what one index of all facts would give.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from metatkgr.data.visibility import VisibleFacts
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.links import Links
from metatkgr.graph.pagerank import DistinctLinks
from metatkgr.graph.ragged import blocks_by_size, expand_ranges
from metatkgr.models.evidence.features import DECAYS
from metatkgr.models.evidence.peers import Began, DistinctSince

__all__ = ["Past", "Public"]

_LARGEST_EXPANSION = 1 << 22
_NEVER = 1 << 62
"""A step after all others."""
_TABLES = 256
"""Tables per moment that are kept."""


@dataclass(frozen=True, eq=False)
class Past:
    """What e did: facts of each question's entity, in any order."""

    row: Tensor
    """(L,) question."""
    relation: Tensor
    target: Tensor
    time: Tensor

    @classmethod
    def read(cls, index: GraphIndex, entity: Tensor, low: Tensor, high: Tensor) -> Past:
        """The links of each entity at the positions from ``low`` to ``high``, not included."""
        row, position = expand_ranges(low, high)
        when = index.key[position] - entity[row] * index.steps
        return cls(row, index.relation[position], index.target[position], when)

    @classmethod
    def join(cls, parts: list[Past]) -> Past:
        """Several as one."""
        columns = ((part.row, part.relation, part.target, part.time) for part in parts)
        return cls(*(torch.cat(column) for column in zip(*columns, strict=True)))


class _Layer:
    """Some of the facts, indexed by entity and by place of a relation."""

    def __init__(self, visible: VisibleFacts, device: torch.device) -> None:
        self.links = Links(visible, device)
        self.index = GraphIndex.of(visible, device=device)

    @cached_property
    def since(self) -> DistinctSince:
        """The distinct links, by when they began."""
        return DistinctSince.of(self.links)

    def __len__(self) -> int:
        return len(self.links)

    def before(self, entity: Tensor, time: Tensor) -> Past:
        """The facts of each entity before a time; none of one that came later than this layer."""
        known = entity < self.index.entities
        low, high = self.index.before(torch.where(known, entity, 0), time)
        return Past.read(self.index, entity, low, torch.where(known, high, low))

    def first_seen(self) -> Tensor:
        """(E,) first step of each of this layer's entities."""
        index = self.index
        low, high = index.start[:-1], index.start[1:]
        key = index.key[low.clamp(max=len(index) - 1)]
        entity = torch.arange(index.entities, device=index.device)
        return torch.where(high > low, key - entity * index.steps, _NEVER)

    def last_seen(self, moment: int) -> Tensor:
        """(E,) last step of each of this layer's entities before a moment; -1: none."""
        index = self.index
        entity = torch.arange(index.entities, device=index.device)
        low, high = index.before(entity, torch.full_like(entity, moment))
        key = index.key[(high - 1).clamp(min=0)]
        return torch.where(high > low, key - entity * index.steps, -1)


class Public:
    """Look-ups in the public facts, batched over questions.

    Args:
        visible: the facts.
        device: where they are indexed.
    """

    def __init__(self, visible: VisibleFacts, device: torch.device) -> None:
        self._fill([_Layer(visible, device)], DistinctLinks(visible, device))

    def _fill(self, layers: list[_Layer], distinct: DistinctLinks) -> None:
        self.device, self.distinct = distinct.device, distinct
        self.links = [layer.links for layer in layers]
        self.began = Began(self.links, [layer.since for layer in layers])
        self.entities, self.relations = self.links[-1].entities, self.links[-1].relations
        self.steps = max(links.steps for links in self.links)
        self._layers = [layer for layer in layers if len(layer)]
        self._moments: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()
        self.first_seen = torch.full((self.entities,), _NEVER, device=self.device)
        for layer in self._layers:
            mine = self.first_seen[: layer.index.entities]
            torch.minimum(mine, layer.first_seen(), out=mine)

    def joined(self, recent: VisibleFacts) -> Public:
        """These facts and further ones, of which only the latter are indexed anew.

        Args:
            recent: none of them among these; its vocabulary begins with that of these.
        """
        if len(recent) == 0 and len(recent.entities) == self.entities:
            return self
        whole = Public.__new__(Public)
        layers = [*self._layers, _Layer(recent, self.device)]
        whole._fill(layers, self.distinct.joined(recent))
        return whole

    def before(self, entity: Tensor, time: Tensor) -> Past:
        """The facts of each entity strictly before its time."""
        parts = [layer.before(entity, time) for layer in self._layers]
        nothing = entity[:0]
        return Past.join([*parts, Past(nothing, nothing, nothing, nothing)])

    def places(self, relation: Tensor, time: Tensor) -> tuple[list[Tensor], Tensor]:
        """Of each distinct (relation, time): count, decayed counts and last step of every entity.

        Returns:
            tables: five of (G, E).
            row: (Q,) which of the G is a question's.
        """
        moment, row = torch.unique(torch.stack([relation, time], 1), dim=0, return_inverse=True)
        asked, now = moment[:, 0].contiguous(), moment[:, 1].contiguous()
        shape = (len(moment), self.entities)
        count = torch.zeros(shape, device=self.device)
        # In double precision, so that the order in which facts are added does not show.
        decayed = [
            torch.zeros(shape, dtype=torch.float64, device=self.device) for _ in range(len(DECAYS))
        ]
        last = torch.full(shape, -1, device=self.device)
        for layer in self._layers:
            key, target = layer.links.places
            steps = layer.links.steps
            start = torch.searchsorted(key, asked * steps)
            # A time after the last fact has all facts before it, but its ages are its own.
            stop = torch.searchsorted(key, asked * steps + layer.links.within(now))
            for rows in blocks_by_size(stop - start, _LARGEST_EXPANSION):
                group, position = expand_ranges(start[rows], stop[rows])
                group = group + rows.start
                when = key[position] % steps
                age = (now[group] - when).float()
                cell = group * self.entities + target[position]
                count.view(-1).scatter_add_(0, cell, torch.ones_like(age))
                for table, decay in zip(decayed, DECAYS, strict=True):
                    table.view(-1).scatter_add_(0, cell, (-age / decay).exp().double())
                last.view(-1).scatter_reduce_(0, cell, when, "amax")
        return [count, *(table.float() for table in decayed), last], row

    def entities_at(self, time: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(Q, C) first and last step at which candidates were seen before t, and their degree.

        Who was not seen yet counts as seen first and last at t itself.

        Args:
            time: (Q,).
            chosen: (Q, C) candidates.
        """
        last = torch.empty_like(chosen)
        degree = torch.empty_like(chosen, dtype=torch.float32)
        for moment in torch.unique(time).tolist():
            rows = torch.nonzero(time == moment).squeeze(1)
            seen, links = self._moment(int(moment))
            last[rows], degree[rows] = seen[chosen[rows]], links[chosen[rows]]
        now = time.unsqueeze(1)
        return torch.minimum(self.first_seen[chosen], now), torch.minimum(last, now), degree

    def _moment(self, moment: int) -> tuple[Tensor, Tensor]:
        """(E,) last step before ``moment`` and (E,) number of neighbours, of all entities."""
        if moment not in self._moments:
            last = torch.full((self.entities,), -1, device=self.device)
            for layer in self._layers:
                mine = last[: layer.index.entities]
                torch.maximum(mine, layer.last_seen(moment), out=mine)
            last = torch.where(last >= 0, last, moment)
            self._moments[moment] = (last, self.distinct.degrees(moment))
            while len(self._moments) > _TABLES:
                self._moments.popitem(last=False)
        return self._moments[moment]
