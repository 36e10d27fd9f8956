"""How long a forecast about an entity takes that nobody has heard of before."""

from __future__ import annotations

import time

import numpy as np

from metatkgr.benchmarks.base import Measurement, Workload, benchmark, best_time
from metatkgr.data import catalog, sources
from metatkgr.data.facts import Facts
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.models import create

__all__ = ["predicting"]

_SHOTS = 3


@benchmark("predict")
def predicting(work: Workload) -> list[Measurement]:
    """Observe a newcomer's first facts, adapt to them, rank all entities as the answer."""
    name = "ICEWS18" if catalog.locate("ICEWS18") else "world:440000"
    facts = sources.load("world:5000" if work.quick else name)
    forecaster = Forecaster.of(create("paths"), facts, shots=_SHOTS)
    newcomers = 10 if work.quick else 100
    rows = _first_facts(facts, newcomers + 5)
    seconds, sizes = [], []
    for number, first in enumerate(rows):
        begin = time.perf_counter()
        forecaster.observe(first)
        found = forecaster.predict(first[0][0], first[0][1], top=10)
        spent = time.perf_counter() - begin
        sizes.append(len(found))
        if number >= 5:  # the first ones build the index and fit the calibration
            seconds.append(spent)
    begin = time.perf_counter()
    explained = forecaster.predict(rows[-1][0][0], rows[-1][0][1], top=10, explain=True)
    why = time.perf_counter() - begin
    everything = forecaster.facts

    def anew() -> None:
        again = Forecaster.of(create("paths"), everything, calibration=forecaster.calibration)
        again.predict(rows[0][0][0], rows[0][0][1], top=10)

    scratch, _ = best_time(anew, 1)
    note = (
        f"{facts.name}: {len(facts.entities):,} candidates, {len(facts):,} facts; median of "
        f"{len(seconds)} newcomers with {_SHOTS} facts each, {min(sizes)} forecasts; 90 % within "
        f"{1e3 * float(np.percentile(seconds, 90)):.1f} ms; with the reasons of "
        f"{len(explained)} forecasts {1e3 * why:.1f} ms"
    )
    return [
        Measurement(
            "observe, adapt and rank a newcomer, paths",
            "ms",
            1e3 * float(np.median(seconds)),
            1e3 * scratch,
            "an index built anew",
            note,
        )
    ]


def _first_facts(facts: Facts, count: int) -> list[list[tuple[str, str, str, str]]]:
    """The first facts of made-up newcomers: those of real entities, under another name."""
    generator = np.random.default_rng(0)
    now = facts.calendar.label(facts.steps - 1)
    rows = generator.integers(0, len(facts), (count, _SHOTS))
    return [
        [
            (
                f"newcomer {number}",
                facts.relations[int(facts.relation[row])],
                facts.entities[int(facts.object[row])],
                now,
            )
            for row in some
        ]
        for number, some in enumerate(rows)
    ]
