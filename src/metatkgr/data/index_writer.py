"""The index of a folder: the links of its facts on disk, in every order that is looked up in.

DuckDB sorts them by entity and time. The orders that go by entity are made of what comes from it,
some entities at a time and all links of each; an entity with more links than that is alone. It is
the last part of ``data.ingest``; a training that goes over all links, and may see some of the facts
only, writes the index of those into files of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data import orders
from metatkgr.data.columns import Column, ColumnWriter
from metatkgr.data.engine import Engine, Table
from metatkgr.data.facts import IntArray
from metatkgr.data.manifest import COLUMNS, INDEX, Links, Manifest, StoredLinks, numbered
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import DataError

__all__ = ["links_on_disk", "write_index"]

_LARGEST_KEY = 2**63 - 1
_ROWS = 1 << 18
"""How many facts of a selection are in memory at a time, in a few copies."""
_BLOCKS = 4
"""So many times what comes from DuckDB at a time are ordered at once."""
_NEIGHBOURS = ("neighbour", "neighbour_first", "neighbour_order")
_FILLERS = ("filler_object", "filler_subject", "filler_time")

_Block = list[IntArray]
"""Subjects, relations, objects and steps of facts."""


def write_index(engine: Engine, folder: Path, manifest: Manifest, number: int) -> Links | None:
    """Write the links of all facts in all orders; nothing where they are there already.

    D links of N facts, P distinct ones (source, relation, target), E entities, 2R directed
    relations (r + R against a fact's direction). Where something begins is one value more.

    ==============================  ==============================================================
    ``key relation target``         (D,) by ``key = source * steps + time``, then as they came,
                                    where ``steps`` is one more than there are; a fact of an
                                    entity with itself is one link, in its own direction
    ``start``                       (E + 1,) where the links of each entity begin there
    ``link``                        (P,) ``(source * 2R + relation) * E + target``, ascending
    ``link_start``, ``link_time``   (P + 1,) where the (2N,) times of each begin; ascending
    ``slot_order``, ``slot_first``  (P,) positions of links by (source, relation, first time), and
                                    that time
    ``entity_order, entity_first``  (P,) the same by (source, first time)
    ``usage_time``                  (2N,) times by (source, relation, time)
    ``usage_sum_*``                 decayed counts at every eighth of them
    ``neighbour neighbour_first``   entities linked at all, by (source, first time, id)
    ``neighbour_start``             (E + 1,) where those of each source begin
    ``neighbour_order``             their positions by (source, id)
    ``filler_*``                    (N,) objects, subjects and times of facts by (relation, time)
    ``filler_start``                (R + 1,) where those of each relation begin
    ``ordinal_*``                   (2N,) times by cell and time; cells are ``relation * 2N +
                                    ordinal``: how many facts before had the same filler
    ==============================  ==============================================================

    Args:
        engine: to sort them.
        folder: of facts.
        manifest: what of the files counts.
        number: of the append.

    Returns:
        The index; None where its keys do not fit into 63 bits.
    """
    if manifest.index is not None and manifest.index.covers == manifest.facts:
        return manifest.index
    sizes = manifest.entities.count, 2 * manifest.relations.count, manifest.steps + 1
    part = Links(number, manifest.facts, *sizes)

    def blocks() -> Iterator[_Block]:
        names = (numbered(f"{name}.safetensors", manifest.columns) for name in COLUMNS)
        columns = [Column(folder / name, length=manifest.facts) for name in names]
        for low in range(0, manifest.facts, engine.rows):
            yield [column.read(low, low + engine.rows).astype(np.int64) for column in columns]

    return _written(engine, folder, part, blocks)


def links_on_disk(visible: VisibleFacts) -> StoredLinks | None:
    """The index of what is visible of a folder's facts, as the folder has one of all its facts.

    Its files lie where the system keeps temporary ones, and are gone with the process: they have no
    name any more when this returns.

    Args:
        visible: some facts of the base; nothing recent.

    Returns:
        The index; None where its keys do not fit into 63 bits.

    Raises:
        DataError: it cannot be written there.
    """
    steps = (visible.time_range() or (0, 0))[1] + 2
    sizes = len(visible.entities), 2 * len(visible.relations), steps
    part = Links(0, len(visible) // 2, *sizes)

    def blocks() -> Iterator[_Block]:
        for number, columns in enumerate(visible.blocks(_ROWS)):
            if number % 2 == 0:  # facts; then their inverse
                yield [column.astype(np.int64) for column in columns]

    try:
        with TemporaryDirectory(prefix="metatkgr-") as name:
            folder, work = Path(name, "index"), Path(name, "work")
            folder.mkdir()
            work.mkdir()
            with Engine(work, _ROWS) as engine:
                written = _written(engine, folder, part, blocks)
            return None if written is None else StoredLinks.open(folder, written)
    except OSError as error:
        raise DataError(
            f"cannot write an index of {len(visible):,} links into {gettempdir()}: "
            f"{error.strerror or error}; TMPDIR chooses another folder"
        ) from error


def _written(
    engine: Engine, folder: Path, part: Links, blocks: Callable[[], Iterator[_Block]]
) -> Links | None:
    """Write the index of facts; ``blocks`` goes over all of them, in order."""
    room = max(part.entities * part.steps, part.entities * part.relations * part.entities)
    if room > _LARGEST_KEY:
        return None
    with ExitStack() as stack:
        index = _IndexWriter(folder, part, engine, stack)
        for key, relation, target in engine.links(index.links_of(blocks())):
            index.add_links(key, relation, target)
        index.finish_links()
        for cell, time in engine.times(index.times()):
            index.add_times(cell, time)
        index.finish_times()
        for fillers in engine.fillers(_numbered(blocks())):
            index.add_fillers(*fillers)
    return part


def _numbered(blocks: Iterable[_Block]) -> Iterator[Table]:
    """Facts and their numbers, for the engine."""
    low = 0
    for columns in blocks:
        row = np.arange(low, low + len(columns[0]))
        yield dict(zip(COLUMNS, columns, strict=True)) | {"row": row}
        low += len(row)


class _IndexWriter:
    """The columns of an index, while they are written.

    Args:
        folder: where they go.
        part: what they are of.
        engine: says how much is in memory at a time, and where what is not is put meanwhile.
        stack: ends the writing.
    """

    def __init__(self, folder: Path, part: Links, engine: Engine, stack: ExitStack) -> None:
        self.folder, self.part, self.rows, self.work = folder, part, engine.rows, engine.work
        self._stack = stack
        self._columns = {name: self._open(name) for name in INDEX}
        self._times = [
            self._stack.enter_context(ColumnWriter(self.work / name, dtype))
            for name, dtype in (("cells", np.int64), ("times", np.int32))
        ]
        self._held: list[list[npt.NDArray[Any]]] = []
        self._most = _BLOCKS * self.rows
        self._start = np.zeros(part.entities + 1, np.int64)
        self._degree = np.zeros(part.entities + 1, np.int64)
        self._kinds = np.zeros(part.relations // 2 + 1, np.int64)
        self._cell = -1

    def _open(self, name: str) -> ColumnWriter:
        path = self.folder / self.part.file(name)
        return self._stack.enter_context(ColumnWriter(path, self.part.dtype(name), sync=True))

    def _add(self, name: str, values: Tensor | npt.NDArray[Any], offset: int = 0) -> None:
        values = values.numpy() if isinstance(values, Tensor) else values
        self._columns[name].append(values + offset if offset else values)

    def links_of(self, blocks: Iterable[_Block]) -> Iterator[Table]:
        """The links of facts, for the engine; those of each entity and relation are counted."""
        row, relations, steps = 0, self.part.relations // 2, self.part.steps
        for subject, relation, other, time in blocks:
            source = np.stack([subject, other], axis=1).reshape(-1)
            target = np.stack([other, subject], axis=1).reshape(-1)
            directed = np.stack([relation, relation + relations], axis=1).reshape(-1)
            once = np.ones(len(source), bool)
            once[1::2] = subject != other
            key = source * steps + np.repeat(time, 2)
            _count(self._start, source[once])
            _count(self._kinds, relation)
            number = np.arange(row, row + len(source))
            row += len(source)
            yield {
                "key": key[once],
                "relation": directed[once],
                "target": target[once],
                "row": number[once],
            }

    def add_links(self, *columns: npt.NDArray[Any]) -> None:
        """Take keys, relations and targets of links in the order of the keys."""
        for name, column in zip(("key", "relation", "target"), columns, strict=True):
            self._add(name, column)
        self._held.append(list(columns))
        if sum(len(key) for key, _, _ in self._held) >= self._most:
            key, relation, target = self._gathered()
            # All links of the last source may not be there yet.
            cut = int(np.searchsorted(key, key[-1] // self.part.steps * self.part.steps))
            self._held = [[key[cut:], relation[cut:], target[cut:]]]
            self._most = max(_BLOCKS * self.rows, 2 * (len(key) - cut))
            if cut:
                self._write_block(key[:cut], relation[:cut], target[:cut])

    def _gathered(self) -> list[npt.NDArray[Any]]:
        return [np.concatenate(column) for column in zip(*self._held, strict=True)]

    def finish_links(self) -> None:
        """All links have been taken."""
        self._write_block(*self._gathered())
        self._held.clear()
        self._add("start", np.cumsum(self._start))
        self._add("neighbour_start", np.cumsum(self._degree))
        self._add("filler_start", np.cumsum(self._kinds))
        self._add("link_start", np.array([2 * self.part.covers]))

    def _write_block(self, *columns: npt.NDArray[Any]) -> None:
        """All orders that go by source, of the links of some sources."""
        entities, relations = self.part.entities, self.part.relations
        key, relation, target = (torch.from_numpy(column) for column in columns)
        source = key // self.part.steps
        time = key - source * self.part.steps
        link, begin, time = orders.distinct_links(
            source, relation, target, time, entities, relations
        )
        known, before = self._columns["link"].length, self._columns["link_time"].length
        first = time[begin[:-1]]
        self._add("link", link)
        self._add("link_start", begin[:-1], before)
        self._add("link_time", time)
        for name, room in (("slot", entities), ("entity", entities * relations)):
            order, began = orders.by_beginning(link // room, first)
            self._add(f"{name}_order", order, known)
            self._add(f"{name}_first", began)
        slot = torch.repeat_interleave(link // entities, begin.diff())
        time = orders.times_of_slots(slot, time)
        self._add("usage_time", time)
        all_sums = orders.running_sums(time, slot, orders.DECAYS, before)
        for decay, sums in zip(orders.DECAYS, all_sums, strict=True):
            self._add(f"usage_sum_{decay:.0f}", sums)
        self._times[0].append(orders.cells(slot, relations, 2 * self.part.covers).numpy())
        self._times[1].append(time.numpy())
        source, *rows = orders.neighbour_rows(*orders.neighbours(link, first, entities, relations))
        pairs = self._columns["neighbour"].length
        for name, column, offset in zip(_NEIGHBOURS, rows, (0, 0, pairs), strict=True):
            self._add(name, column, offset)
        _count(self._degree, source.numpy())

    def times(self) -> Iterator[Table]:
        """Cells and times, for the engine."""
        for column in self._times:
            column.close()
        cell, time = (Column(self.work / name) for name in ("cells", "times"))
        for low in range(0, len(cell), self.rows):
            high = low + self.rows
            yield {"cell": cell.read(low, high), "time": time.read(low, high)}

    def add_times(self, cell: npt.NDArray[Any], time: npt.NDArray[Any]) -> None:
        """Take cells and times in order."""
        new = np.flatnonzero(np.diff(cell, prepend=self._cell))
        self._add("ordinal_cell", cell[new])
        self._add("ordinal_start", new, self._columns["ordinal_time"].length)
        self._add("ordinal_time", time)
        self._cell = int(cell[-1])

    def finish_times(self) -> None:
        """All times have been taken."""
        self._add("ordinal_start", np.array([2 * self.part.covers]))

    def add_fillers(self, *columns: npt.NDArray[Any]) -> None:
        """Take objects, subjects and times of facts in the order of their relations."""
        for name, column in zip(_FILLERS, columns, strict=True):
            self._add(name, column)


def _count(start: IntArray, values: npt.NDArray[Any]) -> None:
    """Raise ``start[v + 1]`` by the number of values that are v."""
    if len(values):
        low = int(values.min())
        count = np.bincount(values - low)
        start[low + 1 : low + 1 + len(count)] += count
