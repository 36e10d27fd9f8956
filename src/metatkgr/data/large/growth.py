"""What an append writes into a folder of facts: new names, new facts, and where they go."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import IntArray
from metatkgr.data.large.columns import Column, ColumnWriter
from metatkgr.data.large.distinct import distinct
from metatkgr.data.large.external_sort import merge
from metatkgr.data.large.growing_names import NameGrowth
from metatkgr.data.large.manifest import (
    COLUMNS,
    INDEX,
    IndexFiles,
    Layer,
    Manifest,
    Names,
    numbered,
)
from metatkgr.data.large.reading import Reading
from metatkgr.data.large.store import FactStore
from metatkgr.data.readers.bad_rows import BadRows
from metatkgr.errors import DataError

__all__ = ["WORK", "Appended", "GrowIndex", "Grown", "Growth", "as_grown"]

WORK = ".append-"
"""What the names of an append's temporary folders begin with."""

Block = tuple[IntArray, IntArray, IntArray, IntArray]


@dataclass(frozen=True)
class Grown:
    """A folder whose columns have grown; its manifest does not say so yet."""

    folder: Path
    before: Manifest
    after: Manifest
    """Without an index."""
    moved: bool
    """Whether facts that were there have another place or step now."""

    @property
    def number(self) -> int:
        """Of the append."""
        return self.after.appends

    def blocks(
        self, low: int, rows: int
    ) -> Iterator[tuple[IntArray, IntArray, IntArray, IntArray]]:
        """Subjects, relations, objects and steps from the fact ``low`` on, ``rows`` at a time."""
        names = (numbered(f"{name}.safetensors", self.after.columns) for name in COLUMNS)
        columns = [Column(self.folder / name, length=self.after.facts) for name in names]
        for begin in range(low, self.after.facts, rows):
            subject, relation, other, step = (c.read(begin, begin + rows) for c in columns)
            yield subject, relation, other, step


GrowIndex = Callable[[Grown], IndexFiles | None]
"""Writes the index of a folder that has grown, whatever it had before; what it is made of now."""


@dataclass(frozen=True)
class Appended:
    """What came of it."""

    folder: Path
    added: int
    """Facts that were not there before."""
    repeated: int
    """Facts that were."""
    facts: int
    """How many there are now."""
    entities: int
    new_entities: int
    relations: int
    new_relations: int
    steps: int
    rewritten: bool
    """Whether all columns were written anew, for facts before the last time."""
    seconds: float
    report: BadRows


def as_grown(store: FactStore) -> Manifest:
    """The manifest of a folder that may grow: it says how long its files are, they may not.

    Raises:
        DataError: somebody has put an index there that is one of other facts.
    """
    old = store.manifest
    if old.grown:
        return old
    counts = len(store.entities), len(store.relations)
    entities, relations = (Names(count, (Layer(0, count),)) for count in counts)
    index, path = None, store.folder / INDEX
    if path.is_file():
        about = Column(path, "key").metadata
        sizes = {"entities": counts[0], "relations": 2 * counts[1], "steps": old.steps + 1}
        if any(about.get(name) != str(size) for name, size in sizes.items()):
            raise DataError(
                f"{path} is the index of other facts; remove it, and append with --index"
            )
        index = IndexFiles(Layer(0, old.facts))
    new = replace(old, entities=entities, relations=relations, index=index)
    new.save(store.folder)
    return new


class Growth:
    """From a reading to the new manifest.

    Args:
        store: the folder.
        reading: of the new files; its names have numbers.
        vocabularies: where the reading has written them.
    """

    def __init__(self, store: FactStore, reading: Reading, vocabularies: Path) -> None:
        self.store, self.reading, self.before = store, reading, as_grown(store)
        self.folder, self.work, self.rows = store.folder, reading.work, reading.rows
        self.number = self.before.appends + 1
        self.names = {
            kind: NameGrowth(self.folder / kind, names, vocabularies / kind, self.work, self.rows)
            for kind, names in (
                ("entities", self.before.entities),
                ("relations", self.before.relations),
            )
            if names is not None
        }
        old = store.calendar
        assert reading.origin is not None
        # A folder with a single time has no distance between times yet.
        distance = old.stride if store.steps > 1 else 0
        stride = math.gcd(distance, reading.stride, reading.origin - old.origin)
        self.calendar = Calendar(old.unit, min(old.origin, reading.origin), max(stride, 1))
        self.latest = max(old.origin + (store.steps - 1) * old.stride, reading.latest)

    def finish(self, index: GrowIndex | None) -> Appended:
        """Write everything, the manifest last."""
        ids = {kind: growth.write_texts() for kind, growth in self.names.items()}
        before, counts = self.before, {kind: growth.count for kind, growth in self.names.items()}
        added, early = self._write_fresh(ids, (counts["entities"], counts["relations"]))
        old = len(self.store.entities), len(self.store.relations)
        moved = added > 0 and (early or self.calendar != before.calendar)
        steps = self.store.steps
        if added or tuple(counts.values()) != old:
            steps = (self.latest - self.calendar.origin) // self.calendar.stride + 1
            after = replace(
                before,
                facts=before.facts + added,
                steps=steps,
                calendar=self.calendar,
                columns=self.number if moved else before.columns,
                appends=self.number,
                index=None,
            )
            for kind, growth in self.names.items():
                after = after.with_names(kind, growth.write_lookups(ids[kind], self.number))
            if added:
                self._write_columns(after, moved)
            grown = Grown(self.folder, before, after, moved)
            replace(after, index=index(grown) if index else None).save(self.folder)
        return Appended(
            folder=self.folder,
            added=added,
            repeated=self.reading.facts - added,
            facts=before.facts + added,
            entities=counts["entities"],
            new_entities=counts["entities"] - old[0],
            relations=counts["relations"],
            new_relations=counts["relations"] - old[1],
            steps=steps,
            rewritten=moved,
            seconds=0.0,
            report=self.reading.report,
        )

    def _write_fresh(self, ids: dict[str, IntArray], sizes: tuple[int, int]) -> tuple[int, bool]:
        """Put facts that were not there before into the work folder, by time.

        Returns:
            How many there are, and whether one is before the last time of the folder.
        """
        old, reading = self.store.calendar, self.reading
        assert reading.origin is not None
        # Only facts of the same time can be equal: the folder is read from the first such on.
        first = -((old.origin - reading.origin) // old.stride)
        low = int(np.searchsorted(self.store.facts().time, first))
        streams = [_marked(self._old(low), 0), _marked(reading.by_time(ids), 1)]
        last = old.origin + (self.store.steps - 1) * old.stride
        count, early = 0, False
        with ExitStack() as stack:
            writers = [stack.enter_context(ColumnWriter(place)) for place in self._fresh_places()]
            for block in distinct(merge(streams), sizes, self.work, self.rows):
                new = block[:4, block[4] == 1]
                for writer, column in zip(writers, new, strict=True):
                    writer.append(column)
                early |= bool((new[0] < last).any())
                count += new.shape[1]
        return count, early

    def _write_columns(self, after: Manifest, moved: bool) -> None:
        """Write the new facts behind the old ones, or all of them to new files."""
        facts: Iterator[IntArray] = self._fresh()
        length = None if moved else self.before.facts
        if moved:
            facts = merge([self._old(0), facts])
        files = (numbered(f"{name}.safetensors", after.columns) for name in COLUMNS)
        with ExitStack() as stack:
            writers = [
                stack.enter_context(ColumnWriter(self.folder / file, after=length, sync=True))
                for file in files
            ]
            for when, subject, relation, other in facts:
                step = (when - self.calendar.origin) // self.calendar.stride
                for writer, column in zip(writers, (subject, relation, other, step), strict=True):
                    writer.append(column)

    def _old(self, low: int) -> Iterator[IntArray]:
        """(4, n) raw time, subject, relation, object of the folder from a fact on."""
        old = self.store.calendar
        for begin in range(low, len(self.store), self.rows):
            end = min(begin + self.rows, len(self.store))
            subject, relation, other, step = self.store.read(begin, end)
            yield np.stack([old.origin + step * old.stride, subject, relation, other])

    def _fresh(self) -> Iterator[IntArray]:
        """(4, n) the same of the facts that were not there before."""
        columns = [Column(place) for place in self._fresh_places()]
        for low in range(0, len(columns[0]), self.rows):
            yield np.stack([column.read(low, low + self.rows) for column in columns])

    def _fresh_places(self) -> list[Path]:
        return [self.work / f"fresh-{name}" for name in ("time", "subject", "relation", "object")]


def _marked(blocks: Iterable[IntArray], mark: int) -> Iterator[IntArray]:
    """(5, n) the blocks with one more row, of one number."""
    for block in blocks:
        yield np.concatenate([block, np.full_like(block[:1], mark)])
