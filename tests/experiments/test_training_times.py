"""The table of how long whole trainings take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metatkgr.errors import DataError
from metatkgr.experiments.cell_run import run_cell
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.records import Record
from metatkgr.experiments.results import Results
from metatkgr.experiments.runner import record_path
from metatkgr.experiments.sections.others import times


def trained(model: str, seed: int, seconds: float, epochs: int) -> Record:
    return Record(Cell("YAGO", model, seed=seed), {}, {"seconds": seconds, "epochs": epochs})


def timed(seconds: float, **changed: Any) -> dict[str, Any]:
    usual = {"dataset": "YAGO", "model": "regcn", "shots": 3, "preset": "default", "settings": {}}
    return {**usual, "seconds": seconds, "epochs": 7, "beside": 4, **changed}


def test_the_longest_training_counts_and_only_the_same_model_with_its_defaults() -> None:
    runs = [trained("regcn", 0, 80, 9), trained("regcn", 1, 233.4, 30), trained("lan", 0, 5, 1)]
    others = [
        timed(999, preset="tuned"),
        timed(999, shots=1),
        timed(999, dataset="WIKI"),
        timed(999, model="renet"),
        timed(999, settings={"epochs": "90"}),
    ]
    lines = times(Results(runs, timings=[timed(60), timed(72.2), *others]))
    assert "| `regcn` | 233 (30); **72 (7)** |" in lines
    assert "| `lan` | 5 (1) |" in lines
    assert any(line.startswith("4 others beside it") for line in lines)
    assert not any("renet" in line for line in lines), "no training of it in the grid"


def test_nothing_is_said_without_times() -> None:
    assert times(Results([trained("regcn", 0, 80, 9)])) == []
    rule = Record(Cell("YAGO", "paths"), {})
    assert times(Results([rule], timings=[timed(60)])) == []


@pytest.mark.parametrize(
    "content", [[], {}, {"variants": [{}]}, {"variants": [timed(1) | {"seconds": "x"}]}]
)
def test_a_file_without_times_is_named(tmp_path: Path, content: Any) -> None:
    (tmp_path / "timings").mkdir()
    path = tmp_path / "timings" / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"bad\.json does not hold times of trainings"):
        Results.read(tmp_path)
    path.write_text(json.dumps({"variants": [timed(1), timed(2)]}))
    rule = Cell("world:1000:1", "recurrency")
    run_cell(rule, work=tmp_path / "work").write(record_path(tmp_path, rule))
    assert Results.read(tmp_path).timings == [timed(1, beside=1), timed(2, beside=1)]
