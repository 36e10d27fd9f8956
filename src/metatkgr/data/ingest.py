"""Files larger than memory into a folder of facts (``data.folder``); a folder that is there grows.

The facts are those that ``read_facts`` would give: the same rows are bad, names have the same ids,
repeated facts are dropped, time is numbered the same. Appending gives the folder that reading all
rows at once would have made, in the order in which they came. New facts at or after the last time
are written behind the end of the columns. Earlier ones, and times that fall between two steps,
number the steps of other facts anew: then all columns are written once more.

Nothing that the manifest counts is changed, and it is replaced in one go when all else is on the
disk: whenever the process ends, the folder is the old one or the new one. What an append has
replaced is removed by the next, so that who has just opened the folder still finds it.

A file whose time unit is to be found out is read once more before; so is one of intervals without
a clip range.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metatkgr.data.calendar import Calendar
from metatkgr.data.engine import Engine
from metatkgr.data.folder import FactFolder
from metatkgr.data.growth import Growth, write_order
from metatkgr.data.index_writer import write_index
from metatkgr.data.manifest import KINDS, Manifest
from metatkgr.data.readers.bad_rows import BadRows
from metatkgr.data.readers.inputs import input_files
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.rows_on_disk import RowsOnDisk, Scan, scan
from metatkgr.errors import DataError
from metatkgr.files import exclusive

__all__ = ["Appended", "Ingested", "append", "compact", "ingest"]

_ROWS = 1 << 20
_WORK, _LOCK = ".append-", ".appending"
_OURS = re.compile(
    r"(\.[0-9a-f]{12}-)?((subject|relation|object|time|index-[a-z_0-9]+)(-\d+)?\.safetensors"
    r"|(entities|relations)-order(-\d+)?|dataset\.json)"
)
_FINER = ("hour", "day", "month", "year")
"""Units that dates are read in, when nobody says which: the finest first."""


@dataclass(frozen=True)
class Ingested:
    """What was written."""

    folder: Path
    facts: int
    entities: int
    relations: int
    steps: int
    repeated: int
    """Facts that were there before; only the first of each is kept."""
    seconds: float
    report: BadRows


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


def ingest(
    sources: Sequence[str | Path],
    out: str | Path,
    options: ReadOptions | None = None,
    *,
    rows: int = _ROWS,
    progress: Callable[[int], None] | None = None,
) -> Ingested:
    """Read files into a folder of facts.

    Args:
        sources: files and folders, in order; the parts of one graph.
        out: the folder to write; it appears under its name only when it is complete.
        options: how to read them.
        rows: how many rows are in memory at a time, in a few copies.
        progress: called with the number of rows of each piece when it has been read.

    Raises:
        BadRowsError: some rows cannot be read and ``skip_bad_rows`` is off, or all of them.
        DataError: there is nothing to read, or ``out`` exists.
    """
    begin = time.perf_counter()
    options, out = options or ReadOptions(), Path(out).expanduser()
    files = input_files([Path(source) for source in sources])
    if not files:
        raise DataError("name at least one file to ingest")
    if out.exists():
        raise DataError(f"{out} exists: choose another folder, or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Made as any folder is, not by tempfile: who may read it is for the umask to say.
        unfinished = out.parent / f".{out.name}-{secrets.token_hex(6)}"
        unfinished.mkdir()
        try:
            with _working(unfinished, rows) as (work, engine):
                found = scan(files, options, rows)
                reading = RowsOnDisk(files, options, found, work, engine, rows)
                reading.read(progress)
                calendar = Calendar(found.unit, reading.origin, max(reading.stride, 1))
                empty = Manifest.empty(reading.name, calendar)
                after, _ = Growth(unfinished, empty, reading).write()
            os.rename(unfinished, out)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}") from error
    return Ingested(
        folder=out,
        facts=after.facts,
        entities=after.entities.count,
        relations=after.relations.count,
        steps=after.steps,
        repeated=reading.facts - after.facts,
        seconds=time.perf_counter() - begin,
        report=reading.report,
    )


def append(
    sources: Sequence[str | Path],
    folder: str | Path,
    options: ReadOptions | None = None,
    *,
    rows: int = _ROWS,
    progress: Callable[[int], None] | None = None,
) -> Appended:
    """Read files into a folder of facts that is there already.

    Args:
        sources: files and folders, in order.
        folder: that ``ingest`` has written.
        options: how to read them.
        rows: how many rows are in memory at a time, in a few copies.
        progress: called with the number of rows of each piece when it has been read.

    Raises:
        BadRowsError: some rows cannot be read and ``skip_bad_rows`` is off, or all of them.
        DataError: there is nothing to read, ``folder`` is no such folder, its times are of another
            unit, or another process is appending to it.
    """
    begin = time.perf_counter()
    options, folder = options or ReadOptions(), Path(folder).expanduser()
    files = input_files([Path(source) for source in sources])
    if not files:
        raise DataError("name at least one file to append")
    with _changing(folder) as opened, _working(folder, rows) as (work, engine):
        found = _scan(files, options, rows, opened)
        reading = RowsOnDisk(files, options, found, work, engine, rows)
        reading.read(progress)
        before = opened.manifest
        after, moved = Growth(folder, before, reading, opened).write()
    added = after.facts - before.facts
    return Appended(
        folder=folder,
        added=added,
        repeated=reading.facts - added,
        facts=after.facts,
        entities=after.entities.count,
        new_entities=after.entities.count - before.entities.count,
        relations=after.relations.count,
        new_relations=after.relations.count - before.relations.count,
        steps=after.steps,
        rewritten=moved,
        seconds=time.perf_counter() - begin,
        report=reading.report,
    )


def compact(folder: str | Path, *, rows: int = _ROWS) -> None:
    """Have the index and the order of the names cover all that appends have added.

    Args:
        folder: of facts.
        rows: how many facts are in memory at a time, in a few copies.
    """
    folder = Path(folder).expanduser()
    with _changing(folder) as opened, _working(folder, rows) as (_, engine):
        before, number = opened.manifest, opened.manifest.appends + 1
        names: dict[str, Any] = {
            kind: write_order(engine, folder, kind, getattr(before, kind), number) for kind in KINDS
        }
        after = replace(before, **names)
        after = replace(after, index=write_index(engine, folder, after, number))
        if after != before:
            replace(after, appends=number).save(folder)


@contextmanager
def _working(folder: Path, rows: int) -> Iterator[tuple[Path, Engine]]:
    """A folder for what does not fit into memory, and DuckDB working there."""
    with (
        tempfile.TemporaryDirectory(prefix=_WORK, dir=folder) as work,
        Engine(Path(work), rows) as engine,
    ):
        yield Path(work), engine


@contextmanager
def _changing(folder: Path) -> Iterator[FactFolder]:
    """An opened folder that nobody else may append to; what crashes have left in it is removed."""
    if not FactFolder.is_at(folder):
        raise DataError(
            f"{folder} is no folder of facts: make it with 'metatkgr data ingest … --out {folder}'"
        )
    busy = DataError(f"another process is appending to {folder}; wait until it is done")
    with exclusive(folder / _LOCK, busy):
        opened = FactFolder(folder)
        try:
            _tidy(folder, opened.manifest)
            yield opened
        except OSError as error:
            raise DataError(f"cannot write {folder}: {error.strerror or error}") from error


def _tidy(folder: Path, manifest: Manifest) -> None:
    """Remove files of ours that the manifest does not name."""
    ours = manifest.files()
    for path in folder.iterdir():
        if path.name.startswith(_WORK):
            shutil.rmtree(path, ignore_errors=True)
        elif _OURS.fullmatch(path.name) and path.name not in ours:
            path.unlink()


def _scan(files: list[Path], options: ReadOptions, rows: int, folder: FactFolder) -> Scan:
    """What must be known of the files; their times are in the folder's unit."""
    unit = folder.calendar.unit
    if options.unit not in ("auto", unit):
        raise DataError(
            f"{folder.folder} counts time in the unit {unit!r}, and {options.unit!r} is asked for: "
            f"append with --time-unit {unit}, or ingest everything anew"
        )
    found = scan(files, options, rows)
    if found.unit == unit:
        return found
    if found.unit in _FINER and unit in _FINER:
        # What reading everything at once would settle on: the finest of points in time, the
        # coarsest of intervals.
        coarser = _FINER.index(found.unit) > _FINER.index(unit)
        if coarser != found.interval:
            return scan(files, ReadOptions.of(options, {"unit": unit}), rows)
    raise DataError(
        f"the times of {files[0]} are in the unit {found.unit!r}, and {folder.folder} counts in "
        f"{unit!r}: read them in that unit with --time-unit {unit}, or ingest everything anew"
    )
