"""How long a forecast about an entity takes that nobody has heard of before."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from benchmarks.base import Measurement, Workload, benchmark, best_time
from metatkgr.data import catalog, sources
from metatkgr.data.facts import Facts
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.models import create
from metatkgr.models.base import Model, TrainableModel

__all__ = ["predicting"]

_SHOTS = 3
_MODELS = ("paths", "evidence")
"""Those to which facts can be added without preparing them anew."""


@benchmark("predict")
def predicting(work: Workload) -> list[Measurement]:
    """Observe a newcomer's first facts, adapt to them, rank all entities as the answer."""
    name = "ICEWS18" if catalog.locate("ICEWS18") else "world:440000"
    facts = sources.load("world:1500" if work.quick else name)
    return [_measured(model, facts, work) for model in _MODELS]


def _measured(name: str, facts: Facts, work: Workload) -> Measurement:
    forecaster = Forecaster(_model(name, facts), facts, shots=_SHOTS)
    newcomers = 10 if work.quick else 100
    rows = _first_facts(facts, newcomers + 5)
    seconds, sizes = [], []
    for number, first in enumerate(rows):
        begin = time.perf_counter()
        forecaster.observe(first)
        forecasts = forecaster.predict(first[0][0], first[0][1], top=10)
        spent = time.perf_counter() - begin
        sizes.append(len(forecasts))
        if number >= 5:  # the first ones build the index and fit the calibration
            seconds.append(spent)
    last = rows[-1][0]
    again, _ = best_time(lambda: forecaster.predict(last[0], last[1], top=10), work.repeats)
    begin = time.perf_counter()
    explained = forecaster.predict(last[0], last[1], top=10, explain=True)
    why = time.perf_counter() - begin
    everything = forecaster.facts

    def anew() -> None:
        model, known = _model(name, everything), forecaster.calibration
        fresh = Forecaster(model, everything, shots=_SHOTS, calibration=known)
        fresh.predict(rows[0][0][0], rows[0][0][1], top=10)

    scratch, _ = best_time(anew, 1)
    note = (
        f"{facts.name}: {len(facts.entities):,} candidates, {len(facts):,} facts; median of "
        f"{len(seconds)} newcomers with {_SHOTS} facts each, {min(sizes)} forecasts; 90 % within "
        f"{1e3 * float(np.percentile(seconds, 90)):.1f} ms; where no fact came in between "
        f"{1e3 * again:.1f} ms; with the reasons of {len(explained)} forecasts {1e3 * why:.1f} ms"
    )
    return Measurement(
        f"observe, adapt and rank a newcomer, {name}",
        "ms",
        1e3 * float(np.median(seconds)),
        1e3 * scratch,
        "an index built anew",
        note,
    )


def _model(name: str, facts: Facts) -> Model[Any]:
    """A model as it is before training: what it has learned changes no time."""
    model = create(name)
    if isinstance(model, TrainableModel):
        generator = torch.Generator().manual_seed(0)
        model.build(len(facts.entities), len(facts.relations), generator)
    return model


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
