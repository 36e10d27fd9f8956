"""Settings side by side: ordered by meta-validation, told with meta-test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from metatkgr.experiments.cell_run import run_cell
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.records import Record
from metatkgr.experiments.runner import record_path
from studies.variants import _main


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    cell = Cell("world:2000", "transe", tiny=True)
    return run_cell(cell, work=tmp_path_factory.mktemp("work"))


def test_the_best_validation_comes_first(
    record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate, validation in (("0.01", 0.25), ("0.1", 0.5), ("1.0", None)):
        cell = replace(record.cell, settings=(("learning_rate", rate),))
        training = record.training | {"validation_mrr": validation}
        replace(record, cell=cell, training=training).write(record_path(tmp_path, cell))
    _main([str(tmp_path / "cells"), "--out", str(tmp_path / "variants.json")])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("|")[2].strip() for row in rows] == [
        f"`transe learning_rate={rate}`" for rate in ("0.1", "0.01", "1.0")
    ]
    assert [row.split("|")[4].strip() for row in rows] == [".500", ".250", "–"]
    runs = json.loads((tmp_path / "variants.json").read_text(encoding="utf-8"))["variants"]
    measured = record.result["metrics"]["time"]["all"]
    for run in runs:
        assert run["time"] == {key: measured[key] for key in run["time"]}
        assert run["seed"] == 0


def test_a_folder_without_records_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        _main([str(tmp_path)])
