"""Cells with other settings side by side: what meta-validation says of each, then meta-test.

``python -m studies.variants OUT/cells --out FILE`` reads the records that
``metatkgr reproduce … --set KEY=VALUE --out OUT`` left, writes the few numbers that a comparison of
settings needs into a small file, and prints them as a table, the best validation first. Settings
are chosen by the first column of numbers; the others are there to be told, not to choose by.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from metatkgr.experiments.cells import Cell
from metatkgr.experiments.published import METRICS
from metatkgr.experiments.records import Record
from metatkgr.experiments.results import read_records
from metatkgr.experiments.sections.tables import number, table
from metatkgr.files import write_json

__all__ = ["summary", "variant_rows"]


def summary(record: Record) -> dict[str, Any]:
    """The numbers of one cell: conditions, validation, training, meta-test under both filters."""
    cell, training = record.cell.to_json(), record.training
    return {
        **{key: cell[key] for key in ("dataset", "model", "preset", "settings", "shots", "seed")},
        "visibility": cell["visibility"],
        "validation_mrr": training.get("validation_mrr"),
        "epochs": training.get("epochs"),
        "seconds": training.get("seconds"),
        "precision": training.get("precision"),
        "hardware": record.hardware,
        "version": record.versions["metatkgr"],
        **{
            name: {metric: subsets["all"][metric] for metric in METRICS}
            for name, subsets in record.result["metrics"].items()
        },
    }


def variant_rows(runs: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Rows of a table, the best validation of each dataset first."""
    order = sorted(runs, key=lambda run: (run["dataset"], -(run["validation_mrr"] or 0.0)))
    rows = []
    for run in order:
        name = Cell.from_json({"dataset": run["dataset"], "model": run["model"]} | _how(run))
        validation = run["validation_mrr"]
        rows.append(
            [
                f"{run['dataset']}, {run['shots']}-shot",
                f"`{name.row.plain.replace(',', '')}`",
                str(run["seed"]),
                "–" if validation is None else number(validation),
                " / ".join(number(run["static"][metric]) for metric in METRICS),
            ]
        )
    return rows


def _how(run: dict[str, Any]) -> dict[str, Any]:
    return {"preset": run["preset"], "settings": run["settings"]}


def _main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m studies.variants", description=__doc__.splitlines()[0]
    )
    parser.add_argument("cells", type=Path, help="folder of records, OUT/cells")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args(words)
    runs = [summary(record) for record in read_records(given.cells)]
    if not runs:
        parser.error(f"there is no record below {given.cells}; `metatkgr reproduce` makes them")
    if given.out:
        write_json(given.out, {"variants": runs})
    heads = ["", "settings", "seed", "meta-validation MRR", "meta-test MRR / H@1 / H@3 / H@10"]
    sys.stdout.write("\n".join(table(heads, variant_rows(runs))) + "\n")


if __name__ == "__main__":
    _main()
