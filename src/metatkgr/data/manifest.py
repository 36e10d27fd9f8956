"""``dataset.json``: what a folder of facts holds, and in which of its files; its index of links.

It is written last and replaced as a whole, so it is what decides: a file may be longer than it says
(an append was interrupted) and files may lie about that it does not name. Files that an append
replaces have its number behind their name: ``subject-3.safetensors``.

What the columns of the index are is said in ``data.index_writer``, which writes them; ``graph``
looks things up in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from metatkgr.data.calendar import Calendar
from metatkgr.data.columns import Column
from metatkgr.errors import DataError
from metatkgr.files import read_json, write_json

__all__ = [
    "ABOUT",
    "AGAIN",
    "COLUMNS",
    "EVERY",
    "INDEX",
    "KINDS",
    "Links",
    "Manifest",
    "Names",
    "Part",
    "StoredLinks",
    "numbered",
]

ABOUT = "dataset.json"
COLUMNS = ("subject", "relation", "object", "time")
KINDS = ("entities", "relations")
_POSITION = "position"
INDEX = {
    "key": "int64", "start": "int64", "relation": "int32", "target": "int32",
    "link": "int64", "link_start": _POSITION, "link_time": "int32",
    "slot_order": _POSITION, "slot_first": "int32",
    "entity_order": _POSITION, "entity_first": "int32",
    "usage_time": "int32",
    "usage_sum_2": "float32", "usage_sum_10": "float32", "usage_sum_50": "float32",
    "neighbour_start": "int64", "neighbour": "int32", "neighbour_first": "int32",
    "neighbour_order": _POSITION,
    "filler_start": "int64", "filler_object": "int32", "filler_subject": "int32",
    "filler_time": "int32",
    "ordinal_cell": "int64", "ordinal_start": "int64", "ordinal_time": "int32",
}  # fmt: skip
"""The columns of the index of links, which ``data.index_writer`` explains, and their types."""
AGAIN = "make it again with 'metatkgr data ingest'"
_FORMAT, _VERSION = "metatkgr facts", 4


def numbered(name: str, number: int) -> str:
    """The name of a file with the number of its append; 0: as ``ingest`` wrote it."""
    stem, dot, ending = name.partition(".")
    return f"{stem}-{number}{dot}{ending}" if number else name


@dataclass(frozen=True)
class Part:
    """A file that is made of the first so many facts or names; those that came later are few."""

    number: int
    """Of the append that wrote it."""
    covers: int
    """How many facts or names it is made of."""


@dataclass(frozen=True)
class Links(Part):
    """The index of links, and what there was when it was written."""

    entities: int
    """E."""
    relations: int
    """2R."""
    steps: int
    """One more than there were: the last one stays free."""

    def file(self, name: str) -> str:
        """Where a column lies."""
        return numbered(f"index-{name}.safetensors", self.number)

    def dtype(self, name: str) -> str:
        """What a column holds; positions of links have 32 bits where all fit."""
        position = "int32" if 2 * self.covers < 2**31 else "int64"
        return position if INDEX[name] == _POSITION else INDEX[name]


@dataclass(frozen=True)
class Names:
    """A vocabulary."""

    count: int
    order: Part
    """The ids in the order of their names, by which an id is looked up."""


@dataclass(frozen=True)
class Manifest:
    """The content of ``dataset.json``."""

    name: str
    facts: int
    steps: int
    calendar: Calendar
    entities: Names
    relations: Names
    columns: int = 0
    """The number of the files of the columns."""
    index: Links | None = None
    """The index of links; None: its keys would not fit into 63 bits."""
    appends: int = 0
    """How many there were."""
    stamps: dict[str, tuple[int, int]] = field(default_factory=dict, compare=False)
    """Bytes and time of change (in ns) of each file when the manifest was saved."""

    @classmethod
    def empty(cls, name: str, calendar: Calendar) -> Manifest:
        """Of a folder that holds nothing yet."""
        nobody = Names(0, Part(0, 0))
        return cls(name, 0, 0, calendar, nobody, nobody, appends=-1)

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read ``dataset.json``.

        Raises:
            DataError: it is something else, or damaged, or of another version.
        """
        path = folder / ABOUT
        try:
            about = read_json(path)
        except DataError as error:
            raise DataError(f"cannot read what {folder} holds: {error}; {AGAIN}") from error
        try:
            if about["format"] != _FORMAT:
                raise DataError(f"{folder} is no folder of facts; {AGAIN}")
            if about["version"] != _VERSION:
                text = str(about["version"])[:80]
                raise DataError(
                    f"{folder} is of version {text}, this program reads version {_VERSION}; {AGAIN}"
                )
            facts = _count(about["facts"])
            return cls(
                str(about["name"]),
                facts,
                _count(about["steps"]),
                Calendar(str(about["unit"]), int(about["origin"]), int(about["stride"])),
                _names(about["entities"]),
                _names(about["relations"]),
                columns=_count(about["columns"]),
                index=None if about["index"] is None else _links(about["index"], facts),
                appends=_count(about["appends"]),
                stamps={
                    str(name): (_count(size), _count(changed))
                    for name, (size, changed) in dict(about["stamps"]).items()
                },
            )
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise DataError(f"{path} is damaged ({str(error)[:200]}); {AGAIN}") from error

    def save(self, folder: Path) -> None:
        """Write ``dataset.json``; it is the old one or this one, whatever happens."""
        about = asdict(self) | {"stamps": self._stamps(folder)}
        calendar = about.pop("calendar")
        write_json(folder / ABOUT, {"format": _FORMAT, "version": _VERSION, **about, **calendar})

    def is_untouched(self, folder: Path) -> bool:
        """Whether no file has been changed since the manifest was saved."""
        try:
            return self.stamps == self._stamps(folder)
        except OSError:
            return False

    def _stamps(self, folder: Path) -> dict[str, tuple[int, int]]:
        stats = {name: (folder / name).stat() for name in sorted(self.files() - {ABOUT})}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}

    def files(self) -> set[str]:
        """The names of all files that belong to the folder."""
        found = {ABOUT, *(numbered(f"{name}.safetensors", self.columns) for name in COLUMNS)}
        for kind, names in zip(KINDS, (self.entities, self.relations), strict=True):
            found |= {f"{kind}-text", f"{kind}-end", numbered(f"{kind}-order", names.order.number)}
        index = self.index
        return found if index is None else found | {index.file(name) for name in INDEX}


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        raise ValueError(f"{str(value)[:80]!r} is no number of things")
    return value


def _part(content: Any, most: int) -> Part:
    found = Part(_count(content["number"]), _count(content["covers"]))
    if found.covers > most:
        raise ValueError(f"{found.covers:,} of {most:,}")
    return found


def _links(content: Any, facts: int) -> Links:
    part = _part(content, facts)
    sizes = (_count(content[name]) for name in ("entities", "relations", "steps"))
    return Links(part.number, part.covers, *sizes)


def _names(content: Any) -> Names:
    count = _count(content["count"])
    return Names(count, _part(content["order"], count))


EVERY = 8
"""A decayed count is kept at every such link: an eighth of the bytes for a few more exponentials
in a look-up."""

_STARTS = {
    "start": "key",
    "link_start": "link_time",
    "neighbour_start": "neighbour",
    "filler_start": "filler_time",
    "ordinal_start": "ordinal_time",
}
"""Columns that say where something begins in others: from 0 to the length of these."""
_ASCENDING = {"key", "link", "ordinal_cell", *_STARTS}


@dataclass(frozen=True, eq=False)
class StoredLinks:
    """The index of the links of the first facts of a folder."""

    columns: Mapping[str, npt.NDArray[Any]]
    """By their names in ``manifest.INDEX``."""
    facts: int
    """How many facts these are the links of; those of later ones are to be put beside them."""
    entities: int
    """E, when they were written; there may be more now."""
    relations: int
    """2R, the same."""
    steps: int
    """One more than there were: the last one stays free."""

    @classmethod
    def open(cls, folder: Path, part: Links) -> Self:
        """Map the columns.

        Raises:
            DataError: they are not those of one index.
        """
        columns = {
            name: Column(folder / part.file(name), dtype=part.dtype(name)).map() for name in INDEX
        }
        links = cls(columns, part.covers, part.entities, part.relations, part.steps)
        fits = part.covers <= len(columns["key"]) <= 2 * part.covers and all(
            len(columns[name]) == length for name, (length, _) in links._expected().items()
        )
        # Looked at only where they are as long as they should be.
        if not fits or any(
            int(columns[name][0]) != 0 or int(columns[name][-1]) != len(columns[of])
            for name, of in _STARTS.items()
        ):
            raise DataError(f"the index of {folder} is damaged, or that of other facts; {AGAIN}")
        return links

    def first_steps(self) -> npt.NDArray[np.int64]:
        """(E,) the step of each entity's first link; -1 for who has none."""
        key, start = self.columns["key"], self.columns["start"]
        there = start[1:] > start[:-1]
        first = np.full(self.entities, -1, np.int64)
        first[there] = key[start[:-1][there]] - np.flatnonzero(there) * self.steps
        return first

    def _expected(self) -> dict[str, tuple[int, int]]:
        """The length of each column, and what all of its values are less than."""
        names = ("key", "link", "neighbour", "ordinal_cell")
        links, distinct, pairs, cells = (len(self.columns[name]) for name in names)
        entities, relations, facts, steps = self.entities, self.relations, self.facts, self.steps
        sums = (2 * facts // EVERY, 2 * facts + 1)
        return {
            "key": (links, entities * steps),
            "start": (entities + 1, links + 1),
            "relation": (links, relations),
            "target": (links, entities),
            "link": (distinct, entities * relations * entities),
            "link_start": (distinct + 1, 2 * facts + 1),
            "link_time": (2 * facts, steps - 1),
            "slot_order": (distinct, distinct),
            "slot_first": (distinct, steps - 1),
            "entity_order": (distinct, distinct),
            "entity_first": (distinct, steps - 1),
            "usage_time": (2 * facts, steps - 1),
            "usage_sum_2": sums,
            "usage_sum_10": sums,
            "usage_sum_50": sums,
            "neighbour_start": (entities + 1, pairs + 1),
            "neighbour": (pairs, entities),
            "neighbour_first": (pairs, steps - 1),
            "neighbour_order": (pairs, pairs),
            "filler_start": (relations // 2 + 1, facts + 1),
            "filler_object": (facts, entities),
            "filler_subject": (facts, entities),
            "filler_time": (facts, steps - 1),
            "ordinal_cell": (cells, 2 * facts * relations),
            "ordinal_start": (cells + 1, 2 * facts + 1),
            "ordinal_time": (2 * facts, steps - 1),
        }

    def check(self, rows: int) -> str | None:
        """Look at all values once, ``rows`` at a time; what is wrong with them."""
        for name, (_, size) in self._expected().items():
            column, last = self.columns[name], 0
            for low in range(0, len(column), rows):
                values = np.asarray(column[low : low + rows])
                if not (values.min() >= 0 and values.max() < size):
                    return f"a value of {name!r} in its index is none that there can be"
                if name in _ASCENDING:
                    if values[0] < last or bool((values[1:] < values[:-1]).any()):
                        return f"{name!r} in its index is not in order"
                    last = values[-1]
        key, start = self.columns["key"], self.columns["start"]
        for low in range(0, self.entities + 1, rows):
            entity = np.arange(low, min(low + rows, self.entities + 1))
            # Ascending keys say where an entity's links begin; the column spares the search for it.
            if not np.array_equal(np.searchsorted(key, entity * self.steps), start[entity]):
                return "an entity's links are not where it says"
        return None
