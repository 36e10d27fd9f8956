"""A period replayed: what was forecast, with which probability, and what happened.

A forecaster that knows nothing of the period (:meth:`Forecaster.at`) is asked, step by step, about
the facts of each step before it is told them. Its probabilities are fitted once, to what was known
when the period began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr.errors import DataError, MetaTKGRError, need
from metatkgr.forecasting.explain import Forecasts
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.incoming import checked_step
from metatkgr.forecasting.ranking import SIDES, Question

__all__ = ["Backtest", "Replayed", "backtest"]

_TOP = 100
"""Forecasts that are looked through for what happened."""
_SHOWN = 3
_AT_ONCE = 64
"""Questions asked together."""
_BINS = (0.0, 0.05, 0.2, 0.5, 1.0)
_HITS = (1, 3, 10)

Fact = tuple[str, str, str, int]


@dataclass(frozen=True)
class Replayed:
    """One question, what was forecast and what happened."""

    at: str
    entity: str
    relation: str
    side: str
    """'object': who was asked for is the object."""
    forecasts: tuple[tuple[str, float], ...]
    """The first three, with their probabilities."""
    happened: str
    rank: int | None
    """Of what happened, without what else happened at that step; None: beyond the first 100."""
    probability: float | None
    """That was given to what happened."""


@dataclass(frozen=True)
class Backtest:
    """A period replayed."""

    dataset: str
    model: str
    begin: str
    end: str
    facts: int
    """That happened in the period."""
    unaskable: int
    """Questions about entities and relations of which nothing was known when they happened."""
    rows: tuple[Replayed, ...]
    said: tuple[tuple[float, bool], ...]
    """Every one of the first ten forecasts: its probability, and whether it was the answer."""

    def metrics(self) -> dict[str, float | None]:
        """Mean reciprocal rank, and how often what happened was among the first."""
        if not self.rows:
            return dict.fromkeys(["mrr", *(f"hits@{k}" for k in _HITS)])
        ranks = np.array([row.rank or np.inf for row in self.rows])
        found: dict[str, float | None] = {"mrr": float((1 / ranks).mean())}
        return found | {f"hits@{k}": float((ranks <= k).mean()) for k in _HITS}

    def reliability(self) -> list[dict[str, Any]]:
        """Forecasts by their probability: how likely they were said to be, how often it was so."""
        stated = np.array(self.said, float).reshape(-1, 2)
        bins = np.clip(np.searchsorted(_BINS, stated[:, 0], side="right") - 1, 0, len(_BINS) - 2)
        return [
            {
                "low": _BINS[number],
                "high": _BINS[number + 1],
                "forecasts": int((bins == number).sum()),
                "said": float(stated[bins == number, 0].mean()),
                "happened": float(stated[bins == number, 1].mean()),
            }
            for number in range(len(_BINS) - 1)
            if (bins == number).any()
        ]

    def by_step(self) -> list[dict[str, Any]]:
        """The mean reciprocal rank of each step."""
        groups: dict[str, list[float]] = defaultdict(list)
        for row in self.rows:
            groups[row.at].append(1 / row.rank if row.rank else 0.0)
        return [
            {"at": at, "questions": len(values), "mrr": sum(values) / len(values)}
            for at, values in groups.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """As ``metatkgr backtest --json`` writes it."""
        return {
            "dataset": self.dataset,
            "model": self.model,
            "from": self.begin,
            "to": self.end,
            "facts": self.facts,
            "questions": len(self.rows),
            "unaskable": self.unaskable,
            "metrics": self.metrics(),
            "reliability": self.reliability(),
            "by_step": self.by_step(),
            "rows": [asdict(row) for row in self.rows],
        }

    def figure(self, out: str | Path) -> None:
        """Draw the ranks over time and the reliability of the probabilities."""
        need("matplotlib")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        steps = self.by_step()
        left.plot([s["at"] for s in steps], [s["mrr"] for s in steps], marker="o", markersize=3)
        left.set(title="Over time", xlabel="date", ylabel="mean reciprocal rank", ylim=(0, 1))
        left.set_xticks([s["at"] for s in steps][:: max(1, len(steps) // 5)])
        left.tick_params(axis="x", labelrotation=30)
        bins = self.reliability()
        right.plot([0, 1], [0, 1], color="grey", linestyle=":")
        right.plot([b["said"] for b in bins], [b["happened"] for b in bins], marker="o")
        right.set(title="Probabilities", xlabel="said", ylabel="happened", xlim=(0, 1), ylim=(0, 1))
        figure.savefig(Path(out))


def backtest(
    forecaster: Forecaster,
    begin: Any,
    end: Any = None,
    *,
    questions: int = 500,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Backtest:
    """Replay a period.

    Args:
        forecaster: knows the period; it is not changed.
        begin, end: dates as :meth:`Forecaster.predict` takes them, both included; no end: the last
            fact.
        questions: so many, drawn evenly from both ends of all facts of the period.
        seed: of the draw.
        progress: called with the questions done since the last call, and the number of all.

    Raises:
        DataError: nothing happened in the period, or before it.
    """
    facts = forecaster.facts
    calendar = facts.calendar
    first = checked_step(begin, calendar, facts.steps, "begin")
    last = facts.steps - 1 if end is None else checked_step(end, calendar, facts.steps, "end")
    low, high = np.searchsorted(facts.time, [first, last + 1])
    if low >= high:
        raise DataError(
            f"nothing happened from {calendar.label(first)} to {calendar.label(last)}; the facts "
            f"are of {calendar.label(0)} to {calendar.label(facts.steps - 1)}"
        )
    past = forecaster.at(calendar.label(first - 1)) if first else None
    if past is None:
        raise DataError("nothing is known before the first fact: begin later")
    past = past.anew(past.facts)  # of its own: it will be told what happens
    rows = range(int(low), int(high))
    drawn = np.random.default_rng(seed).permutation(2 * len(rows))[:questions]
    asked = defaultdict(list)
    for number in drawn.tolist():
        asked[rows[number // 2]].append(SIDES[number % 2])
    said: list[tuple[float, bool]] = []
    replayed: list[Replayed] = []
    unaskable = 0
    happening = [(row, _named(facts, row)) for row in rows]
    for _, group in groupby(happening, key=lambda item: item[1][3]):
        step = list(group)
        wanted = [(fact, side) for row, fact in step for side in asked.get(row, ())]
        known = past.facts.relations
        found, stated = _asked(past, wanted, [fact for _, fact in step], calendar.label)
        replayed += found
        said += stated
        unaskable += len(wanted) - len(found)
        if progress and wanted:
            progress(len(wanted), len(drawn))
        seen = [(s, r, o, calendar.label(t)) for _, (s, r, o, t) in step if r in known]
        past.observe(seen, allow_far=True)
    return Backtest(
        facts.name,
        forecaster.model.name,
        calendar.label(first),
        calendar.label(last),
        len(rows),
        unaskable,
        tuple(replayed),
        tuple(said),
    )


def _named(facts: Any, row: int) -> Fact:
    return (
        facts.entities[int(facts.subject[row])],
        facts.relations[int(facts.relation[row])],
        facts.entities[int(facts.object[row])],
        int(facts.time[row]),
    )


def _asked(
    past: Forecaster,
    wanted: Sequence[tuple[Fact, str]],
    step: Sequence[Fact],
    label: Callable[[int], str],
) -> tuple[list[Replayed], list[tuple[float, bool]]]:
    """The questions of one step, beside all that happened in it."""
    answers: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for subject, relation, other, _ in step:
        answers[subject, relation, "object"].add(other)
        answers[other, relation, "subject"].add(subject)
    rows: list[Replayed] = []
    said: list[tuple[float, bool]] = []
    for begin in range(0, len(wanted), _AT_ONCE):
        some = wanted[begin : begin + _AT_ONCE]
        ends = [itemgetter(*((0, 2) if side == "object" else (2, 0)))(fact) for fact, side in some]
        questions = [
            Question(who, fact[1], label(fact[3]), side, _TOP)
            for (who, _), (fact, side) in zip(ends, some, strict=True)
        ]
        found: Sequence[Forecasts | MetaTKGRError] = past.predict_many(questions)
        for (who, gold), (fact, side), forecasts in zip(ends, some, found, strict=True):
            if isinstance(forecasts, MetaTKGRError):
                continue  # nobody had heard of it
            also = answers[who, fact[1], side]
            names = [f.entity for f in forecasts if f.entity == gold or f.entity not in also]
            chances = {f.entity: f.probability for f in forecasts}
            # A probability is that of this one fact: what else happened that day is asked apart.
            said += [(f.probability, f.entity == gold) for f in forecasts.forecasts[:10]]
            rows.append(
                Replayed(
                    label(fact[3]),
                    who,
                    fact[1],
                    side,
                    tuple((f.label, f.probability) for f in forecasts.forecasts[:_SHOWN]),
                    gold,
                    names.index(gold) + 1 if gold in names else None,
                    chances.get(gold),
                )
            )
    return rows, said
