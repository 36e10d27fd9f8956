"""The table of how long whole trainings take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metatkgr.errors import DataError
from metatkgr.experiments.outcomes import Outcome, Row
from metatkgr.experiments.tables import Runs
from metatkgr.experiments.training_times import read_timings, times_section


def trained(model: str, seed: int, seconds: float, epochs: int) -> Outcome:
    training = {"seconds": seconds, "epochs": epochs}
    return Outcome("YAGO", Row(model), 3, "3", "entity-split", seed, {}, {"training": training})


def timed(seconds: float, **changed: Any) -> dict[str, Any]:
    usual = {"dataset": "YAGO", "model": "regcn", "shots": 3, "preset": "default", "settings": {}}
    return {**usual, "seconds": seconds, "epochs": 7, "beside": 4, **changed}


def test_the_longest_training_counts_and_only_the_same_model_with_its_defaults() -> None:
    runs = Runs(
        [trained("regcn", 0, 80, 9), trained("regcn", 1, 233.4, 30), trained("lan", 0, 5, 1)]
    )
    others = [
        timed(999, preset="tuned"),
        timed(999, shots=1),
        timed(999, dataset="WIKI"),
        timed(999, model="renet"),
        timed(999, settings={"epochs": "90"}),
    ]
    lines = times_section(runs, [timed(60), timed(72.2), *others])
    assert "| `regcn` | 233 (30); **72 (7)** |" in lines
    assert "| `lan` | 5 (1) |" in lines
    assert any(line.startswith("4 others beside it") for line in lines)
    assert not any("renet" in line for line in lines), "no training of it in the grid"


def test_nothing_is_said_without_times() -> None:
    assert times_section(Runs([trained("regcn", 0, 80, 9)]), []) == []
    rule = Outcome("YAGO", Row("paths"), 3, "3", "entity-split", 0, {}, {})
    assert times_section(Runs([rule]), [timed(60)]) == []


@pytest.mark.parametrize(
    "content", [[], {}, {"variants": [{}]}, {"variants": [timed(1) | {"seconds": "x"}]}]
)
def test_a_file_without_times_is_named(tmp_path: Path, content: Any) -> None:
    (tmp_path / "timings").mkdir()
    path = tmp_path / "timings" / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"bad\.json holds no times of trainings"):
        read_timings(tmp_path)
    path.write_text(json.dumps({"variants": [timed(1), timed(2)]}))
    assert read_timings(tmp_path) == [timed(1, beside=1), timed(2, beside=1)]
