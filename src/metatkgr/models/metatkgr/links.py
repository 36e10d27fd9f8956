"""What the inner loop of new entities reads: distinct links before a time, and who filled slots."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.ragged import expand_ranges
from metatkgr.models.common.few_shot import fixed_negatives

__all__ = ["Around", "Links", "Moment"]

_EVERYTHING = 1 << 40
"""More links than any entity has."""
_SHOWN = 100
"""Facts of one link that are listed, the latest."""


class Links(NamedTuple):
    """Distinct links of n entities, one after another."""

    row: Tensor
    """(L,) int64 whose, 0..n-1, non-decreasing."""
    relation: Tensor
    """(L,) int64 directed."""
    target: Tensor
    """(L,) int64 entity."""
    age: Tensor
    """(L,) float32 steps since it was last seen, 0 or more."""

    def of(self, row: Tensor) -> Links:
        """The links of (Q,) rows, which are numbered anew."""
        start = torch.searchsorted(self.row, row)
        number, position = expand_ranges(start, torch.searchsorted(self.row, row, right=True))
        return Links(number, *(column[position] for column in self[1:]))

    def sums(self, values: Tensor, rows: int) -> Tensor:
        """(n, ...) sums of (L, ...) values over the links of each entity."""
        return values.new_zeros(rows, *values.shape[1:]).index_add(0, self.row, values)


class Moment(NamedTuple):
    """What everybody may see at a time."""

    time: int
    entity: Tensor
    """(n,) int64 the entities without a row that have been seen, ascending."""
    links: Links
    """Theirs."""
    seen: int
    """How many entities have been seen, with or without a row."""
    contrast: Tensor
    """(M,) int64 entities that have been seen, drawn by a fixed rule."""
    cell: Tensor
    """(P,) int64 ``relation * E + entity`` of all who have filled the far slot of a relation."""
    filled: Tensor
    """(P,) float32 by how many others each was linked to."""
    entities: int

    def fillers(self, relation: Tensor, entity: Tensor) -> Tensor:
        """(...) how many others have been linked to entities by relations."""
        cell = relation * self.entities + entity
        if not len(self.cell):
            return torch.zeros_like(cell, dtype=torch.float32)
        position = torch.searchsorted(self.cell, cell).clamp(max=len(self.cell) - 1)
        return torch.where(self.cell[position] == cell, self.filled[position], 0.0)


class Around:
    """Reads the links that the inner loop is made of; every look-up is bounded by a time.

    Args:
        index: the public facts.
        supports: the first facts of the new entities, which their own queries see at any time.
        has_row: (E,) bool, who has a vector from training.
        budget: b, how many links of an entity are read, those that began last.
        contrast: M.
    """

    def __init__(
        self,
        index: TemporalIndex,
        supports: Supports,
        has_row: Tensor,
        *,
        budget: int,
        contrast: int,
    ) -> None:
        self.index, self.budget, self.contrast = index, budget, contrast
        self.history, self.supports = History(index, supports), supports
        everyone = torch.arange(index.entities, device=index.device)
        self._without = everyone[~has_row]
        self._draw = fixed_negatives(everyone, torch.ones_like(everyone), 1, 1 << 40).squeeze(1)

    def at(self, time: int) -> Moment:
        """What everybody may see at a time."""
        index = self.index
        seen = index.first_seen < time
        entity = self._without[seen[self._without]]
        everyone = seen.nonzero().squeeze(1)
        drawn = torch.argsort(self._draw[everyone], stable=True)[: self.contrast]
        every = self._public(everyone, time, _EVERYTHING)
        cell, filled = torch.unique(
            every.relation * index.entities + every.target, return_counts=True
        )
        return Moment(
            time,
            entity,
            self._public(entity, time, self.budget),
            len(everyone),
            everyone[drawn].sort().values,
            cell,
            filled.float(),
            index.entities,
        )

    def own(self, entity: Tensor, time: int) -> Links:
        """The links of (n,) query entities, their own supports at any time among them."""
        public = self._public(entity, time, self.budget)
        when = np.full(len(entity), time)
        asked = Queries(entity.cpu().numpy(), np.zeros_like(when), when)
        own = self.history.own_later(asked)
        row = torch.cat([public.row, own.row])
        order = torch.argsort(row, stable=True)
        return Links(
            row[order],
            torch.cat([public.relation, own.relation])[order],
            torch.cat([public.target, own.target])[order],
            torch.cat([public.age, torch.zeros_like(own.time, dtype=torch.float32)])[order],
        )

    def steps(self, entity: int, relation: int, target: int, time: int) -> list[int]:
        """When a link of a query entity was seen, the latest first; of very many, some."""
        slot, other, when = (
            torch.tensor([value], device=self.index.device)
            for value in (entity * self.index.relations + relation, target, time)
        )
        public = self.index.pairs.times(slot, other, when, _SHOWN)[1].tolist()
        own = self.supports.of(entity)
        same = (own.relation == relation) & (own.other == target)
        return sorted({*public, *own.time[same].tolist()}, reverse=True)

    def _public(self, entity: Tensor, time: int, most: int) -> Links:
        found = self.index.pairs.latest_links(entity, None, torch.full_like(entity, time), most)
        return Links(found.row, found.relation, found.target, (time - found.last).float())
