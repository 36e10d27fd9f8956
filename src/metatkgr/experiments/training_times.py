"""How long whole trainings take: the longest of the grid, and of runs with less company.

Cells of a grid share the hardware, which says little of a training alone. Files below
``results/timings`` hold trainings that had few others beside them (``metatkgr reproduce 3-shot
--models … --workers N``, then ``python -m studies.variants OUT/cells --out FILE``):
those of one file ran side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError
from metatkgr.experiments.outcomes import Outcome, Row
from metatkgr.experiments.suite import BASELINES
from metatkgr.experiments.tables import EVIDENCE, METATKGR, MISSING, Runs, table
from metatkgr.files import read_json

__all__ = ["read_timings", "times_section"]

_SHOTS = 3


def read_timings(folder: Path) -> list[dict[str, Any]]:
    """The trainings of the files below ``folder/timings``; ``beside``: how many others ran."""
    found: list[dict[str, Any]] = []
    for path in sorted((folder / "timings").glob("*.json")):
        content = read_json(path)
        runs = content.get("variants") if isinstance(content, dict) else None
        if not isinstance(runs, list) or not all(_is_timing(run) for run in runs):
            raise DataError(
                f"{path} holds no times of trainings: write it with "
                "python -m studies.variants CELLS --out FILE"
            )
        found += [run | {"beside": len(runs) - 1} for run in runs]
    return found


def _is_timing(run: Any) -> bool:
    return (
        isinstance(run, dict)
        and {"dataset", "model", "shots", "preset", "settings", "epochs"} <= run.keys()
        and isinstance(run.get("seconds"), int | float)
    )


def times_section(runs: Runs, timings: Sequence[dict[str, Any]]) -> list[str]:
    """The longest training of each learned model; nothing where none is known."""
    rows = []
    for row in (METATKGR, *(Row(model) for model in BASELINES), EVIDENCE):
        cells = [
            _cell(runs.of(dataset, row, _SHOTS), dataset, timings) for dataset in runs.datasets
        ]
        if any(cell != MISSING for cell in cells):
            rows.append([row.label, *cells])
    if not rows or not timings:
        return []
    return [
        "",
        "## Times of trainings",
        "",
        f"Seconds of the longest {_SHOTS}-shot training of all seeds with default settings,",
        "`entity-split`, and its epochs, in the grid, where up to fifteen others shared the",
        "hardware. **Bold**: the same model, one seed, with at most",
        f"{max(run['beside'] for run in timings)} others beside it (`results/timings`), an upper "
        "bound for a training alone.",
        "",
        *table(["", *runs.datasets], rows),
    ]


def _cell(grid: Sequence[Outcome], dataset: str, timings: Sequence[dict[str, Any]]) -> str:
    """The longest of a grid, and of the timed trainings of the same model."""
    trained = [o.training for o in grid if o.training]
    if not trained:
        return MISSING
    model = grid[0].row.model
    said = _told(max(trained, key=lambda training: float(training["seconds"])))
    timed = [
        run
        for run in timings
        if (run["dataset"], run["model"], run["shots"]) == (dataset, model, _SHOTS)
        and run["preset"] == "default"
        and not run["settings"]
    ]
    if timed:
        longest = max(timed, key=lambda run: float(run["seconds"]))
        said += f"; **{_told(longest)}**"
    return said


def _told(training: dict[str, Any]) -> str:
    return f"{training['seconds']:.0f} ({training['epochs']})"
