"""The weights that come with the package, and how they do on graphs that they have not seen.

``python -m studies.pretraining read --cache DIR`` reads the examples of every graph once; what is
there is not read again.
``… ship --cache DIR`` learns the files of the package: from all graphs, and for each dataset of the
catalogue from all but this one.
``… table --cache DIR --out results/pretraining.json`` leaves out one graph after another (with all
that are of its kind), and forecasts its meta-validation queries: a draw of them, one seed, static
filter. Cells that are there are not computed again. Meta-test is not looked at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from metatkgr.data.facts import Facts
from metatkgr.data.sources import load
from metatkgr.data.tasks import Tasks
from metatkgr.data.world import KINDS
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.files import atomic_path, read_json, write_json
from metatkgr.models.base import Model
from metatkgr.models.evidence.model import EvidenceModel
from metatkgr.models.evidence.pretrained import FILES, Graph, Pretrained
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.training import Examples
from metatkgr.models.registry import create
from metatkgr.training.estimator import configure, learn
from metatkgr.training.pretraining import SETTINGS, GraphExamples, fit, read_graph
from studies.held_out_graphs.graphs import GRAPHS, graph_file

__all__ = ["CATALOGUE", "families", "main", "markdown", "table"]

CATALOGUE = ("YAGO", "WIKI", "ICEWS18", "ICEWS14")
_SIZES = (8_000, 40_000)
"""Facts of the worlds of each kind."""
_QUESTIONS = 1_000
"""Drawn of a left-out graph's meta-validation."""
RULES = ("recurrency", "paths", "pagerank")


def families() -> dict[str, list[str]]:
    """The graphs to learn from, by what is left out together."""
    found = {name: [name] for name in CATALOGUE}
    found |= {name: [name] for name, graph in GRAPHS.items() if graph.role == "development"}
    for kind in KINDS:
        found[f"world:{kind}"] = [
            f"world:{kind}:{size}:{seed}" for seed, size in enumerate(_SIZES, 1)
        ]
    return found


def _facts(name: str) -> Facts:
    return load(str(graph_file(name)) if name in GRAPHS else name)


def _cached(cache: Path, name: str) -> Path:
    return cache / f"{name.replace(':', '-')}.safetensors"


def _read(cache: Path, name: str) -> GraphExamples:
    """The examples of a graph; read from it, where that was not done before."""
    path = _cached(cache, name)
    if not path.exists():
        facts = _facts(name)
        graph, examples = read_graph(facts)
        cache.mkdir(parents=True, exist_ok=True)
        about = {"name": name, "facts": str(graph.facts), "fingerprint": graph.fingerprint}
        tensors = {key: value.contiguous() for key, value in examples._asdict().items()}
        with atomic_path(path) as temporary:
            save_file(tensors, str(temporary), about)
        print(f"{name}: {len(examples.relation):,} examples", flush=True)
    with safe_open(str(path), "pt") as file:
        about = file.metadata()
        columns = {key: file.get_tensor(key) for key in Examples._fields}
    graph = Graph(about["name"], int(about["facts"]), about["fingerprint"])
    return GraphExamples(graph, Examples(**columns))


def _without(cache: Path, left_out: str | None, seed: int = 0) -> Pretrained:
    """The weights of all graphs but one family; learned, where that was not done before."""
    path = _cached(cache / "fitted", f"{left_out or 'none'}-{seed}")
    if not path.exists():
        names = [n for family, some in families().items() if family != left_out for n in some]
        found = fit([_read(cache, name) for name in names], seed=seed, progress=_tell(left_out))
        path.parent.mkdir(parents=True, exist_ok=True)
        found.save(path)
    return Pretrained.read(path)


def _tell(left_out: str | None) -> Any:
    def tell(epoch: int, loss: float) -> None:
        print(f"without {left_out}: epoch {epoch}/{SETTINGS.epochs}, loss {loss:.4f}", flush=True)

    return tell


def ship(cache: Path) -> None:
    """Write the files of the package."""
    FILES.mkdir(exist_ok=True)
    for left_out in (None, *CATALOGUE):
        name = "all" if left_out is None else f"without-{left_out.lower()}"
        _without(cache, left_out).save(FILES / f"{name}.safetensors")


def table(cache: Path, out: Path, shots: Sequence[int], seeds: int, trained: bool) -> str:
    """Compute what the file does not hold yet; it is written after each cell.

    Args:
        cache: of examples and weights.
        out: the JSON file.
        shots: each K.
        seeds: of the weights.
        trained: also with a training on the graph, from these weights and from none.
    """
    content = read_json(out) if out.exists() else {"questions": _QUESTIONS, "cells": {}}
    if not isinstance(content, dict) or content.get("questions") != _QUESTIONS:
        raise DataError(f"{out} is no such table; choose another file")
    for family, names in families().items():
        facts = None
        for number in shots:
            cell = content["cells"].setdefault(f"{family} {number}-shot", {"graph": names[-1]})
            for row, seed in _rows(seeds, trained):
                key = row if seed is None else f"{row} {seed}"
                if key in cell:
                    continue
                facts = facts or _facts(names[-1])
                model = _model(cache, family, row, seed or 0, facts, number)
                cell[key] = _measure(model, facts, number)
                write_json(out, content)
                print(family, number, key, cell[key], flush=True)
    return markdown(content)


def _rows(seeds: int, trained: bool) -> Iterator[tuple[str, int | None]]:
    yield from ((rule, None) for rule in RULES)
    rows = ("pretrained", "pretrained, trained", "trained") if trained else ("pretrained",)
    yield from ((row, seed) for seed in range(seeds) for row in rows)


def _model(cache: Path, family: str, row: str, seed: int, facts: Facts, shots: int) -> Model[Any]:
    if row in RULES:
        return create(row)
    start = "none"
    if row.startswith("pretrained"):
        _without(cache, family, seed)
        start = str(_cached(cache / "fitted", f"{family}-{seed}"))
    model = EvidenceModel(EvidenceSettings(start=start))
    if row == "pretrained":
        model.load_pretrained(facts)
    else:
        learn(model, facts, configure(model, facts, shots=shots, seed=seed))
    return model


def _measure(model: Model[Any], facts: Facts, shots: int) -> dict[str, float]:
    """MRR and H@10 on a draw of the meta-validation queries."""
    tasks = Tasks.build(facts, shots=shots, split="meta-validation")
    count = len(tasks.questions)
    rows = np.random.default_rng(0).permutation(count)[:_QUESTIONS]
    summary = evaluate(model, tasks.only(np.sort(rows))).summary(resamples=0)
    return {"mrr": round(summary.mrr or 0.0, 5), "hits@10": round(summary.hits[10] or 0.0, 5)}


def markdown(content: Mapping[str, Any]) -> str:
    """The table of the file's cells: means over seeds, the best MRR of a line in bold."""
    learned = ("pretrained", "pretrained, trained", "trained")
    found = {key.rstrip("0123456789").strip() for cell in content["cells"].values() for key in cell}
    rows = [*RULES, *(row for row in learned if row in found)]
    lines = [f"| left out | K | {' | '.join(rows)} |", f"|---|---|{'---|' * len(rows)}"]
    for name, cell in content["cells"].items():
        left_out, shots = name.removesuffix("-shot").rsplit(" ", 1)
        means = [_means(cell, row) for row in rows]
        best = max(mrr for mrr, _ in means)
        shown = [
            f"{f'**{_short(mrr)}**' if mrr == best else _short(mrr)} / {_short(hits)}"
            for mrr, hits in means
        ]
        lines.append(f"| {' | '.join([left_out, shots, *shown])} |")
    return "\n".join(lines)


def _means(cell: Mapping[str, Any], row: str) -> tuple[float, float]:
    values = [cell[key] for key in cell if key == row or key.rpartition(" ")[0] == row]
    mrr, hits = (
        float(np.mean([value[metric] for value in values])) if values else 0.0
        for metric in ("mrr", "hits@10")
    )
    return mrr, hits


def _short(value: float) -> str:
    return f"{value:.3f}".lstrip("0")


def main(arguments: Sequence[str]) -> str:
    """Read, learn or measure; returns what to print."""
    parser = argparse.ArgumentParser(prog="python -m studies.pretraining")
    tasks = parser.add_subparsers(dest="task", required=True)
    for name, about in (
        ("read", "read the examples of all graphs"),
        ("ship", "learn the files of the package"),
        ("table", "leave out one graph after another"),
    ):
        task = tasks.add_parser(name, help=about)
        task.add_argument("--cache", type=Path, required=True, help="folder of what was read")
        if name == "table":
            task.add_argument("--out", type=Path, required=True, help="JSON file; added to")
            task.add_argument("--shots", type=int, nargs="+", default=[1, 2, 3])
            task.add_argument("--seeds", type=int, default=1)
            task.add_argument("--trained", action="store_true", help="also trained on the graph")
    chosen = parser.parse_args(arguments)
    if chosen.task == "table":
        return table(chosen.cache, chosen.out, chosen.shots, chosen.seeds, chosen.trained)
    if chosen.task == "ship":
        ship(chosen.cache)
    else:
        for names in families().values():
            for name in names:
                _read(chosen.cache, name)
    return "done"


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        print(main(sys.argv[1:]))
    except MetaTKGRError as error:
        sys.exit(f"error: {error}")
