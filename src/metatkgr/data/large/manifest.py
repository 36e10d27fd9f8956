"""``dataset.json``: what a folder of facts holds, and in which of its files.

It is written last and replaced as a whole, so it is what decides: a file may be longer than it says
(an append was interrupted) and files may lie about that it does not name. A folder as ``ingest``
makes it is of version 1, whose files themselves say how long they are; one that has grown is of
version 2.

Files that an append adds or replaces have its number behind their name: ``subject-3.safetensors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metatkgr.data.calendar import Calendar
from metatkgr.errors import DataError
from metatkgr.files import read_json, write_json

__all__ = [
    "ABOUT",
    "COLUMNS",
    "INDEX",
    "IndexFiles",
    "Layer",
    "Manifest",
    "Names",
    "layers_to_keep",
    "numbered",
]

ABOUT = "dataset.json"
COLUMNS = ("subject", "relation", "object", "time")
INDEX = "index.safetensors"
_FORMAT, _PLAIN, _GROWN = "metatkgr facts", 1, 2
_AGAIN = "make it again with 'metatkgr data ingest'"
_MUCH = 4
"""A layer is kept as it is while what came later is less than one in so many of it."""


def numbered(name: str, number: int) -> str:
    """The name of a file with the number of its append; 0: as ``ingest`` wrote it."""
    stem, dot, ending = name.partition(".")
    return f"{stem}-{number}{dot}{ending}" if number else name


@dataclass(frozen=True)
class Layer:
    """A file of something that is kept in several, oldest first."""

    number: int
    """Of the append that wrote it."""
    size: int
    """Names, or facts whose links it holds."""


def layers_to_keep(layers: Sequence[Layer], size: int) -> int:
    """How many of the layers stay when ``size`` things are added; the others become one with them.

    Each layer is then at least four times the next: there are few (the logarithm of the whole), and
    a thing is written anew about as many times.
    """
    keep = len(layers)
    while keep and layers[keep - 1].size < _MUCH * size:
        keep -= 1
        size += layers[keep].size
    return keep


@dataclass(frozen=True)
class Names:
    """A vocabulary."""

    count: int
    lookups: tuple[Layer, ...]
    """Where ids are looked up by name."""


@dataclass(frozen=True)
class IndexFiles:
    """An index of links: of the first facts the base, of those that came later layers."""

    base: Layer
    layers: tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """The content of ``dataset.json``."""

    name: str
    facts: int
    steps: int
    calendar: Calendar
    entities: Names | None = None
    """None: as many as the files hold (version 1)."""
    relations: Names | None = None
    columns: int = 0
    """The number of the files of the columns."""
    index: IndexFiles | None = None
    """None: there is none; in version 1, ``index.safetensors`` where there is such a file."""
    appends: int = 0
    """How many there were."""

    @property
    def grown(self) -> bool:
        """Whether it is of version 2."""
        return self.entities is not None

    def with_names(self, kind: str, names: Names) -> Manifest:
        """The same with another vocabulary of ``entities`` or ``relations``."""
        if kind == "entities":
            return replace(self, entities=names)
        return replace(self, relations=names)

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read ``dataset.json``.

        Raises:
            DataError: it is something else, or damaged.
        """
        path = folder / ABOUT
        try:
            about = read_json(path)
        except DataError as error:
            raise DataError(f"cannot read what {folder} holds: {error}; {_AGAIN}") from error
        try:
            if about["format"] != _FORMAT:
                raise DataError(f"{folder} is no folder of facts; {_AGAIN}")
            if about["version"] not in (_PLAIN, _GROWN):
                told = str(about["version"])[:80]
                raise DataError(
                    f"{folder} is of version {told}, this program reads versions {_PLAIN} and "
                    f"{_GROWN}; {_AGAIN}"
                )
            plain = cls(
                str(about["name"]),
                _count(about["facts"]),
                _count(about["steps"]),
                Calendar(str(about["unit"]), int(about["origin"]), int(about["stride"])),
            )
            return plain if about["version"] == _PLAIN else _with_growth(plain, about)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise DataError(f"{path} is damaged ({str(error)[:200]}); {_AGAIN}") from error

    def save(self, folder: Path) -> None:
        """Write ``dataset.json``; it is the old one or this one, whatever happens."""
        about: dict[str, Any] = {
            "format": _FORMAT,
            "version": _GROWN if self.grown else _PLAIN,
            "name": self.name,
            "facts": self.facts,
            "steps": self.steps,
            "unit": self.calendar.unit,
            "origin": self.calendar.origin,
            "stride": self.calendar.stride,
        }
        if self.entities is not None and self.relations is not None:
            about |= {
                "entities": _names_json(self.entities),
                "relations": _names_json(self.relations),
                "columns": self.columns,
                "index": None if self.index is None else _index_json(self.index),
                "appends": self.appends,
            }
        write_json(folder / ABOUT, about)

    def files(self) -> set[str]:
        """The names of all files that belong to a folder of version 2."""
        found = {ABOUT, *(numbered(f"{name}.safetensors", self.columns) for name in COLUMNS)}
        for kind, names in (("entities", self.entities), ("relations", self.relations)):
            found |= {f"{kind}-text", f"{kind}-end"}
            for layer in names.lookups if names else ():
                found |= {numbered(f"{kind}-{what}", layer.number) for what in ("digest", "id")}
        if self.index is not None:
            parts = (self.index.base, *self.index.layers)
            found |= {numbered(INDEX, layer.number) for layer in parts}
        return found


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        raise ValueError(f"{str(value)[:80]!r} is no number of things")
    return value


def _layers(content: Any) -> tuple[Layer, ...]:
    return tuple(Layer(_count(number), _count(size)) for number, size in content)


def _names(content: Any) -> Names:
    found = Names(_count(content["count"]), _layers(content["lookups"]))
    if sum(layer.size for layer in found.lookups) != found.count:
        raise ValueError("not every name can be looked up")
    return found


def _with_growth(plain: Manifest, about: dict[str, Any]) -> Manifest:
    index = None
    if about["index"] is not None:
        base, *layers = _layers(about["index"])
        index = IndexFiles(base, tuple(layers))
        if sum(layer.size for layer in (base, *layers)) != plain.facts:
            raise ValueError("the index is not one of all facts")
    return replace(
        plain,
        entities=_names(about["entities"]),
        relations=_names(about["relations"]),
        columns=_count(about["columns"]),
        index=index,
        appends=_count(about["appends"]),
    )


def _names_json(names: Names) -> dict[str, Any]:
    return {"count": names.count, "lookups": [[part.number, part.size] for part in names.lookups]}


def _index_json(index: IndexFiles) -> list[list[int]]:
    return [[part.number, part.size] for part in (index.base, *index.layers)]
