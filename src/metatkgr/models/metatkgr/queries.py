"""The queries that meta-training is judged by, interval by interval, and what else it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.facts import IntArray
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Supports
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.negatives import Negatives
from metatkgr.models.metatkgr.settings import MetaTKGRSettings

__all__ = ["HeldQueries", "IntervalQueries", "MetaSource", "QueryColumns"]

QueryColumns = tuple[Tensor, Tensor, Tensor, Tensor]
"""Entity, directed relation, answer and time of queries, of one shape each."""


class IntervalQueries(Protocol):
    """The queries of the tasks, cut by time into M equal intervals, near to far.

    Within an interval, those of an entity are numbered by relation, then time, then fact.
    """

    @property
    def intervals(self) -> int:
        """M."""

    def size(self, interval: int) -> int:
        """|D|, the number of queries in an interval."""

    def entities(self, interval: int) -> Tensor:
        """(n,) int64 who has a query in an interval, ascending."""

    def counts(self, interval: int, entity: Tensor) -> Tensor:
        """(T,) int64 how many queries each of (T,) entities has in an interval."""

    def pick(self, interval: int, entity: Tensor, place: Tensor, mask: Tensor) -> QueryColumns:
        """Queries by number.

        Args:
            interval: 0..M-1.
            entity: (T,) int64.
            place: (T, F) int64, below the entity's count where ``mask`` is True.
            mask: (T, F) bool; any query stands in a slot where it is False.
        """


class HeldQueries:
    """The queries of tasks, in memory.

    Args:
        tasks: whose.
        intervals: M.
    """

    def __init__(self, tasks: Tasks, intervals: int) -> None:
        self.intervals = intervals
        question = tasks.answers.question
        time = tasks.questions.time[question]
        interval = _interval_of(time, intervals)
        order = np.lexsort([tasks.questions.entity[question], interval])
        columns = (
            tasks.questions.entity[question],
            tasks.questions.relation[question],
            tasks.answers.answer,
            time,
        )
        self._columns = [torch.from_numpy(column[order]) for column in columns]
        self._start = np.searchsorted(interval[order], np.arange(intervals + 1)).tolist()

    def size(self, interval: int) -> int:
        """|D|."""
        return int(self._start[interval + 1] - self._start[interval])

    def entities(self, interval: int) -> Tensor:
        """(n,) who has a query."""
        found: Tensor = torch.unique(self._owner(interval))
        return found

    def counts(self, interval: int, entity: Tensor) -> Tensor:
        """(T,) how many."""
        owner = self._owner(interval)
        return torch.searchsorted(owner, entity, right=True) - torch.searchsorted(owner, entity)

    def pick(self, interval: int, entity: Tensor, place: Tensor, mask: Tensor) -> QueryColumns:
        """(T, F) queries by number."""
        first = torch.searchsorted(self._owner(interval), entity)
        row = self._start[interval] + (first.unsqueeze(1) + place) * mask
        who, relation, answer, time = (column[row] for column in self._columns)
        return who, relation, answer, time

    def _owner(self, interval: int) -> Tensor:
        return self._columns[0][self._start[interval] : self._start[interval + 1]]


def _interval_of(time: IntArray, intervals: int) -> IntArray:
    """Which of M equal parts of the queries' time span each query falls into."""
    if len(time) == 0:
        return time
    span = int(time.max() - time.min()) + 1
    return np.asarray((time - time.min()) * intervals // span, np.int64)


@dataclass(frozen=True, eq=False)
class MetaSource:
    """All that meta-training reads, in memory or mapped from disk."""

    entities: int
    """E."""
    relations: int
    """R."""
    supports: Supports
    """Of the tasks."""
    index: GraphIndex
    """Public facts alone."""
    negatives: Negatives
    """Wrong answers, drawn from the same facts."""
    queries: IntervalQueries

    @classmethod
    def of(cls, tasks: Tasks, settings: MetaTKGRSettings, device: torch.device) -> Self:
        """That of tasks in memory, the index on ``device``."""
        return cls(
            len(tasks.facts.entities),
            len(tasks.facts.relations),
            tasks.supports,
            GraphIndex.of(tasks.visible, device=device),
            Negatives(tasks.visible, settings.negative_kind),
            HeldQueries(tasks, settings.query_intervals),
        )
