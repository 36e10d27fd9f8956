"""The parts of LAN: distinct links, rules, projected neighbours, their weights and their sum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.sampler import Neighbours

__all__ = [
    "LEAST_DAMPING",
    "aggregate",
    "first_links",
    "first_supports",
    "logic_weights",
    "project",
    "rule_table",
]

LEAST_DAMPING = 0.1
"""The smallest number that a rule's probability is divided by."""


def first_links(visible: VisibleFacts) -> VisibleFacts:
    """Each link once, at its first time: it is visible before t if and only if that time is."""
    facts = visible.facts()
    columns = np.stack([facts.subject, facts.relation, facts.object], axis=1)
    rows = np.sort(np.unique(columns, axis=0, return_index=True)[1])
    return VisibleFacts.of(facts.select(rows))


def first_supports(supports: Supports) -> Supports:
    """Each link of a support once, at its first time."""
    columns = (supports.entity, supports.relation, supports.other)
    rows = np.sort(np.unique(np.stack(columns, axis=1), axis=0, return_index=True)[1])
    return Supports(*(column[rows] for column in (*columns, supports.time)))


def rule_table(known: VisibleFacts) -> Tensor:
    """P(a => b): the share, among entities with relation a, of those that also have b.

    Returns:
        (2R, 2R) float; row a, column b; zeros in the row of a relation that nobody has.
    """
    has = np.zeros((len(known.entities), 2 * len(known.relations)), np.float32)
    has[known.source, known.relation] = 1
    both = torch.from_numpy(has).T @ torch.from_numpy(has)
    return both / both.diagonal().clamp(min=1).unsqueeze(1)


def logic_weights(rules: Tensor, neighbours: Neighbours, asked: Tensor) -> Tensor:
    """λ_j = P(r_j => q) / max over the other relations r' of the neighbourhood of P(r' => r_j).

    Args:
        rules: (2R, 2R) of :func:`rule_table`.
        neighbours: of N entities, b slots each.
        asked: (N,) the directed relation q of each question.

    Returns:
        (N, b) weights, 0 in empty slots.
    """
    relation, mask = neighbours.relation, neighbours.mask
    implied = rules[relation, asked.unsqueeze(1)]
    # (N, b, b): how surely the relation of slot k implies that of slot j
    other = (relation.unsqueeze(1) != relation.unsqueeze(2)) & mask.unsqueeze(1)
    surely = rules.T[relation.unsqueeze(2), relation.unsqueeze(1)] * other
    damping = surely.amax(2).clamp(min=LEAST_DAMPING)
    damping = torch.where(other.any(2), damping, torch.ones_like(damping))
    return implied / damping * mask


def project(weights: Mapping[str, Tensor], neighbours: Neighbours) -> Tensor:
    """(N, b, d) T_r(e) = h_e - (w_r · h_e) w_r of every slot."""
    normal = functional.embedding(neighbours.relation, functional.normalize(weights["normal"]))
    vector = functional.embedding(neighbours.entity, weights["entity"])
    return vector - (vector * normal).sum(-1, keepdim=True) * normal


def aggregate(
    weights: Mapping[str, Tensor],
    messages: Tensor,
    mask: Tensor,
    asked: Tensor,
    logic: Tensor,
    alone: Tensor,
    normalise: bool = True,
) -> Tensor:
    """o of every entity: what its neighbours say about the question.

    Args:
        weights: ``query`` z and ``attention`` v, (2R, d); ``mix_query`` and ``mix_neighbour``, the
            two halves of W, (d, d).
        messages: (N, b, d) of :func:`project`.
        mask: (N, b) which slots are filled.
        asked: (N,) directed relation q of each question.
        logic: (N, b) λ.
        alone: (N, d) what an entity without neighbours is.
        normalise: whether the weights are divided by their sum.

    Returns:
        (N, d) vectors.
    """
    query = functional.embedding(asked, weights["query"] @ weights["mix_query"])
    hidden = torch.tanh(query.unsqueeze(1) + messages @ weights["mix_neighbour"])
    score = (hidden @ functional.embedding(asked, weights["attention"]).unsqueeze(2)).squeeze(2)
    # A large finite negative: -inf in a row without neighbours would give NaN.
    lowest = torch.finfo(score.dtype).min / 2
    share = torch.softmax(score.masked_fill(~mask, lowest), -1) * mask + logic
    if normalise:
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-9)
    message = (share.unsqueeze(1) @ messages).squeeze(1)
    return torch.where(mask.any(1, keepdim=True), message, alone)
