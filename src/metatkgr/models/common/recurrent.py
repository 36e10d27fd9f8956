"""What models that read a graph step by step share: gates, means, noise, batches of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metatkgr.graph.snapshots import Snapshots

__all__ = ["Noise", "StepBatch", "glorot", "gru_step", "step_batches", "sum_rows"]

_SLOPES = (1 / 8, 1 / 3)
"""RReLU draws the slope of each negative number from this range; its mean where nothing is
learned."""


class Noise:
    """Dropout and random slopes, from a generator of its own; ``None`` draws nothing.

    Args:
        generator: on the CPU; one number is taken from it.
        device: where masks are drawn.
        dropout: share of the numbers that are set to zero.
    """

    def __init__(
        self, generator: torch.Generator | None, device: torch.device | str, dropout: float
    ) -> None:
        self.dropout, self.generator = dropout, None
        if generator is not None:
            seed = int(torch.randint(2**62, (1,), generator=generator))
            self.generator = torch.Generator(device).manual_seed(seed)

    def drop(self, x: Tensor) -> Tensor:
        """Dropout; the numbers that stay are scaled up so that the mean stays too."""
        if self.generator is None or self.dropout == 0:
            return x
        return x * (self._draw(x) >= self.dropout) * (1 / (1 - self.dropout))

    def rrelu(self, x: Tensor) -> Tensor:
        """x where positive, else a·x with a drawn anew for each number."""
        low, high = _SLOPES
        if self.generator is None:
            return torch.nn.functional.leaky_relu(x, (low + high) / 2)
        return torch.where(x >= 0, x, x * (low + (high - low) * self._draw(x)))

    def _draw(self, x: Tensor) -> Tensor:
        return torch.rand(x.shape, generator=self.generator, device=x.device)


def gru_step(inputs: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    r"""One step of a gated recurrent unit whose input part is computed already.

    Not ``nn.GRUCell``, which multiplies the whole input anew for every row and step. Here the parts
    of an input belong to a query, a step or a relation, and are multiplied once for each: a step of
    RE-NET's training takes 1.7 times as long with the cell on a CPU and 2.3 times on an H200.

    .. math:: r, z = \sigma(x_{r,z} + U_{r,z} h + b), \quad
              n = \tanh(x_n + r (U_n h + b_n)), \quad h' = (1 - z) n + z h

    Args:
        inputs: (..., B, 3d) the gates' input parts, in the order r, z, n.
        hidden: (..., B, d) h.
        weight: (..., d, 3d) U.
        bias: (..., 1, 3d) b of the hidden part.

    Returns:
        (..., B, d).
    """
    d = hidden.shape[-1]
    recurrent = hidden @ weight + bias
    if hidden.is_cuda and inputs.dtype == recurrent.dtype == hidden.dtype:
        # The same in one kernel, and one for its gradient, instead of nine and some twenty: what a
        # GPU shared by several trainings runs out of is launches.
        flat = (inputs.reshape(-1, 3 * d), recurrent.reshape(-1, 3 * d), hidden.reshape(-1, d))
        moved: Tensor = torch.ops.aten._thnn_fused_gru_cell(*flat)[0]
        return moved.view_as(hidden)
    reset, update = (inputs[..., : 2 * d] + recurrent[..., : 2 * d]).sigmoid().chunk(2, -1)
    new = torch.tanh(inputs[..., 2 * d :] + reset * recurrent[..., 2 * d :])
    return new + update * (hidden - new)


def sum_rows(rows: int, index: Tensor, values: Tensor) -> Tensor:
    """(rows, ...) sums of the ``values`` (L, ...) that belong to each row, by ``index`` (L,)."""
    return values.new_zeros(rows, *values.shape[1:]).index_add_(0, index, values)


def glorot(generator: torch.Generator, *shape: int) -> Tensor:
    """Normal numbers of variance 2 / (inputs + outputs) of the last two axes."""
    return torch.randn(*shape, generator=generator) * math.sqrt(2 / sum(shape[-2:]))


@dataclass(frozen=True, eq=False)
class StepBatch:
    """Facts of some time steps to be predicted, each step from the snapshots before it."""

    time: Tensor
    """(B,) the steps, on the CPU."""
    step: Tensor
    """(Q,) row of ``time`` that each fact belongs to, non-decreasing, on the CPU."""
    fact: Tensor
    """(Q,) row of the fact, on the device."""


def step_batches(
    snapshots: Snapshots, limit: int, most: int, generator: torch.Generator
) -> Iterator[StepBatch]:
    """All facts once: steps in random order, a large step in several batches.

    Args:
        snapshots: the facts by step.
        limit: facts in a batch, at most.
        most: steps in a batch, at most.
        generator: draws the order.
    """
    start = snapshots.start
    size = start.diff()
    snapshot = torch.repeat_interleave(torch.arange(len(size)), size)
    draw = torch.rand(len(snapshot), generator=generator, dtype=torch.float64)
    fact = torch.argsort(snapshot + draw)
    pieces = (size + limit - 1) // limit
    of = torch.repeat_interleave(torch.arange(len(size)), pieces)
    number = torch.arange(len(of)) - (pieces.cumsum(0) - pieces)[of]
    low = start[of] + size[of] * number // pieces[of]
    high = start[of] + size[of] * (number + 1) // pieces[of]
    order = torch.randperm(len(of), generator=generator)
    for rows in _packed((high - low)[order].numpy(), limit, most):
        chosen = order[rows]
        ranges = zip(low[chosen].tolist(), high[chosen].tolist(), strict=True)
        step = torch.repeat_interleave(torch.arange(len(chosen)), (high - low)[chosen])
        facts = torch.cat([fact[begin:end] for begin, end in ranges])
        yield StepBatch(snapshots.steps[of[chosen]], step, facts.to(snapshots.device))


def _packed(sizes: np.ndarray, limit: int, most: int) -> list[slice]:
    """Consecutive pieces, as many together as stay within ``limit`` facts and ``most`` pieces."""
    groups, begin, used = [], 0, 0
    for end, size in enumerate(sizes.tolist()):
        if end > begin and (used + size > limit or end - begin == most):
            groups.append(slice(begin, end))
            begin, used = end, 0
        used += size
    return [*groups, slice(begin, len(sizes))] if len(sizes) else []
