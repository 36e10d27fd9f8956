"""Tasks, filters and the ranks of the models that need no training."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

import metatkgr as mt
from goldens.cells import Cell
from goldens.surface import digest, filters_of, law_of, mrr, queries_of, sampled, tasks_outcome

__all__ = ["DATASETS", "WORLD", "cells", "graph", "ranked", "tasks_of"]

WORLD = "world:20000"
DATASETS = ("YAGO", "WIKI", "ICEWS18")
_RULES = ("recurrency", "paths", "pagerank", "oracle")
_USUAL = ("entity-split", 3, "meta-test")
_STREAMING = ("streaming", 3, "meta-test")
_OTHERWISE: list[tuple[str, int | str, str]] = [
    ("entity-split", 1, "meta-test"),
    ("entity-split", "random", "meta-test"),
    ("frozen", 3, "meta-test"),
    _STREAMING,
    ("streaming", 1, "meta-test"),
    ("entity-split", 3, "meta-validation"),
    ("entity-split", 3, "meta-train"),
    ("streaming", 3, "meta-validation"),
]
"""Visibility, shots and split, besides the usual ones."""
_SAMPLE = 1000
"""Questions that are quick also where all of them take long."""


@lru_cache(maxsize=2)
def graph(name: str) -> Any:
    """A graph by its name."""
    return mt.load(name)


@lru_cache(maxsize=2)
def tasks_of(
    name: str, visibility: str = "entity-split", shots: int | str = 3, split: str = "meta-test"
) -> Any:
    """The tasks of a graph."""
    return mt.Tasks.build(graph(name), shots=shots, visibility=visibility, split=split, seed=0)


def cells() -> list[Cell]:
    """Tasks, then ranks of all questions and of a sample."""
    found = []
    for name in (WORLD, *DATASETS):
        needs = "" if name == WORLD else name
        for how in (_USUAL, *_OTHERWISE):
            title = f"tasks/{name}/{how[0]}/{how[1]}-shot/{how[2]}"
            found.append(Cell(title, partial(_tasks, name, *how), needs=needs))
        for how in (_USUAL, *(_OTHERWISE if name in (WORLD, "YAGO") else ())):
            for rule in _RULES:
                if rule == "oracle" and needs:
                    continue
                if rule == "pagerank" and name == "YAGO" and how not in (_USUAL, _STREAMING):
                    continue  # half a minute each
                title = f"rules/{name}/{how[0]}/{how[1]}-shot/{how[2]}/{rule}"
                quick = name in (WORLD, "ICEWS18")
                quick |= name == "YAGO" and rule != "pagerank" and how in (_USUAL, _STREAMING)
                found.append(Cell(title, partial(_rule, rule, 0, name, *how), quick, needs))
                if how == _USUAL and name in ("YAGO", "WIKI"):
                    some = partial(_rule, rule, _SAMPLE, name, *how)
                    found.append(Cell(f"{title}/{_SAMPLE}", some, needs=needs))
    return found


def _tasks(name: str, *how: Any) -> dict[str, Any]:
    tasks = tasks_of(name, *how)
    return tasks_outcome(tasks) | {"filters": filters_of(tasks)}


def _rule(rule: str, most: int, name: str, *how: Any) -> dict[str, Any]:
    tasks = tasks_of(name, *how)
    if most:
        tasks = sampled(tasks, most)
    if rule == "oracle":
        assert law_of(graph(name)) is not None
    return ranked(mt.create(rule), tasks)


def ranked(model: Any, tasks: Any) -> dict[str, Any]:
    """Digests of all ranks, which are halves of whole numbers, and the MRR."""
    found = mt.evaluate(model, tasks)
    return {
        "queries": len(found.novel),
        "questions": digest(*queries_of(tasks)),
        "novel": [int(np.sum(found.novel)), digest(found.novel)],
        "ranks": {name: digest(np.rint(2 * found.ranks[name])) for name in ("static", "time")},
        "mrr": {name: mrr(found.ranks[name]) for name in ("static", "time")},
    }
