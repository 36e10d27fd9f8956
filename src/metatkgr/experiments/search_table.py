"""What searches for settings found: the table of the files that ``metatkgr tune --json`` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError
from metatkgr.experiments.outcomes import Row, row_order
from metatkgr.experiments.suite import DATASETS
from metatkgr.experiments.tables import MISSING, number, table
from metatkgr.files import read_json

__all__ = ["read_searches", "search_section"]


def read_searches(folder: Path) -> list[dict[str, Any]]:
    """The searches below ``folder/tuning``, each as ``metatkgr tune --json FILE`` writes it."""
    found = []
    for path in sorted((folder / "tuning").glob("*.json")):
        content = read_json(path)
        if not isinstance(content, dict) or not isinstance(content.get("all"), list):
            raise DataError(f"{path} does not hold a search: write it with metatkgr tune --json")
        found.append(content)
    return found


def search_section(searches: Sequence[dict[str, Any]]) -> list[str]:
    """What a search gained, by model and dataset; nothing without searches."""
    if not searches:
        return []
    by_cell = {(found["model"], found["dataset"]): found for found in searches}
    models = sorted({found["model"] for found in searches}, key=lambda name: row_order(Row(name)))
    present = {found["dataset"] for found in searches}
    datasets = [d for d in DATASETS if d in present] + sorted(present - set(DATASETS))
    rows = [
        [f"`{model}`", *(_cell(by_cell.get((model, dataset))) for dataset in datasets)]
        for model in models
    ]
    return [
        "",
        "## Searches for settings",
        "",
        "`metatkgr tune DATASET --model NAME`: MRR on **meta-validation**, 3-shot, seed 0, with",
        "the defaults (the first trial) and with the best of the trials, whose number (pruned ones",
        "too) is in brackets. The best settings are the preset `tuned`: rows that say so are made",
        "with them, all others with the defaults. An en dash: not searched.",
        "",
        *table(["", *datasets], rows),
    ]


def _cell(found: dict[str, Any] | None) -> str:
    if found is None or found["best"] is None:
        return MISSING
    first = next(trial for trial in found["all"] if trial["trial"] == 0)
    tried = sum(count for state, count in found["trials"].items() if state != "failed")
    before = first["mrr"] if first["state"] == "complete" else None
    return f"{number(before)} to {number(found['best']['mrr'])} ({tried})"
