"""What the fuzzers of folders of facts have found, or were made to look for."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz import ingested
from metatkgr.data import sources
from metatkgr.data.columns import Column, ColumnWriter
from metatkgr.data.folder import FactFolder
from metatkgr.data.manifest import INDEX
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import DataError
from metatkgr.graph.index import TemporalIndex


@pytest.fixture(params=ingested.KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(ingested.whole_folder(request.param), tmp_path / "facts")
    return tmp_path / "facts"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    shutil.copytree(ingested.whole_folder("plain"), tmp_path / "facts")
    return tmp_path / "facts"


def put(path: Path, position: int, value: int, kind: str = "<i") -> None:
    """Write a number into a column."""
    data, size = bytearray(path.read_bytes()), struct.calcsize(kind)
    at = 8 + struct.unpack("<Q", data[:8])[0] + size * position
    data[at : at + size] = struct.pack(kind, value)
    path.write_bytes(data)


def column_of(folder: Path, name: str) -> Path:
    number = FactFolder(folder).manifest.columns
    return folder / (f"{name}-{number}.safetensors" if number else f"{name}.safetensors")


def test_whole_folders_are_used(folder: Path) -> None:
    FactFolder(folder).check()
    assert len(TemporalIndex.of(VisibleFacts.of(FactFolder(folder).facts()))) > 0


@pytest.mark.parametrize("name", ["dataset.json", "entities-end", "subject", "index-link"])
def test_a_pipe_is_not_waited_for(plain: Path, name: str) -> None:
    path = plain / (name if (plain / name).exists() else f"{name}.safetensors")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError):
        FactFolder(plain).links()


@pytest.mark.parametrize(
    ("name", "position", "value"),
    [("subject", 3, 10**6), ("object", 0, -1), ("relation", 9, 2**30), ("time", 5, 2**31 - 1)],
)
def test_a_fact_of_nobody_is_told(folder: Path, name: str, position: int, value: int) -> None:
    put(column_of(folder, name), position, value)
    for read in (
        lambda: sources.load(str(folder)),
        lambda: list(FactFolder(folder).blocks(7)),
    ):
        with pytest.raises(DataError, match="is damaged"):
            read()


def test_times_out_of_order_are_told(folder: Path) -> None:
    put(column_of(folder, "time"), 200, 0)
    with pytest.raises(DataError, match="order of their times"):
        FactFolder(folder).check(rows=11)


@pytest.mark.parametrize(
    "change",
    [{"steps": 10**15}, {"origin": float("inf")}, {"stride": 0}, {"facts": 3}, {"version": [1]}],
)
def test_a_manifest_that_lies_is_told(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError):
        FactFolder(folder)


@pytest.mark.parametrize(
    "header", [b"[" * 100_000, b'{"column":{"shape":[Infinity]}}', b"9" * 5000]
)
def test_a_header_that_python_chokes_on_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(DataError, match="damaged"):
        Column(path)


def test_a_column_of_another_type_is_refused(plain: Path) -> None:
    values = np.zeros(len(FactFolder(plain)), np.float32)
    with ColumnWriter(plain / "subject.safetensors", np.float32) as column:
        column.append(values)
    with pytest.raises(DataError, match="float32, not int32"):
        FactFolder(plain)


@pytest.mark.parametrize(("name", "value"), [("end", -5), ("end", 2**62), ("order", 10**6)])
def test_a_name_without_a_place_is_told(plain: Path, name: str, value: int) -> None:
    store = FactFolder(plain)
    names = tuple(store.entities)
    put(plain / f"entities-{name}", 4, value, "<q" if name == "end" else "<i")
    with pytest.raises(DataError, match="vocabulary"):
        [FactFolder(plain).entities.id(text) for text in names]
    if name == "end":
        with pytest.raises(DataError, match="vocabulary"):
            FactFolder(plain).check()
        with pytest.raises(DataError, match="vocabulary"):
            tuple(FactFolder(plain).entities)


def test_a_name_that_is_no_text_is_told(plain: Path) -> None:
    path = plain / "entities-text"
    data = bytearray(path.read_bytes())
    data[-1] = 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match="UTF-8"):
        FactFolder(plain).check()
    with pytest.raises(DataError, match="UTF-8"):
        FactFolder(plain).entities[-1]


@pytest.mark.parametrize("name", INDEX)
def test_a_damaged_index_is_told_before_it_is_used(plain: Path, name: str) -> None:
    path = plain / f"index-{name}.safetensors"
    whole, column = path.read_bytes(), Column(path)
    kind = {"int64": "<q", "int32": "<i", "float32": "<f"}[column.dtype.name]
    for place in (0, len(column) // 2, len(column) - 1):
        for value in (-(2**30), 2**30):
            put(path, place, 2**62 * (1 if value > 0 else -1) if kind == "<q" else value, kind)
            with pytest.raises(DataError, match="damaged"):
                FactFolder(plain).check()
            path.write_bytes(whole)
    path.write_bytes(whole[:-4])
    with pytest.raises(DataError, match="damaged"):
        FactFolder(plain).links()
    path.write_bytes(whole)
    assert len(sources.load(str(plain))) == len(FactFolder(plain))


def test_an_entity_that_is_sent_to_the_links_of_another_is_told(plain: Path) -> None:
    path = plain / "index-start.safetensors"
    start = Column(path).map().tolist()
    at = next(e for e in range(1, len(start) - 1) if start[e] != start[e - 1])
    put(path, at, start[at - 1], "<q")
    with pytest.raises(DataError, match="not where it says"):
        sources.load(str(plain))


def test_the_index_of_other_facts_is_refused(plain: Path) -> None:
    other = ingested.whole_folder("moved")
    part = FactFolder(other).manifest.index
    assert part is not None
    for name in INDEX:
        shutil.copy(other / part.file(name), plain / f"index-{name}.safetensors")
    with pytest.raises(DataError, match="other facts"):
        FactFolder(plain).links()
