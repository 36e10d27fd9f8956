"""The encoder as the paper prints it: one entity, one neighbour, one concatenation at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from metatkgr.models.metatkgr.encoder import TemporalEncoder


@dataclass
class Node:
    """An entity at a time, with (directed relation, age, node) for each of its neighbours."""

    entity: int
    neighbours: list[tuple[int, float, Node]] = field(default_factory=list)


def directed_vector(table: Tensor, relation: int) -> Tensor:
    return table[relation] if relation < len(table) else -table[relation - len(table)]


def literal_encode(
    parameters: dict[str, Tensor], encoder: TemporalEncoder, node: Node, layer: int
) -> Tensor:
    if layer == 0:
        return parameters["entity"][node.entity]
    a = torch.cat(
        [
            parameters[f"encoder.attention_{part}"][layer - 1]
            for part in ("root", "neighbour", "relation", "time")
        ]
    )
    if encoder.message == "gate":
        W = parameters["encoder.gate"][layer - 1] * torch.eye(encoder.dimension)
    else:
        W = parameters["encoder.weight"][layer - 1]
    root = literal_encode(parameters, encoder, node, layer - 1)
    scores, messages = [], []
    for relation, age, neighbour in node.neighbours:
        vector = literal_encode(parameters, encoder, neighbour, layer - 1)
        angle = age * parameters["encoder.frequency"] + parameters["encoder.phase"]
        phi = torch.cos(angle) / math.sqrt(encoder.dimension)
        q = a @ torch.cat([root, vector, directed_vector(parameters["relation"], relation), phi])
        if encoder.attention == "leaky" and q < 0:
            q = 0.2 * q
        scores.append(q)
        if encoder.message != "printed":
            vector = vector - directed_vector(parameters["relation"], relation) - root
        messages.append(vector @ W)
    output = torch.zeros_like(root)
    if scores:
        weights = torch.stack([q.exp() for q in scores])
        weights = weights / weights.sum()
        for weight, message in zip(weights, messages, strict=True):
            output = output + weight * message
    if encoder.message == "printed":
        output = output.clamp(min=0)
    return output + root if encoder.self_term else output


def random_parameters(
    encoder: TemporalEncoder, entities: int, relations: int, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Parameters far from zero everywhere, so that every one of them matters."""
    generator = torch.Generator().manual_seed(3)
    layers, d = encoder.layers, encoder.dimension
    shapes: dict[str, tuple[int, ...]] = {"entity": (entities, d), "relation": (relations, d)}
    if encoder.message == "gate":
        shapes["encoder.gate"] = (layers, 1)
    else:
        shapes["encoder.weight"] = (layers, d, d)
    for part in ("root", "neighbour", "relation", "time"):
        shapes[f"encoder.attention_{part}"] = (layers, d)
    shapes |= {"encoder.frequency": (d,), "encoder.phase": (d,)}
    return {
        key: 0.7 * torch.randn(*shape, generator=generator, dtype=dtype)
        for key, shape in shapes.items()
    }
