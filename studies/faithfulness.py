"""Faithfulness of explanations, a deletion test: without its evidence, a forecast must fall.

``python -m studies.faithfulness RUN`` prints a table for a trained run, over newcomers of
meta-test. The facts of a forecast's first explanation are removed, or as many random visible facts,
or as many near at hand; learned vectors stay, all else follows from the facts that are left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metatkgr.data.facts import Facts
from metatkgr.data.periods import Period, Periods
from metatkgr.data.tasks import Queries
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.explain import FactView, Forecast
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.models.base import Model
from metatkgr.models.common.listed import ListedScores
from metatkgr.training.runs import load_run

__all__ = ["Falls", "Query", "falls", "falls_of_model", "main", "new_entity_rows"]

Query = tuple[str, str, int]
"""Subject, relation and step."""


@dataclass
class Falls:
    """How much forecasts fall without some visible facts."""

    own: list[float]
    """Without the facts of the first explanation."""
    random: list[float]
    """Without as many other visible facts."""
    near: list[float]
    """Without as many near at hand: explanations of the query's other forecasts, and what else its
    entity did."""
    unexplained: int
    """Forecasts without a fact as an explanation."""


def falls(
    make: Callable[[Facts], Forecaster],
    height: Callable[[Forecaster, Query, Forecast], float],
    facts: Facts,
    rows: Iterable[int],
    rank: int,
) -> Falls:
    """The deletion test of one forecast of each query: how far it falls without its evidence.

    Args:
        make: a forecaster over facts.
        height: how well a forecast stands.
        facts: of the full graph.
        rows: facts whose subject, relation and time make the queries.
        rank: of the forecast in the list; 0 for the best.
    """
    row_of = {FactView(*facts.describe(row)): row for row in range(len(facts))}
    generator = np.random.default_rng(0)
    forecaster, result = make(facts), Falls([], [], [], 0)
    for row in rows:
        subject, relation, _, _ = facts.describe(row)
        query = (subject, relation, int(facts.time[row]))
        forecasts = forecaster.predict(query[0], query[1], at=query[2], top=10, explain=True)
        forecast = forecasts[rank]
        if not forecast.reasons or not forecast.reasons[0].facts:
            result.unexplained += 1
            continue
        evidence = [row_of[fact] for fact in forecast.reasons[0].facts]
        visible = np.setdiff1d(np.flatnonzero(facts.time < query[2]), evidence)
        others = generator.choice(visible, len(evidence), replace=False)
        about = (facts.subject == facts.subject[row]) | (facts.object == facts.subject[row])
        near = {
            row_of[fact] for other in forecasts for reason in other.reasons for fact in reason.facts
        }
        near |= set(np.flatnonzero(about & (facts.time < query[2])).tolist())
        pool = np.array(sorted(near - set(evidence)), np.int64)
        close = generator.choice(pool, min(len(evidence), len(pool)), replace=False)
        before = height(forecaster, query, forecast)
        removals = ((evidence, result.own), (others, result.random), (close, result.near))
        for removed, values in removals:
            kept = np.setdiff1d(np.arange(len(facts)), removed)
            values.append(before - height(make(facts.select(kept)), query, forecast))
    return result


def falls_of_model(model: Model[Any], facts: Facts, rows: Iterable[int], rank: int) -> Falls:
    """The same for a model whose scores are logits, by log-probability.

    What moves it may leave a rank as it is; and calibrated probabilities ask for more than scores.
    """

    def make(some: Facts) -> Forecaster:
        # A forecaster takes its model over.
        return Forecaster.of(some, deepcopy(model), calibration=Calibration())

    def log_probability(forecaster: Forecaster, query: Query, forecast: Forecast) -> float:
        find = facts.entities.id
        forecaster._engine.show(forecaster._graph.snapshot(), [find(query[0])])
        columns = (find(query[0]), facts.relations.id(query[1]), query[2])
        scores = forecaster.model.score(Queries(*(np.array([value]) for value in columns)))
        scores = scores.dense() if isinstance(scores, ListedScores) else scores
        return float(torch.log_softmax(scores.double(), 1)[0, find(forecast.entity)])

    return falls(make, log_probability, facts, rows, rank)


def new_entity_rows(facts: Facts, most: int, seed: int = 0) -> list[int]:
    """Some facts whose subject emerged in the period of meta-test."""
    newcomer = Periods.of(facts).of_entity[facts.subject] == Period.META_TEST
    known = np.flatnonzero(newcomer)
    chosen = np.random.default_rng(seed).choice(known, min(most, len(known)), replace=False)
    return [int(row) for row in chosen]


def main(folder: str, most: int = 60) -> str:
    """The table of a run, in Markdown."""
    run = load_run(Path(folder))
    rows = new_entity_rows(run.facts, most)
    lines = [
        f"| {len(rows)} questions | have reasons | mean fall of log p: reason / random / near |"
        " falls: reason / near | falls more than near |",
        "|---|---|---|---|---|",
    ]
    for rank, name in ((0, "first forecast"), (2, "third forecast")):
        measured = falls_of_model(run.model, run.facts, rows, rank)
        if not measured.own:
            lines.append(f"| {name} | 0 % | – | – | – |")
            continue
        own, random, near = map(np.array, (measured.own, measured.random, measured.near))
        lines.append(
            f"| {name} | {len(own) / len(rows):.0%} | {own.mean():.3f} / {random.mean():.3f} / "
            f"{near.mean():.3f} | {np.mean(own > 0):.0%} / {np.mean(near > 0):.0%} | "
            f"{np.mean(own > near):.0%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(main(sys.argv[1]))
