"""How TransE, TransR and RotatE are learned: one phase, and the settings they share.

Learned on the distinct known triples, in both directions, with a softmax cross-entropy over all
entities (or over a sample of them), instead of the authors' margin losses with a few corrupted
triples, which learn far less: a baseline is trained well or it says nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.visibility import VisibleFacts
from metatkgr.models.trainable import WHOLE, Loss, Part
from metatkgr.models.translation import (
    closeness,
    relation_vectors,
    rivals,
    score_all,
    translation_score,
)
from metatkgr.settings import Amount, Count, Rate, Settings

__all__ = [
    "Interaction",
    "StartSettings",
    "Translation",
    "TranslationPhase",
    "TranslationStart",
    "TripleSettings",
    "distinct_triples",
    "random_tables",
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


class Interaction(ABC):
    """A score s(e, r, x) of triples, higher is likelier.

    Args:
        weights: the tables by name; ``entity`` (E, d) is one of them.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = weights

    @abstractmethod
    def pairs(self, source: Tensor, relation: Tensor, target: Tensor) -> Tensor:
        """(B,) scores of (B,) triples; relations are directed."""

    @abstractmethod
    def candidates(self, source: Tensor, relation: Tensor, candidate: Tensor | None) -> Tensor:
        """(B, C) scores of the same C candidates for (B,) questions; None: all entities."""

    def logits(self, source: Tensor, relation: Tensor) -> Tensor:
        """(B, E) scores of all entities, up to a constant of each question; to be overwritten."""
        return self.candidates(source, relation, None)

    def rows(self, candidate: Tensor | None) -> Tensor:
        """(C, d) entity vectors of the candidates."""
        entity = self.weights["entity"]
        return entity if candidate is None else entity[candidate]


class Translation(Interaction):
    """-‖h_e + h_r - h_x‖², with the tables ``entity`` (E, d) and ``relation`` (R, d)."""

    def points(self, source: Tensor, relation: Tensor) -> Tensor:
        """(B, d) where the answers should be."""
        return self.weights["entity"][source] + relation_vectors(self.weights["relation"], relation)

    def pairs(self, source: Tensor, relation: Tensor, target: Tensor) -> Tensor:
        """(B,) negative squared distances."""
        vector = relation_vectors(self.weights["relation"], relation)
        return translation_score(self.weights["entity"][source], vector, self.rows(target))

    def candidates(self, source: Tensor, relation: Tensor, candidate: Tensor | None) -> Tensor:
        """(B, C) negative squared distances, one matrix product."""
        return score_all(self.points(source, relation), self.rows(candidate))

    def logits(self, source: Tensor, relation: Tensor) -> Tensor:
        """(B, E) the same without the part of the question alone."""
        return closeness(self.points(source, relation), self.rows(None))


def distinct_triples(known: VisibleFacts) -> Tensor:
    """(N, 3) source, directed relation, target; each once, whenever it happened."""
    columns = np.stack([known.source, known.relation, known.target], axis=1)
    return torch.from_numpy(np.unique(columns, axis=0))


class TripleLearning:
    """Learns the tables of an interaction from triples.

    Args:
        weights: to be learned, all of them.
        interaction: made of these weights.
        known: the facts; time is ignored, each triple counts once.
        settings: how to learn.
    """

    name = "triples"

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        interaction: Interaction,
        known: VisibleFacts,
        settings: TripleSettings,
    ) -> None:
        self.weights, self.interaction, self.settings = weights, interaction, settings
        self.epochs, self.learning_rate = settings.epochs, settings.learning_rate
        self.patience, self.validate_every = settings.patience, settings.validate_every
        self.triples = distinct_triples(known)

    def parameters(self) -> list[nn.Parameter]:
        """All tables, by name: a resumed training must find them in the same order."""
        return [self.weights[name] for name in sorted(self.weights)]

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B, 3) triples in random order."""
        order = torch.randperm(len(self.triples), generator=generator)
        shuffled = self.triples[order].to(self.weights["entity"].device)
        yield from torch.split(shuffled, self.settings.batch_size)

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy of the true answer."""
        source, relation, target = batch[part.of(len(batch))].unbind(1)
        if self.settings.negatives:
            entities = len(self.weights["entity"])
            drawn = torch.randint(entities, (self.settings.negatives,), generator=generator)
            drawn = drawn.to(source.device)
            right = self.interaction.pairs(source, relation, target).unsqueeze(1)
            wrong = self.interaction.candidates(source, relation, drawn)
            # Each drawn entity stands for many: without this the sample's softmax is too easy.
            wrong = wrong + math.log(entities / len(drawn))
            wrong = wrong.masked_fill(drawn == target.unsqueeze(1), -math.inf)
            scores, answer = torch.cat([right, wrong], dim=1), torch.zeros_like(target)
        else:
            scores = rivals(self.interaction.logits(source, relation), source, target)
            answer = target
        # A sum and not a mean, which of no rows would not be a number.
        total = functional.cross_entropy(scores, answer, reduction="sum")
        return Loss(total / max(len(answer), 1), {}, part.share(len(batch)))


class TranslationPhase(TripleLearning):
    """TransE's learning; also the first stage of MetaTKGR.

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
        settings: TripleSettings,
    ) -> None:
        weights = {"entity": entity, "relation": relation}
        super().__init__(weights, Translation(weights), known, settings)


class TranslationStart(TranslationPhase):
    """The same as the start of other models: all epochs, never validated.

    Args:
        entity, relation, known, settings: as of :class:`TranslationPhase`.
        most_steps: the epoch in which so many steps are reached is the last; 0: no bound.
    """

    def __init__(
        self,
        entity: nn.Parameter,
        relation: nn.Parameter,
        known: VisibleFacts,
        settings: TripleSettings,
        most_steps: int = 0,
    ) -> None:
        super().__init__(entity, relation, known, settings)
        if most_steps and len(self.triples):
            of_an_epoch = math.ceil(len(self.triples) / settings.batch_size)
            self.epochs = min(self.epochs, math.ceil(most_steps / of_an_epoch))

    def recipe(self) -> bytes:
        """Everything that its outcome follows from, but for the seed (``training.stages``)."""
        shape = [tuple(weight.shape) for weight in self.weights.values()]
        return repr((shape, self.settings)).encode() + self.triples.numpy().tobytes()


class StartSettings(Protocol):
    """What a model says about the TransE that it starts from."""

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        ...

    @property
    def translation_epochs(self) -> int:
        """Passes over the triples; 0: no such stage."""
        ...

    @property
    def translation_steps(self) -> int:
        """Steps after which the epoch is the last; 0: no bound."""
        ...

    @property
    def translation_rate(self) -> float:
        """Learning rate."""
        ...


def random_tables(
    entities: int, relations: int, dimension: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """``entity`` (E, d) and ``relation`` (R, d), vectors of length about 1."""
    return {
        name: torch.randn(count, dimension, generator=generator) / math.sqrt(dimension)
        for name, count in (("entity", entities), ("relation", relations))
    }


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
    tables = weights["entity"], weights["relation"]
    return [TranslationStart(*tables, known, how, settings.translation_steps)]
