r"""How evidence is weighed.

.. math:: s_m(x) = z_x \cdot (w_m + \Delta_r) + v_m \cdot \tanh(W_m z_x + b_m), \qquad
    s(x) = \frac{1}{M} \sum_m s_m(x) + \lambda \log p_x

z are the features, brought to mean 0 and deviation 1; w are weights that all relations share, Δ_r
what is particular to one; p_x is x's share of PageRank, M the number of members, each with weights
of its own, and λ the weight of the prior. The second part lets one kind of evidence change the
meaning of another: a place in the past means something else for an entity that has left it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from metatkgr.models.evidence.features import FEATURES
from metatkgr.models.evidence.settings import EvidenceSettings

__all__ = [
    "LIFT",
    "MOST_AGE",
    "combine",
    "contributions",
    "initial_weights",
    "learned",
    "lifted",
    "opinions",
    "penalty",
]

LIFT = 1_000_000
"""More than any learned score."""
MOST_AGE = LIFT // 2
"""Steps after which one repeat is as old as another."""
_PRIOR = {"link": 3.0, "contact": 0.5, "far_place": 0.5, "place_season": 0.3}
"""Where learning starts, by feature: about the order of the rules."""


def initial_weights(
    settings: EvidenceSettings, relations: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Weights that order as the rules do, more or less.

    Args:
        settings: whose ``hidden`` counts.
        relations: number of directed relations.
        generator: draws the hidden part.
    """
    count = len(FEATURES)
    members = settings.members
    shared = torch.zeros(members, count)
    for name, weight in _PRIOR.items():
        shared[:, FEATURES.index(name)] = weight
    weights = {
        "evidence.mean": torch.zeros(count),
        "evidence.deviation": torch.ones(count),
        "evidence.shared": shared,
        "evidence.relation": torch.zeros(relations, count),
        "evidence.transfer": torch.zeros(relations, relations),
    }
    if settings.hidden:
        size = (members, count, settings.hidden)
        weights["evidence.inner"] = torch.randn(size, generator=generator) / count**0.5
        weights["evidence.bias"] = torch.zeros(members, settings.hidden)
        weights["evidence.outer"] = torch.zeros(members, settings.hidden)
    return weights


def learned(weights: Mapping[str, Tensor]) -> list[str]:
    """Names of the weights that questions teach; the others are counted."""
    names = ("shared", "relation", "inner", "bias", "outer")
    return [f"evidence.{name}" for name in names if f"evidence.{name}" in weights]


def standardised(weights: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """(..., F) features with mean 0 and deviation 1."""
    return (features - weights["evidence.mean"]) / weights["evidence.deviation"]


def opinions(weights: Mapping[str, Tensor], features: Tensor, relation: Tensor) -> Tensor:
    """What each member makes of the candidates.

    Args:
        weights: as :func:`initial_weights` makes them.
        features: (Q, C, F).
        relation: (Q,) directed.

    Returns:
        (M, Q, C) scores.
    """
    z = standardised(weights, features)
    particular = (z @ weights["evidence.relation"][relation].unsqueeze(-1)).squeeze(-1)
    scores = torch.movedim(z @ weights["evidence.shared"].T, -1, 0) + particular
    if "evidence.outer" in weights:
        parts = zip(
            *(weights[f"evidence.{name}"] for name in ("inner", "bias", "outer")), strict=True
        )
        hidden = [torch.tanh(z @ inner + bias) @ outer for inner, bias, outer in parts]
        scores = scores + torch.stack(hidden)
    return scores


def combine(
    weights: Mapping[str, Tensor], features: Tensor, relation: Tensor, prior: float = 0.0
) -> Tensor:
    """Scores of candidates, (Q, C): the mean of the members and ``prior`` times log PageRank."""
    known = prior * features[..., FEATURES.index("far_place")]
    return opinions(weights, features, relation).mean(0) + known


def lifted(scores: Tensor, link: Tensor, time: Tensor, share: Tensor) -> Tensor:
    """Scores with those on top that were linked to e by r before, the latest first.

    Of several that were linked last at the same step, PageRank decides: the weights know nothing
    of repeats, as they are learned from novel answers.

    Args:
        scores: (Q, E).
        link: (Q, E) last step of such a link, -1: never.
        time: (Q,) asked.
        share: (Q, E) of PageRank, 0..1.

    Returns:
        (Q, E) float64: neither steps nor shares are rounded away.
    """
    age = (time.unsqueeze(1) - link).clamp(0, MOST_AGE)
    return torch.where(link >= 0, LIFT - age + share.clamp(max=0.9).double(), scores.double())


def contributions(
    weights: Mapping[str, Tensor], features: Tensor, relation: Tensor, prior: float = 0.0
) -> Tensor:
    """(Q, C, F) what each kind of evidence adds to a score.

    The linear part exactly, the hidden part by its gradient times the feature.
    """
    with torch.enable_grad():
        z = standardised(weights, features).detach().requires_grad_(True)
        raw = z * weights["evidence.deviation"] + weights["evidence.mean"]
        total = combine(weights, raw, relation).sum()
        (slope,) = torch.autograd.grad(total, z)
    found = (slope * z).detach()
    place = FEATURES.index("far_place")
    found[..., place] += prior * features[..., place]
    return found


def penalty(weights: Mapping[str, Tensor], settings: EvidenceSettings) -> Tensor:
    """What keeps a relation's own weights near the shared ones, and the others small."""
    total = settings.shrinkage * weights["evidence.relation"].square().sum()
    if "evidence.outer" in weights:
        for name in ("inner", "bias", "outer"):
            total = total + settings.decay * weights[f"evidence.{name}"].square().sum()
    return total
