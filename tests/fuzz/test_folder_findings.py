"""What the fuzzers of folders of facts and of runs on disk have found, or were made to look for."""

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

from fuzz import disk_runs, ingested
from metatkgr.data import sources
from metatkgr.data.large.columns import Column, ColumnWriter
from metatkgr.data.large.split import StoredSplit
from metatkgr.data.large.store import FactStore
from metatkgr.data.periods import Period
from metatkgr.errors import DataError, MetaTKGRError, SettingsError
from metatkgr.evaluation.on_disk import TableScorer, evaluate_on_disk
from metatkgr.graph.build import build_index
from metatkgr.graph.checking import check_links, damage_told
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.stored import index_of, open_index
from metatkgr.training.disk_run import load_disk_run
from metatkgr.training.disk_tables import load_checkpoint, tables_of
from metatkgr.training.negatives_on_disk import MappedNegatives
from metatkgr.training.on_disk import report_on_disk
from metatkgr.training.tensors import write_tensors


@pytest.fixture(params=ingested.KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(ingested.whole_folder(request.param), tmp_path / "facts")
    return tmp_path / "facts"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    shutil.copytree(ingested.whole_folder("plain"), tmp_path / "facts")
    return tmp_path / "facts"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A MetaTKGR on disk that is done."""
    shutil.copytree(disk_runs._whole("metatkgr", True), tmp_path / "run")
    manifest = tmp_path / "run" / "on-disk.json"
    about = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**about, "data": str(ingested.whole_folder("plain"))}))
    return tmp_path / "run"


def put(path: Path, position: int, value: int) -> None:
    """Write a number into a column."""
    data = bytearray(path.read_bytes())
    at = 8 + struct.unpack("<Q", data[:8])[0] + 8 * position
    data[at : at + 8] = struct.pack("<q", value)
    path.write_bytes(data)


def column_of(folder: Path, name: str) -> Path:
    number = FactStore(folder).manifest.columns
    return folder / (f"{name}-{number}.safetensors" if number else f"{name}.safetensors")


def test_whole_folders_are_used(folder: Path) -> None:
    FactStore(folder).check()
    with index_of(FactStore(folder)) as index:
        check_links(index, "facts")


@pytest.mark.parametrize("name", ["dataset.json", "entities-end", "subject", "index"])
def test_a_pipe_is_not_waited_for(plain: Path, name: str) -> None:
    path = plain / (name if (plain / name).exists() else f"{name}.safetensors")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError):
        open_index(FactStore(plain))


@pytest.mark.parametrize(
    ("name", "position", "value"),
    [("subject", 3, 10**6), ("object", 0, -1), ("relation", 9, 2**62), ("time", 5, 2**40)],
)
def test_a_fact_of_nobody_is_told(folder: Path, name: str, position: int, value: int) -> None:
    put(column_of(folder, name), position, value)
    for read in (
        lambda: sources.load(str(folder)),
        lambda: list(FactStore(folder).blocks(7)),
        lambda: StoredSplit(FactStore(folder)).periods,
    ):
        with pytest.raises(DataError, match="is damaged"):
            read()


def test_times_out_of_order_are_told(folder: Path) -> None:
    put(column_of(folder, "time"), 200, 0)
    with pytest.raises(DataError, match="order of their times"):
        FactStore(folder).check(rows=11)


@pytest.mark.parametrize(
    "change",
    [{"steps": 10**15}, {"origin": float("inf")}, {"stride": 0}, {"facts": 3}, {"version": [1]}],
)
def test_a_manifest_that_lies_is_told(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError):
        FactStore(folder)


@pytest.mark.parametrize(
    "header", [b"[" * 100_000, b'{"column":{"shape":[Infinity]}}', b"9" * 5000]
)
def test_a_header_that_python_chokes_on_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(DataError, match="damaged"):
        Column(path)


def test_a_column_of_another_type_is_refused(plain: Path) -> None:
    values = np.zeros(len(FactStore(plain)), np.float32)
    with ColumnWriter(plain / "subject.safetensors", np.float32) as column:
        column.append(values)
    with pytest.raises(DataError, match="float32, not int64"):
        FactStore(plain)


@pytest.mark.parametrize(("name", "value"), [("end", -5), ("end", 2**62), ("id", 10**6)])
def test_a_name_without_a_place_is_told(plain: Path, name: str, value: int) -> None:
    store = FactStore(plain)
    texts = [text.encode() for text in store.entities]
    put(plain / f"entities-{name}", 4, value)
    with pytest.raises(DataError, match="vocabulary"):
        FactStore(plain).entities.find_all(texts)
    if name == "end":
        with pytest.raises(DataError, match="vocabulary"):
            FactStore(plain).check()
        with pytest.raises(DataError, match="vocabulary"):
            tuple(FactStore(plain).entities)


def test_a_name_that_is_no_text_is_told(plain: Path) -> None:
    path = plain / "entities-text"
    data = bytearray(path.read_bytes())
    data[-1] = 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match="UTF-8"):
        FactStore(plain).check()
    with pytest.raises(DataError, match="UTF-8"):
        FactStore(plain).entities[-1]


def test_a_damaged_index_is_told_where_something_fails(plain: Path) -> None:
    store = FactStore(plain)
    whole = GraphIndex.open(plain / "index.safetensors")
    asked = StoredSplit(store, shots=1).tasks(Period.META_TEST, 40).tasks
    scorer = TableScorer(torch.zeros(len(store.entities), 2), torch.zeros(len(store.relations), 2))
    entity = int(asked.questions.entity[0])
    for column in ("key", "start", "relation", "target"):
        for value in (-(2**40), 2**40):
            values = getattr(whole, column).clone()
            values[entity if column == "start" else int(whole.start[entity])] = value
            index = replace(whole, **{column: values})
            with pytest.raises(DataError, match="damaged"):
                check_links(index, "facts")
            # Some damage gives wrong ranks and no error; what is an error is told as damage.
            with contextlib.suppress(DataError), damage_told(index, "facts"):
                evaluate_on_disk(scorer, asked, index)
    backwards = replace(whole, start=whole.start + len(whole))
    with pytest.raises(DataError, match="not where it says"), damage_told(backwards, "facts"):
        evaluate_on_disk(scorer, asked, backwards)
    with pytest.raises(IndexError, match="mine"), damage_told(whole, "facts"):
        raise IndexError("mine")


def test_the_index_of_other_facts_is_refused(plain: Path) -> None:
    store = FactStore(plain)
    sizes = {"entities": len(store.entities), "relations": len(store.relations)}
    some = [tuple(column[:40] for column in store.read(0, 50))]
    build_index(plain / "index.safetensors", lambda _: some, steps=store.steps, **sizes)  # type: ignore[arg-type,return-value]
    with pytest.raises(DataError, match="other facts"):
        open_index(FactStore(plain))


@pytest.mark.parametrize("data", ["x" * 600, "a\0b", "~nobody-here/x", "", "/dev/zero", "../" * 40])
def test_facts_in_no_place_are_not_there(run: Path, data: str) -> None:
    path = run / "on-disk.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": data}))
    with pytest.raises(DataError, match="not there any more"):
        report_on_disk(run)


@pytest.mark.parametrize("shots", [10**9, 2**63, 10**400])
def test_shots_that_no_entity_has_are_refused(run: Path, shots: int) -> None:
    path = run / "on-disk.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "shots": shots}))
    with pytest.raises(SettingsError, match="choose fewer"):
        load_disk_run(run)


def test_a_run_says_where_its_facts_are(run: Path) -> None:
    assert report_on_disk(run, questions=2)["data"] == str(ingested.whole_folder("plain"))


def test_tables_that_can_only_be_read_are_enough(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memmap = np.memmap

    def reading(file: Any, dtype: Any, mode: str, *rest: Any) -> Any:
        assert mode == "c"
        return memmap(file, dtype, mode, *rest)

    monkeypatch.setattr(np, "memmap", reading)
    assert report_on_disk(run, questions=2)["questions"] == 2


def test_an_encoder_of_any_size_is_not_made_first(run: Path) -> None:
    path = run / "on-disk.json"
    about = json.loads(path.read_text())
    about["settings"]["layers"] = 10**12
    path.write_text(json.dumps(about))
    with pytest.raises(MetaTKGRError):
        report_on_disk(run, questions=2)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_tables_that_never_end_are_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(disk_runs._whole("transe", False), folder)
    for place in ("checkpoint-1", "working"):
        path = folder / place / "entity.safetensors"
        path.unlink()
        os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(DataError, match="ordinary"):
        tables_of(folder, load_disk_run(folder))
    with pytest.raises(DataError, match="ordinary"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("target", "start"),
    [([0, 1], [0, 1, 3]), ([0, 9], [0, 1, 2]), ([0, 1], [0, 2]), ([0, 1], [0, 3, 2])],
)
def test_wrong_answers_from_other_facts_are_refused(
    tmp_path: Path, target: list[int], start: list[int]
) -> None:
    path = tmp_path / "places.safetensors"
    write_tensors(path, {"target": torch.tensor(target), "start": torch.tensor(start)})
    with pytest.raises(DataError, match="remove it"):
        MappedNegatives(path, 2, "mixed", 1)
