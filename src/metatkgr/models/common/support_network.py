r"""Relational layers over supports: vectors of unseen entities from their few facts (GEN's).

A support fact of i leads by the directed relation r to j. With the bases :math:`B_b` and the
coefficients :math:`a_{rb}` of a layer,

.. math:: W_r = \sum_b a_{rb} B_b, \qquad
          f(i) = \frac{1}{|N_i|} \sum_{(r, j) \in N_i} W_r [x_j \Vert h_r]

is one layer. Being linear, it is computed as :math:`\sum_b (\frac{1}{|N_i|} \sum a_{rb} [x_j \Vert
h_r]) B_b`: facts are averaged before anything is multiplied, which costs K times less.

Everything is a function of padded facts, (n, K), so the view of the supports at a time is a mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.visibility import Supports
from metatkgr.models.common.few_shot import SupportTable
from metatkgr.models.common.scores import relation_vectors

__all__ = [
    "Links",
    "Unseen",
    "Vectors",
    "first_layer",
    "initial_layer",
    "second_layer",
    "support_vectors",
]


class Links(NamedTuple):
    """Up to K support facts of each of n entities."""

    entity: Tensor
    """(n,) int64 who owns them."""
    relation: Tensor
    """(n, K) int64 directed relation, from the owner's side."""
    other: Tensor
    """(n, K) int64 the other end."""
    time: Tensor
    """(n, K) int64 step."""
    mask: Tensor
    """(n, K) bool, False in padding."""

    def of(self, rows: Tensor) -> Links:
        """The facts of some of the entities."""
        return Links(*(column[rows] for column in self))


class Unseen:
    """The new entities of a split and their supports, on the device.

    Args:
        supports: the first facts of the new entities.
        entities: E.
        device: where they are kept.
    """

    def __init__(self, supports: Supports, *, entities: int, device: torch.device) -> None:
        new = torch.from_numpy(np.unique(supports.entity))
        facts = SupportTable(supports, entities=entities, negatives=0).pick(new)
        columns = (new, facts.relation, facts.answer, facts.time, facts.mask)
        self.links = Links(*(column.to(device) for column in columns))
        row = torch.full((entities,), -1).index_copy_(0, new, torch.arange(len(new)))
        self.row = row.to(device)
        """(E,) the row of each entity in ``links``; -1 for those that are not new."""

    @property
    def entity(self) -> Tensor:
        """(N,) the new entities, ascending."""
        return self.links.entity

    def before(self, t: int) -> Links:
        """The supports of all new entities, those at t or later hidden."""
        return self.links._replace(mask=self.links.mask & (self.links.time < t))

    def of(self, entity: Tensor) -> Links:
        """The supports of (n,) entities; of one that is not new, none."""
        row = self.row[entity]
        if not len(self.entity):
            nothing = row.new_zeros(len(row), 1)
            return Links(entity, nothing, nothing, nothing, nothing.bool())
        links = self.links.of(row.clamp(min=0))
        return links._replace(entity=entity, mask=links.mask & (row >= 0).unsqueeze(1))


class Vectors(NamedTuple):
    """What the network says of n entities."""

    first: Tensor
    """(n, d) φ, the first layer."""
    mean: Tensor
    """(n, d) μ; φ for I-GEN."""
    log_variance: Tensor | None
    """(n, d) log σ²; None for I-GEN."""

    def draw(self, generator: torch.Generator, size: int, rows: slice = slice(None)) -> Tensor:
        """(n, d) a sample; noise is drawn for ``size`` rows, of which these n are some."""
        if self.log_variance is None:
            return self.mean
        shape = (size, self.mean.shape[1])
        noise = torch.randn(shape, generator=generator, device=self.mean.device)[rows]
        return self.mean + noise * (self.log_variance / 2).exp()


def initial_layer(
    relations: int, bases: int, dimension: int, *, zero: bool, generator: torch.Generator
) -> dict[str, Tensor]:
    """Bases (B, 2d, d), zero or Glorot-uniform, and coefficients (2R, B) of about unit length."""
    reach = 0.0 if zero else math.sqrt(6 / (3 * dimension))
    shape = (bases, 2 * dimension, dimension)
    return {
        "bases": (torch.rand(shape, generator=generator) * 2 - 1) * reach,
        "coefficients": torch.randn(2 * relations, bases, generator=generator) / math.sqrt(bases),
    }


def _layer(
    weights: Mapping[str, Tensor], name: str, relation: Tensor, inputs: Tensor, share: Tensor
) -> Tensor:
    """Σ_k share_k W_{r_k} input_k: (n, K) relations, (n, K, 2d) inputs, (n, K) shares to (n, d)."""
    weight = weights[f"{name}.coefficients"][relation] * share.unsqueeze(-1)  # (n, K, B)
    pooled = weight.transpose(1, 2) @ inputs  # (n, B, 2d)
    return pooled.flatten(1) @ weights[f"{name}.bases"].flatten(0, 1)


def _shares(visible: Tensor) -> Tensor:
    """1 / |N_i| for every visible fact, 0 for the others."""
    return visible / visible.sum(1, keepdim=True).clamp(min=1)


def first_layer(
    weights: Mapping[str, Tensor], links: Links, visible: Tensor, *, residual: bool
) -> Tensor:
    r"""The inductive layer: φ_i from the other ends of its visible support facts.

    .. math:: \phi_i = \frac{1}{|N_i|} \sum_{(r, j)} (x_j - h_r) + W_r [x_j \Vert h_r]

    without the first term unless ``residual``.

    Args:
        weights: ``entity`` (E, d), ``relation`` (R, d), ``first.bases``, ``first.coefficients``.
        links: supports of n entities.
        visible: (n, K) bool, those that may be read.
        residual: whether W only corrects where the translations point to.

    Returns:
        (n, d) vectors; the entity's row of the table where nothing is visible.
    """
    other = weights["entity"][links.other]
    relation = relation_vectors(weights["relation"], links.relation)
    share = _shares(visible)
    inputs = torch.cat([other, relation], -1)
    vector = _layer(weights, "first", links.relation, inputs, share)
    if residual:
        vector = vector + (share.unsqueeze(1) @ (other - relation)).squeeze(1)
    return torch.where(visible.any(1, keepdim=True), vector, weights["entity"][links.entity])


def second_layer(
    weights: Mapping[str, Tensor],
    links: Links,
    visible: Tensor,
    vectors: Tensor,
    unseen: Tensor,
    row: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""The transductive layer: what unseen neighbours add, and how sure one can be.

    .. math::
        \mu_i &= \phi_i + \frac{1}{|U_i|} \sum_{(r, j) \in U_i}
                 \gamma (\phi_j - h_r - \phi_i) + W^\mu_r [\phi_j \Vert h_r] \\
        \log \sigma^2_i &= b + \frac{1}{|U_i|} \sum_{(r, j) \in U_i} W^\sigma_r [\phi_j \Vert h_r]

    with :math:`U_i` the links to unseen entities.

    Args:
        weights: ``relation`` (R, d), ``mean.*``, ``variance.*``, ``gate`` and ``bias`` (1,).
        links: supports of n entities.
        visible: (n, K) bool, those that may be read.
        vectors: (n, d) φ of these entities.
        unseen: (N, d) φ of all unseen entities, as candidates.
        row: (E,) row of each entity in ``unseen``; -1 for those that are not new.

    Returns:
        μ and log σ², (n, d) each.
    """
    met = row[links.other]
    share = _shares(visible & (met >= 0))
    other = unseen[met.clamp(min=0)]
    relation = relation_vectors(weights["relation"], links.relation)
    inputs = torch.cat([other, relation], -1)
    points = (share.unsqueeze(1) @ (other - relation)).squeeze(1)
    pull = points - share.sum(1, keepdim=True) * vectors  # nothing where no neighbour is unseen
    correction = _layer(weights, "mean", links.relation, inputs, share)
    spread = _layer(weights, "variance", links.relation, inputs, share)
    return vectors + weights["gate"] * pull + correction, weights["bias"] + spread


def support_vectors(
    weights: Mapping[str, Tensor],
    unseen: Unseen,
    links: Links,
    candidates: Tensor | None = None,
    *,
    residual: bool,
) -> Vectors:
    """The first layer and, where the weights have one, the second.

    Args:
        weights: of both layers.
        unseen: all unseen entities.
        links: the visible supports of n entities.
        candidates: (N, d) φ of all unseen entities; None: ``links`` are those of all.
        residual: as of :func:`first_layer`.
    """
    first = first_layer(weights, links, links.mask, residual=residual)
    candidates = first if candidates is None else candidates
    if "gate" not in weights or not len(candidates):
        return Vectors(first, first, None)
    second = second_layer(weights, links, links.mask, first, candidates, unseen.row)
    return Vectors(first, *second)
