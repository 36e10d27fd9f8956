"""The one interface of all models: ``prepare(visible)``, ``adapt(supports)``, ``score(queries)``.

A model with weights is a ``torch.nn.Module`` besides: a :class:`TrainableModel`.

A model is one file that registers itself::

    @register
    class MyModel(Model[MySettings]):
        name = "mymodel"
        settings_type = MySettings

and is then found by ``create("mymodel", {"key": value})``, by the command line, and by the contract
tests, which run over everything registered.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import SettingsError
from metatkgr.models.common.listed import Scores
from metatkgr.models.common.scores import new_entity_rows
from metatkgr.settings import NoSettings

__all__ = [
    "WHOLE",
    "Explains",
    "Explanation",
    "Link",
    "Loss",
    "Model",
    "ModelPhase",
    "Part",
    "Phase",
    "ShareOut",
    "TrainableModel",
    "dropout_generator",
    "dropout_seed",
]


SettingsT = TypeVar("SettingsT")


class Model(ABC, Generic[SettingsT]):
    """A forecaster of the next facts of new entities.

    The life of a model: the constructor stores settings; ``prepare`` is given the public facts;
    ``adapt`` is given the first K facts of each new entity; ``score`` answers queries about those
    entities. A score may use, for a query at time t, only what ``data.visibility`` allows.
    """

    name: ClassVar[str]
    """What the model is called on the command line and in tables."""
    settings_type: ClassVar[type[Any]] = NoSettings
    """A frozen dataclass of the model's settings."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}
    """Named sets of settings; 'default' changes nothing."""
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """What a search may vary, by the name of the setting: ``(low, high, "log")`` or ``(low, high,
    "linear")`` is a range, any other tuple lists the choices. Empty: nothing is worth a search."""
    live: ClassVar[bool] = False
    """Whether the model reads only what is near a query. ``score`` then gives ``ListedScores``;
    ``prepare`` and ``adapt`` are so quick that a live forecaster calls them for each query,
    adapting to the query entity alone. Other models are prepared when a fact has arrived, and
    adapted to all new entities at once."""
    needs_law: ClassVar[bool] = False
    """Whether the model can only be used on a simulated graph, whose law is known."""

    def __init__(
        self, settings: SettingsT | None = None, *, device: torch.device | str = "cpu"
    ) -> None:
        self.settings: SettingsT = self.settings_type() if settings is None else settings
        self._device = torch.device(device)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self._device

    @abstractmethod
    def prepare(self, visible: VisibleFacts) -> Self:
        """Take in the public facts (index them, train on them); returns self."""

    @abstractmethod
    def adapt(self, supports: Supports) -> Self:
        """Take in the first facts of the new entities; replaces earlier supports; returns self."""

    @abstractmethod
    def score(self, queries: Queries) -> Scores:
        """Score every entity as the answer to every query.

        Returns:
            (Q, E) tensor on ``self.device``, higher is likelier, finite; any real dtype. Or
            :class:`ListedScores`, which say the same of all entities without a table of them.
        """


class Link(NamedTuple):
    """A visible fact, read from one end."""

    source: int
    relation: int
    """Directed, 0..2R-1."""
    target: int
    time: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Something visible that speaks for a candidate, or against it, in ids."""

    kind: str
    """'repeat', 'contact', 'path', 'frequency', 'fact', 'vectors', …: what to call it."""
    weight: float
    """The share of the candidate's chance that would be lost without it, 0..1: of its probability,
    or of 1 / rank where a model gives an order alone. Below 0: it speaks against the candidate, and
    takes this share of the chance that there would be without it."""
    links: tuple[Link, ...]
    """The facts, the most telling first; of very many, some."""
    count: int
    """How many there are in all (of walks: how many others took them)."""
    entities: tuple[int, ...] = ()
    """Whom else it speaks of, where it is not made of facts."""
    at_least: bool = False
    """Whether the count is a lower bound: of a hub's links only the latest were looked at."""


class Explains(ABC):
    """A model that can say what its scores rest on; optional."""

    @abstractmethod
    def reasons(self, queries: Queries, candidate: Tensor) -> list[list[Explanation]]:
        """What speaks for each candidate, the weightiest first, then what speaks against it.

        Only what is visible to its query.

        Args:
            queries: Q of them.
            candidate: (Q,) one entity id for each.
        """


@dataclasses.dataclass(frozen=True)
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
ShareOut = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""What a function makes of pieces of work, in their order: ``map``, or the same on a cluster."""


@dataclasses.dataclass(frozen=True)
class Loss:
    """The loss of one batch, or of a part of it: a mean over its rows."""

    value: Tensor
    """What is differentiated."""
    logged: dict[str, float | Tensor]
    """Other numbers worth a line in the trace; averaged over the epoch."""
    share: float = 1.0
    """The share of the batch's rows that this is the mean of."""


def dropout_seed(generator: torch.Generator) -> int:
    """The seed of a batch's dropout, drawn on the CPU."""
    return int(torch.randint(2**62, (1,), generator=generator))


def dropout_generator(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator on ``device`` whose draws follow from the state of ``generator`` on the CPU."""
    return torch.Generator(device).manual_seed(dropout_seed(generator))


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


ModelT = TypeVar("ModelT", bound="TrainableModel[Any]")


class ModelPhase(Generic[ModelT]):
    """A phase that learns the weights of a model as its settings say; batches and loss are open.

    Args:
        model: whose settings have ``epochs``, ``learning_rate``, ``patience``, ``validate_every``.
    """

    name: str

    def __init__(self, model: ModelT) -> None:
        self.model, settings = model, model.settings
        self.epochs: int = settings.epochs
        self.learning_rate: float = settings.learning_rate
        self.patience: int = settings.patience
        self.validate_every: int = settings.validate_every

    def learns(self, name: str) -> bool:
        """Whether a weight is learned in this phase; all are, unless a phase says otherwise."""
        return True

    def parameters(self) -> list[nn.Parameter]:
        """What is learned, in the order of the names."""
        return [w for name, w in self.model.weights.items() if self.learns(name)]

    def weights(self) -> dict[str, Tensor]:
        """All weights; those that are not learned need no gradient, least of all tables."""
        own = self.model.weights.items()
        return {name: w if self.learns(name) else w.detach() for name, w in own}


class TrainableModel(nn.Module, Model[SettingsT]):
    """A model whose weights are learned: a ``torch.nn.Module``.

    ``build`` makes the weights for a vocabulary, ``phases`` says how to learn them. After training
    (or ``load_state_dict``), ``prepare``, ``adapt`` and ``score`` work as for any model; after
    ``to``, what they have made lies where it was, so call them again.
    """

    counted: ClassVar[frozenset[str]] = frozenset()
    """Names of weights that are counted and not learned; they are buffers, not parameters."""
    entity_weights: ClassVar[Mapping[str, int]] = {"entity": 0}
    """Weights with a slice for each entity, and along which axis; those that a model does not have
    are ignored."""
    shares_out: ClassVar[bool] = False
    """Whether a part of its training can be shared out, by ``share_out``."""
    share_out: ShareOut = map
    translations: ClassVar[str] = "relation"
    """The weight by whose rows relations translate the rows of ``entity``; '': there is none."""

    def __init__(
        self, settings: SettingsT | None = None, *, device: torch.device | str = "cpu"
    ) -> None:
        nn.Module.__init__(self)
        Model.__init__(self, settings, device=device)

    @property
    def device(self) -> torch.device:
        """Where the weights are; before there are any, where they will be."""
        first = next(self.parameters(), None)
        return self._device if first is None else first.device

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """The parameters by name, in the order of the names.

        Always in that order: an optimiser knows its weights by number, and a resumed training must
        find the same ones under the same numbers.
        """
        return dict(sorted(self.named_parameters()))

    def columns(self, queries: Queries) -> tuple[Tensor, Tensor, Tensor]:
        """(Q,) entities, directed relations and times of queries, on the device of the weights."""
        return queries.columns(self.device)

    def forward(self, queries: Queries) -> Scores:
        """See ``score``."""
        return self.score(queries)

    @abstractmethod
    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Make new weights for a vocabulary of E entities and R relations: ``set_weights``."""

    @property
    def pretrained(self) -> bool:
        """Whether there are weights that were learned on other graphs: see ``load_pretrained``."""
        return False

    def load_pretrained(self, facts: Facts) -> None:
        """Take weights that were learned on other graphs than ``facts``.

        With them the model can be used without a training, and a training starts from them.
        """
        raise SettingsError(f"{self.name} has to be trained: there are no weights of other graphs")

    @abstractmethod
    def phases(self, problem: Problem) -> list[Phase]:
        """The stages of a training, in order."""

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Make copies of these tensors the weights; others of the same names are forgotten.

        Args:
            weights: by name, as in ``state_dict``: of ``encoder.gate``, ``gate`` is a parameter of
                the part ``encoder``, which is made if there is none.
        """
        for name, value in weights.items():
            *path, last = name.split(".")
            module: nn.Module = self
            for part in path:
                if part not in dict(module.named_children()):
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            own = value.detach().to(self.device, copy=True)
            if name in self.counted:
                module.register_buffer(last, own)
            else:
                module.register_parameter(last, nn.Parameter(own))

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As of any module; but one that is not built yet takes whatever it is given."""
        if not self.state_dict():
            self.set_weights(state_dict)
        self.zero_grad()  # gradients of other weights mean nothing, and take as much memory
        return super().load_state_dict(state_dict, strict, assign)

    @torch.no_grad()
    def extend(self, entities: int, *, known: int, supports: Supports) -> None:
        """Give entities that came after training rows in the tables; then call ``prepare``.

        A row is where the entity's first facts would have it be (``scores.new_entity_rows``);
        rows of earlier calls are made anew, so that they follow from ``supports`` alone. A model
        without such tables needs nothing.

        Args:
            entities: how many there are now.
            known: how many there were in training.
            supports: the first facts of the new ones.
        """
        weights = self.weights
        for name, axis in self.entity_weights.items():
            weight = weights.get(name)
            if weight is None or weight.shape[axis] == known == entities:
                continue
            trained = weight.detach().narrow(axis, 0, known).movedim(axis, 0)
            # Only the plain table shares a space with the relations' translations.
            relation = weights.get(self.translations) if name == "entity" else None
            rows = new_entity_rows(trained, relation, supports, entities)
            table = torch.cat([trained, rows]).movedim(0, axis)
            self.set_weights({name: table.contiguous()})
