"""Temporal neighbourhoods as tensors: trees of sampled neighbours, ages of facts.

The age Δt = t - t_i of a fact before its root's time t becomes random Fourier features:

    Φ(Δt) = sqrt(1/d) cos(Δt ω + b),   ω, b ∈ R^d learnable

The factor keeps ‖Φ‖ at 1 or less (about 0.7), the length of an embedding, whatever d is: in an
attention no part drowns the others by its size alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from metatkgr.graph.sampler import Neighbours

__all__ = [
    "Hop",
    "SampleNeighbours",
    "Tree",
    "encode_time",
    "grow",
    "grow_hops",
    "initial_frequency",
    "initial_phase",
]

_LONGEST = 1e4
"""The slowest frequency turns once in 2π times so many steps: longer than any graph we read."""


class Hop(NamedTuple):
    """The neighbours of a set of nodes of shape ``(...)``: up to b of each.

    A named tuple, because ``torch.func.vmap`` looks into those.
    """

    entity: Tensor
    """(..., b) int64 row of the neighbour in the entity table."""
    relation: Tensor
    """(..., b) int64 directed relation, 0..2R-1 for a relation table of R rows."""
    age: Tensor
    """(..., b) int64 position of t - t_i in the tree's ``ages``."""
    mask: Tensor
    """(..., b) bool, whether the slot holds a neighbour; the ids of empty slots are any valid."""


class Tree(NamedTuple):
    """Roots of shape ``(...)`` and what L layers read of their surroundings."""

    entity: Tensor
    """(...) int64 row of each root in the entity table."""
    ages: Tensor
    """(A,) the different ages t - t_i in steps. A task has few, so Φ is computed once for each."""
    hops: tuple[Hop, ...]
    """One per layer: of the roots, shape (..., b); of these neighbours, (..., b, b); and so on."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Tree:
        """The tree with every tensor changed but the ages."""
        hops = tuple(Hop(*(change(column) for column in hop)) for hop in self.hops)
        return Tree(change(self.entity), self.ages, hops)

    def reshape(self, shape: Sequence[int]) -> Tree:
        """(n,) roots in another shape of as many."""
        return self.each(lambda column: column.reshape(*shape, *column.shape[1:]))

    def split(self, sizes: Sequence[int]) -> list[Tree]:
        """Consecutive roots as trees of their own; they share the ages."""
        parts, end = [], 0
        for size in sizes:
            rows = slice(end, end := end + size)
            parts.append(self.each(lambda column, rows=rows: column[rows]))  # type: ignore[misc]
        return parts


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
        node, node_time = (x.reshape(-1)[position] for x in (entity, time))
        node_own = own if isinstance(own, bool) else own.reshape(-1)[position]
        neighbours = sample(node, node_time, own=node_own)
        columns = []
        for column in (neighbours.entity, neighbours.relation, neighbours.time, neighbours.mask):
            full = column.new_zeros(entity.numel(), column.shape[1])
            full[position] = column
            columns.append(full.reshape(*entity.shape, column.shape[1]))
        next_entity, relation, next_time, next_mask = columns
        age = (time.unsqueeze(-1) - next_time) * next_mask
        hops.append(Hop(next_entity, relation, age, next_mask))
        # No node below the roots is a query entity, so none sees its supports before their time.
        entity, time, mask, own = next_entity, next_time, next_mask, False
    return hops


def encode_time(age: Tensor, frequency: Tensor, phase: Tensor) -> Tensor:
    """Φ(Δt) of every age.

    Args:
        age: (..., A) Δt in steps; negative for own support facts after the query.
        frequency: (d,) ω, in radians per step; or (T, d), different for T tasks, with (T, A) ages.
        phase: (d,) or (T, d) b, in radians.

    Returns:
        (..., A, d) features.
    """
    scale = math.sqrt(1 / frequency.shape[-1])
    angle = age.unsqueeze(-1) * frequency.unsqueeze(-2) + phase.unsqueeze(-2)
    return torch.cos(angle) * scale


def initial_frequency(dimension: int) -> Tensor:
    """(d,) frequencies in geometric steps from 1 to 1e-4 radians per step.

    The period 2π/ω then runs from 6 steps to 60,000 with the same number of features per factor of
    ten, so that days and decades differ before the frequencies have learnt anything.
    """
    return torch.logspace(0, -math.log10(_LONGEST), dimension)


def initial_phase(dimension: int, generator: torch.Generator) -> Tensor:
    """(d,) phases, uniform on the circle, so that no age is special to all features at once."""
    return torch.rand(dimension, generator=generator) * (2 * math.pi)
