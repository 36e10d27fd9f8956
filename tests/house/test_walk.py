"""What counts as a file that one walks through."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path

import pytest

import metatkgr as mt
from house import walk
from house.walk import MOST_SECONDS, seconds_of_version, walking


def test_a_function_counts_in_whatever_thread_it_runs() -> None:
    thread = threading.Thread(target=mt.load, args=("world:2000",))
    with walking() as found:
        thread.start()
        thread.join()
    assert found["data/sources.py"] >= 1
    assert "models/base.py" not in found


def test_a_thread_that_was_begun_before_is_looked_at_and_what_it_did_before_is_forgotten() -> None:
    asked, done = threading.Event(), threading.Event()

    def answer() -> None:
        mt.load("world:2000")
        done.set()
        asked.wait(60)
        mt.create("paths")

    with walking() as found:
        thread = threading.Thread(target=answer)
        thread.start()
        assert done.wait(60)
        found.forget()
        asked.set()
        thread.join()
    assert found["models/base.py"] >= 1
    assert "data/sources.py" not in found


def test_what_comes_after_the_end_does_not_count() -> None:
    with walking() as found:
        mt.load("world:2000")
        found.end()
        mt.create("paths")
    assert found["data/sources.py"] >= 1
    assert "models/base.py" not in found


def test_what_runs_while_a_module_is_imported_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = "def early():\n    return 1\n\nclass Body:\n    value = early()\n\n"
    (tmp_path / "imported_by_a_walk.py").write_text(early + "def later():\n    return early()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(walk, "PACKAGE", tmp_path)
    with walking() as found:
        module = importlib.import_module("imported_by_a_walk")
    assert not found
    with walking() as found:
        module.later()
    assert found == {"imported_by_a_walk.py": 2}


def test_the_version_is_quick() -> None:
    assert seconds_of_version() < MOST_SECONDS
