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
    # Rows of about the same size: the penalty means the same for all.
    size = rows.std(0, correction=0).clamp(min=0.1)
    rows, chosen, start = rows / size, start * size, start * size

    def shares(w: Tensor) -> tuple[Tensor, Tensor]:
        logit = offset + rows @ w
        top = torch.full_like(weight, -torch.inf).scatter_reduce(0, group, logit, "amax")
        part = (logit - top[group]).exp()
        total = torch.zeros_like(weight).index_add_(0, group, part)
        penalty = 0.5 * _RIDGE * (w - start).square().sum()
        loss = (weight * (total.log() + top)).sum() - (right * logit).sum() + penalty
        return part / total[group], loss

    def move(w: Tensor, share: Tensor) -> Tensor:
        part = share * weight[group]
        slope = rows.T @ (part - right) + _RIDGE * (w - start)
        mean = torch.zeros(groups, rows.shape[1], dtype=torch.float64)
        mean.index_add_(0, group, rows * share.unsqueeze(1))
        curve = rows.T @ (rows * part.unsqueeze(1)) - mean.T @ (mean * weight.unsqueeze(1))
        curve = curve + _RIDGE * torch.eye(len(start), dtype=torch.float64)
        whole: Tensor = torch.linalg.solve(curve, slope)
        return whole

    return newton(chosen, shares, move, _SETTLED * len(weight)) / size


def newton(
    chosen: Tensor,
    parts: Callable[[Tensor], tuple[Tensor, Tensor]],
    move: Callable[[Tensor, Tensor], Tensor],
    least: float,
) -> Tensor:
    """The weights at which a convex loss is least, by Newton's method with halved steps.

    Args:
        chosen: (F,) where to begin.
        parts: of weights, what the next step needs of them, and their loss.
        move: of weights and what they need, the whole step that is taken off.
        least: a step that gains less is the last.
    """
    state, loss = parts(chosen)
    for _ in range(_ROUNDS):
        whole, step = move(chosen, state), 1.0
        while True:
            tried, tried_loss = parts(chosen - step * whole)
            if float(tried_loss) <= float(loss) or step < 1e-6:
                break
            step /= 2
        gained = float(loss - tried_loss)
        chosen, state, loss = chosen - step * whole, tried, tried_loss
        if gained < least:
            break
    return chosen
