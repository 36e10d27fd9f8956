"""What the two models that read snapshots one after another share: gates, means, noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Noise", "glorot", "gru_step", "sum_rows"]

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
        """x where positive, a·x elsewhere with a drawn anew for each number."""
        low, high = _SLOPES
        if self.generator is None:
            return torch.nn.functional.leaky_relu(x, (low + high) / 2)
        return torch.where(x >= 0, x, x * (low + (high - low) * self._draw(x)))

    def _draw(self, x: Tensor) -> Tensor:
        return torch.rand(x.shape, generator=self.generator, device=x.device)


def gru_step(inputs: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    r"""One step of a gated recurrent unit whose input part is computed already.

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
