"""Grades of evidence are what they say, and the probabilities made from them are of use."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.forecasting.calibrating import calibration_report, fit_calibration
from metatkgr.models.evidence.model import _SHARES, _STRENGTHS, _UNKNOWN, EvidenceModel
from metatkgr.models.evidence.ranker import MOST_AGE, REPEAT_BOOST
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.settings import parse_settings
from metatkgr.training.loop import train
from references import dense


def world() -> Facts:
    return simulate(facts=3000, seed=4)


@pytest.mark.parametrize("repeats_first", [True, False])
def test_a_grade_is_a_share_of_what_competes(repeats_first: bool) -> None:
    tasks = Tasks.build(world(), shots=2)
    model = EvidenceModel(EvidenceSettings(repeats_first=repeats_first))
    model.build(len(tasks.facts.entities), len(tasks.facts.relations), torch.Generator())
    model.prepare(tasks.visible).adapt(tasks.supports)
    asked = tasks.questions[np.arange(0, len(tasks.questions), 5)]
    scores = dense(model, asked)
    grades = model.grades(asked)
    assert grades.dtype == scores.dtype
    assert grades.shape == (len(asked), sum(model.grade_kinds))
    assert bool((grades.diff(dim=1) >= 0).all())
    assert torch.equal(model.grades(asked[np.arange(3)]), grades[:3]), "without a score before"
    repeats = 0
    for row in range(len(asked)):
        each = scores[row].double()
        lifted = each > REPEAT_BOOST - MOST_AGE - 1
        age = (REPEAT_BOOST - each[lifted].floor()).tolist()
        total = _UNKNOWN + sum(1 / (1 + a) for a in age)
        weighed = each[(each > -500) & ~lifted]
        level = float(torch.logsumexp(weighed, 0)) if len(weighed) else -math.inf
        measured = torch.searchsorted(grades[row], scores[row].contiguous(), right=True).tolist()
        repeats += len(age)
        for x, grade in enumerate(measured):
            score = float(each[x])
            if score <= -500:
                assert grade == 0
            elif lifted[x]:
                share = 1 / (1 + REPEAT_BOOST - math.floor(score)) / total
                expected = sum(share >= least - 1e-9 for least in _STRENGTHS)
                assert grade == 1 + len(_SHARES) + 1 + expected
            elif all(abs(score - level - math.log(least)) > 1e-4 for least in _SHARES):
                assert grade == 1 + sum(score - level > math.log(least) for least in _SHARES)
    assert (repeats > 20) == repeats_first


def test_probabilities_are_fitted_and_judged_on_later_entities() -> None:
    facts = world()
    quick = {"epochs": 1, "train_queries": 100, "earlier_queries": 0, "support_share": 0.0}
    model = EvidenceModel(parse_settings(EvidenceSettings, quick))
    train(model, Problem.of(facts, shots=3), seed=0)
    found = calibration_report(model, VisibleFacts.of(facts))
    assert found["visibility"] == "streaming"
    assert found["fitted"] == fit_calibration(model, VisibleFacts.of(facts)).about()
    assert found["fitted"]["method"] == "table"
    tasks = Tasks.build(facts, visibility="streaming")
    assert found["meta-test"]["queries"] == len(tasks.answers)
    scores = dense(model.prepare(tasks.visible).adapt(tasks.supports), tasks.questions)
    first = scores.argmax(1)[torch.from_numpy(tasks.answers.question)]
    right = (first == torch.from_numpy(tasks.answers.answer)).double().mean()
    assert found["meta-test"]["correct"] == pytest.approx(float(right))
    # Better than to say nothing: all the same, or all for sure.
    assert found["meta-test"]["ece"] < 0.25
    assert abs(found["meta-test"]["stated"] - found["meta-test"]["correct"]) < 0.2


def test_a_graph_without_later_entities_has_no_later_error() -> None:
    facts = world()
    early = facts.select(np.flatnonzero(facts.time == 0))
    model = EvidenceModel()
    model.build(len(facts.entities), len(facts.relations), torch.Generator())
    found = calibration_report(model, VisibleFacts.of(early))
    assert found["meta-test"] is None
    assert found["fitted"]["queries"] == 0
