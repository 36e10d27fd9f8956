"""One evaluation as the object that ``--json`` writes and ``results/`` holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Tasks
from metatkgr.evaluation.evaluator import Evaluation, evaluate
from metatkgr.models.base import Model
from metatkgr.version import __version__

__all__ = ["evaluation_report"]


def evaluation_report(
    model: Model[Any],
    facts: Facts,
    *,
    shots: int | str = 3,
    visibility: str = "entity-split",
    split: str = "meta-test",
    seed: int = 0,
    questions: int | None = None,
    loaded: float = 0.0,
    details: bool = False,
    progress: Callable[[int, int], object] | None = None,
    ranked: Callable[..., Evaluation] = evaluate,
) -> dict[str, Any]:
    """Rank the queries of a split and say under which conditions.

    Args:
        model: with its weights, if it has any.
        facts: the whole graph.
        shots: K, or a range from which each entity's K is drawn.
        visibility: which facts are public.
        split: whose new entities are asked about.
        seed: to be told, and of each entity's K and of the questions, where they are drawn.
        questions: at most so many are asked, drawn evenly; None: all. Then the result also says
            how many were asked, and how many queries the split has.
        loaded: seconds that loading took.
        details: add metrics per relation and per time step.
        progress: called with the questions done since the last call and the number of all.
        ranked: who ranks; called as ``evaluate`` is.
    """
    tasks = Tasks.build(facts, shots=shots, visibility=visibility, split=split, seed=seed)
    sampled: dict[str, Any] = {}
    if questions is not None:
        all_queries, tasks = len(tasks.answers), tasks.sample(questions, seed)
        sampled = {"questions": len(tasks.questions), "queries_of_split": all_queries}
    total = len(tasks.questions)
    evaluation = ranked(
        model, tasks, progress=None if progress is None else lambda done: progress(done, total)
    )
    measured = evaluation.to_json(details=details)
    measured["seconds"] = {"load": round(loaded, 4)} | measured["seconds"]
    return (
        {
            "dataset": facts.name,
            "model": model.name,
            "settings": dataclasses.asdict(model.settings),
            "seed": seed,
            "version": __version__,
        }
        | sampled
        | measured
    )
