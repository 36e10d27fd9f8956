"""Corrupted facts: wrong answers to learn from."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import UnknownNameError
from metatkgr.graph.ragged import pack

__all__ = ["KINDS", "NegativeKind", "Negatives", "fixed_negatives"]

NegativeKind = Literal["uniform", "place", "mixed"]
KINDS = get_args(NegativeKind)


class Negatives:
    """Draws wrong answers for queries (e, r, ?, t).

    Args:
        visible: the facts to learn from.
        kind: 'uniform': any entity. 'place': entities that filled this slot of r in some fact,
            which are harder to tell from the answer. 'mixed': each with equal chance.
    """

    def __init__(self, visible: VisibleFacts, kind: str = "uniform") -> None:
        if kind not in KINDS:
            raise UnknownNameError("kind of negatives", kind, KINDS)
        self.kind = kind
        self.entities = len(visible.entities)
        relations = 2 * len(visible.relations)
        relation, target = torch.from_numpy(visible.relation), torch.from_numpy(visible.target)
        filler = torch.unique(pack((relation, relations), (target, self.entities)))
        self._target = filler % self.entities
        self._start = torch.searchsorted(filler, torch.arange(relations + 1) * self.entities)

    def draw(self, relation: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Wrong answers for each query; the right one may be among them by chance.

        Args:
            relation: (...) directed relations, on the CPU.
            count: n, how many for each.
            generator: the source of randomness, on the CPU.

        Returns:
            (..., n) entity ids.
        """
        shape = (*relation.shape, count)
        anyone = torch.randint(self.entities, shape, generator=generator)
        if self.kind == "uniform":
            return anyone
        low, high = self._start[relation], self._start[relation + 1]
        size = (high - low).unsqueeze(-1)
        position = (torch.rand(shape, generator=generator) * size).long().clamp(max=size - 1)
        known = (low.unsqueeze(-1) + position).clamp(0, max(len(self._target) - 1, 0))
        # A slot that nobody has filled yet leaves no choice but anyone.
        fitting = torch.where(size > 0, self._target[known], anyone)
        if self.kind == "place":
            return fitting
        return torch.where(torch.rand(shape, generator=generator) < 0.5, fitting, anyone)


def fixed_negatives(entity: Tensor, ordinal: Tensor, count: int, entities: int) -> Tensor:
    """Wrong answers that depend on nothing but the entity and the number of its fact.

    For adapting to a support at forecast time: what is drawn for one entity must not change with
    which other entities have queries, nor with anything that happens to others.

    Args:
        entity: (...) the entity that is adapted to.
        ordinal: (...) the position of the fact in its support.
        count: n, how many for each fact.
        entities: how many entities there are.

    Returns:
        (..., n) entity ids, spread like uniform draws.
    """
    draw = torch.arange(count, device=entity.device)
    seed = (entity * 1_000_003 + ordinal).unsqueeze(-1) * 1_000_033 + draw
    # The finisher of splitmix64; int64 products wrap around, shifts are made unsigned by a mask.
    seed = seed * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        seed = (seed ^ ((seed >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return ((seed ^ ((seed >> 31) & ((1 << 33) - 1))) & ((1 << 62) - 1)) % entities
