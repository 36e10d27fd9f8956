r"""RotatE: entities as complex vectors, relations as rotations of each number. Time is ignored.

.. math:: s(e, r, x) = -\lVert h_e \circ e^{i \theta_r} - h_x \rVert^2, \quad h \in \mathbb{C}^{d/2}

The inverse of a relation turns backwards: the angle negated. Learned as TransE is
(``common.translation``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metatkgr.errors import SettingsError
from metatkgr.models.common.scores import relation_vectors
from metatkgr.models.common.translation import TranslationModel, TripleSettings
from metatkgr.models.registry import register

__all__ = ["RotatE", "RotatESettings"]


@dataclass(frozen=True)
class RotatESettings(TripleSettings):
    """Settings of RotatE."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimension % 2:
            raise SettingsError(
                f"dimension must be even, a complex number takes two, not {self.dimension}"
            )


@register
class RotatE(TranslationModel[RotatESettings]):
    """Entities as complex vectors, relations as rotations of each of their numbers.

    A row of ``entity`` holds the d/2 real parts and then the d/2 imaginary parts.
    """

    name = "rotate"
    translations = ""
    settings_type = RotatESettings
    angle: nn.Parameter
    """(R, d/2) θ."""

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Small random vectors, angles from the whole circle."""
        d = self.settings.dimension
        entity = torch.randn(entities, d, generator=generator) / math.sqrt(d)
        share = torch.rand(relations, d // 2, generator=generator)
        self.set_weights({"entity": entity, "angle": (2 * share - 1) * math.pi})

    def points(self, source: Tensor, relation: Tensor) -> Tensor:
        """(B, d) where the answers of (B,) queries should be."""
        angle = relation_vectors(self.angle, relation)
        cosine, sine = angle.cos(), angle.sin()
        real, imaginary = self.entity[source].chunk(2, -1)
        return torch.cat([real * cosine - imaginary * sine, real * sine + imaginary * cosine], -1)
