"""The field's standard protocol: forecast the facts of the last part of the time range.

Entities are of all ages. The facts are cut in time into train, valid and test. Each fact of the
part that is asked about gives two queries, (s, r, ?, t) and (?, r, o, t), and the history is

===============  ======================================================================
``single-step``  every fact before the query's time, also of the part that is asked about
``multi-step``   every fact before that part begins
===============  ======================================================================

An :class:`Extrapolation` is evaluated as few-shot tasks are, by the same evaluator and filters: it
has no supports, and what is visible follows from the history. An :class:`ExtrapolationProblem` is
what a model with weights learns from: train, and nothing after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from metatkgr.data.facts import Facts
from metatkgr.data.periods import Period, Periods, Shots
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Tasks, distinct_queries
from metatkgr.data.visibility import Supports, Visibility, VisibleFacts, directed
from metatkgr.errors import SettingsError, UnknownNameError

__all__ = [
    "HISTORIES",
    "PARTS",
    "SHARES",
    "TGB_SHARES",
    "Extrapolation",
    "ExtrapolationProblem",
    "first_steps",
]

HISTORIES = ("single-step", "multi-step")
PARTS = ("train", "valid", "test")
SHARES = (0.8, 0.1)
"""Of the facts, for train and valid, as most papers have them."""
TGB_SHARES = (0.7, 0.15)
"""The same in TGB 2.0."""
_SPLITS = dict(
    zip(PARTS, (Period.META_TRAIN, Period.META_VALIDATION, Period.META_TEST), strict=True)
)
_LEARNED = 0.25
"""Of the facts of train, the last part that is asked about: the first have no history."""


def first_steps(facts: Facts, split: tuple[float, float] = SHARES) -> tuple[int, int]:
    """The first steps of valid and of test.

    Args:
        facts: the whole graph.
        split: the shares of train and valid among the facts; a step is never cut, and goes to the
            earlier part (the rule of TGB 2.0). Or, from 1 on, the first steps themselves: how
            published files are cut.

    Raises:
        SettingsError: the shares are no shares, or a part would be empty.
    """
    train, valid = split
    if train >= 1:
        if not (train < valid < facts.steps and train == int(train) and valid == int(valid)):
            raise SettingsError(
                f"{train:g} and {valid:g} are not the first steps of valid and test: whole "
                f"numbers, one after the other, below {facts.steps:,}"
            )
        return int(train), int(valid)
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
            part: 'valid' or 'test'; or 'train': the last quarter of it, to learn from.
            history: 'single-step' or 'multi-step'.
        """
        if history not in HISTORIES:
            raise UnknownNameError("history", history, HISTORIES)
        if part not in PARTS:
            raise UnknownNameError("split", part, PARTS)
        valid, test = first_steps(facts, split)
        begin, end = (valid, test) if part == "valid" else (test, facts.steps)
        if part == "train":
            early = facts.time[facts.time < valid]
            begin, end = int(np.quantile(early, 1 - _LEARNED)) + 1, valid
            begin = min(begin, valid - 1)
        rows = np.flatnonzero((facts.time >= begin) & (facts.time < end))
        source, relation, target, _ = directed(facts.select(rows))
        fact = np.repeat(rows, 2)
        nobody = np.full(len(facts.entities), -1)
        questions, answers = distinct_queries(facts, source, relation, target, fact, nobody)
        streaming = history == "single-step"
        public = None if streaming else facts.time < begin
        if part == "train" and streaming:  # what comes later is not even indexed
            public = facts.time < end
        return cls(
            facts,
            Periods.of(facts),
            _SPLITS[part],
            0,
            Visibility.STREAMING if streaming else Visibility.FROZEN,
            Supports.none(),
            np.zeros(0, np.int64),
            questions,
            answers,
            VisibleFacts.of(facts, public),
            history=history,
            part=part,
        )

    def about(self) -> dict[str, Any]:
        """Under which conditions it is evaluated."""
        return {"protocol": "extrapolation", "history": self.history, "split": self.part}


class ExtrapolationProblem(Problem):
    """What a model may learn from under the standard protocol: the facts of train.

    Args:
        facts: the whole graph.
        split: the shares of train and valid among the facts.
        history: of the queries of valid, by which weights are selected.
    """

    filter = "time"

    def __init__(
        self,
        facts: Facts,
        *,
        split: tuple[float, float] = SHARES,
        history: str = "single-step",
    ) -> None:
        shots = Shots(1, 1)
        streaming = Visibility.STREAMING if history == HISTORIES[0] else Visibility.FROZEN
        super().__init__(facts, shots=shots, test_shots=shots, visibility=streaming, seed=0)
        self.shots, self._cut, self._history = 0, split, history

    def _part(self, part: str) -> Extrapolation:
        return Extrapolation.build(self._facts, split=self._cut, part=part, history=self._history)

    @cached_property
    def train(self) -> Tasks:
        """The last queries of train."""
        return self._part("train")

    @cached_property
    def validation(self) -> Tasks:
        """The queries of valid."""
        return self._part("valid")

    @cached_property
    def earlier(self) -> Tasks:
        """None: entities of all ages are asked about as it is."""
        return self.train.sample(0)

    @cached_property
    def newest(self) -> Supports:
        """None: nobody has a support."""
        return Supports.none()

    def _learnable(self, shots: dict[Period, Shots], before: Period) -> VisibleFacts:
        """The facts of train."""
        return VisibleFacts.of(
            self._facts, self._facts.time < first_steps(self._facts, self._cut)[0]
        )
