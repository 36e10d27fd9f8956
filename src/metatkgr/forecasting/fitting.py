"""Weights that make what happened likeliest, and how far off probabilities are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["bins_of", "conditional_logit", "expected_calibration_error", "newton"]

BINS = 10
_RIDGE = 4.0
"""How strongly weights are held to where they start."""
_ROUNDS, _SETTLED = 50, 1e-9
"""Steps of Newton's method, and what the last one still gains."""


def expected_calibration_error(stated: Tensor, correct: Tensor, bins: int = BINS) -> float:
    """Mean gap between stated probability and observed share over equally filled bins.

    Args:
        stated: (N,) probabilities.
        correct: (N,) bool.
        bins: how many.
    """
    gaps = [many * abs(said - seen) for said, seen, many in bins_of(stated, correct, bins)]
    return sum(gaps) / max(len(stated), 1)


def bins_of(stated: Tensor, correct: Tensor, bins: int) -> list[tuple[float, float, float]]:
    """Stated and observed share and size of equally filled bins."""
    return [
        (float(stated[rows].mean()), float(correct[rows].double().mean()), float(len(rows)))
        for rows in torch.tensor_split(torch.argsort(stated, stable=True), bins)
        if len(rows)
    ]


def conditional_logit(
    rows: Tensor, offset: Tensor, group: Tensor, right: Tensor, start: Tensor
) -> Tensor:
    """(F,) weights w under which the right rows are likeliest among their groups.

    By Newton's method on the sum of -log softmax(offset + rows · w), which is convex, and a penalty
    on the way from ``start``.

    Args:
        rows: (N, F).
        offset: (N,).
        group: (N,) ascending.
        right: (N,) what each row counts, where it is the right one; else 0.
        start: (F,).
    """
    group = torch.unique_consecutive(group, return_inverse=True)[1]
    groups = int(group[-1]) + 1
    weight = torch.zeros(groups, dtype=torch.float64).index_add_(0, group, right)

    def loss(scaled: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        logit = offset + scaled @ w
        top = torch.full_like(weight, -torch.inf).scatter_reduce(0, group, logit, "amax")
        part = (logit - top[group]).exp()
        total = torch.zeros_like(weight).index_add_(0, group, part)
        value = (weight * (total.log() + top)).sum() - (right * logit).sum()
        return part / total[group], value

    def derivatives(scaled: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        part = share * weight[group]
        mean = torch.zeros(groups, scaled.shape[1], dtype=torch.float64)
        mean.index_add_(0, group, scaled * share.unsqueeze(1))
        curve = scaled.T @ (scaled * part.unsqueeze(1)) - mean.T @ (mean * weight.unsqueeze(1))
        return scaled.T @ (part - right), curve

    return newton(rows, start, loss, derivatives, ridge=_RIDGE, settled=_SETTLED * len(weight))


def newton(
    rows: Tensor,
    start: Tensor,
    loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    derivatives: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    *,
    ridge: float,
    settled: float,
) -> Tensor:
    """(F,) weights at which a convex loss of rows · w is least, held to where they start.

    By Newton's method with halved steps, on the loss and a penalty on the way from ``start``.

    Args:
        rows: (N, F).
        start: (F,) where to begin.
        loss: of scaled rows and weights, what the derivatives need of them, and the loss.
        derivatives: of scaled rows and what they need, the slope (F,) and the curve (F, F).
        ridge: how strongly weights are held to where they start.
        settled: a step that gains less is the last.
    """
    # Rows of about the same size: the penalty means the same for all.
    size = rows.std(0, correction=0).clamp(min=0.1)
    rows, start = rows / size, start * size
    ridges = ridge * torch.eye(len(start), dtype=torch.float64)

    def penalised(w: Tensor) -> tuple[Tensor, Tensor]:
        state, value = loss(rows, w)
        return state, value + 0.5 * ridge * (w - start).square().sum()

    chosen = start
    state, least = penalised(chosen)
    for _ in range(_ROUNDS):
        slope, curve = derivatives(rows, state)
        whole: Tensor = torch.linalg.solve(curve + ridges, slope + ridge * (chosen - start))
        step = 1.0
        while True:
            tried, tried_loss = penalised(chosen - step * whole)
            if float(tried_loss) <= float(least) or step < 1e-6:
                break
            step /= 2
        gained = float(least - tried_loss)
        chosen, state, least = chosen - step * whole, tried, tried_loss
        if gained < settled:
            break
    return chosen / size
