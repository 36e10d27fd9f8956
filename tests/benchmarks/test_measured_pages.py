"""Tables of measurements in the documents are those of the files that the commands wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


def rows_of(page: str) -> set[str]:
    return set((ROOT / "docs" / page).read_text(encoding="utf-8").splitlines())


def result(name: str) -> Any:
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["load.json", "load-paths.json"])
def test_the_load_of_a_service(name: str) -> None:
    for row in result(name)["loads"]:
        told = [value for key, value in row.items() if key != "first_errors"]
        assert "| " + " | ".join(map(str, told)) + " |" in rows_of("service.md")


def test_forecasts_at_all_sizes() -> None:
    rows = rows_of("scale.md")
    for run in result("bench/forecaster.json")["runs"]:
        steps = {step["what"]: step for step in run["steps"]}
        facts = f"| 10^{len(str(run['facts'])) - 1} |"
        timed = [
            f"{steps[what]['median_ms']:.0f} / {steps[what]['p99_ms']:.0f}"
            for what in (
                "forecast",
                "forecast with reasons",
                "observe and forecast with reasons",
            )
        ]
        if "train" not in steps:
            first = sum(steps[w]["seconds"] for w in ("open", "start", "first forecast"))
            told = [f"{first:.2f} s", f"{run['peak_gigabytes']:.1f} GB", *timed]
        else:
            learned, held = steps["train"], steps["observe and forecast with reasons"]
            told = [
                f"{learned['cpu_seconds']:.0f} s",
                f"{learned['peak_bytes_per_fact']:.0f}",
                f"{held['held_bytes_per_fact']:.0f}",
            ]
        assert f"{facts} {' | '.join(told)} |" in rows
