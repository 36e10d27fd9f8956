"""Models with weights: what the training loop asks of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from metatkgr.data.problem import Problem
from metatkgr.data.visibility import Supports
from metatkgr.models.base import Model
from metatkgr.models.translation import newcomer_rows

__all__ = ["WHOLE", "Loss", "Part", "Phase", "TrainableModel"]

SettingsT = TypeVar("SettingsT")


@dataclass(frozen=True)
class Part:
    """Which rows of a batch a process computes, when several share a training."""

    number: int = 0
    count: int = 1

    def of(self, size: int) -> slice:
        """This part of ``size`` rows: every ``count``-th, starting with the ``number``-th."""
        return slice(self.number, size, self.count)

    def share(self, size: int) -> float:
        """The share of ``size`` rows that is in this part; the shares of all parts add up to 1."""
        return len(range(self.number, size, self.count)) / size


WHOLE = Part()
"""All of a batch."""


@dataclass(frozen=True)
class Loss:
    """The loss of one batch, or of a part of it: a mean over its rows."""

    value: Tensor
    """What is differentiated."""
    logged: dict[str, float | Tensor]
    """Other numbers worth a line in the trace; averaged over the epoch."""
    share: float = 1.0
    """The share of the batch's rows that this is the mean of."""


class Phase(Protocol):
    """One stage of a training: batches, a loss, an optimiser's settings."""

    name: str
    epochs: int
    learning_rate: float
    patience: int
    """Validations without a better MRR before the phase ends early; 0: never validate."""
    validate_every: int
    """Epochs between validations."""

    def parameters(self) -> list[nn.Parameter]:
        """What this phase learns."""
        ...

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        """The batches of one epoch."""
        ...

    def loss(self, batch: Any, generator: torch.Generator, part: Part) -> Loss:
        """The loss of a part of a batch; what is drawn must not depend on the part."""
        ...


class TrainableModel(Model[SettingsT]):
    """A model whose weights are learned.

    ``build`` makes the weights for a vocabulary, ``phases`` says how to learn them. After training
    (or loading), ``prepare``, ``adapt`` and ``score`` work as for any model.
    """

    weights: dict[str, nn.Parameter]
    entity_weights: ClassVar[Mapping[str, int]] = {"entity": 0}
    """Weights with a place for each entity, and along which axis; those that a model does not have
    are ignored."""
    translations: ClassVar[str] = "relation"
    """The weight by whose rows relations translate the rows of ``entity``; '': there is none."""

    @abstractmethod
    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Make new weights for a vocabulary of E entities and R relations."""

    @abstractmethod
    def phases(self, problem: Problem) -> list[Phase]:
        """The stages of a training, in order."""

    @torch.no_grad()
    def extend(self, entities: int, *, known: int, supports: Supports) -> None:
        """Give entities that came after training rows in the tables; then call ``prepare``.

        A row is where the entity's first facts would have it be (``translation.newcomer_rows``);
        rows of earlier calls are made anew, so that they follow from ``supports`` alone. A model
        without such tables needs nothing.

        Args:
            entities: how many there are now.
            known: how many there were in training.
            supports: the first facts of the new ones.
        """
        for name, axis in self.entity_weights.items():
            weight = self.weights.get(name)
            if weight is None or weight.shape[axis] == known == entities:
                continue
            trained = weight.detach().narrow(axis, 0, known).movedim(axis, 0)
            # Only the plain table shares a space with the relations' translations.
            relation = self.weights.get(self.translations) if name == "entity" else None
            rows = newcomer_rows(trained, relation, supports, entities)
            table = torch.cat([trained, rows]).movedim(0, axis)
            self.weights[name] = nn.Parameter(table.contiguous())

    def state(self) -> dict[str, Tensor]:
        """Everything that has to be saved, by name."""
        return {name: value.detach() for name, value in self.weights.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take weights that were saved; the model need not be built before.

        Always in the order of their names: an optimiser knows its weights by number, and a resumed
        training must find the same ones under the same numbers.
        """
        self.weights = {
            name: nn.Parameter(state[name].to(self.device, copy=True)) for name in sorted(state)
        }
