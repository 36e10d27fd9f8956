"""The best candidates from the first ones of each query are those of a reading of all."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch

import metatkgr as mt
from metatkgr.data.tasks import Queries
from metatkgr.forecasting.calibration import Chances
from metatkgr.forecasting.ranking import Asked, answered

ENTITIES, STEPS, HEAD = 40, 9, 12
FACTS = mt.read_facts([(f"e{n}", "r", f"e{n + 1}", n % STEPS) for n in range(ENTITIES - 1)])


@pytest.mark.parametrize("horizon", [1, 5])
@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_several_moments_are_those_of_all_candidates(seed: int, horizon: int) -> None:
    """Of each moment some first candidates are told apart; all others have the same chance."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(STEPS, ENTITIES, generator=generator, dtype=torch.float64)
    head = torch.topk(scores, HEAD, 1)
    behind = 0.5 * head.values[:, -1]
    snapshot = mt.Forecaster.of("recurrency", FACTS).snapshot()
    asked = Asked(3, 0, np.arange(1, 1 + horizon), 7)

    def ask(queries: Queries) -> Chances:
        some = torch.from_numpy(queries.time)
        value, entity, rest = head.values[some], head.indices[some], behind[some]
        return Chances(entity, 2 * value, value, rest, 0 * rest + ENTITIES - HEAD, 0 * rest)

    (found,) = answered([asked.answers(snapshot, 3)], ask)
    every = behind.unsqueeze(1).repeat(1, ENTITIES).scatter_(1, head.indices, head.values)
    value, moment = every[asked.moments].max(0)
    names = FACTS.entities.names
    wanted = sorted(range(ENTITIES), key=lambda x: (-float(value[x]), names[x]))[:7]
    assert [c.entity for c in found.best] == wanted
    for c in found.best:
        assert c.probability == float(value[c.entity])
        assert c.step == int(asked.moments[moment[c.entity]])
        assert c.score == float(2 * scores[c.step, c.entity])


@pytest.mark.parametrize("model", ["recurrency", "paths", "pagerank"])
def test_forecasts_of_a_model_that_lists_are_those_of_its_scores_of_all(model: str) -> None:
    facts = mt.load("world:4000:1")
    listed, dense = (mt.Forecaster.of(model, facts) for _ in range(2))
    score = dense.model.score
    with patch.object(dense.model, "score", lambda queries: score(queries).dense()):
        for name in ("traits", "whole"):
            weights = [torch.tensor(getattr(one.calibration, name)) for one in (listed, dense)]
            torch.testing.assert_close(*weights, atol=1e-6, rtol=0)
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
                    [f.probability for f in every], abs=1e-6
                )
