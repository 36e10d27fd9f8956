"""The whole story on the simulated world: what a new entity is, and who forecasts it how well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Tasks
from metatkgr.evaluation.evaluator import Evaluation, evaluate
from metatkgr.models import create

__all__ = ["MODELS", "Story", "story_of", "tell"]

MODELS = ("recurrency", "paths", "oracle")
"""The rows of the demo's table, weakest first; the oracle is the ceiling."""


@dataclass(frozen=True)
class Story:
    """One forecast about one new entity, in words."""

    entity: str
    support: list[tuple[str, str, str, str]]
    """The first facts of the entity: subject, relation, object, date."""
    question: str
    """What is asked, as a sentence with a gap."""
    truth: list[str]
    forecasts: dict[str, list[str]]
    """The best candidates of each model, best first."""


def tell(facts: Facts, models: Sequence[str] = MODELS, shots: int = 3) -> dict[str, Evaluation]:
    """Evaluate each model on the meta-test tasks of a world."""
    tasks = Tasks.build(facts, shots=shots)
    return {name: evaluate(create(name), tasks) for name in models}


def story_of(evaluations: dict[str, Evaluation], top: int = 3) -> Story:
    """A forecast worth telling: new to the entity, missed by the first model, found by the others.

    Args:
        evaluations: of several models on the same tasks, as from :func:`tell`.
        top: how many forecasts of each model to show.
    """
    first, *others = evaluations.values()
    tasks, facts = first.tasks, first.tasks.facts
    found = np.all([e.ranks["time"] <= top for e in others], axis=0)
    order = np.lexsort([~(first.ranks["time"] > top), ~tasks.answers.later, ~first.novel, ~found])
    row = int(order[0])
    asked = int(tasks.answers.question[row])
    question = tasks.questions[asked : asked + 1]
    mine = tasks.answers.question == asked
    label = facts.entities.label
    entity, relation = int(question.entity[0]), int(question.relation[0])
    forecasts = {}
    for name in evaluations:
        model = create(name).prepare(tasks.visible).adapt(tasks.supports)
        best = torch.argsort(model.score(question)[0], descending=True, stable=True)[:top]
        forecasts[name] = [label(int(x)) for x in best]
    own = tasks.supports.of(entity)
    support = [
        _sentence(facts, entity, int(r), int(o), facts.calendar.label(int(t)))
        for r, o, t in zip(own.relation, own.other, own.time, strict=True)
    ]
    date = facts.calendar.label(int(question.time[0]))
    parts = _sentence(facts, entity, relation, None, date)
    return Story(
        label(entity),
        support,
        f"{parts[0]} {parts[1]} {parts[2]} on {date}",
        [label(int(x)) for x in tasks.answers.answer[mine]],
        forecasts,
    )


def _sentence(
    facts: Facts, entity: int, relation: int, other: int | None, date: str
) -> tuple[str, str, str, str]:
    """A link seen from ``entity`` as subject, relation, object and date; no other end is '…'."""
    there = "…" if other is None else facts.entities.label(other)
    here, base = facts.entities.label(entity), len(facts.relations)
    if relation < base:
        return here, facts.relations.label(relation), there, date
    return there, facts.relations.label(relation - base), here, date
