"""The two losses that teach the answer's score to stand above those of wrong answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from metatkgr.errors import SettingsError

__all__ = ["LossSettings", "ranking_loss"]

LOSSES = ("hinge", "softmax")
REDUCTIONS = ("sum", "mean")


@dataclass(frozen=True)
class LossSettings:
    """What training minimises."""

    loss: str = "softmax"
    """'hinge': Σ over negatives of max(γ - s⁺ + s⁻, 0), as printed. 'softmax': cross-entropy of the
    answer among itself and the negatives, by far the stronger teacher."""
    margin: float = 1.0
    """γ of the hinge, above 0."""
    reduction: str = "mean"
    """'sum': over all facts and negatives, as printed. 'mean': over facts, and for the hinge over
    negatives too, so that a step does not grow with the number of either."""

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise SettingsError(f"loss is {self.loss!r}; give one of {LOSSES}")
        if not self.margin > 0:
            raise SettingsError(f"margin is {self.margin}; give a number above 0")
        if self.reduction not in REDUCTIONS:
            raise SettingsError(f"reduction is {self.reduction!r}; give one of {REDUCTIONS}")


def ranking_loss(
    positive: Tensor,
    negative: Tensor,
    mask: Tensor,
    negative_mask: Tensor,
    settings: LossSettings,
) -> Tensor:
    """The loss of F facts with n negatives each.

    Args:
        positive: (..., F) s⁺.
        negative: (..., F, n) s⁻.
        mask: (..., F) bool, the facts that count.
        negative_mask: (..., F, n) bool, the negatives that count.
        settings: which loss.

    Returns:
        (...) summed or averaged over the facts; zero where none counts.
    """
    if settings.loss == "hinge":
        violation = torch.relu(settings.margin - positive.unsqueeze(-1) + negative)
        each = (violation * negative_mask).sum(-1)
        if settings.reduction == "mean":
            each = each / negative_mask.sum(-1).clamp(min=1)
    else:
        lowest = torch.finfo(negative.dtype).min / 2
        rivals = negative.masked_fill(~negative_mask, lowest)
        every = torch.cat([positive.unsqueeze(-1), rivals], -1)
        each = torch.logsumexp(every, -1) - positive
    total = (each * mask).sum(-1)
    return total / mask.sum(-1).clamp(min=1) if settings.reduction == "mean" else total
