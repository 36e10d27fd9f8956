"""A trained model knows more than who stands in a place of a relation most often."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.world import simulate
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.models import create
from metatkgr.models.base import Model, TrainableModel
from metatkgr.settings import NoSettings
from metatkgr.training.loop import train

QUICK: dict[str, dict[str, object]] = {
    "transe": {"dimension": 32, "epochs": 20, "batch_size": 128},
    "transr": {"dimension": 32, "translation_epochs": 20, "epochs": 2, "batch_size": 128},
    "rotate": {"dimension": 32, "epochs": 20},
    "lan": {"dimension": 32, "epochs": 3, "batch_size": 256, "neighbours": 16},
    "regcn": {
        **{"dimension": 32, "channels": 4, "layers": 1, "dropout": 0.0},
        **{"learning_rate": 0.02, "epochs": 5},
    },
    "renet": {
        **{"dimension": 32, "history": 5, "neighbours": 8, "dropout": 0.2, "global_epochs": 1},
        **{"learning_rate": 0.02, "batch_size": 256, "epochs": 2},
    },
    "igen": {"dimension": 32, "translation_epochs": 20, "epochs": 2},
    "tgen": {"dimension": 32, "translation_epochs": 20, "epochs": 2},
    "metadygnn": {"dimension": 32, "translation_epochs": 20, "epochs": 2, "negatives": 128},
}
"""Settings with which a model learns something in a few seconds."""


class Frequency(Model[NoSettings]):
    """Whoever stood in this place of the relation most often."""

    name = "frequency"

    def prepare(self, visible):  # type: ignore[no-untyped-def]
        self.index = TemporalIndex.of(visible)
        return self

    def adapt(self, supports):  # type: ignore[no-untyped-def]
        self.history = History(self.index, supports)
        return self

    def score(self, queries: Queries):  # type: ignore[no-untyped-def]
        _, relation, time = self.history.columns(queries)
        shape = (len(queries), self.index.entities)
        row = torch.arange(shape[0]).repeat_interleave(shape[1])
        entity = torch.arange(shape[1]).repeat(shape[0])
        usage = self.index.slots.usage(entity, relation[row], time[row])
        return usage.count.view(shape).float()


@cache
def problem() -> tuple[Problem, Tasks]:
    facts = simulate(facts=6000, seed=3)
    return Problem.of(facts), Tasks.build(facts)


def mrr(model: Model[object]) -> float:
    return evaluate(model, problem()[1]).summary(resamples=0).mrr or 0.0


@cache
def frequency() -> float:
    return mrr(Frequency())


@pytest.mark.parametrize("name", sorted(QUICK))
def test_beats_the_frequency_of_answers(name: str) -> None:
    model = create(name, QUICK[name])
    assert isinstance(model, TrainableModel)
    train(model, problem()[0], seed=1)
    assert mrr(model) > frequency() + 0.05
