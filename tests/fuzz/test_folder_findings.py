"""What the fuzzers of folders of facts have found, or were made to look for."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuzz import ingested
from metatkgr.data import sources
from metatkgr.data.columns import Column, ColumnWriter
from metatkgr.data.folder import FactFolder
from metatkgr.data.visibility import Supports
from metatkgr.errors import DataError
from metatkgr.graph.checking import check_links, damage_told
from metatkgr.graph.mapped import GraphIndex
from metatkgr.graph.ragged import expand_ranges
from metatkgr.graph.sampler import BreadthFirstSampler
from metatkgr.graph.stored import index_of, open_index


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
    with index_of(FactFolder(folder)) as index:
        check_links(index, "facts")


@pytest.mark.parametrize("name", ["dataset.json", "entities-end", "subject", "index"])
def test_a_pipe_is_not_waited_for(plain: Path, name: str) -> None:
    path = plain / (name if (plain / name).exists() else f"{name}.safetensors")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError):
        open_index(FactFolder(plain))


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


def test_a_damaged_index_is_told_where_something_fails(plain: Path) -> None:
    store = FactFolder(plain)
    whole = open_index(store)
    assert isinstance(whole, GraphIndex)
    facts = store.facts()
    nobody = Supports(*(np.zeros(0, np.int64) for _ in range(4)))
    entity = int(facts.subject[-1])
    roots, times = torch.from_numpy(facts.subject[-40:]), torch.from_numpy(facts.time[-40:])
    for column in ("key", "start", "relation", "target"):
        for value in (-(2**40), 2**40):
            values = getattr(whole, column).clone()
            values[entity if column == "start" else int(whole.start[entity])] = value
            index = replace(whole, **{column: values})
            with pytest.raises(DataError, match="damaged"):
                check_links(index, "facts")
            # Some damage gives wrong neighbours and no error; what is an error is told as damage.
            with contextlib.suppress(DataError), damage_told(index, "facts"):
                BreadthFirstSampler(index, nobody, budget=4).sample(roots, times)
    backwards = replace(whole, start=whole.start + len(whole))
    with pytest.raises(DataError, match="not where it says"), damage_told(backwards, "facts"):
        expand_ranges(*backwards.before(roots, times))
    with pytest.raises(IndexError, match="mine"), damage_told(whole, "facts"):
        raise IndexError("mine")


def test_the_index_of_other_facts_is_refused(plain: Path) -> None:
    other = ingested.whole_folder("moved")
    number = FactFolder(other).manifest.index.number  # type: ignore[union-attr]
    shutil.copy(other / f"index-{number}.safetensors", plain / "index.safetensors")
    with pytest.raises(DataError, match="other facts"):
        open_index(FactFolder(plain))
