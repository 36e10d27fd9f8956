"""More facts for a folder that ``ingest`` has made, at the cost of those that are added.

The folder is then the one that reading all rows at once would have made, in the order in which they
came: the same ids, the same facts. New facts at or after the last time are written behind the end
of the columns. Earlier ones, and times that fall between two steps, number the steps of other facts
anew: then all columns are written once more.

Nothing that the manifest counts is changed, and it is replaced in one go when all else is on the
disk: whenever the process ends, the folder is the old one or the new one. What an append has
replaced is removed by the next, so that who has just opened the folder still finds it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from metatkgr.data.large.chunks import input_files
from metatkgr.data.large.growing_names import merge_lookups
from metatkgr.data.large.growth import WORK, Appended, GrowIndex, Grown, Growth, as_grown
from metatkgr.data.large.lock import only_appender
from metatkgr.data.large.manifest import Manifest, Names
from metatkgr.data.large.reading import Reading
from metatkgr.data.large.scan import Scan, scan
from metatkgr.data.large.store import FactStore
from metatkgr.data.readers.options import ReadOptions
from metatkgr.errors import DataError

__all__ = ["append", "compact"]

_ROWS = 1 << 20
_OURS = re.compile(
    r"(\.[0-9a-f]{12}-)?((subject|relation|object|time|index)(-\d+)?\.safetensors"
    r"|(entities|relations)-(digest|id)(-\d+)?|dataset\.json)"
)
_FINER = ("hour", "day", "month", "year")
"""Units that dates are read in, when nobody says which: the finest first."""


def append(
    sources: Sequence[str | Path],
    folder: str | Path,
    options: ReadOptions | None = None,
    *,
    rows: int = _ROWS,
    progress: Callable[[int], None] | None = None,
    index: GrowIndex | None = None,
) -> Appended:
    """Read files into a folder of facts that is there already.

    Args:
        sources: files and folders, in order.
        folder: that ``ingest`` has written.
        options: how to read them.
        rows: how many rows are in memory at a time, in a few copies.
        progress: called with the number of rows of each piece when it has been read.
        index: ``graph.stored.IndexGrowth``; without it, the folder has no index afterwards.

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
    with _changing(folder) as store, tempfile.TemporaryDirectory(prefix=WORK, dir=folder) as work:
        found = _scan(files, options, rows, store)
        vocabularies = Path(work) / "names"
        vocabularies.mkdir()
        reading = Reading(files, options, Path(work), vocabularies, rows, found)
        reading.read(progress)
        reading.names_numbered()
        done = Growth(store, reading, vocabularies).finish(index)
    return replace(done, seconds=time.perf_counter() - begin)


def compact(folder: str | Path, *, rows: int = _ROWS, index: GrowIndex | None = None) -> None:
    """Make one of what the appends have left in several files: what names are looked up by.

    Args:
        folder: of facts.
        rows: how many names are in memory at a time.
        index: as :func:`append` takes it, to do the same for the index; without it, that stays.
    """
    folder = Path(folder).expanduser()
    with _changing(folder) as store:
        before = as_grown(store)
        after = replace(before, appends=before.appends + 1, index=None)
        for kind in ("entities", "relations"):
            names: Names = getattr(before, kind)
            if len(names.lookups) > 1:
                after = after.with_names(
                    kind, merge_lookups(folder / kind, names, 0, after.appends, rows)
                )
        grown = Grown(folder, before, after, moved=False)
        after = replace(after, index=index(grown) if index else before.index)
        if replace(after, appends=before.appends) != before:
            after.save(folder)


@contextmanager
def _changing(folder: Path) -> Iterator[FactStore]:
    """An opened folder that nobody else may append to; what crashes have left in it is removed."""
    if not FactStore.is_at(folder):
        raise DataError(
            f"{folder} is no folder of facts: make it with 'metatkgr data ingest … --out {folder}'"
        )
    with only_appender(folder):
        store = FactStore(folder)
        try:
            _tidy(folder, store.manifest)
            yield store
        except OSError as error:
            raise DataError(f"cannot write {folder}: {error.strerror or error}") from error


def _tidy(folder: Path, manifest: Manifest) -> None:
    """Remove files of ours that the manifest does not name."""
    ours = manifest.files()
    for path in folder.iterdir():
        found = _OURS.fullmatch(path.name)
        if path.name.startswith(WORK):
            shutil.rmtree(path, ignore_errors=True)
        # Temporary files have the first part; version 1 does not name all that is its own.
        elif found and path.name not in ours and (found[1] or manifest.grown):
            path.unlink()


def _scan(files: list[Path], options: ReadOptions, rows: int, store: FactStore) -> Scan:
    """What must be known of the files; their times are in the folder's unit."""
    unit = store.calendar.unit
    if options.unit not in ("auto", unit):
        raise DataError(
            f"{store.folder} counts time in the unit {unit!r}, and {options.unit!r} is asked for: "
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
        f"the times of {files[0]} are in the unit {found.unit!r}, and {store.folder} counts in "
        f"{unit!r}: read them in that unit with --time-unit {unit}, or ingest everything anew"
    )
