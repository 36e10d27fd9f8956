r"""TransE: a relation is a translation. Time is ignored.

.. math:: s(e, r, x) = -\lVert h_e + h_r - h_x \rVert^2, \qquad h_{r + R} = -h_r

Learned on the distinct known triples, in both directions, with a softmax cross-entropy over all
entities (or over a sample of them), instead of the authors' margin loss with one corrupted triple,
which learns far less: a baseline is trained well or it says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.models.base import register
from metatkgr.models.trainable import WHOLE, Loss, Part, Phase, TrainableModel
from metatkgr.models.translation import relation_vectors, score_all

__all__ = ["TransE", "TransESettings", "TranslationPhase"]


@dataclass(frozen=True)
class TransESettings:
    """Settings of TransE."""

    dimension: int = 128
    """Length of the vectors."""
    epochs: int = 60
    """Passes over the known triples."""
    batch_size: int = 512
    """Triples in a batch."""
    learning_rate: float = 0.005
    """Of Adam."""
    negatives: int = 0
    """Entities in the softmax besides the answer, drawn anew for each batch; 0: all entities."""
    patience: int = 4
    """Validations without a better MRR before training stops; 0: train all epochs."""
    validate_every: int = 5
    """Epochs between validations."""

    def __post_init__(self) -> None:
        for name in ("dimension", "epochs", "batch_size", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.negatives < 0 or self.patience < 0:
            raise ValueError("negatives and patience must not be negative")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate}")


class TranslationPhase:
    """Learns entity and relation vectors from triples; also the first stage of MetaTKGR.

    Args:
        entity: (E, d) to be learned.
        relation: (R, d) to be learned.
        known: the facts; time is ignored, each triple counts once.
        settings: how to learn.
    """

    name = "translation"

    def __init__(
        self,
        entity: nn.Parameter,
        relation: nn.Parameter,
        known: VisibleFacts,
        settings: TransESettings,
    ) -> None:
        self.entity, self.relation, self.settings = entity, relation, settings
        self.epochs, self.learning_rate = settings.epochs, settings.learning_rate
        self.patience, self.validate_every = settings.patience, settings.validate_every
        triples = np.unique(np.stack([known.source, known.relation, known.target], axis=1), axis=0)
        self.triples = torch.from_numpy(triples)

    def parameters(self) -> list[nn.Parameter]:
        """Both tables."""
        return [self.entity, self.relation]

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B, 3) triples in random order."""
        order = torch.randperm(len(self.triples), generator=generator)
        shuffled = self.triples[order].to(self.entity.device)
        yield from torch.split(shuffled, self.settings.batch_size)

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy of the true answer."""
        source, relation, target = batch[part.of(len(batch))].unbind(1)
        points = self.entity[source] + relation_vectors(self.relation, relation)
        if self.settings.negatives:
            drawn = torch.randint(
                len(self.entity), (self.settings.negatives,), generator=generator
            ).to(points.device)
            right = -(points - self.entity[target]).square().sum(1, keepdim=True)
            wrong = score_all(points, self.entity[drawn])
            wrong = wrong.masked_fill(drawn == target.unsqueeze(1), -math.inf)
            scores = torch.cat([right, wrong], dim=1)
            answer = torch.zeros_like(target)
        else:
            scores, answer = score_all(points, self.entity), target
        # A sum and not a mean, which of no rows would not be a number.
        total = functional.cross_entropy(scores, answer, reduction="sum")
        return Loss(total / max(len(answer), 1), {}, part.share(len(batch)))


@register
class TransE(TrainableModel[TransESettings]):
    """Entities as points, relations as translations between them."""

    name = "transe"
    settings_type = TransESettings

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Small random vectors."""
        self.load_state(
            {
                name: torch.randn(count, self.settings.dimension, generator=generator)
                / math.sqrt(self.settings.dimension)
                for name, count in (("entity", entities), ("relation", relations))
            }
        )

    def phases(self, problem: Problem) -> list[Phase]:
        """One: learn from all known triples."""
        entity, relation = self.weights["entity"], self.weights["relation"]
        return [TranslationPhase(entity, relation, problem.known, self.settings)]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Nothing: what is known is in the vectors."""
        return self

    def adapt(self, supports: Supports) -> Self:
        """Nothing: supports were among the known triples."""
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) negative squared distances."""
        entity, relation = self.weights["entity"], self.weights["relation"]
        asked = torch.from_numpy(queries.relation).to(self.device)
        who = torch.from_numpy(queries.entity).to(self.device)
        return score_all(entity[who] + relation_vectors(relation, asked), entity)
