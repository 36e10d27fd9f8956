"""Facts from files larger than memory into a folder that opens by memory map (``large.store``).

The facts are those that ``read_facts`` would give: the same rows are bad, names have the same ids,
repeated facts are dropped, time is numbered the same. The way there: pieces of the file are checked
and written down with the piece's own numbers for names; then names get their ids (``names``),
facts are ordered by time on disk (``reading``), and repetitions within a step are dropped.

A file whose time unit is to be found out is read once more before; so is one of intervals without
a clip range.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from metatkgr.data.calendar import Calendar
from metatkgr.data.large.chunks import input_files
from metatkgr.data.large.columns import ColumnWriter
from metatkgr.data.large.distinct import distinct
from metatkgr.data.large.manifest import COLUMNS, Manifest
from metatkgr.data.large.reading import Reading
from metatkgr.data.readers.bad_rows import BadRows
from metatkgr.data.readers.options import ReadOptions
from metatkgr.errors import DataError

__all__ = ["Ingested", "ingest"]

_ROWS = 1 << 20


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
        unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            with tempfile.TemporaryDirectory(dir=unfinished) as work:
                reading = Reading(files, options, Path(work), unfinished, rows)
                reading.read(progress)
                done = _finish(reading, unfinished)
            unfinished.chmod(0o755)
            os.rename(unfinished, out)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}") from error
    return replace(done, folder=out, seconds=time.perf_counter() - begin)


def _finish(reading: Reading, out: Path) -> Ingested:
    """Number the names, order the facts, drop repetitions, write the folder."""
    assert reading.origin is not None
    stride = max(reading.stride, 1)
    sizes = reading.names_numbered()
    kept = 0
    writers = {name: ColumnWriter(out / f"{name}.safetensors") for name in COLUMNS}
    blocks = distinct(reading.by_time(), sizes, reading.work, reading.rows)
    for when, subject, relation, other in blocks:
        step = (when - reading.origin) // stride
        for name, column in zip(COLUMNS, (subject, relation, other, step), strict=True):
            writers[name].append(column)
        kept += len(step)
    for writer in writers.values():
        writer.__exit__(None, None, None)
    calendar = Calendar(reading.found.unit, reading.origin, stride)
    steps = (reading.latest - reading.origin) // stride + 1
    Manifest(reading.name, kept, steps, calendar).save(out)
    return Ingested(out, kept, *sizes, steps, reading.facts - kept, 0.0, reading.report)
