r"""A two-layer temporal graph attention network (TGAT) with relations, for many tasks at once.

For a node u at time t with neighbours (i, r_i, t_i), head k of layer l = 1, 2 weighs them by

.. math:: \alpha_i = \mathrm{softmax}_i \big( (Q [h_u \Vert \Phi(0)]) \cdot
          (K [h_i \Vert h_{r_i} \Vert \Phi(t - t_i)]) / \sqrt{d_k} \big)

and, instead of value matrices and a feed-forward network on top, moves the node towards where its
neighbours would have it, dimension by dimension:

.. math:: h'_u = h_u + \sum_k g_k \odot \sum_i \alpha^k_i (h_i - h_{r_i} - h_u)

g starts at zero, so training starts from the tables; full value matrices learn the training
entities by heart. Φ(0) times its part of Q is a vector, the query's bias. With K's relation part
re-defined accordingly, [h_i - h_r ‖ h_r ‖ Φ] stands for [h_i ‖ h_r ‖ Φ]: one gathered tensor
serves keys and messages. Keys are never formed for a neighbour: the query is multiplied into
entity space, and into the few different relations and ages, whose results are looked up.

All tensors have a task axis in front; parameters too, of size T or 1 (shared by all nodes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import RecentSampler
from metatkgr.models.common.few_shot import PaddedFacts, ranking_loss
from metatkgr.models.common.neighbourhood import (
    Hop,
    SampleNeighbours,
    Tree,
    encode_time,
    grow,
    initial_frequency,
    initial_phase,
)
from metatkgr.models.common.scores import relation_vectors, translation_score

__all__ = [
    "LAYERS",
    "SharedEncoder",
    "SupportFacts",
    "encode",
    "initial_network",
    "one_layer",
    "shared",
    "support_loss",
    "task_tree",
]

LAYERS = 2
_LOWEST = torch.finfo(torch.float32).min / 2
_BLOCK = 1 << 13
"""Nodes that are encoded in one go with shared parameters."""


def initial_network(
    dimension: int, heads: int, width: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Parameters of a network that changes nothing yet; Q and K are Glorot-normal.

    Args:
        dimension: d.
        heads: k.
        width: d_k, the length of one head's queries and keys.
        generator: the source of randomness.

    Returns:
        ``encoder.query``, ``encoder.key_entity``, ``encoder.key_relation``, ``encoder.key_time``
        (2, d, k, d_k), ``encoder.bias`` (2, k, d_k), ``encoder.gate`` (2, k, d),
        ``encoder.frequency`` and ``encoder.phase`` (d,).
    """
    scale = math.sqrt(2 / (dimension + heads * width))
    made = {
        f"encoder.{name}": torch.randn(LAYERS, dimension, heads, width, generator=generator) * scale
        for name in ("query", "key_entity", "key_relation", "key_time")
    }
    return made | {
        "encoder.bias": torch.zeros(LAYERS, heads, width),
        "encoder.gate": torch.zeros(LAYERS, heads, dimension),
        "encoder.frequency": initial_frequency(dimension),
        "encoder.phase": initial_phase(dimension, generator),
    }


def shared(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``encoder.*`` entries with a task axis of size 1, by name: sums keep their order."""
    names = sorted(name for name in parameters if name.startswith("encoder."))
    return {name: parameters[name].unsqueeze(0) for name in names}


def encode(
    parameters: Mapping[str, Tensor], tables: Mapping[str, Tensor], tree: Tree, own: Tensor
) -> Tensor:
    """Both layers.

    Args:
        parameters: ``encoder.*`` with a task axis.
        tables: ``entity`` (E, d) and ``relation`` (R, d).
        tree: (T, n) roots and two hops in global ids.
        own: (T, n, d) the roots' own vectors; where a root is met as a neighbour, it has its row of
            the table.

    Returns:
        (T, n, d) vectors.
    """
    tasks, roots, d = own.shape
    near, far = tree.hops
    budget = near.entity.shape[-1]
    # The first layer of the roots and of their neighbours in one go.
    nodes = Hop(
        *(
            torch.cat([a.flatten(1, -2), b.flatten(1, -2)], 1)
            for a, b in zip(near, far, strict=True)
        )
    )
    neighbours = tables["entity"][near.entity].flatten(1, 2)
    before = torch.cat([own, neighbours], 1)  # (T, n + n b, d)
    rows = tables["entity"][nodes.entity]
    after = one_layer(parameters, 1, tables, before, rows, nodes, tree.ages)
    root, other = torch.split(after, [roots, roots * budget], 1)
    other = other.reshape(tasks, roots, budget, d)
    return one_layer(parameters, 2, tables, root, other, near, tree.ages)


def one_layer(
    parameters: Mapping[str, Tensor],
    number: int,
    tables: Mapping[str, Tensor],
    node: Tensor,
    neighbour: Tensor,
    hop: Hop,
    ages: Tensor,
) -> Tensor:
    """One layer.

    Args:
        parameters: ``encoder.*`` with a task axis.
        number: which layer, 1 or 2.
        tables: with ``relation`` (R, d).
        node: (T, n, d) the layer below, of the nodes.
        neighbour: (T, n, b, d) the layer below, of their neighbours.
        hop: who these are, (T, n, b) each.
        ages: (A,) the different ages.

    Returns:
        (T, n, d) vectors; unchanged where there is no neighbour.
    """

    def part(name: str) -> Tensor:
        return parameters[f"encoder.{name}"][:, number - 1]

    query = torch.einsum("tnd,tdkw->tnkw", node, part("query")) + part("bias").unsqueeze(1)
    query = query / math.sqrt(query.shape[-1])
    message = neighbour - relation_vectors(tables["relation"], hop.relation)
    wanted = torch.einsum("tnkw,tdkw->tnkd", query, part("key_entity"))
    score = wanted @ message.transpose(-1, -2)  # (T, n, k, b)
    to_relation = torch.einsum("rd,tdkw->trkw", tables["relation"], part("key_relation"))
    forwards = torch.einsum("tnkw,trkw->tnkr", query, to_relation)
    score = score + _look_up(torch.cat([forwards, -forwards], -1), hop.relation)
    frequency, phase = parameters["encoder.frequency"], parameters["encoder.phase"]
    time = encode_time(ages.expand(len(frequency), -1), frequency, phase)  # (T, A, d)
    to_time = torch.einsum("tad,tdkw->takw", time, part("key_time"))
    score = score + _look_up(torch.einsum("tnkw,takw->tnka", query, to_time), hop.age)
    there = hop.mask.unsqueeze(-2)
    share = torch.softmax(score.masked_fill(~there, _LOWEST), -1) * there
    pull = share @ message - share.sum(-1, keepdim=True) * node.unsqueeze(-2)  # (T, n, k, d)
    return node + (part("gate").unsqueeze(1) * pull).sum(-2)


def _look_up(values: Tensor, index: Tensor) -> Tensor:
    """(T, n, k, N) values and (T, n, b) positions to (T, n, k, b)."""
    return values.gather(-1, index.unsqueeze(-2).expand(-1, -1, values.shape[-2], -1))


def task_tree(sample: SampleNeighbours, entity: Tensor, time: Tensor, *, own: bool) -> Tree:
    """Two hops around (T, n) roots, in global ids."""
    tree = grow(sample, entity.reshape(-1), time.reshape(-1), layers=LAYERS, own=own)
    return tree.reshape(entity.shape)


class SharedEncoder:
    """Any entity at any time, encoded with the parameters that all tasks share.

    The first layer of a neighbour depends on who it is and when the link was and on nothing else;
    it is computed once for all links.

    Args:
        weights: tables and ``encoder.*``.
        index: of all links.
        sampler: of neighbours, from that index.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], index: TemporalIndex, sampler: RecentSampler
    ) -> None:
        self.weights, self.sampler, self.parameters = weights, sampler, shared(weights)
        self.steps, links = index.steps, index.by_time
        key = torch.unique(links.target.long() * links.steps + links.key % links.steps)
        # Never empty, so that there is something to look up where there is no link.
        self.key = key if len(key) else key.new_zeros(1)
        self.first = torch.cat([self._first_layer(part) for part in self._blocks(self.key)])

    @staticmethod
    def _blocks(column: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.split(column, _BLOCK))

    def _first_layer(self, key: Tensor) -> Tensor:
        """The first layer of packed (entity, time) pairs."""
        # Always blocks of one size: the size of a matrix product may decide how it is rounded, and
        # no vector may depend on how many links others have.
        padded = torch.cat([key, key.new_zeros(_BLOCK - len(key))])
        entity, time = padded // self.steps, padded % self.steps
        tree = grow(self.sampler.sample, entity, time)
        vectors = self._layer(1, self.weights["entity"][entity], tree.hops[0], tree.ages, None)
        return vectors[: len(key)]

    def _layer(
        self, number: int, node: Tensor, hop: Hop, ages: Tensor, neighbour: Tensor | None
    ) -> Tensor:
        if neighbour is None:
            neighbour = self.weights["entity"][hop.entity]
        alone = Hop(*(column.unsqueeze(0) for column in hop))
        vectors = one_layer(
            self.parameters,
            number,
            self.weights,
            node.unsqueeze(0),
            neighbour.unsqueeze(0),
            alone,
            ages,
        )
        return vectors.squeeze(0)

    def encode(self, entity: Tensor, time: Tensor) -> Tensor:
        """(n, d) vectors of (n,) entities at (n,) times; nobody sees a support before its time."""
        pairs = zip(self._blocks(entity), self._blocks(time), strict=True)
        return torch.cat([self._encode(*pair) for pair in pairs])

    def _encode(self, entity: Tensor, time: Tensor) -> Tensor:
        tree = grow(self.sampler.sample, entity, time)
        (hop,) = tree.hops
        node = self._layer(1, self.weights["entity"][entity], hop, tree.ages, None)
        then = time.unsqueeze(1) - tree.ages[hop.age].long()
        row = torch.searchsorted(self.key, hop.entity * self.steps + then)
        # Empty slots look for pairs that may not exist; what they find is masked.
        neighbour = self.first[row.clamp(max=len(self.key) - 1)]
        return self._layer(2, node, hop, tree.ages, neighbour)


class SupportFacts(NamedTuple):
    """F support facts of each of T tasks, with encoded candidates; F is a multiple of M."""

    roots: Tree
    """(T, F) the entity at the fact's time, in global ids."""
    candidates: Tensor
    """(T, F, 1 + n, d) the answer and n wrong ones."""
    translation: Tensor
    """(T, F, d) relation vectors."""
    mask: Tensor
    """(T, F) bool, the facts that count."""
    negative_mask: Tensor
    """(T, F, n) bool, the wrong answers that count."""

    def each(self, change: Callable[[Tensor], Tensor]) -> SupportFacts:
        """Every column changed but the ages."""
        return SupportFacts(self.roots.each(change), *(change(column) for column in self[1:]))

    @classmethod
    def of(cls, facts: PaddedFacts, roots: Tree, near: Tensor, relation: Tensor) -> SupportFacts:
        """From facts, their roots, the (T F (1 + n), d) vectors of their options and h_r."""
        candidates = near.view(*facts.mask.shape, -1, near.shape[-1])
        translation = relation_vectors(relation, facts.relation)
        return cls(roots, candidates, translation, facts.mask, facts.negative_mask)


def support_loss(
    parameters: Mapping[str, Tensor],
    own: Tensor,
    facts: SupportFacts,
    tables: Mapping[str, Tensor],
) -> Tensor:
    """(T,) the loss of each task's facts under its own network and its entity's own vector."""
    start = own.unsqueeze(1).expand(-1, facts.mask.shape[1], -1)
    vector = encode(parameters, tables, facts.roots, start)
    score = translation_score(
        vector.unsqueeze(-2), facts.translation.unsqueeze(-2), facts.candidates
    )
    return ranking_loss(score[..., 0], score[..., 1:], facts.mask, facts.negative_mask)
