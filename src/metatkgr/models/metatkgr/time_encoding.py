"""Time as a vector: random Fourier features of the age of a fact.

    Φ(Δt) = sqrt(1/d) cos(Δt ω + b),   ω, b ∈ R^d learnable

The factor keeps ‖Φ‖ at 1 or less (about 0.7), the length of an embedding, whatever d is: in the
attention no part drowns the others by its size alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["encode_time", "initial_frequency", "initial_phase"]

_LONGEST = 1e4
"""The slowest frequency turns once in 2π times so many steps: longer than any graph we read."""


def encode_time(age: Tensor, frequency: Tensor, phase: Tensor) -> Tensor:
    """Φ(Δt) of every age.

    Args:
        age: (..., A) Δt in steps; negative for own support facts after the question.
        frequency: (d,) ω, in radians per step; or (T, d), different for T tasks, with (T, A) ages.
        phase: (d,) or (T, d) b, in radians.

    Returns:
        (..., A, d) features.
    """
    scale = math.sqrt(1 / frequency.shape[-1])
    angle = age.unsqueeze(-1) * frequency.unsqueeze(-2) + phase.unsqueeze(-2)
    return torch.cos(angle) * scale


def initial_frequency(dimension: int) -> Tensor:
    """(d,) frequencies in geometric steps from 1 to 1e-4 radians per step.

    The period 2π/ω then runs from 6 steps to 60,000 with the same number of features per factor of
    ten, so that days and decades are told apart before the frequencies have learnt anything.
    """
    return torch.logspace(0, -math.log10(_LONGEST), dimension)


def initial_phase(dimension: int, generator: torch.Generator) -> Tensor:
    """(d,) phases, uniform on the circle, so that no age is special to all features at once."""
    return torch.rand(dimension, generator=generator) * (2 * math.pi)
