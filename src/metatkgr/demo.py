"""The demo on the simulated world: what a new entity is, and who forecasts it how well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Tasks
from metatkgr.evaluation.evaluator import Evaluation, evaluate
from metatkgr.forecasting.explain import FactView, Forecasts
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.models import create
from metatkgr.models.base import Model, TrainableModel
from metatkgr.models.common.listed import best_of
from metatkgr.training.estimator import Estimator

__all__ = ["MODELS", "NEWCOMER", "SETTINGS", "Story", "Teller", "newcomer_of", "story_of", "tell"]

MODELS = ("recurrency", "paths", "metatkgr", "evidence", "oracle")
"""The rows of the demo's table; the oracle is the upper bound."""
SETTINGS: dict[str, dict[str, Any]] = {
    "metatkgr": {"dimension": 64, "sampler": "recent", "budget": 8, "epochs": 6}
}
"""Smaller than the defaults, so that the demo is over in a minute; for show, not for results."""
NEWCOMER = "Nova Debut"
"""Somebody whom no simulated world knows."""


@dataclass(frozen=True)
class Story:
    """One forecast about one new entity, in words."""

    entity: str
    support: list[tuple[str, str, str, str]]
    """The first facts of the entity: subject, relation, object, date."""
    question: str
    """The query, as a sentence with a gap."""
    truth: list[str]
    forecasts: dict[str, list[str]]
    """The best candidates of each model, best first."""


@dataclass(frozen=True, eq=False)
class Teller:
    """A model, trained where it has to be, and how well it forecasts."""

    model: Model[Any]
    evaluation: Evaluation


def tell(
    facts: Facts,
    models: Sequence[str] = MODELS,
    shots: int = 3,
    *,
    seed: int = 0,
    progress: Callable[[dict[str, Any]], object] | None = None,
) -> dict[str, Teller]:
    """Train each model that has to be, and evaluate all on the meta-test tasks of a world.

    Args:
        facts: the world.
        models: their names.
        shots: K.
        seed: of the trainings.
        progress: called with one dictionary for each epoch.
    """
    tasks = Tasks.build(facts, shots=shots)
    tellers = {}
    for name in models:
        model = create(name)
        if isinstance(model, TrainableModel) and model.pretrained:
            model.load_pretrained(facts)
        elif isinstance(model, TrainableModel):
            settings = SETTINGS.get(name, {})
            # Without a GPU's start-up the small model is done sooner.
            learner = Estimator(name, shots=shots, seed=seed, device="cpu", **settings)
            model = learner.fit(facts, progress=progress).model_
        tellers[name] = Teller(model, evaluate(model, tasks))
    return tellers


def story_of(tellers: dict[str, Teller], top: int = 3) -> Story:
    """A forecast worth telling: new to the entity, missed by the first model, a hit of the others.

    Args:
        tellers: several models on the same tasks, as from :func:`tell`.
        top: how many forecasts of each model to show.
    """
    first, *others = (teller.evaluation for teller in tellers.values())
    tasks, facts = first.tasks, first.tasks.facts
    hit_by_others = np.all([e.ranks["time"] <= top for e in others], axis=0)
    order = np.lexsort(
        [~(first.ranks["time"] > top), ~tasks.answers.later, ~first.novel, ~hit_by_others]
    )
    row = int(order[0])
    number = int(tasks.answers.question[row])
    query = tasks.questions[number : number + 1]
    answers = tasks.answers.question == number
    label = facts.entities.label
    entity, relation = int(query.entity[0]), int(query.relation[0])
    forecasts = {}
    for name, teller in tellers.items():
        model = teller.model.prepare(tasks.visible).adapt(tasks.supports)
        best = best_of(model.score(query), top)[1][0]
        forecasts[name] = [label(int(x)) for x in best]
    own = tasks.supports.of(entity)
    support = [
        _sentence(facts, entity, int(r), int(o), facts.calendar.label(int(t)))
        for r, o, t in zip(own.relation, own.other, own.time, strict=True)
    ]
    date = facts.calendar.label(int(query.time[0]))
    parts = _sentence(facts, entity, relation, None, date)
    return Story(
        label(entity),
        support,
        f"{parts[0]} {parts[1]} {parts[2]} on {date}",
        [label(int(x)) for x in tasks.answers.answer[answers]],
        forecasts,
    )


def newcomer_of(facts: Facts, story: Story, top: int = 3) -> tuple[list[FactView], Forecasts]:
    """What comes next for somebody new, from facts observed a moment ago; nothing is trained.

    Args:
        facts: the world.
        story: whose entity's first facts the newcomer lives through too, in the last days.
        top: how many forecasts.

    Returns:
        What was observed, and the likeliest next facts with their reasons.
    """
    forecaster = Forecaster.of(facts)
    last, count = facts.steps - 1, len(story.support)
    for number, (subject, relation, other, _) in enumerate(story.support, 1):
        ends = (NEWCOMER if end == story.entity else end for end in (subject, other))
        one, two = ends
        forecaster.observe((one, relation, two, facts.calendar.label(last - count + number)))
    return forecaster.timeline(NEWCOMER), forecaster.predict(NEWCOMER, top=top, explain=True)


def _sentence(
    facts: Facts, entity: int, relation: int, other: int | None, date: str
) -> tuple[str, str, str, str]:
    """A link seen from ``entity`` as subject, relation, object and date; no other end is '…'."""
    there = "…" if other is None else facts.entities.label(other)
    here, base = facts.entities.label(entity), len(facts.relations)
    if relation < base:
        return here, facts.relations.label(relation), there, date
    return there, facts.relations.label(relation - base), here, date
