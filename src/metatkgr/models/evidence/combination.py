r"""How evidence is weighed.

.. math:: s(x) = z_x \cdot (w + \Delta_r) + v \cdot \tanh(W z_x + b)

z are the features, brought to mean 0 and deviation 1; w are weights that all relations share, Δ_r
what is particular to one. The second part lets one kind of evidence change the meaning of another:
a place in the past means something else for an entity that has left it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from metatkgr.models.evidence.reader import FEATURES
from metatkgr.models.evidence.settings import EvidenceSettings

__all__ = ["combine", "contributions", "initial_weights", "learned", "lifted", "penalty"]

_LIFT, _LIFT_PER_AGE = 1e4, 1e2
"""More than any learned score; an age is a logarithm, so no link sinks below what is no link."""
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
    shared = torch.zeros(count)
    for name, weight in _PRIOR.items():
        shared[FEATURES.index(name)] = weight
    weights = {
        "evidence.mean": torch.zeros(count),
        "evidence.deviation": torch.ones(count),
        "evidence.shared": shared,
        "evidence.relation": torch.zeros(relations, count),
        "evidence.transfer": torch.zeros(relations, relations),
    }
    if settings.hidden:
        size = (count, settings.hidden)
        weights["evidence.inner"] = torch.randn(size, generator=generator) / count**0.5
        weights["evidence.bias"] = torch.zeros(settings.hidden)
        weights["evidence.outer"] = torch.zeros(settings.hidden)
    return weights


def learned(weights: Mapping[str, Tensor]) -> list[str]:
    """Names of the weights that questions teach; the others are counted."""
    names = ("shared", "relation", "inner", "bias", "outer")
    return [f"evidence.{name}" for name in names if f"evidence.{name}" in weights]


def standardised(weights: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """(..., F) features with mean 0 and deviation 1."""
    return (features - weights["evidence.mean"]) / weights["evidence.deviation"]


def combine(weights: Mapping[str, Tensor], features: Tensor, relation: Tensor) -> Tensor:
    """Scores of candidates.

    Args:
        weights: as :func:`initial_weights` makes them.
        features: (Q, C, F).
        relation: (Q,) directed.

    Returns:
        (Q, C) scores.
    """
    z = standardised(weights, features)
    own = weights["evidence.shared"] + weights["evidence.relation"][relation]  # (Q, F)
    scores = (z @ own.unsqueeze(-1)).squeeze(-1)
    if "evidence.outer" in weights:
        hidden = torch.tanh(z @ weights["evidence.inner"] + weights["evidence.bias"])
        scores = scores + hidden @ weights["evidence.outer"]
    return scores


def lifted(scores: Tensor, features: Tensor) -> Tensor:
    """Scores (Q, C) with those candidates on top that were linked to e by r, the latest first."""
    linked = features[..., FEATURES.index("link")]
    age = features[..., FEATURES.index("link_age")]
    return scores + linked * (_LIFT - _LIFT_PER_AGE * age)


def contributions(weights: Mapping[str, Tensor], features: Tensor, relation: Tensor) -> Tensor:
    """(Q, C, F) what each kind of evidence adds to a score.

    The linear part exactly, the hidden part by its gradient times the feature.
    """
    with torch.enable_grad():
        z = standardised(weights, features).detach().requires_grad_(True)
        raw = z * weights["evidence.deviation"] + weights["evidence.mean"]
        total = combine(weights, raw, relation).sum()
        (slope,) = torch.autograd.grad(total, z)
    return (slope * z).detach()


def penalty(weights: Mapping[str, Tensor], settings: EvidenceSettings) -> Tensor:
    """What keeps a relation's own weights near the shared ones, and the hidden part small."""
    total = settings.shrinkage * weights["evidence.relation"].square().sum()
    if "evidence.outer" in weights:
        total = total + 1e-3 * weights["evidence.outer"].square().sum()
        total = total + 1e-4 * weights["evidence.inner"].square().sum()
    return total
