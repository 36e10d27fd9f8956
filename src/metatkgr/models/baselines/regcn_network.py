"""The network of RE-GCN: the evolution of vectors over snapshots, and the decoder ConvTransE."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.graph.snapshots import DisjointGraph, Snapshots
from metatkgr.models.baselines.recurrent import Noise, gru_step, sum_rows

__all__ = ["decode", "evolve"]


def evolve(
    weights: Mapping[str, Tensor], snapshots: Snapshots, window: Tensor, layers: int, noise: Noise
) -> tuple[Tensor, Tensor]:
    """The vectors after each of B windows of snapshots; the equations are at :class:`REGCN`.

    All windows move together, as one graph of B copies.

    Args:
        weights: of the model.
        snapshots: the facts by step.
        window: (B, m) numbers of snapshots on the CPU, oldest first; -1 for none.
        layers: graph convolutions in a snapshot.
        noise: dropout and random slopes.

    Returns:
        entity: (B, E, d) and relation: (B, 2R, d), rows of length 1.
    """
    copies, length = window.shape
    first = weights["relation"]
    entity = functional.normalize(weights["entity"]).repeat(copies, 1)
    relation = functional.normalize(first).repeat(copies, 1, 1)
    fixed = first @ weights["gru.own"] + weights["gru.input_bias"]
    for place in range(length):
        graph = snapshots.graph(window[:, place])
        ends = sum_rows(
            copies * snapshots.relations,
            graph.member_relation,
            entity.index_select(0, graph.member_entity) * graph.member_share,
        ).view(copies, snapshots.relations, -1)
        inputs = fixed + (ends @ weights["gru.ends"]).repeat(1, 2, 1)
        moved = gru_step(inputs, relation, weights["gru.hidden"], weights["gru.hidden_bias"])
        moved = functional.normalize(moved, dim=-1)
        current = _convolve(weights, graph, entity, moved.flatten(0, 1), layers, noise)
        gate = torch.sigmoid(entity @ weights["gate"] + weights["gate_bias"])
        current = entity + gate * (current - entity)
        if int(window[:, place].min()) < 0:
            there = (window[:, place] >= 0).to(entity.device).view(-1, 1, 1)
            shape = (copies, snapshots.entities, -1)
            current = torch.where(there, current.view(shape), entity.view(shape)).flatten(0, 1)
            moved = torch.where(there, moved, relation)
        entity, relation = current, moved
    return entity.view(copies, snapshots.entities, -1), relation


def _convolve(
    weights: Mapping[str, Tensor],
    graph: DisjointGraph,
    entity: Tensor,
    relation: Tensor,
    layers: int,
    noise: Noise,
) -> Tensor:
    """(N, d) the entities of N = B·E nodes after the convolutions, rows of length 1."""
    active = torch.zeros(len(entity), 1, dtype=torch.bool, device=entity.device)
    active.index_fill_(0, graph.target, True)
    link = relation.index_select(0, graph.relation)
    for layer in range(layers):
        # The map W is linear: applied to the mean message instead of to every message.
        message = (entity.index_select(0, graph.source) + link) * graph.share
        mean = sum_rows(len(entity), graph.target, message)
        loop, alone = (entity @ weights[f"layer{layer}.loops"]).chunk(2, -1)
        entity = mean @ weights[f"layer{layer}.message"] + torch.where(active, loop, alone)
        entity = noise.drop(noise.rrelu(entity))
    return functional.normalize(entity)


def decode(
    weights: Mapping[str, Tensor], name: str, first: Tensor, second: Tensor, noise: Noise
) -> Tensor:
    """ConvTransE: what two vectors together ask for.

    Args:
        weights: of the model.
        name: 'entities' (of a source and a relation) or 'relations' (of two entities).
        first, second: (Q, d).
        noise: dropout.

    Returns:
        (Q, d) to be compared with the candidates.
    """
    kernel = weights[f"{name}.kernel"]
    d = first.shape[-1]
    pair = functional.layer_norm(torch.stack([first, second], 1), (d,))
    maps = functional.conv1d(
        noise.drop(pair), kernel, weights[f"{name}.kernel_bias"], padding=kernel.shape[-1] // 2
    )
    maps = functional.layer_norm(maps, maps.shape[1:])
    maps = maps * weights[f"{name}.map_scale"] + weights[f"{name}.map_shift"]
    flat = noise.drop(maps.relu()).flatten(1)
    asked = noise.drop(flat @ weights[f"{name}.linear"] + weights[f"{name}.linear_bias"])
    scale, shift = weights[f"{name}.scale"], weights[f"{name}.shift"]
    return functional.layer_norm(asked, (d,), scale, shift).relu()
