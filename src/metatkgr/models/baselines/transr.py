r"""TransR: translations, each in its relation's own projection of the points. Time is ignored.

.. math:: s(e, r, x) = -\lVert h_e M_r + h_r - h_x M_r \rVert^2

The inverse of a relation has the vector negated and the matrix kept. Learned as TransE is
(``common.translation``), and as TransE first: the matrices start as the identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from metatkgr.data.problem import Problem
from metatkgr.models.base import Phase
from metatkgr.models.common.scores import relation_vectors
from metatkgr.models.common.translation import (
    TranslationModel,
    TriplePhase,
    TripleSettings,
    translation_over,
)
from metatkgr.models.registry import register
from metatkgr.settings import Amount, Count, Rate

__all__ = ["TransR", "TransRSettings"]

_BLOCK = 1 << 27
"""How many numbers the candidates projected for some relations may have; bounds memory."""


@dataclass(frozen=True)
class TransRSettings(TripleSettings):
    """Settings of TransR."""

    epochs: Count = 60
    """Passes over the known triples with the projections."""
    batch_size: Count = 1024
    """Triples in a batch."""
    learning_rate: Rate = 0.001
    """Of Adam, with the projections."""
    negatives: Amount = 2048
    """Entities in the softmax besides the answer, drawn anew for each batch; 0: all entities. Each
    is projected for each relation of the batch, so many relations make many entities slow."""
    patience: Amount = 3
    """Validations without a better MRR before a phase ends; 0: train all epochs."""
    validate_every: Count = 4
    """Epochs between validations."""
    translation_epochs: Amount = 40
    """Passes as TransE before, from which its authors start too; 0: none."""
    translation_rate: Rate = 0.005
    """Learning rate of these."""


@register
class TransR(TranslationModel[TransRSettings]):
    """Translations, each in its relation's own projection of the points.

    With p = h_e M_r + h_r, the score is -‖p‖² + 2 (p M_rᵀ)·h_x - ‖h_x M_r‖²: one product with the
    plain table, and one length for each candidate and relation of the batch.
    """

    name = "transr"
    settings_type = TransRSettings
    matrix: nn.Parameter
    """(R, d, d) M."""
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (2e-4, 5e-3, "log"),
        "translation_rate": (1e-3, 2e-2, "log"),
        "batch_size": (512, 1024, 2048),
    }

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Small random vectors; every projection starts as the identity, that is, as TransE."""
        super().build(entities, relations, generator)
        matrix = torch.eye(self.settings.dimension).repeat(relations, 1, 1)
        self.set_weights({"matrix": matrix})

    def phases(self, problem: Problem) -> list[Phase]:
        """As TransE, the projections being the identity; then with the projections."""
        settings = self.settings
        stages = super().phases(problem)
        if settings.translation_epochs:
            how = TripleSettings(
                dimension=settings.dimension,
                epochs=settings.translation_epochs,
                batch_size=settings.batch_size,
                learning_rate=settings.translation_rate,
                patience=settings.patience,
                validate_every=settings.validate_every,
            )
            plain = translation_over(self.weights, how)
            stages.insert(0, TriplePhase(plain, problem.known, how, "translation"))
        return stages

    def pairs(self, source: Tensor, relation: Tensor, target: Tensor) -> Tensor:
        """(B,) negative squared distances."""
        matrix = self.matrix[relation % len(self.matrix)]
        step = (self.entity[source] - self.entity[target]).unsqueeze(1) @ matrix
        return -(step.squeeze(1) + relation_vectors(self.relation, relation)).square().sum(1)

    def candidates(self, source: Tensor, relation: Tensor, candidate: Tensor | None) -> Tensor:
        """(B, C) negative squared distances."""
        rows = self.entity if candidate is None else self.entity[candidate]
        used, row = torch.unique(relation % len(self.matrix), return_inverse=True)
        matrices = self.matrix[used]
        matrix = matrices[row]
        point = (self.entity[source].unsqueeze(1) @ matrix).squeeze(1)
        point = point + relation_vectors(self.relation, relation)
        back = (matrix @ point.unsqueeze(2)).squeeze(2)
        some = max(_BLOCK // max(rows.numel(), 1), 1)
        length = torch.cat(
            [(rows @ block).square().sum(-1) for block in torch.split(matrices, some)]
        )
        return 2 * (back @ rows.T) - length[row] - point.square().sum(1, keepdim=True)

    def logits(self, source: Tensor, relation: Tensor) -> Tensor:
        """(B, E) the scores of all entities."""
        return self.candidates(source, relation, None)
