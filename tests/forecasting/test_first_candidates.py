"""The best candidates from the first ones of each query are those of a reading of all."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

import metatkgr as mt
from metatkgr.data.tasks import Queries
from metatkgr.forecasting.calibration import BANDS, SHARES, Calibration, Chances, Scored
from metatkgr.forecasting.ranking import Asked, answered

ENTITIES, STEPS = 40, 9
FACTS = mt.read_facts([(f"e{n}", "r", f"e{n + 1}", n % STEPS) for n in range(ENTITIES - 1)])
GRADES = torch.tensor([[0.0, 1.0, 1.5]])


class Listed:
    """Scores of which only the first are given out."""

    def __init__(self, scores: Tensor) -> None:
        self._scores, self.entities = scores, scores.shape[1]

    def top(self, most: int) -> tuple[Tensor, Tensor]:
        value, entity = torch.topk(self._scores, min(most, self.entities), 1)
        return value, entity


def table(method: str, seed: int) -> Calibration:
    generator = torch.Generator().manual_seed(seed)
    grades = len(SHARES) if method == "softmax" else GRADES.shape[1]
    rows = torch.rand(grades + 1, len(BANDS), generator=generator).tolist()
    return Calibration(method, 0.5, tuple(map(tuple, rows)), tail=0.3, queries=9)


def chances(scores: Tensor, calibration: Calibration, *, listed: bool) -> Chances:
    scored = Scored.of(Listed(scores) if listed else scores, softmax=True)
    grades = None if calibration.method == "softmax" else GRADES.expand(len(scores), -1)
    return calibration.apply(scored, grades)


def literal(scores: Tensor, calibration: Calibration) -> Tensor:
    """(Q, E) probabilities, by a head that holds everybody behind whom nobody stands."""
    found = chances(scores, calibration, listed=False)
    every = found.behind.unsqueeze(1).expand(scores.shape).clone()
    return every.scatter_(1, found.entity, found.chance)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("horizon", [1, 5])
@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_several_moments_are_those_of_all_candidates(
    seed: int, horizon: int, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metatkgr.forecasting.calibration._HEAD", 12)
    scores = torch.randn(STEPS, ENTITIES, generator=torch.Generator().manual_seed(seed))
    calibration = table("table", seed)
    snapshot = mt.Forecaster.of("recurrency", FACTS).snapshot()
    asked = Asked(3, 0, np.arange(1, 1 + horizon), 7)

    def ask(queries: Queries) -> Chances:
        return chances(scores[queries.time], calibration, listed=listed)

    (found,) = answered([asked.answers(snapshot, 3)], ask)
    every = literal(scores[asked.moments], calibration)
    value, moment = every.max(0)
    order = scores[1] if horizon == 1 else value
    names = FACTS.entities.names
    wanted = sorted(range(ENTITIES), key=lambda x: (-float(order[x]), names[x]))[:7]
    assert [c.probability for c in found] == [float(value[x]) for x in wanted]
    # Of equal ones those are named that are among the first of a moment.
    sure = [x for x in wanted if float(value[x]) > float(value[wanted[-1]])]
    assert [c.entity for c in found][: len(sure)] == sure
    for c in found:
        assert c.probability == float(value[c.entity])
        if c.entity in sure:
            assert c.step == int(asked.moments[moment[c.entity]])
            assert c.score == float(scores[c.step, c.entity])


@pytest.mark.parametrize("method", ["table", "softmax"])
def test_listed_scores_are_read_like_all_scores(method: str) -> None:
    scores = torch.randn(6, ENTITIES, generator=torch.Generator().manual_seed(0))
    dense, listed = (chances(scores, table(method, 1), listed=some) for some in (False, True))
    assert torch.equal(dense.entity, listed.entity)
    assert torch.allclose(dense.chance, listed.chance, rtol=1e-12)
    assert torch.allclose(dense.behind, listed.behind, rtol=1e-12)


def test_a_softmax_counts_those_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are alike, as the ones are that a model does not list."""
    scores = torch.full((3, ENTITIES), -1.0, dtype=torch.float64)
    scores[:, :5] = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).double().abs()
    every = literal(scores, Calibration("softmax", 0.7))
    monkeypatch.setattr("metatkgr.forecasting.calibration._HEAD", 8)
    for listed in (False, True):
        found = chances(scores, Calibration("softmax", 0.7), listed=listed)
        assert torch.allclose(every.gather(1, found.entity), found.chance)
        assert torch.allclose(every[:, -1], found.behind)


@pytest.mark.parametrize("model", ["recurrency", "paths", "pagerank"])
def test_forecasts_of_a_model_that_lists_are_those_of_its_scores_of_all(model: str) -> None:
    facts = mt.load("world:4000:1")
    listed, dense = (mt.Forecaster.of(model, facts) for _ in range(2))
    score = dense.model.score
    with patch.object(dense.model, "score", lambda queries: score(queries).dense()):
        tables = [torch.tensor(one.calibration.table) for one in (listed, dense)]
        assert torch.allclose(*tables, atol=1e-9)
        assert listed.calibration.temperature == pytest.approx(dense.calibration.temperature)
        for row in range(len(facts) - 60, len(facts), 12):
            subject, relation, _, time = facts.describe(row)
            for asked in (
                {"relation": relation, "top": 20},
                {"relation": relation, "side": "subject", "horizon": 3},
                {"at": time},
            ):
                few, every = (one.predict(subject, **asked) for one in (listed, dense))
                assert [f.entity for f in few] == [f.entity for f in every]
                assert [f.probability for f in few] == pytest.approx(
                    [f.probability for f in every], abs=1e-9
                )
