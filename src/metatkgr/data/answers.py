"""True answers of queries: those that a filter drops, and whether an answer is new to its entity.

Found by going over the facts once, a block at a time: besides the answers it takes the memory of a
block, also where facts are mapped from disk, and no index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import IntArray
from metatkgr.data.orders import found, pack
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts

__all__ = ["FILTERS", "TrueAnswers", "first_linked", "novel_answers", "true_answers"]

FILTERS = ("static", "time")
"""The two filters; both are always reported."""
_BLOCK = 1 << 20
"""Facts looked through at once."""


@dataclass(frozen=True, eq=False)
class TrueAnswers:
    """For each query its true answers: entities ``entity[start[q]:stop[q]]``, ascending."""

    start: Tensor
    """(Q,) first position of each query's answers."""
    stop: Tensor
    """(Q,) end of each query's answers, not included."""
    entity: Tensor
    """(L,) entity ids."""

    def __getitem__(self, rows: slice) -> TrueAnswers:
        """Those of some queries."""
        return TrueAnswers(self.start[rows], self.stop[rows], self.entity)

    def to(self, device: torch.device) -> TrueAnswers:
        """The same table on another device."""
        return TrueAnswers(self.start.to(device), self.stop.to(device), self.entity.to(device))


def true_answers(facts: VisibleFacts, queries: Queries, name: str) -> TrueAnswers:
    """Collect the true answers of all queries under the filter ``name``.

    Args:
        facts: what counts as true; for a filter the whole graph, also what no model may see.
        queries: Q of them.
        name: 'static', those of any time, or 'time', those of the query's time.
    """
    if name not in FILTERS:
        raise ValueError(f"unknown filter {name!r}; choose one of {FILTERS}")
    wanted = _Groups(facts, queries, timed=name == "time")
    entities = len(facts.entities)
    # Numbered groups keep this key small whatever the graph: at most queries x entities.
    sizes = len(wanted.groups), entities
    cells = [torch.zeros(0, dtype=torch.int64)]
    cells += [pack((group, sizes[0]), (answer, sizes[1])) for group, answer, _ in wanted.links()]
    cell = torch.unique(torch.cat(cells))
    bounds = torch.searchsorted(cell, torch.arange(len(wanted.groups) + 1) * entities)
    return TrueAnswers(bounds[:-1][wanted.row], bounds[1:][wanted.row], cell % entities)


def first_linked(
    visible: VisibleFacts, supports: Supports, queries: Queries, answer: IntArray
) -> IntArray:
    """(Q,) from which step on each query entity is visibly linked to an answer by the query's
    relation: -1 by its own support, which it sees at any time; 2^31 - 1 never.

    Args:
        visible: the public facts.
        supports: the first facts of the new entities.
        queries: Q of them.
        answer: (Q,) one for each.
    """
    wanted = _Groups(visible.about(queries.entity), queries)
    sizes = len(wanted.groups), len(visible.entities)
    cell, place = torch.unique(
        pack((wanted.row, sizes[0]), (torch.from_numpy(answer), sizes[1])), return_inverse=True
    )
    first = torch.full_like(cell, 2**31 - 1)

    def note(group: Tensor, target: Tensor, since: Tensor) -> None:
        number, known = found(cell, pack((group, sizes[0]), (target, sizes[1])))
        first.scatter_reduce_(0, number[known], since[known], "amin")

    for group, target, time in wanted.links():
        note(group, target, time)
    own, target = wanted.of(supports.entity, supports.relation, supports.other, supports.time)[:2]
    note(own, target, torch.full_like(own, -1))
    return np.asarray(first[place].numpy())


def novel_answers(tasks: Tasks) -> npt.NDArray[np.bool_]:
    """(A,) whether no visible fact had linked the answer to e by r in this direction yet."""
    queries = tasks.questions[tasks.answers.question]
    first = first_linked(tasks.visible, tasks.supports, queries, tasks.answers.answer)
    return np.asarray(first >= queries.time)


class _Groups:
    """Queries by what their true answers depend on: entity and relation, and perhaps the time."""

    def __init__(self, facts: VisibleFacts, queries: Queries, *, timed: bool = False) -> None:
        self._facts, self._timed = facts, timed
        last = facts.time_range() or (0, 0)
        self._steps = max(last[1], int(queries.time.max(initial=0))) + 1
        self.groups, self.row = torch.unique(
            self._key(queries.entity, queries.relation, queries.time), return_inverse=True
        )

    def _key(self, entity: npt.NDArray[np.integer], relation: IntArray, time: IntArray) -> Tensor:
        columns = [
            (torch.from_numpy(np.asarray(entity)), len(self._facts.entities)),
            (torch.from_numpy(relation), 2 * len(self._facts.relations)),
        ]
        if self._timed:
            columns.append((torch.from_numpy(time), self._steps))
        return pack(*columns)

    def links(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Group, target and time of the links that answer queries."""
        for block in self._facts.blocks(_BLOCK):
            yield self.of(*block)

    def of(
        self, source: IntArray, relation: IntArray, target: IntArray, time: IntArray
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of these."""
        number, known = found(self.groups, self._key(source, relation, time))
        rows = torch.nonzero(known).squeeze(1)
        answer, since = (torch.from_numpy(column)[rows].long() for column in (target, time))
        return number[rows], answer, since
