"""How far MetaTKGR's inner step moves its parameters, and what that does to its forecasts.

``python -m studies.inner_step RUN`` prints a table for a trained run, on
meta-validation.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from metatkgr.data.tasks import Tasks
from metatkgr.errors import SettingsError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.models.metatkgr.model import MetaTKGR
from metatkgr.training.runs import load_run

__all__ = ["STEPS", "Movement", "inner_step", "main"]

STEPS = ((0.0, 0), (1e-4, 1), (1e-2, 1), (1e-2, 3), (0.1, 1), (0.1, 3), (1.0, 1))
"""Learning rates η and numbers of steps."""


@dataclasses.dataclass(frozen=True)
class Movement:
    """What an inner optimisation does."""

    rate: float
    steps: int
    moved: dict[str, float]
    """Of each ``encoder.*`` parameter: ‖φ_e - φ‖ / ‖φ‖, the mean over tasks."""
    mrr: float | None
    """Static filter, all queries."""
    novel: float | None
    """Static filter, novel ones."""


def inner_step(
    model: MetaTKGR,
    tasks: Tasks,
    *,
    steps: Iterable[tuple[float, int]] = STEPS,
    entities: int = 200,
) -> list[Movement]:
    """Adapt with several learning rates and numbers of steps.

    Args:
        model: trained.
        tasks: whose queries are ranked.
        steps: pairs of η and a number of steps.
        entities: the movement is averaged over so many of the tasks.
    """
    usual = model.settings
    movements = []
    for rate, count in steps:
        # A rate of nothing is no setting; no step at all is.
        model.settings = dataclasses.replace(
            usual, inner_rate=rate or usual.inner_rate, inner_steps=count
        )
        evaluation = evaluate(model, tasks)
        movements.append(
            Movement(
                rate,
                count,
                _moved(model, tasks, entities),
                evaluation.summary("static", "all", resamples=0).mrr,
                evaluation.summary("static", "novel", resamples=0).mrr,
            )
        )
    model.settings = usual
    return movements


@torch.no_grad()
def _moved(model: MetaTKGR, tasks: Tasks, entities: int) -> dict[str, float]:
    _, first = np.unique(tasks.questions.entity, return_index=True)
    adapted = model.adapted(tasks.questions[np.sort(first[:entities])])
    moved = {}
    for name, value in adapted.items():
        if name.startswith("encoder."):
            start = model.weights[name]
            change = (value - start).reshape(len(value), -1) if value.dim() > start.dim() else None
            length = start.norm().clamp(min=1e-12)
            moved[name] = 0.0 if change is None else float((change.norm(dim=1) / length).mean())
    return moved


def main(folder: str, most: int = 1500) -> str:
    """The table of a run, in Markdown."""
    run = load_run(Path(folder))
    if not isinstance(run.model, MetaTKGR):
        raise SettingsError(f"{folder} is a run of {run.config.model}, which has no inner step")
    tasks = Tasks.build(
        run.facts,
        shots=run.config.shots,
        visibility=run.config.visibility,
        split="meta-validation",
    )
    rows = ["| η, steps | furthest moved | MRR | novel |", "|---|---|---|---|"]
    for one in inner_step(run.model, tasks.sample(most)):
        name, far = max(one.moved.items(), key=lambda item: item[1])
        rows.append(
            f"| {one.rate:g}, {one.steps} | {name} {far:.0e} | "
            f"{one.mrr or 0:.4f} | {one.novel or 0:.4f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(main(sys.argv[1]))
