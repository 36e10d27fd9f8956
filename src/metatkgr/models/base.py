"""The one interface of all models: ``prepare(visible)``, ``adapt(supports)``, ``score(queries)``.

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
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import UnknownNameError
from metatkgr.models.common.listed import Scores
from metatkgr.settings import NoSettings, parse_settings

__all__ = [
    "Explains",
    "Explanation",
    "Link",
    "Model",
    "available",
    "create",
    "register",
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


_REGISTRY: dict[str, type[Model[Any]]] = {}

ModelT = TypeVar("ModelT", bound=type[Model[Any]])


def register(model: ModelT) -> ModelT:
    """Class decorator: make a model known under its ``name``."""
    known = _REGISTRY.get(model.name)
    if known is not None and known.__qualname__ != model.__qualname__:
        raise ValueError(f"two models are called {model.name!r}")
    _REGISTRY[model.name] = model
    return model


def available() -> dict[str, type[Model[Any]]]:
    """All registered models by name."""
    return dict(sorted(_REGISTRY.items()))


def create(
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    preset: str = "default",
    device: torch.device | str = "cpu",
) -> Model[Any]:
    """A model by name.

    Args:
        name: of the model.
        settings: by name; they win over the preset's. Values may be text, as from a command line.
        preset: a named set of settings of this model.
        device: where the model computes.
    """
    if name not in _REGISTRY:
        raise UnknownNameError("model", name, _REGISTRY)
    model = _REGISTRY[name]
    if preset not in model.presets:
        raise UnknownNameError(f"preset of {name}", preset, model.presets)
    chosen = {**model.presets[preset], **(settings or {})}
    return model(parse_settings(model.settings_type, chosen), device=device)
