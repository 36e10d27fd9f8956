"""Files for ``data ingest --append``: a folder stays as it was, or becomes what it should be."""

from __future__ import annotations

import contextlib
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from fuzz.fuzzing import fuzzer, scratch
from fuzz.mutation import damage_bytes, odd_text
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import Appended, append, ingest
from metatkgr.data.readers import ReadOptions
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import MetaTKGRError
from metatkgr.graph.index import TemporalIndex

_MOST_FACTS = 20_000
_NAMES = ["ann", "bob", "cleo", "dan", "é", "7", "x y", "ann ", "../../x", "O'Neil"]
_KINDS = ["knows", "likes", "is"]
_TIMES = {
    "day": ["2020-01-01", "2020-01-03", "2020-01-05", "2020-01-09", "2019-12-31", "1999-07-04"],
    "step": ["0", "4", "6", "8", "7", "12", "-3", "1000000000000"],
}
_OTHER_TIMES = ["2020", "2020-01", "2020-01-03T05", "5", "2020-13-01", "", "9" * 30, "202#-##-##"]
_OPTIONS: dict[str, list[Any]] = {
    "skip_bad_rows": [True, True, False],
    "unit": ["auto", "day", "step", "year", "hour"],
    "header": [None, True, False],
    "ids": [None, True, False],
    "clip": [None, ("2020-01-01", "2020-01-05"), ("0", "7"), ("5", "1")],
}


@cache
def _whole(unit: str) -> tuple[bytes, Path]:
    """The rows of a folder, and the folder with its index."""
    rng, place = random.Random(f"appends/{unit}"), scratch() / "appends" / unit
    place.mkdir(parents=True)
    times = sorted(_TIMES[unit][:3])
    rows = [",".join((*_sides(rng, 0.0), time)) for time in times for _ in range(8)]
    data = "\n".join(["s,r,o,t", *rows, ""]).encode()
    (place / "rows.csv").write_bytes(data)
    ingest([place / "rows.csv"], place / "facts", ReadOptions(name="facts"))
    return data, place / "facts"


def _sides(rng: random.Random, odd: float) -> list[str]:
    def cell(usual: list[str]) -> str:
        return odd_text(rng) if rng.random() < odd else rng.choice(usual)

    return [cell(_NAMES), cell(_KINDS), cell(_NAMES)]


def _rows(rng: random.Random, unit: str) -> bytes:
    """More rows: in the folder's own unit, mostly."""
    odd = rng.choice((0.0, 0.0, 0.02, 0.2))
    times = _TIMES[unit] if rng.random() < 0.8 else [*_TIMES["day"], *_TIMES["step"], *_OTHER_TIMES]
    if rng.random() < 0.4:
        times = times[: rng.randrange(1, len(times) + 1)]
    rows = ["s,r,o,t"] if rng.random() < 0.9 else []
    for _ in range(rng.randrange(1, 12)):
        cells = [*_sides(rng, odd), rng.choice(times)]
        if rng.random() < 0.05:
            cells[3] = rng.choice(_OTHER_TIMES)
        if rng.random() < odd:
            cells = cells[: rng.randrange(5)]
        rows.append(",".join(cells))
    data = "\n".join([*rows, ""]).encode("utf-8", "surrogatepass")
    return damage_bytes(rng, data) if rng.random() < 0.15 else data


def _files(store: FactFolder) -> dict[str, bytes]:
    """Those that count: what an append has replaced, the next one removes."""
    return {name: (store.folder / name).read_bytes() for name in sorted(store.manifest.files())}


@fuzzer(share=0.3)
def appended_files(rng: random.Random) -> None:
    """Dirty rows, other units, earlier times: refused and nothing is changed, or all is counted."""
    unit = rng.choice(list(_TIMES))
    first, whole = _whole(unit)
    place = scratch() / "appending"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(whole, place / "facts")
    few = rng.choice((0.0, 0.1, 0.4))
    options = {key: rng.choice(values) for key, values in _OPTIONS.items() if rng.random() < few}
    options.setdefault("skip_bad_rows", True)
    options["most_bytes"] = 64 * _MOST_FACTS
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch("os.fsync", lambda _: None))
        parts = [_rows(rng, unit) for _ in range(rng.choice((1, 1, 2)))]
        taken: list[Path] = []
        for number, data in enumerate(parts):
            path = place / f"more{number}.csv"
            path.write_bytes(data)
            _append(rng, path, place / "facts", options)
            taken.append(path)
        if not options.keys() - {"skip_bad_rows", "most_bytes"}:
            _check_at_once(first, taken, place, unit)


def _append(rng: random.Random, path: Path, folder: Path, options: dict[str, Any]) -> None:
    """Add a file; every row is counted, every fact is there once."""
    was, size = FactFolder(folder), rng.choice((2, 3, 1000))
    before = _files(was)
    try:
        done = append([path], folder, ReadOptions(**options), rows=size)
    except MetaTKGRError:
        assert _files(FactFolder(folder)) == before, (
            "an append that was refused has changed the folder"
        )
        raise
    assert options["skip_bad_rows"] or done.report.total == 0
    try:
        _check(done, was, folder)
    except MetaTKGRError as error:
        raise AssertionError("an append has left a folder that cannot be used") from error


def _check(done: Appended, was: FactFolder, folder: Path) -> None:
    report, store = done.report, FactFolder(folder)
    assert report.rows_read + report.total == report.rows_in_file
    assert done.facts == len(store) == len(was) + done.added
    assert done.entities == len(store.entities) == len(was.entities) + done.new_entities
    assert done.relations == len(store.relations) == len(was.relations) + done.new_relations
    assert tuple(store.entities)[: len(was.entities)] == tuple(was.entities)
    store.check()
    links = len(store) * 2 - int(np.count_nonzero(store.facts().subject == store.facts().object))
    assert len(TemporalIndex.of(VisibleFacts.of(store.facts()))) == links
    for names in (store.entities, store.relations):
        assert [names.id(name) for name in names] == list(range(len(names)))


def _check_at_once(first: bytes, more: list[Path], place: Path, unit: str) -> None:
    """Reading everything into a new folder gives the same."""
    (place / "rows.csv").write_bytes(first)
    try:
        options = ReadOptions(name="facts", skip_bad_rows=True, unit=unit)
        ingest([place / "rows.csv", *more], place / "at-once", options)
    except MetaTKGRError:
        return  # together, the files have no single header or width
    ours, theirs = FactFolder(place / "facts"), FactFolder(place / "at-once")
    assert (ours.steps, ours.calendar) == (theirs.steps, theirs.calendar)
    assert tuple(ours.entities) == tuple(theirs.entities)
    assert tuple(ours.relations) == tuple(theirs.relations)
    for a, b in zip(ours.read(0, len(ours)), theirs.read(0, len(theirs)), strict=True):
        assert np.array_equal(a, b)
