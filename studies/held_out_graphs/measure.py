"""The models with their default settings on a graph of one's own, in one small file.

The file is no part of the grid of ``results/cells``: it has ``runs``, not ``records``.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metatkgr.data.answers import FILTERS
from metatkgr.data.facts import Facts
from metatkgr.data.periods import Period, Periods
from metatkgr.data.sources import load, refuse_test_graph
from metatkgr.errors import DataError
from metatkgr.experiments.cell_run import Loaded, run_cell
from metatkgr.experiments.cells import RULES, Cell, Row
from metatkgr.experiments.published import METRICS
from metatkgr.experiments.records import Record
from metatkgr.experiments.significance import Draws
from metatkgr.files import check_file, read_json, write_json

__all__ = ["MODELS", "measure", "table"]

MODELS = (*RULES, "evidence")

FloatArray = npt.NDArray[np.float64]
Run = dict[str, Any]


def measure(
    graph: Path,
    out: Path,
    *,
    models: Sequence[str] = MODELS,
    shots: int = 3,
    seeds: int = 3,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train and evaluate what the file does not hold yet; it is written after each run.

    Args:
        graph: a file of facts.
        out: the JSON file.
        models: their names; a rule is run once.
        shots: K.
        seeds: 0, 1, … of each learned model.
        device: where to compute.

    Returns:
        The content of the file: ``graph``, ``commands`` and ``runs``.
    """
    check_file(graph)
    facts = load(str(graph))
    refuse_test_graph(facts.name, "looked at outside a registered round")
    about = _about(facts, graph)
    content = read_json(out) if out.exists() else {"graph": about, "commands": [], "runs": []}
    if not isinstance(content, dict) or content.get("graph") != about:
        raise DataError(f"{out} holds results of another graph than {graph}; choose another file")
    command = (
        f"python -m studies.held_out_graphs measure {graph.name} --out {out.name} "
        f"--shots {shots} --seeds {seeds} --models {' '.join(models)}"
    )
    if command not in content["commands"]:
        content["commands"].append(command)
    done = {(run["model"], run["shots"], run["seed"]) for run in content["runs"]}
    loaded = Loaded()
    with tempfile.TemporaryDirectory() as work:
        for model, seed in _wanted(models, seeds):
            if (model, shots, seed) in done:
                continue
            cell = Cell(str(graph), model, shots=shots, seed=seed)
            record = run_cell(cell, work=Path(work) / "cell", device=device, loaded=loaded)
            content["runs"].append(_run(record))
            write_json(out, content)
    return content


def table(content: Mapping[str, Any]) -> str:
    """What was measured, in Markdown: means over seeds, and how far learned models are above rules.

    The differences of MRRs are paired, with 95 % intervals over entities and seeds.
    """
    lines = [
        f"| {content['graph']['name']} | static: MRR / H@1 / H@3 / H@10 | time | novel, static "
        "| seeds |",
        "|---|---|---|---|---|",
    ]
    groups: dict[int, dict[str, list[Run]]] = {}
    for run in content["runs"]:
        groups.setdefault(run["shots"], {}).setdefault(run["model"], []).append(run)
    for shots, of_model in sorted(groups.items(), reverse=True):
        for model in sorted(of_model, key=_order):
            runs = of_model[model]
            cells = [_metrics_cell(runs, name, "all") for name in FILTERS]
            cells += [_metrics_cell(runs, "static", "novel"), str(len(runs))]
            lines.append(f"| {shots}-shot, `{model}` | {' | '.join(cells)} |")
        lines += _differences(shots, of_model)
    return "\n".join(lines)


def _wanted(models: Iterable[str], seeds: int) -> Iterator[tuple[str, int]]:
    for model in models:
        for seed in range(1 if model in RULES else seeds):
            yield model, seed


def _about(facts: Facts, path: Path) -> dict[str, Any]:
    """Which graph it is, whatever folder it lies in."""
    periods = Periods.of(facts)
    return {
        "name": facts.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "facts": len(facts),
        "relations": len(facts.relations),
        "entities": len(facts.entities),
        "steps": facts.steps,
        "emerged": {period.label: int((periods.of_entity == period).sum()) for period in Period},
    }


def _run(record: Record) -> Run:
    cell, training = record.cell, record.training
    kept = ("tasks", "queries", "support_facts", "visibility", "metrics", "seconds", "per_entity")
    return {
        "model": cell.model,
        "shots": cell.shots,
        "seed": cell.seed,
        "settings": record.settings,
        "versions": record.versions,
        "hardware": record.hardware,
        "training": {key: training[key] for key in ("epochs", "seconds")} if training else None,
        **{key: record.result[key] for key in kept},
    }


def _order(model: str) -> tuple[int, str]:
    return MODELS.index(model) if model in MODELS else len(MODELS), model


def _metrics_cell(runs: Sequence[Run], filter: str, subset: str) -> str:
    metrics = [[run["metrics"][filter][subset][key] for key in METRICS] for run in runs]
    if any(value is None for values in metrics for value in values):
        return "–"
    return " / ".join(_short(value) for value in np.mean(metrics, 0))


def _short(value: float, sign: str = "") -> str:
    return f"{value:{sign}.3f}".replace("0.", ".", 1)


def _differences(shots: int, of_model: Mapping[str, Sequence[Run]]) -> list[str]:
    """How much higher the MRR of each learned model is than each rule's."""
    records = [
        Record(Cell("graph", run["model"], shots, run["seed"]), run)
        for runs in of_model.values()
        for run in runs
    ]
    draws = [Draws(records, name) for name in FILTERS]
    rules = [rule for rule in RULES if rule in of_model]
    learned = [model for model in sorted(of_model, key=_order) if model not in RULES]
    lines = []
    for model, rule in ((model, rule) for model in learned for rule in rules):
        cells = (_difference(drawn, Row(model), Row(rule)) for drawn in draws)
        lines.append(f"| {shots}-shot, `{model}` - `{rule}` | {' | '.join(cells)} | | |")
    return lines


def _difference(drawn: Draws, one: Row, other: Row) -> str:
    comparison = drawn.compare(one, other)
    assert comparison is not None  # a rule has every seed
    difference, low, high, _ = comparison
    return f"{_short(difference, '+')} ({_short(low, '+')} to {_short(high, '+')})"
