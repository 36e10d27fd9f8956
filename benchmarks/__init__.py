"""What ``make bench`` measures; importing this package registers all of it."""

from benchmarks import evaluating as _evaluating
from benchmarks import meta_step as _meta_step
from benchmarks import predicting as _predicting
from benchmarks import reading as _reading
from benchmarks import sampling as _sampling
from benchmarks import snapshot_models as _snapshot_models
from benchmarks import two_processes as _two_processes
from benchmarks import weighing as _weighing
from benchmarks.base import Measurement, Workload, available

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
