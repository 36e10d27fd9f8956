"""Forecasts from the candidates that a model lists are those of a reading of all."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

import metatkgr as mt


@pytest.mark.parametrize("model", ["recurrency", "paths", "pagerank"])
def test_forecasts_of_a_model_that_lists_are_those_of_its_scores_of_all(model: str) -> None:
    facts = mt.load("world:4000:1")
    listed, dense = (mt.Forecaster.of(facts, model) for _ in range(2))
    score = dense.model.score
    with patch.object(dense.model, "score", lambda queries: score(queries).dense()):
        for name in ("traits", "whole"):
            weights = [torch.tensor(getattr(one.calibration, name)) for one in (listed, dense)]
            torch.testing.assert_close(*weights, atol=1e-6, rtol=0)
        for row in range(len(facts) - 60, len(facts), 12):
            subject, relation, _, time = facts.describe(row)
            for asked in (
                {"relation": relation, "top": 20},
                {"relation": relation, "side": "subject", "within": 3},
                {"at": time},
            ):
                few, every = (one.predict(subject, **asked) for one in (listed, dense))
                assert [f.entity for f in few] == [f.entity for f in every]
                assert [f.probability for f in few] == pytest.approx(
                    [f.probability for f in every], abs=1e-6
                )
