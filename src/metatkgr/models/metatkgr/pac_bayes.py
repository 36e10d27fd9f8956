"""The temporal adaptation regulariser: how far one interval's parameters may move from the last.

With a prior p around φ^(m), frozen when the interval begins, and a posterior q around the current
φ, both Gaussian with variance σ² in every direction,

    KL(q ‖ p) = ‖φ - φ^(m)‖² / 2σ²
    bound = empirical loss + sqrt((KL + log(|D| / δ)) / (2|D| - 1))

bounds the loss expected on the interval with probability 1 - δ. The proof takes losses to lie
between 0 and 1; for a larger loss the same number is a regulariser and no longer a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from metatkgr.models.metatkgr.settings import MetaTKGRSettings

__all__ = [
    "adaptation_regulariser",
    "bound",
    "complexity",
    "freeze",
    "gaussian_kl",
    "outer_loss",
]


def freeze(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of the parameters that later steps do not move: the centre of the prior."""
    return {key: value.detach().clone() for key, value in parameters.items()}


def gaussian_kl(
    parameters: Mapping[str, Tensor], prior: Mapping[str, Tensor], sigma: float
) -> Tensor:
    """KL divergence between Gaussians of equal variance σ² around two sets of parameters.

    Args:
        parameters: φ, by name.
        prior: φ^(m), the same names and shapes; no gradient reaches it.
        sigma: σ, above 0.

    Returns:
        A number, Σ‖φ - φ^(m)‖² / 2σ² over all tensors.
    """
    if not sigma > 0:
        raise ValueError(f"sigma is {sigma}; give a number above 0")
    if parameters.keys() != prior.keys():
        differ = sorted(parameters.keys() ^ prior.keys())
        raise ValueError(f"parameters and prior have different names: {differ}")
    if not parameters:
        raise ValueError("no parameters are given")
    squares = [(value - prior[key].detach()).square().sum() for key, value in parameters.items()]
    return torch.stack(squares).sum() / (2 * sigma**2)


def complexity(kl: Tensor, count: int, delta: float) -> Tensor:
    """sqrt((KL + log(|D|/δ)) / (2|D| - 1)).

    As |D| >= 1 > δ, the root is taken of a positive number and has a finite slope at KL = 0.

    Args:
        kl: KL(q ‖ p), 0 or more.
        count: |D|, the number of queries in the interval.
        delta: δ, the chance that the bound does not hold, between 0 and 1.
    """
    if count < 1:
        raise ValueError(f"an interval with {count} queries has no bound; skip it")
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}; give a number between 0 and 1")
    return torch.sqrt((kl + math.log(count / delta)) / (2 * count - 1))


def adaptation_regulariser(empirical_loss: Tensor, kl: Tensor, count: int, delta: float) -> Tensor:
    """What the outer step minimises on an interval: the empirical loss and its complexity term."""
    return empirical_loss + complexity(kl, count, delta)


def bound(empirical_loss: Tensor | float, kl: Tensor | float, count: int, delta: float) -> float:
    """The value of the bound, for the log; a user compares it with the next interval's loss."""
    with torch.no_grad():
        loss, divergence = (torch.as_tensor(x, dtype=torch.float64) for x in (empirical_loss, kl))
        return float(adaptation_regulariser(loss, divergence, count, delta))


def outer_loss(
    empirical: Tensor,
    parameters: Mapping[str, Tensor],
    prior: Mapping[str, Tensor],
    count: int,
    settings: MetaTKGRSettings,
) -> tuple[Tensor, dict[str, float | Tensor]]:
    """What an outer step minimises, regularised unless it is an ablation; and what to log of it.

    Args:
        empirical: the loss of the adapted parameters on queries of an interval.
        parameters: φ, by name.
        prior: φ^(m).
        count: |D|.
        settings: of the model: σ, δ and the variant.
    """
    kl = gaussian_kl(parameters, prior, settings.sigma)
    value = empirical
    if settings.variant == "full":
        value = adaptation_regulariser(empirical, kl, count, settings.delta)
    logged: dict[str, float | Tensor] = {
        "empirical": empirical.detach(),
        "kl": kl.detach(),
        "bound": bound(empirical.detach(), kl.detach(), count, settings.delta),
    }
    return value, logged
