r"""TransE: entities as points, relations as translations between them. Time is ignored.

.. math:: s(e, r, x) = -\lVert h_e + h_r - h_x \rVert^2

The squared distance, which ranks as the plain one does and makes the scores of all candidates one
matrix product. The inverse of a relation is the same movement backwards: the vector negated.
``common.translation`` says how the tables are learned; many other models start from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from metatkgr.models.common.translation import TranslationModel, TripleSettings
from metatkgr.models.registry import register

__all__ = ["TransE", "TransESettings"]


@dataclass(frozen=True)
class TransESettings(TripleSettings):
    """Settings of TransE."""


@register
class TransE(TranslationModel[TransESettings]):
    """Entities as points, relations as translations between them."""

    name = "transe"
    settings_type = TransESettings
    phase_name = "translation"
