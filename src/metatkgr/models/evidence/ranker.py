r"""The ranker: re-ranks candidates by their features, with a small ensemble.

.. math:: s_m(x) = z_x \cdot (w_m + \Delta_r) + v_m \cdot \tanh(W_m z_x + b_m), \qquad
    s(x) = \frac{1}{M} \sum_m s_m(x) + \lambda \log p_x

z are the features, brought to mean 0 and deviation 1; w are weights that all relations share, Δ_r
what is particular to one; p_x is x's share of PageRank, M the ensemble size, each member with
weights of its own, and λ the weight of the prior. The second part lets one feature change the
meaning of another: a slot filled in the past means something else for an entity that has left it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metatkgr.models.evidence.features import FEATURES
from metatkgr.models.evidence.settings import EvidenceSettings

__all__ = ["COUNTED", "MOST_AGE", "REPEAT_BOOST", "Ranker", "initial_weights", "repeat_scores"]

REPEAT_BOOST = 1_000_000
"""More than any learned logit."""
MOST_AGE = REPEAT_BOOST // 2
"""Steps after which one repeat is as old as another."""
COUNTED = ("mean", "deviation")
"""Weights that are counted, not learned."""
_START = {"link": 3.0, "contact": 0.5, "far_slot": 0.5, "slot_season": 0.3}
"""Where learning starts, by feature: about the order of the rules."""


def initial_weights(
    settings: EvidenceSettings, relations: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Weights that order as the rules do, more or less, by the names of a ranker's parameters.

    Args:
        settings: whose ``members`` and ``hidden`` count.
        relations: number of directed relations.
        generator: draws the hidden part.
    """
    count, members = len(FEATURES), settings.members
    shared = torch.zeros(members, count)
    for name, weight in _START.items():
        shared[:, FEATURES.index(name)] = weight
    weights = {
        "mean": torch.zeros(count),
        "deviation": torch.ones(count),
        "shared": shared,
        "relation": torch.zeros(relations, count),
    }
    if settings.hidden:
        size = (members, count, settings.hidden)
        weights["inner"] = torch.randn(size, generator=generator) / count**0.5
        weights["bias"] = torch.zeros(members, settings.hidden)
        weights["outer"] = torch.zeros(members, settings.hidden)
    return weights


class Ranker(nn.Module):
    """The weights of the formula above.

    Args:
        weights: as :func:`initial_weights` makes them; none, for one that is loaded later.
    """

    mean: Tensor
    """(F,) of each feature among training candidates."""
    deviation: Tensor
    """(F,) the same."""
    shared: Tensor
    """(M, F) w."""
    relation: Tensor
    """(2R, F) Δ."""
    inner: Tensor
    """(M, F, hidden) W; there is no hidden part without it."""
    bias: Tensor
    """(M, hidden) b."""
    outer: Tensor
    """(M, hidden) v."""

    def __init__(self, weights: dict[str, Tensor] | None = None) -> None:
        super().__init__()
        for name, value in (weights or {}).items():
            if name in COUNTED:
                self.register_buffer(name, value)
            else:
                self.register_parameter(name, nn.Parameter(value))

    @property
    def hidden(self) -> bool:
        """Whether there is a hidden part."""
        return "outer" in self._parameters

    def standardised(self, features: Tensor) -> Tensor:
        """(..., F) features with mean 0 and deviation 1."""
        return (features - self.mean) / self.deviation

    @torch.no_grad()
    def set_scale(self, mean: Tensor, deviation: Tensor) -> None:
        """Take the (F,) mean and deviation of features; what never varies keeps its size."""
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(deviation > 1e-4, deviation.clamp(min=0.05), 1.0))

    def member_logits(self, features: Tensor, relation: Tensor) -> Tensor:
        """What each member of the ensemble makes of the candidates.

        Args:
            features: (N, F).
            relation: (N,) directed, of each candidate's query.

        Returns:
            (M, N) logits.
        """
        z = self.standardised(features)
        particular = (z * self.relation[relation]).sum(-1)
        logits = (z @ self.shared.T).T + particular
        if self.hidden:
            parts = zip(self.inner, self.bias, self.outer, strict=True)
            hidden = [torch.tanh(z @ inner + bias) @ outer for inner, bias, outer in parts]
            logits = logits + torch.stack(hidden)
        return logits

    def forward(self, features: Tensor, relation: Tensor, prior: float = 0.0) -> Tensor:
        """(N,) logits: the mean of the members and ``prior`` times log PageRank."""
        known = prior * features[..., FEATURES.index("far_slot")]
        return self.member_logits(features, relation).mean(0) + known

    def penalty(self, settings: EvidenceSettings) -> Tensor:
        """What keeps a relation's own weights near the shared ones, and the others small."""
        total = settings.shrinkage * self.relation.square().sum()
        if self.hidden:
            for weight in (self.inner, self.bias, self.outer):
                total = total + settings.decay * weight.square().sum()
        return total


def repeat_scores(link: Tensor, time: Tensor, share: Tensor) -> Tensor:
    """Scores above every logit, for those that were linked to e by r before, the latest first.

    Of several that were linked last at the same step, PageRank decides: the weights know nothing
    of repeats, as they are learned from novel answers.

    Args:
        link: (L,) last step of such a link.
        time: (L,) of the queries.
        share: (L,) of PageRank, 0..1.

    Returns:
        (L,) float64: neither steps nor shares are rounded away.
    """
    age = (time - link).clamp(0, MOST_AGE)
    return REPEAT_BOOST - age + share.clamp(max=0.9).double()
