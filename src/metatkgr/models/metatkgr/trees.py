"""Roots and their sampled neighbours as the trees that the encoder reads, in global ids."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from metatkgr.graph.sampler import Neighbours
from metatkgr.models.metatkgr.encoder import Hop, Tree

__all__ = ["SampleNeighbours", "grow", "grow_hops"]


class SampleNeighbours(Protocol):
    """Finds the neighbours of (Q,) roots; ``graph.sampler.Sampler.sample`` is one."""

    def __call__(self, entity: Tensor, time: Tensor, *, own: bool | Tensor) -> Neighbours:
        """Neighbours before ``time``; with ``own`` (of all or each), own supports at any time."""
        ...


def grow(
    sample: SampleNeighbours, entity: Tensor, time: Tensor, *, layers: int = 1, own: bool = False
) -> Tree:
    """The tree of roots in global ids, to be encoded with the global tables.

    Args:
        sample: the neighbour sampler.
        entity: (Q,) int64 roots.
        time: (Q,) int64 their times.
        layers: L, the depth of the tree.
        own: whether the roots see their own supports at any time.
    """
    everything = torch.ones_like(entity, dtype=torch.bool)
    hops = grow_hops(sample, entity, time, everything, own, layers)
    ages, position = torch.unique(
        torch.cat([hop.age.reshape(-1) for hop in hops]), return_inverse=True
    )
    split = torch.split(position, [hop.age.numel() for hop in hops])
    return Tree(
        entity,
        ages.to(torch.get_default_dtype()),
        tuple(
            hop._replace(age=index.reshape(hop.age.shape))
            for hop, index in zip(hops, split, strict=True)
        ),
    )


def grow_hops(
    sample: SampleNeighbours,
    entity: Tensor,
    time: Tensor,
    mask: Tensor,
    own: bool | Tensor,
    layers: int,
) -> list[Hop]:
    """The neighbours, their neighbours, … of nodes (...) in global ids; ages as int64 steps.

    Only the nodes of ``mask`` are sampled; those of ``own`` with their own supports at any time.
    """
    hops = []
    for _ in range(layers):
        position = mask.reshape(-1).nonzero().squeeze(1)
        nodes, moments = (x.reshape(-1)[position] for x in (entity, time))
        asked = own if isinstance(own, bool) else own.reshape(-1)[position]
        neighbours = sample(nodes, moments, own=asked)
        columns = []
        for column in (neighbours.entity, neighbours.relation, neighbours.time, neighbours.mask):
            full = column.new_zeros(entity.numel(), column.shape[1])
            full[position] = column
            columns.append(full.reshape(*entity.shape, column.shape[1]))
        next_entity, relation, next_time, next_mask = columns
        age = (time.unsqueeze(-1) - next_time) * next_mask
        hops.append(Hop(next_entity, relation, age, next_mask))
        # No node below the roots is asked about, so none sees its supports before their time.
        entity, time, mask, own = next_entity, next_time, next_mask, False
    return hops
