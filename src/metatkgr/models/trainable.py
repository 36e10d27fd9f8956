"""Models with weights: what the training loop asks of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from metatkgr.data.problem import Problem
from metatkgr.models.base import Model

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

    @abstractmethod
    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Make new weights for a vocabulary of E entities and R relations."""

    @abstractmethod
    def phases(self, problem: Problem) -> list[Phase]:
        """The stages of a training, in order."""

    def state(self) -> dict[str, Tensor]:
        """Everything that has to be saved, by name."""
        return {name: value.detach() for name, value in self.weights.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take weights that were saved; the model need not be built before."""
        self.weights = {
            name: nn.Parameter(value.to(self.device, copy=True)) for name, value in state.items()
        }
