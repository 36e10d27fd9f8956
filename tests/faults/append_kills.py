"""An append to a folder of facts that is killed at one of the places where it writes something."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faults.training_kills import fresh_process
from metatkgr.data.facts import Facts
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import append, ingest
from metatkgr.data.readers import ReadOptions
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import WorldSettings
from metatkgr.data.world.simulation import write_world
from metatkgr.graph.index import TemporalIndex

__all__ = [
    "KINDS",
    "AppendKills",
    "append_to",
    "check_index",
    "kill_appends",
    "kill_at",
    "points_of",
    "prepare",
    "same",
]

_NAMED = ReadOptions(name="world")


def append_to(folder: str, file: str, die_at: int = -1, count_into: str = "") -> None:
    """Append; be killed at the n-th thing that is written, sorted, synced, renamed or removed.

    Args:
        folder: of facts.
        file: what to append.
        die_at: n; a negative number: never.
        count_into: a file that gets the number of such things.
    """
    from metatkgr.data.columns import ColumnWriter
    from metatkgr.data.engine import Engine

    seen = 0

    def reached() -> bool:
        nonlocal seen
        seen += 1
        return seen - 1 == die_at

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fatal(what: Any) -> Any:
        def call(*words: Any, **options: Any) -> Any:
            if reached():
                die()
            return what(*words, **options)

        return call

    def half(what: Any) -> Any:
        """Writes half of what it is given before it dies."""

        def call(writer: Any, *words: Any) -> None:
            if reached():
                values = words[-1]
                what(writer, *words[:-1], values[: len(values) // 2])
                writer._file.flush()
                die()
            what(writer, *words)

        return call

    Engine._give, Engine._run = fatal(Engine._give), fatal(Engine._run)  # type: ignore[method-assign]
    ColumnWriter.append = half(ColumnWriter.append)  # type: ignore[method-assign]
    os.fsync, os.replace, os.unlink = fatal(os.fsync), fatal(os.replace), fatal(os.unlink)
    shutil.rmtree = fatal(shutil.rmtree)
    append([file], folder, rows=200)
    if count_into:
        Path(count_into).write_text(str(seen))


def points_of(folder: Path, file: Path, work: Path) -> int:
    """How many such things there are; the folder is not changed."""
    shutil.copytree(folder, work / "counted")
    process = fresh_process(append_to, str(work / "counted"), str(file), -1, str(work / "count"))
    process.join(60)
    assert process.exitcode == 0
    shutil.rmtree(work / "counted")
    return int((work / "count").read_text())


KINDS = ("first", "late", "early")


def prepare(place: Path, kind: str) -> tuple[Path, Path]:
    """A folder with an index, and a file to append.

    Args:
        place: where they go.
        kind: 'first': the folder has not grown yet; 'late': it has, and the facts are late;
            'early': among them are some of earlier times.
    """
    write_world(place / "world.csv", WorldSettings(facts=900))
    head, *lines = (place / "world.csv").read_text().splitlines()
    late = [*lines[800:], *lines[790:800]]  # ten of them are there already
    if kind == "early":
        lines, late = [*lines[:300], *lines[330:]], [*late, *lines[300:330]]
    for name, part in (("a", lines[:700]), ("b", lines[700:800]), ("c", late)):
        (place / f"{name}.csv").write_text("\n".join([head, *part]) + "\n")
    files = [place / "a.csv", place / "b.csv"]
    if kind == "first":
        ingest(files, place / "facts", _NAMED)
    else:
        ingest(files[:1], place / "facts", _NAMED)
        append(files[1:], place / "facts")
    ingest([place / f"{name}.csv" for name in "abc"], place / "whole", _NAMED)
    return place / "facts", place / "c.csv"


def same(ours: Facts, theirs: Facts) -> bool:
    columns = ("subject", "relation", "object", "time")
    return (
        all(np.array_equal(getattr(ours, c), getattr(theirs, c)) for c in columns)
        and tuple(ours.entities) == tuple(theirs.entities)
        and tuple(ours.relations) == tuple(theirs.relations)
        and ours.calendar == theirs.calendar
    )


def check_index(store: FactFolder) -> None:
    """The index is that of the facts."""
    facts = store.facts()
    ours, theirs = (TemporalIndex.of(VisibleFacts.of(f)) for f in (facts, replace(facts)))
    everyone = torch.arange(len(store.entities))
    low, high = ours.before(everyone, torch.full_like(everyone, 10**9))
    position = low[:, None] + torch.arange(int((high - low).max()))
    mask = position < high[:, None]
    for a, b in zip(
        ours.read(everyone, position, mask), theirs.read(everyone, position, mask), strict=True
    ):
        assert torch.equal(a, b)


def kill_at(points: Sequence[int], folder: Path, file: Path, place: Path) -> None:
    old, new = FactFolder(folder).facts(), FactFolder(folder.parent / "whole").facts()
    for point in points:
        cut = place / f"cut-{point}"
        shutil.copytree(folder, cut)
        process = fresh_process(append_to, str(cut), str(file), point)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, point
        store = FactFolder(cut)
        assert same(store.facts(), old) or same(store.facts(), new), point
        check_index(store)
        done = append([file], cut)
        assert done.facts == len(new)
        again = FactFolder(cut)
        assert same(again.facts(), new), point
        check_index(again)
        # What is there is what the manifest names, and what the append has replaced.
        names = {path.name for path in cut.iterdir()}
        replaced = store.manifest.files() | {path.name for path in folder.iterdir()}
        assert again.manifest.files() <= names <= again.manifest.files() | replaced
        assert same(store.facts(), old) or same(store.facts(), new), "who had it open reads on"
        shutil.rmtree(cut)


@dataclass
class AppendKills:
    """What was seen."""

    kills: int = 0
    places: int = 0
    """At which an append can be killed, of all kinds together."""
    problems: tuple[str, ...] = ()


def kill_appends(folder: Path, points: int, seed: int = 0) -> AppendKills:
    """Kill ``points`` appends at random places, as many of each kind."""
    rng, seen = random.Random(seed), AppendKills()
    for number, kind in enumerate(KINDS):
        place = folder / kind
        place.mkdir()
        facts, file = prepare(place, kind)
        places = points_of(facts, file, place)
        seen.places += places
        for point in rng.choices(range(places), k=len(range(number, points, len(KINDS)))):
            try:
                kill_at([point], facts, file, place)
            except AssertionError as error:
                seen.problems += (f"{kind}, place {point}: {error}",)
            seen.kills += 1
    return seen
