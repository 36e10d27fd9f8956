r"""TransE, TransR and RotatE: a relation moves the entity to its answer. Time is ignored.

.. math::
    \text{TransE: } & -\lVert h_e + h_r - h_x \rVert^2 \\
    \text{TransR: } & -\lVert h_e M_r + h_r - h_x M_r \rVert^2 \\
    \text{RotatE: } & -\lVert h_e \circ e^{i \theta_r} - h_x \rVert^2, \quad h \in \mathbb{C}^{d/2}

Squared distances, which rank as the plain ones do and make the scores of all candidates one matrix
product. The inverse of a relation is the same movement backwards: the vector or the angle negated,
the matrix kept. ``translation_training`` says how they are learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import SettingsError
from metatkgr.models.base import register
from metatkgr.models.baselines.translation_training import (
    Interaction,
    Translation,
    TranslationPhase,
    TripleLearning,
    TripleSettings,
)
from metatkgr.models.trainable import Phase, TrainableModel
from metatkgr.models.translation import closeness, never_itself, relation_vectors, score_all
from metatkgr.settings import Amount, Count, Rate

__all__ = [
    "RotatE",
    "RotatESettings",
    "Rotation",
    "TransE",
    "TransESettings",
    "TransR",
    "TransRSettings",
    "TranslationPhase",
]

_BLOCK = 1 << 27
"""How many numbers the candidates projected for some relations may have; bounds memory."""


@dataclass(frozen=True)
class TransESettings(TripleSettings):
    """Settings of TransE."""


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


@dataclass(frozen=True)
class RotatESettings(TripleSettings):
    """Settings of RotatE."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimension % 2:
            raise SettingsError(
                f"dimension must be even, a complex number takes two, not {self.dimension}"
            )


class ProjectedTranslation(Interaction):
    """-‖h_e M_r + h_r - h_x M_r‖²; tables ``entity``, ``relation`` and ``matrix`` (R, d, d).

    With p = h_e M_r + h_r, the score is -‖p‖² + 2 (p M_rᵀ)·h_x - ‖h_x M_r‖²: one product with the
    plain table, and one length for each candidate and relation of the batch.
    """

    def pairs(self, source: Tensor, relation: Tensor, target: Tensor) -> Tensor:
        """(B,) negative squared distances."""
        matrix = self._matrix[relation % len(self._matrix)]
        step = (self.rows(source) - self.rows(target)).unsqueeze(1) @ matrix
        vector = relation_vectors(self.weights["relation"], relation)
        return -(step.squeeze(1) + vector).square().sum(1)

    def candidates(self, source: Tensor, relation: Tensor, candidate: Tensor | None) -> Tensor:
        """(B, C) negative squared distances."""
        rows = self.rows(candidate)
        used, place = torch.unique(relation % len(self._matrix), return_inverse=True)
        matrices = self._matrix[used]
        matrix = matrices[place]
        point = (self.rows(source).unsqueeze(1) @ matrix).squeeze(1)
        point = point + relation_vectors(self.weights["relation"], relation)
        back = (matrix @ point.unsqueeze(2)).squeeze(2)
        some = max(_BLOCK // max(rows.numel(), 1), 1)
        length = torch.cat(
            [(rows @ block).square().sum(-1) for block in torch.split(matrices, some)]
        )
        return 2 * (back @ rows.T) - length[place] - point.square().sum(1, keepdim=True)

    @property
    def _matrix(self) -> Tensor:
        return self.weights["matrix"]


class Rotation(Interaction):
    """-‖h_e ∘ exp(iθ_r) - h_x‖²; tables ``entity`` (E, d) and ``angle`` (R, d/2).

    A row of ``entity`` holds the d/2 real parts and then the d/2 imaginary parts.
    """

    def points(self, source: Tensor, relation: Tensor) -> Tensor:
        """(B, d) where the answers should be."""
        angle = relation_vectors(self.weights["angle"], relation)
        cosine, sine = angle.cos(), angle.sin()
        real, imaginary = self.rows(source).chunk(2, -1)
        return torch.cat([real * cosine - imaginary * sine, real * sine + imaginary * cosine], -1)

    def pairs(self, source: Tensor, relation: Tensor, target: Tensor) -> Tensor:
        """(B,) negative squared distances."""
        return -(self.points(source, relation) - self.rows(target)).square().sum(-1)

    def candidates(self, source: Tensor, relation: Tensor, candidate: Tensor | None) -> Tensor:
        """(B, C) negative squared distances, one matrix product."""
        return score_all(self.points(source, relation), self.rows(candidate))

    def logits(self, source: Tensor, relation: Tensor) -> Tensor:
        """(B, E) the same without the part of the question alone."""
        return closeness(self.points(source, relation), self.rows(None))


SettingsT = TypeVar("SettingsT", bound=TripleSettings)


class EmbeddingModel(TrainableModel[SettingsT]):
    """What is known about an entity is in its vector: one phase, nothing to prepare or adapt."""

    interaction: ClassVar[type[Interaction]]
    """The score."""
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (1e-3, 2e-2, "log"),
        "batch_size": (256, 512, 1024, 2048),
    }

    def phases(self, problem: Problem) -> list[Phase]:
        """One: learn from all known triples."""
        score = self.interaction(self.weights)
        return [TripleLearning(self.weights, score, problem.known, self.settings)]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Nothing: what is known is in the vectors."""
        return self

    def adapt(self, supports: Supports) -> Self:
        """Nothing: supports were among the known triples."""
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) negative squared distances; nobody answers with themselves."""
        who = torch.from_numpy(queries.entity).to(self.device)
        asked = torch.from_numpy(queries.relation).to(self.device)
        return never_itself(self.interaction(self.weights).candidates(who, asked, None), who)

    def _random(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, d) vectors of length about 1."""
        d = self.settings.dimension
        return torch.randn(count, d, generator=generator) / math.sqrt(d)


@register
class TransE(EmbeddingModel[TransESettings]):
    """Entities as points, relations as translations between them."""

    name = "transe"
    settings_type = TransESettings
    interaction = Translation

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Small random vectors."""
        entity = self._random(entities, generator)
        self.set_weights({"entity": entity, "relation": self._random(relations, generator)})

    def phases(self, problem: Problem) -> list[Phase]:
        """One: learn from all known triples."""
        tables = self.weights["entity"], self.weights["relation"]
        return [TranslationPhase(*tables, problem.known, self.settings)]


@register
class TransR(EmbeddingModel[TransRSettings]):
    """Translations, each in its relation's own projection of the points."""

    name = "transr"
    settings_type = TransRSettings
    interaction = ProjectedTranslation
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (2e-4, 5e-3, "log"),
        "translation_rate": (1e-3, 2e-2, "log"),
        "batch_size": (512, 1024, 2048),
    }

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Small random vectors; every projection starts as the identity, that is, as TransE."""
        entity = self._random(entities, generator)
        matrix = torch.eye(self.settings.dimension).repeat(relations, 1, 1)
        relation = self._random(relations, generator)
        self.set_weights({"entity": entity, "relation": relation, "matrix": matrix})

    def phases(self, problem: Problem) -> list[Phase]:
        """As TransE, the projections being the identity; then with the projections."""
        settings = self.settings
        stages = super().phases(problem)
        if settings.translation_epochs:
            plain = TransESettings(
                dimension=settings.dimension,
                epochs=settings.translation_epochs,
                batch_size=settings.batch_size,
                learning_rate=settings.translation_rate,
                patience=settings.patience,
                validate_every=settings.validate_every,
            )
            tables = self.weights["entity"], self.weights["relation"]
            stages.insert(0, TranslationPhase(*tables, problem.known, plain))
        return stages


@register
class RotatE(EmbeddingModel[RotatESettings]):
    """Entities as complex vectors, relations as rotations of each of their numbers."""

    name = "rotate"
    translations = ""
    settings_type = RotatESettings
    interaction = Rotation

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Small random vectors, angles from the whole circle."""
        entity = self._random(entities, generator)
        share = torch.rand(relations, self.settings.dimension // 2, generator=generator)
        self.set_weights({"entity": entity, "angle": (2 * share - 1) * math.pi})
