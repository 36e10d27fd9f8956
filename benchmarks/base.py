"""What a benchmark is: some work, done by us and by a reference in the same run.

Times on a shared machine are noisy, so a number here is a ratio to a reference measured a moment
before or after, and the best of several repetitions on both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

__all__ = ["ROOT", "Measurement", "Workload", "available", "benchmark", "best_time"]

T = TypeVar("T")
ROOT = Path(__file__).parent.parent
"""The folder of the repository: from there, this package can be imported by other processes."""


@dataclass(frozen=True)
class Workload:
    """How much to do."""

    quick: bool = False
    """Small sizes, to see that everything runs; ratios then mean little."""
    repeats: int = 3
    """The best of so many repetitions counts."""


@dataclass(frozen=True)
class Measurement:
    """One line of the table."""

    name: str
    """What was measured."""
    unit: str
    """Of both values: 's', 'MB', …; lower is better."""
    ours: float
    reference: float | None = None
    """The same work done by ``against``; None where the value stands alone."""
    against: str = ""
    note: str = ""
    """Sizes, and the floor: the least that any implementation has to do."""

    @property
    def ratio(self) -> float | None:
        """How many times more the reference needs."""
        return None if self.reference is None else self.reference / self.ours

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "reference": self.reference,
            "against": self.against,
            "ratio": self.ratio,
            "note": self.note,
        }


Benchmark = Callable[[Workload], list[Measurement]]
_REGISTRY: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[Benchmark], Benchmark]:
    """Decorator: make a benchmark known to ``python -m benchmarks``."""

    def keep(function: Benchmark) -> Benchmark:
        _REGISTRY[name] = function
        return function

    return keep


def available() -> dict[str, Benchmark]:
    """All benchmarks by name."""
    return dict(_REGISTRY)


def best_time(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    """Seconds of the fastest of ``repeats`` runs, and what the last run returned."""
    best = float("inf")
    for _ in range(max(repeats, 1)):
        begin = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - begin)
    return best, result
