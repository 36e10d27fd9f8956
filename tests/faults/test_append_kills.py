"""Kill -9 in the middle of an append: the folder is the old one or the new one, and goes on."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from faults.append_kills import append_to, points_of
from faults.test_disk_full import no_file_beyond
from faults.training_kills import fresh_process
from metatkgr.data.facts import Facts
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import append, ingest
from metatkgr.data.readers import ReadOptions
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import WorldSettings
from metatkgr.data.world.simulation import write_world
from metatkgr.errors import DataError
from metatkgr.graph.index import TemporalIndex

NAMED = ReadOptions(name="world")


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
        ingest(files, place / "facts", NAMED)
    else:
        ingest(files[:1], place / "facts", NAMED)
        append(files[1:], place / "facts")
    ingest([place / f"{name}.csv" for name in "abc"], place / "whole", NAMED)
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


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_some_points_the_folder_is_the_old_or_the_new_one(
    tmp_path: Path, kind: str
) -> None:
    folder, file = prepare(tmp_path, kind)
    points = points_of(folder, file, tmp_path)
    assert points > 30
    kill_at(np.linspace(0, points - 1, 4).astype(int).tolist(), folder, file, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_point_the_folder_is_the_old_or_the_new_one(
    tmp_path: Path, kind: str
) -> None:
    folder, file = prepare(tmp_path, kind)
    kill_at(range(points_of(folder, file, tmp_path)), folder, file, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_full_disk_the_folder_stays_as_it_was(tmp_path: Path, kind: str) -> None:
    folder, file = prepare(tmp_path, kind)
    old, new = FactFolder(folder).facts(), FactFolder(tmp_path / "whole").facts()
    for size in (4200, 5000, 7000):
        with no_file_beyond(size), pytest.raises(DataError, match="cannot write"):
            append([file], folder)
        assert same(FactFolder(folder).facts(), old)
        check_index(FactFolder(folder))
    append([file], folder)
    assert same(FactFolder(folder).facts(), new)
