"""How different graphs are: sizes, repeats, and how well the rules do on meta-validation.

One seed, 3-shot, ``entity-split``, static filter. Meta-test is not looked at, and of test graphs
nothing but the counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr.data.facts import Facts
from metatkgr.data.sources import load
from metatkgr.data.tasks import Tasks
from metatkgr.data.world import KINDS
from metatkgr.errors import DataError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.experiments.cells import RULES
from metatkgr.files import read_json, write_json
from metatkgr.models.registry import create
from studies.held_out_graphs.graphs import GRAPHS, graph_file

__all__ = ["SHOTS", "repeated", "survey", "survey_table"]

SHOTS = 3
_WORLD_FACTS = 20_000


def survey(out: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """Look at what the file does not hold yet; it is written after each graph.

    Args:
        out: the JSON file.
        names: graphs from packages, or data as ``metatkgr`` names it; none: all from packages and
            one world of each kind.

    Returns:
        The content of the file: for each name its ``counts``, ``repeats`` and, unless it is a test
        graph, ``validation``: tasks, queries and the MRR of each rule.
    """
    worlds = [f"world:{kind}:{_WORLD_FACTS}" for kind in KINDS]
    content = read_json(out) if out.exists() else {"shots": SHOTS, "graphs": {}}
    if not isinstance(content, dict) or content.get("shots") != SHOTS:
        raise DataError(f"{out} is not a survey; choose another file")
    for name in names or [*GRAPHS, *worlds]:
        if name in content["graphs"]:
            continue
        facts = load(str(graph_file(name)) if name in GRAPHS else name)
        content["graphs"][name] = _about(name, facts)
        write_json(out, content)
    return content


def repeated(facts: Facts) -> float:
    """Share of the facts whose subject, relation and object were together before."""
    columns = (facts.subject, facts.relation, facts.object)
    distinct = np.unique(np.stack([np.asarray(column, np.int64) for column in columns]), axis=1)
    return 1 - int(distinct.shape[1]) / len(facts)


def survey_table(content: Mapping[str, Any]) -> str:
    """What was found, in Markdown, one line each."""
    lines = [
        "| graph | facts | entities | relations | steps | repeats | tasks, queries "
        f"| {' | '.join(f'`{rule}`' for rule in RULES)} | `oracle` |",
        f"|---|---|---|---|---|---|---|{'---|' * (len(RULES) + 1)}",
    ]
    for name, found in content["graphs"].items():
        counts, validation = found["counts"], found["validation"]
        sizes = [f"{counts[key]:,}" for key in ("facts", "entities", "relations", "steps")]
        cells = ["test graph", *[""] * (len(RULES) + 1)]
        if validation is not None:
            cells = [f"{validation['tasks']:,}, {validation['queries']:,}"]
            cells += [_short(validation["mrr"].get(model)) for model in (*RULES, "oracle")]
        repeats = f"{round(100 * found['repeats'])} %"
        lines.append(f"| {' | '.join([name, *sizes, repeats, *cells])} |")
    return "\n".join(lines)


def _about(name: str, facts: Facts) -> dict[str, Any]:
    found: dict[str, Any] = {
        "counts": {
            "facts": len(facts),
            "entities": len(facts.entities),
            "relations": len(facts.relations),
            "steps": facts.steps,
            "first": facts.calendar.label(0),
            "last": facts.calendar.label(facts.steps - 1),
        },
        "repeats": round(repeated(facts), 4),
        "validation": None,
    }
    if name in GRAPHS and GRAPHS[name].role == "test":
        return found
    tasks = Tasks.build(facts, shots=SHOTS, split="meta-validation")
    models = [*RULES, "oracle"] if facts.law is not None else RULES
    mrr: dict[str, Any] = {
        model: evaluate(create(model), tasks).summary(resamples=0).to_json()["mrr"]
        for model in models
    }
    found["validation"] = {
        "tasks": tasks.count,
        "queries": len(tasks.answers),
        "mrr": {model: round(value, 4) for model, value in mrr.items()},
    }
    return found


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}".replace("0.", ".", 1)
