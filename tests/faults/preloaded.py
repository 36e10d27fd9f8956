"""What the server of fresh processes has in memory: imports, and one small world."""

from __future__ import annotations

from functools import cache

import metatkgr.data.ingest
import metatkgr.evaluation.evaluator
import metatkgr.forecasting.forecaster
import metatkgr.forecasting.store
import metatkgr.graph.index
import metatkgr.models
import metatkgr.serving.app
import metatkgr.training.estimator  # noqa: F401
from metatkgr.data.facts import Facts
from metatkgr.data.world import simulate


@cache
def small_world() -> Facts:
    return simulate(facts=3000, seed=1)


small_world()
