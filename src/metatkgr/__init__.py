"""Forecast the next facts of newly emerged entities in temporal knowledge graphs.

>>> import metatkgr as mt
>>> facts = mt.load("world")                        # or "YAGO", or a path
>>> tasks = mt.Tasks.build(facts, shots=3)
>>> mt.evaluate(mt.create("paths"), tasks).summary().mrr  # doctest: +SKIP
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Before torch starts its threads: let them sleep, not spin, while they wait for each other. On a
# machine that does anything else besides, spinning made evaluation four times slower (measured).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
"""The one place that names the version."""

if TYPE_CHECKING:
    from metatkgr.data.extrapolation import Extrapolation
    from metatkgr.data.facts import Facts, Vocabulary
    from metatkgr.data.readers import read_facts
    from metatkgr.data.sources import load
    from metatkgr.data.tasks import Tasks
    from metatkgr.data.world import simulate
    from metatkgr.evaluation.evaluator import evaluate
    from metatkgr.forecasting.forecaster import Forecaster, Question
    from metatkgr.models import Model, available, create, register
    from metatkgr.training.comparing import compare
    from metatkgr.training.estimator import Estimator, MetaTKGR
    from metatkgr.training.opening import open_model

_WHERE = {
    "Estimator": "metatkgr.training.estimator",
    "Extrapolation": "metatkgr.data.extrapolation",
    "Facts": "metatkgr.data.facts",
    "Forecaster": "metatkgr.forecasting.forecaster",
    "MetaTKGR": "metatkgr.training.estimator",
    "Model": "metatkgr.models",
    "Question": "metatkgr.forecasting.forecaster",
    "Tasks": "metatkgr.data.tasks",
    "Vocabulary": "metatkgr.data.facts",
    "available": "metatkgr.models",
    "compare": "metatkgr.training.comparing",
    "create": "metatkgr.models",
    "evaluate": "metatkgr.evaluation.evaluator",
    "load": "metatkgr.data.sources",
    "open_model": "metatkgr.training.opening",
    "read_facts": "metatkgr.data.readers",
    "register": "metatkgr.models",
    "simulate": "metatkgr.data.world",
}

__all__ = [
    "Estimator",
    "Extrapolation",
    "Facts",
    "Forecaster",
    "MetaTKGR",
    "Model",
    "Question",
    "Tasks",
    "Vocabulary",
    "available",
    "compare",
    "create",
    "evaluate",
    "load",
    "open_model",
    "read_facts",
    "register",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import metatkgr`` is quick."""
    if name not in _WHERE:
        raise AttributeError(f"module 'metatkgr' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
