"""Benchmarks of ``metatkgr bench``; importing this package registers all of them."""

from metatkgr.benchmarks import evaluating as _evaluating
from metatkgr.benchmarks import meta_step as _meta_step
from metatkgr.benchmarks import predicting as _predicting
from metatkgr.benchmarks import reading as _reading
from metatkgr.benchmarks import sampling as _sampling
from metatkgr.benchmarks import snapshot_models as _snapshot_models
from metatkgr.benchmarks import two_processes as _two_processes
from metatkgr.benchmarks import weighing as _weighing
from metatkgr.benchmarks.base import Measurement, Workload, available

__all__ = ["Measurement", "Workload", "available"]
_ = (
    _evaluating,
    _meta_step,
    _predicting,
    _reading,
    _sampling,
    _snapshot_models,
    _two_processes,
    _weighing,
)
