"""``docs/results.md`` and ``docs/figures`` from the files of ``results/``: ``make docs``.

The report of ``metatkgr reproduce``, with two tables of what is in no folder of a grid: searches
for settings (``results/tuning``) and trainings that had the machine nearly to themselves
(``results/timings``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from metatkgr.data import catalog
from metatkgr.errors import DataError
from metatkgr.experiments.cells import BASELINES, Row, row_order
from metatkgr.experiments.report import results_page, write_dataset, write_figures
from metatkgr.experiments.results import (
    EVIDENCE,
    METATKGR,
    Results,
    in_papers_order,
    read_statistics,
)
from metatkgr.experiments.sections import Write
from metatkgr.experiments.sections.tables import MISSING, number, pivot, table
from metatkgr.experiments.suite import DATASETS
from metatkgr.files import read_json, write_text
from studies.collect import collected

__all__ = ["page_of", "read_searches", "read_timings", "search_section", "times_section"]

_ORIGIN = """\
Made from the files in `results/` by `make docs`; nothing here is typed by hand. What the words
mean: [protocol.md](protocol.md)."""
_SHOTS = 3
"""K of the table of times."""


def results_of(folder: Path) -> Results:
    """The frame of all results of the repository."""
    paths = sorted((folder / "cells").rglob("*.json"))
    records = [record for path in paths for record in collected(path)]
    return Results(records, statistics=read_statistics(folder))


def page_of(folder: Path, results: Results) -> str:
    """The page in Markdown, made from a folder as ``results/``."""
    further: dict[int, Write] = {
        100: lambda _: search_section(read_searches(folder)),
        110: partial(times_section, timings=read_timings(folder)),
    }
    return results_page(results, origin=_ORIGIN, further=further)


def read_searches(folder: Path) -> list[dict[str, Any]]:
    """The searches below ``folder/tuning``, each as ``metatkgr tune --json FILE`` writes it."""
    what = "a search: write it with metatkgr tune --json"
    return _read(folder / "tuning", lambda content: isinstance(content.get("all"), list), what)


def search_section(searches: Sequence[dict[str, Any]]) -> list[str]:
    """What a search for settings gained, by model and dataset; nothing without searches."""
    if not searches:
        return []
    by_cell = {(search["model"], search["dataset"]): search for search in searches}
    datasets = in_papers_order(search["dataset"] for search in searches)
    rows = pivot(
        sorted({Row(search["model"]) for search in searches}, key=row_order),
        datasets,
        lambda row, dataset: _search_cell(by_cell.get((row.model, dataset))),
    )
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


def _search_cell(search: dict[str, Any] | None) -> str:
    if search is None or search["best"] is None:
        return MISSING
    first = next(trial for trial in search["all"] if trial["trial"] == 0)
    tried = sum(count for state, count in search["trials"].items() if state != "failed")
    before = first["mrr"] if first["state"] == "complete" else None
    return f"{number(before)} to {number(search['best']['mrr'])} ({tried})"


def read_timings(folder: Path) -> list[dict[str, Any]]:
    """The trainings of the files below ``folder/timings``; ``beside``: how many others ran.

    Cells of a grid share the hardware, which says little of a training alone. These had few others
    beside them (``metatkgr reproduce 3-shot --models … --workers N``, then ``python -m
    studies.variants OUT/cells --out FILE``): those of one file ran side by side.
    """
    what = "times of trainings: write it with python -m studies.variants CELLS --out FILE"
    files = _read(folder / "timings", _is_timings, what)
    return [
        run | {"beside": len(content["variants"]) - 1}
        for content in files
        for run in content["variants"]
    ]


def _is_timings(content: dict[str, Any]) -> bool:
    runs = content.get("variants")
    return isinstance(runs, list) and all(
        isinstance(run, dict)
        and {"dataset", "model", "shots", "preset", "settings", "epochs"} <= run.keys()
        and isinstance(run.get("seconds"), int | float)
        for run in runs
    )


def _read(
    folder: Path, is_one: Callable[[dict[str, Any]], bool], what: str
) -> list[dict[str, Any]]:
    """The objects of the files in a folder."""
    contents = []
    for path in sorted(folder.glob("*.json")):
        content = read_json(path)
        if not isinstance(content, dict) or not is_one(content):
            raise DataError(f"{path} does not hold {what}")
        contents.append(content)
    return contents


def times_section(results: Results, timings: Sequence[dict[str, Any]]) -> list[str]:
    """The longest training of each learned model, of the grid and of runs with less company."""
    rows = pivot(
        (METATKGR, *(Row(model) for model in BASELINES), EVIDENCE),
        results.datasets,
        lambda row, dataset: _times_cell(results, timings, row, dataset),
        only_known=True,
    )
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
        *table(["", *results.datasets], rows),
    ]


def _times_cell(results: Results, timings: Sequence[dict[str, Any]], row: Row, dataset: str) -> str:
    """The longest of a grid, and of the timed trainings of the same model."""
    trained = [r.training for r in results.of(dataset, row, _SHOTS) if r.training]
    if not trained:
        return MISSING
    timed = [
        run
        for run in timings
        if (run["dataset"], run["model"], run["shots"]) == (dataset, row.model, _SHOTS)
        and run["preset"] == "default"
        and not run["settings"]
    ]
    return _longest(trained) + (f"; **{_longest(timed)}**" if timed else "")


def _longest(trained: Sequence[dict[str, Any]]) -> str:
    training = max(trained, key=lambda training: float(training["seconds"]))
    return f"{training['seconds']:.0f} ({training['epochs']})"


def main(source: Path, out: Path) -> list[Path]:
    """Write the page and its figures; returns the files."""
    at_hand = [name for name in DATASETS if catalog.locate(name) is not None]
    written = [path for name in at_hand for path in write_dataset(name, source, out)]
    results = results_of(source)
    written += write_figures(results, out / "figures")
    write_text(out / "results.md", page_of(source, results))
    return [*written, out / "results.md"]


if __name__ == "__main__":
    for made in main(Path(sys.argv[1]), Path(sys.argv[2])):
        print(made)
