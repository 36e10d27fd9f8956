"""The field's standard protocol: forecast the facts of the last part of the time range.

Entities are of all ages. The facts are cut in time into train, valid and test. Each fact of the
part that is asked about gives two queries, (s, r, ?, t) and (?, r, o, t), and the history is

===============  ======================================================================
``single-step``  every fact before the query's time, also of the part that is asked about
``multi-step``   every fact before that part begins
===============  ======================================================================

An :class:`Extrapolation` is evaluated as few-shot tasks are, by the same evaluator and filters: it
has no supports, and what is visible follows from the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metatkgr.data.facts import Facts
from metatkgr.data.periods import Period, Periods
from metatkgr.data.tasks import Tasks, distinct_queries
from metatkgr.data.visibility import Supports, Visibility, VisibleFacts, directed
from metatkgr.errors import SettingsError, UnknownNameError

__all__ = ["HISTORIES", "PARTS", "SHARES", "TGB_SHARES", "Extrapolation", "first_steps"]

HISTORIES = ("single-step", "multi-step")
PARTS = ("valid", "test")
SHARES = (0.8, 0.1)
"""Of the facts, for train and valid, as most papers have them."""
TGB_SHARES = (0.7, 0.15)
"""The same in TGB 2.0."""


def first_steps(facts: Facts, split: tuple[float, float] = SHARES) -> tuple[int, int]:
    """The first steps of valid and of test.

    Args:
        facts: the whole graph.
        split: the shares of train and valid among the facts; a step is never cut, and goes to the
            earlier part (the rule of TGB 2.0).

    Raises:
        SettingsError: the shares are no shares, or a part would be empty.
    """
    train, valid = split
    if not (train > 0 and valid > 0 and train + valid < 1):
        raise SettingsError(
            f"a split is the shares of train and valid, as 0.8 and 0.1, not {train} and {valid}"
        )
    last_train, last_valid = np.quantile(facts.time, [train, train + valid])
    first = int(np.floor(last_train)) + 1, int(np.floor(last_valid)) + 1
    if not int(facts.time[0]) < first[0] < first[1] <= int(facts.time[-1]):
        raise SettingsError(
            f"{facts.steps:,} steps are too few to be cut at {train:.0%} and {train + valid:.0%} "
            "of the facts: choose other shares, or a finer time unit"
        )
    return first


@dataclass(frozen=True, eq=False)
class Extrapolation(Tasks):
    """The queries of valid or test, with what may be seen while answering them."""

    history: str = HISTORIES[0]
    part: str = PARTS[1]

    @classmethod
    def build(  # type: ignore[override]
        cls,
        facts: Facts,
        *,
        split: tuple[float, float] = SHARES,
        part: str = "test",
        history: str = "single-step",
    ) -> Extrapolation:
        """Cut the facts in time and ask about a part of them.

        Args:
            facts: the whole graph.
            split: the shares of train and valid among the facts.
            part: 'valid' or 'test'.
            history: 'single-step' or 'multi-step'.
        """
        if history not in HISTORIES:
            raise UnknownNameError("history", history, HISTORIES)
        if part not in PARTS:
            raise UnknownNameError("split", part, PARTS)
        valid, test = first_steps(facts, split)
        begin, end = (valid, test) if part == "valid" else (test, facts.steps)
        rows = np.flatnonzero((facts.time >= begin) & (facts.time < end))
        source, relation, target, _ = directed(facts.select(rows))
        fact = np.repeat(rows, 2)
        nobody = np.full(len(facts.entities), -1)
        questions, answers = distinct_queries(facts, source, relation, target, fact, nobody)
        streaming = history == "single-step"
        return cls(
            facts,
            Periods.of(facts),
            Period.META_TEST if part == "test" else Period.META_VALIDATION,
            0,
            Visibility.STREAMING if streaming else Visibility.FROZEN,
            Supports.none(),
            np.zeros(0, np.int64),
            questions,
            answers,
            VisibleFacts.of(facts, None if streaming else facts.time < begin),
            history=history,
            part=part,
        )

    def about(self) -> dict[str, Any]:
        """Under which conditions it is evaluated."""
        return {"protocol": "extrapolation", "history": self.history, "split": self.part}
