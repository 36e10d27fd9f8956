"""The second half of ``data.ingest``: what is written into a folder of facts, and where it goes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr.data.calendar import Calendar
from metatkgr.data.columns import Column, ColumnWriter
from metatkgr.data.engine import Engine, Table
from metatkgr.data.facts import IntArray, check_steps
from metatkgr.data.folder import FactFolder, StoredVocabulary
from metatkgr.data.index_writer import write_index
from metatkgr.data.manifest import COLUMNS, KINDS, Manifest, Names, Part, numbered
from metatkgr.data.rows_on_disk import RowsOnDisk

__all__ = ["Growth", "write_order"]

_MUCH = 8
"""What covers all but one in so many of the facts or names is left as it is."""


class Growth:
    """From rows to the new manifest.

    Args:
        folder: where everything goes.
        before: what the folder holds.
        reading: of the new files.
        opened: the folder; None: it holds nothing yet.
    """

    def __init__(
        self,
        folder: Path,
        before: Manifest,
        reading: RowsOnDisk,
        opened: FactFolder | None = None,
    ) -> None:
        self.folder, self.before, self.reading, self.opened = folder, before, reading, opened
        self.engine, self.rows = reading.engine, reading.engine.rows
        self.number = before.appends + 1
        old = before.calendar
        # A folder with a single time has no distance between times yet.
        distance = old.stride if before.steps > 1 else 0
        stride = math.gcd(distance, reading.stride, reading.origin - old.origin)
        self.calendar = Calendar(old.unit, min(old.origin, reading.origin), max(stride, 1))
        self.last = old.origin + (before.steps - 1) * old.stride
        latest = max(self.last, reading.latest)
        self.steps = (latest - self.calendar.origin) // self.calendar.stride + 1
        check_steps(self.steps)

    def write(self) -> tuple[Manifest, bool]:
        """Write everything, the manifest last.

        Returns:
            The new manifest, and whether facts that were there have another place or step now.
        """
        before, names = self.before, dict[str, Any]()
        counts = {kind: self._number(kind) for kind in KINDS}
        ids = {kind: self._ids(kind) for kind in KINDS}
        added, moved = self._write_facts(self.reading.in_steps(ids, self.calendar, before.facts))
        if not added and all(getattr(before, kind).count == counts[kind] for kind in KINDS):
            return before, False
        for kind in KINDS:
            old: Names = getattr(before, kind)
            grown = Names(counts[kind], old.order)
            if _MUCH * (grown.count - old.order.covers) > grown.count:
                grown = write_order(self.engine, self.folder, kind, grown, self.number)
            names[kind] = grown
        after = replace(before, facts=before.facts + added, appends=self.number, **names)
        if added:
            columns = self.number if moved else before.columns
            after = replace(after, steps=self.steps, calendar=self.calendar, columns=columns)
        index = before.index
        if index is None or moved or _MUCH * (after.facts - index.covers) > after.facts:
            after = replace(after, index=None)
            after = replace(after, index=write_index(self.engine, self.folder, after, self.number))
        after.save(self.folder)
        return after, moved

    def _number(self, kind: str) -> int:
        """Number the names and write those that are new; how many there are now."""
        known = getattr(self.opened, kind, None)
        count = 0 if known is None else len(known)
        size = 0 if known is None else known.text_bytes
        texts = () if known is None else known.texts(self.rows)
        grown = self.engine.number(kind, texts, count)
        after = (None, None) if known is None else (size, count)
        with (
            ColumnWriter(self._of(kind, "text"), np.uint8, after=after[0], sync=True) as text_out,
            ColumnWriter(self._of(kind, "end"), np.int64, after=after[1], sync=True) as end_out,
        ):
            for bounds, text in self.engine.new_names(kind, count):
                text_out.append(text)
                end_out.append(size + bounds[1:])
                size += int(bounds[-1])
        return grown

    def _ids(self, kind: str) -> IntArray:
        """(n,) the id of each appearance of a name, mapped."""
        path = self.reading.work / f"{kind}-ids"
        with ColumnWriter(path, np.int32) as out:
            for ids in self.engine.ids(kind):
                out.append(ids)
        return Column(path).map()

    def _write_facts(self, rows: Iterable[Table]) -> tuple[int, bool]:
        """Write the columns: behind the end, or all of them to new files.

        Returns:
            How many facts are new, and whether old ones have another place or step now.
        """
        if self.opened is None:
            return self._write_columns(self.engine.facts(rows), 0, None), False
        # Only facts of the same time can be equal: the folder is read from the first such on.
        old = self.before.calendar
        first = -((old.origin - self.reading.origin) // old.stride)
        low = int(np.searchsorted(self.opened.facts().time, first))
        last = (self.last - self.calendar.origin) // self.calendar.stride
        added, early = self.engine.keep_fresh(rows, self._old(low), last)
        moved = added > 0 and (early > 0 or self.calendar != old)
        if moved:
            self._write_columns(self.engine.fresh(self._old(0)), self.number, None)
        elif added:
            self._write_columns(self.engine.fresh(), self.before.columns, self.before.facts)
        return added, moved

    def _write_columns(
        self, facts: Iterable[list[IntArray]], number: int, after: int | None
    ) -> int:
        paths = (self.folder / numbered(f"{name}.safetensors", number) for name in COLUMNS)
        with ExitStack() as stack:
            writers = [
                stack.enter_context(ColumnWriter(path, np.int32, after=after, sync=True))
                for path in paths
            ]
            for columns in facts:
                for writer, column in zip(writers, columns, strict=True):
                    writer.append(column)
        return writers[0].length

    def _old(self, low: int) -> Iterator[Table]:
        """The folder's facts from one on, in steps of the new calendar."""
        assert self.opened is not None
        old, new = self.before.calendar, self.calendar
        for *columns, step in self.opened.blocks(self.rows, low):
            step = (old.origin + step * old.stride - new.origin) // new.stride
            table = dict(zip(COLUMNS, (*columns, step), strict=True))
            yield table | {"row": np.arange(low, low + len(step))}
            low += len(step)

    def _of(self, kind: str, ending: str) -> Path:
        return self.folder / f"{kind}-{ending}"


def write_order(engine: Engine, folder: Path, kind: str, names: Names, number: int) -> Names:
    """Write the ids of all names in the order of these; nothing where that is there already.

    Args:
        engine: to sort them.
        folder: of facts.
        kind: ``entities`` or ``relations``.
        names: how much of what the files hold counts.
        number: of the append.
    """
    if names.order.covers == names.count:
        return names
    vocabulary = StoredVocabulary(folder / kind, names)
    path = folder / numbered(f"{kind}-order", number)
    with ColumnWriter(path, np.int32, sync=True) as out:
        for ids in engine.in_order(vocabulary.texts(engine.rows)):
            out.append(ids)
    return replace(names, order=Part(number, names.count))
