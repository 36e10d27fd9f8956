"""What the loop keeps of a training."""

from __future__ import annotations

from metatkgr.data.problem import Problem
from metatkgr.data.world import simulate
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.models import create
from metatkgr.models.trainable import TrainableModel
from metatkgr.training.loop import train


def test_a_phase_that_only_spoils_leaves_what_was_learned_before() -> None:
    problem = Problem.of(simulate(facts=3000, seed=1), shots=2)
    settings = {"dimension": 16, "translation_epochs": 25, "epochs": 2, "validate_every": 1}
    model = create("transr", {**settings, "learning_rate": 50.0})
    assert isinstance(model, TrainableModel)

    def validate(candidate: TrainableModel[object]) -> float:
        return evaluate(candidate, problem.validation).summary(resamples=0).mrr or 0.0

    lines = train(model, problem, seed=1, validate=validate)
    spoiled = [line for line in lines if line["phase"] == "triples"]
    start = spoiled[0]["start_validation_mrr"]
    assert all(line["validation_mrr"] < start for line in spoiled)
    assert validate(model) == start
