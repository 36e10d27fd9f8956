"""Tables of entities and relations, learned from triples: TransE, and what others make of it.

Learned on the distinct known triples, in both directions, with a softmax cross-entropy over all
entities (or over a sample of them), instead of the authors' margin losses with a few corrupted
triples, which learn far less: a baseline is trained well or it says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.models.base import WHOLE, Loss, Part, Phase, TrainableModel
from metatkgr.models.common.scores import (
    l2_logits,
    mask_query_entity,
    mask_query_logits,
    relation_vectors,
    score_all,
)
from metatkgr.settings import Amount, Count, Rate, Settings

__all__ = [
    "StartSettings",
    "TranslationModel",
    "TranslationStart",
    "TriplePhase",
    "TripleSettings",
    "random_tables",
    "translation_over",
    "translation_start",
]


@dataclass(frozen=True)
class TripleSettings(Settings):
    """Settings of a model of entity and relation vectors."""

    dimension: Count = 128
    """Length of the vectors."""
    epochs: Count = 60
    """Passes over the known triples."""
    batch_size: Count = 512
    """Triples in a batch."""
    learning_rate: Rate = 0.005
    """Of Adam."""
    negatives: Amount = 0
    """Entities in the softmax besides the answer, drawn anew for each batch; 0: all entities."""
    patience: Amount = 4
    """Validations without a better MRR before training stops; 0: train all epochs."""
    validate_every: Count = 5
    """Epochs between validations."""


@dataclass(frozen=True)
class StartSettings(Settings):
    """Settings of a model whose tables are filled by TransE before its own training."""

    dimension: Count = 128
    """d, the length of every vector."""
    translation_epochs: Amount = 40
    """Epochs of TransE."""
    translation_steps: Amount = 5000
    """Steps of that stage, after which the epoch is its last; 0: no bound. A large graph has
    settled after a few epochs, and the vectors of new entities fit their few facts too closely
    after more."""
    translation_rate: Rate = 0.005
    """Learning rate of that stage."""


SettingsT = TypeVar("SettingsT", bound=TripleSettings)


def random_tables(
    entities: int, relations: int, dimension: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """``entity`` (E, d) and ``relation`` (R, d), vectors of length about 1."""
    return {
        name: torch.randn(count, dimension, generator=generator) / math.sqrt(dimension)
        for name, count in (("entity", entities), ("relation", relations))
    }


class TranslationModel(TrainableModel[SettingsT]):
    """-‖h_e + h_r - h_x‖²: a relation moves the query entity to its answer. Time is ignored.

    What is known about an entity is in its row of the table: there is nothing to prepare or adapt.
    Another movement is a subclass with other ``points``; another distance, with other scores.
    """

    entity: nn.Parameter
    """(E, d)."""
    relation: nn.Parameter
    """(R, d)."""
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (1e-3, 2e-2, "log"),
        "batch_size": (256, 512, 1024, 2048),
    }

    phase_name: ClassVar[str] = "triples"
    """What its training is called; the draws of a phase follow from the seed and its name."""

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Small random vectors."""
        self.set_weights(random_tables(entities, relations, self.settings.dimension, generator))

    def phases(self, problem: Problem) -> list[Phase]:
        """One: learn from all known triples."""
        return [TriplePhase(self, problem.known, self.settings, self.phase_name)]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Nothing: what is known is in the vectors."""
        return self

    def adapt(self, supports: Supports) -> Self:
        """Nothing: supports were among the known triples."""
        return self

    def points(self, source: Tensor, relation: Tensor) -> Tensor:
        """(B, d) where the answers of (B,) queries should be; relations are directed."""
        return self.entity[source] + relation_vectors(self.relation, relation)

    def pairs(self, source: Tensor, relation: Tensor, target: Tensor) -> Tensor:
        """(B,) scores of (B,) triples."""
        return -(self.points(source, relation) - self.entity[target]).square().sum(-1)

    def candidates(self, source: Tensor, relation: Tensor, candidate: Tensor | None) -> Tensor:
        """(B, C) scores of the same (C,) candidates for (B,) queries; None: of all entities."""
        rows = self.entity if candidate is None else self.entity[candidate]
        return score_all(self.points(source, relation), rows)

    def logits(self, source: Tensor, relation: Tensor) -> Tensor:
        """(B, E) scores of all entities, up to a constant of each query."""
        return l2_logits(self.points(source, relation), self.entity)

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) negative squared distances; nobody answers with themselves."""
        entity = torch.from_numpy(queries.entity).to(self.device)
        relation = torch.from_numpy(queries.relation).to(self.device)
        return mask_query_entity(self.candidates(entity, relation, None), entity)


def translation_over(
    weights: Mapping[str, nn.Parameter], settings: TripleSettings
) -> TranslationModel[TripleSettings]:
    """A TransE whose tables are those of another model: what one learns, both have."""
    shared: TranslationModel[TripleSettings] = TranslationModel(settings)
    shared.entity, shared.relation = weights["entity"], weights["relation"]
    return shared


class TriplePhase:
    """Learns all weights of a model of triples.

    Args:
        model: whose weights are learned.
        known: the facts; time is ignored, each triple counts once.
        settings: how to learn.
        name: of the phase.
    """

    def __init__(
        self,
        model: TranslationModel[Any],
        known: VisibleFacts,
        settings: TripleSettings,
        name: str,
    ) -> None:
        self.model, self.settings, self.name = model, settings, name
        self.epochs, self.learning_rate = settings.epochs, settings.learning_rate
        self.patience, self.validate_every = settings.patience, settings.validate_every
        columns = np.stack([known.source, known.relation, known.target], axis=1)
        self.triples = torch.from_numpy(np.unique(columns, axis=0))

    def parameters(self) -> list[nn.Parameter]:
        """All weights."""
        return list(self.model.weights.values())

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B, 3) triples in random order."""
        order = torch.randperm(len(self.triples), generator=generator)
        shuffled = self.triples[order].to(self.model.device)
        yield from torch.split(shuffled, self.settings.batch_size)

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy of the true answer."""
        source, relation, target = batch[part.of(len(batch))].unbind(1)
        if self.settings.negatives:
            entities = len(self.model.entity)
            drawn = torch.randint(entities, (self.settings.negatives,), generator=generator)
            drawn = drawn.to(source.device)
            right = self.model.pairs(source, relation, target).unsqueeze(1)
            wrong = self.model.candidates(source, relation, drawn)
            # Each drawn entity stands for many: without this the sample's softmax is too easy.
            wrong = wrong + math.log(entities / len(drawn))
            wrong = wrong.masked_fill(drawn == target.unsqueeze(1), -math.inf)
            scores, answer = torch.cat([right, wrong], dim=1), torch.zeros_like(target)
        else:
            scores = mask_query_logits(self.model.logits(source, relation), source, target)
            answer = target
        # A sum and not a mean, which of no rows would not be a number.
        total = functional.cross_entropy(scores, answer, reduction="sum")
        return Loss(total / max(len(answer), 1), {}, part.share(len(batch)))


class TranslationStart(TriplePhase):
    """TransE as the start of another model: fills its tables, all epochs, never validated.

    Args:
        weights: of the other model; ``entity`` (E, d) and ``relation`` (R, d) are learned.
        known: the facts; time is ignored, each triple counts once.
        settings: how to learn.
        most_steps: the epoch in which so many steps are reached is the last; 0: no bound.
    """

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        known: VisibleFacts,
        settings: TripleSettings,
        most_steps: int = 0,
    ) -> None:
        super().__init__(translation_over(weights, settings), known, settings, "translation")
        if most_steps and len(self.triples):
            of_an_epoch = math.ceil(len(self.triples) / settings.batch_size)
            self.epochs = min(self.epochs, math.ceil(most_steps / of_an_epoch))

    def recipe(self) -> bytes:
        """Everything that its outcome follows from, but for the seed (``training.checkpoint``)."""
        shape = [tuple(weight.shape) for weight in self.parameters()]
        return repr((shape, self.settings)).encode() + self.triples.numpy().tobytes()


def translation_start(
    weights: Mapping[str, nn.Parameter], known: VisibleFacts, settings: StartSettings
) -> list[TranslationStart]:
    """The stage that fills a model's tables before its own training; none, if it wants none."""
    if not settings.translation_epochs:
        return []
    how = TripleSettings(
        dimension=settings.dimension,
        epochs=settings.translation_epochs,
        learning_rate=settings.translation_rate,
        patience=0,
    )
    return [TranslationStart(weights, known, how, settings.translation_steps)]
