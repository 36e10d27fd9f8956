"""Kill -9 in the middle of an append: the folder is the old one or the new one, and goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from faults.append_kills import KINDS, check_index, kill_at, points_of, prepare, same
from faults.test_disk_full import no_file_beyond
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import append
from metatkgr.errors import DataError


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
