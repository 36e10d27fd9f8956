"""Which other answers are true, and therefore not counted against a ranking.

``static`` drops other x with (e, r, x) true at any time, ``time`` those true at the very same time.
Built by sorting and searching over the whole graph, a block of its facts at a time: besides the
true answers themselves it takes the memory of a block, also where the facts are mapped from a file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.facts import Column, Facts, IntArray
from metatkgr.data.tasks import Queries
from metatkgr.graph.ragged import pack

__all__ = ["FILTERS", "TrueAnswers", "true_answers"]

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

    def to(self, device: torch.device) -> TrueAnswers:
        """The same table on another device."""
        return TrueAnswers(self.start.to(device), self.stop.to(device), self.entity.to(device))


def true_answers(facts: Facts, queries: Queries, name: str) -> TrueAnswers:
    """Collect the true answers of all queries under the filter ``name``.

    Args:
        facts: the whole graph; also what no model may see.
        queries: Q of them.
        name: 'static' or 'time'.
    """
    if name not in FILTERS:
        raise ValueError(f"unknown filter {name!r}; choose one of {FILTERS}")
    relations, entities, steps = len(facts.relations), len(facts.entities), facts.steps
    timed = name == "time"

    def group(
        source: Column | IntArray, relation: Column | IntArray, time: Column | IntArray
    ) -> Tensor:
        """One key for the queries that share their true answers."""
        columns = [(torch.from_numpy(source), entities)]
        columns.append((torch.from_numpy(relation), 2 * relations))
        return pack(*columns, (torch.from_numpy(time), steps)) if timed else pack(*columns)

    groups, row = torch.unique(
        group(queries.entity, queries.relation, queries.time), return_inverse=True
    )
    if len(groups) == 0:
        nothing = torch.zeros(0, dtype=torch.int64)
        return TrueAnswers(nothing, nothing, nothing)
    cells = []
    for begin in range(0, len(facts), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        columns = (facts.subject[rows], facts.relation[rows], facts.object[rows], facts.time[rows])
        subject, relation, other, time = map(np.asarray, columns)
        # Every fact answers from both of its ends.
        for source, slot, target in (
            (subject, relation, other),
            (other, relation + relations, subject),
        ):
            known = group(source, slot, time)
            number = torch.searchsorted(groups, known).clamp_(max=len(groups) - 1)
            relevant = groups[number] == known
            # Numbered groups keep this key small whatever the graph: at most queries x entities.
            answer = torch.from_numpy(target)[relevant]
            cells.append(pack((number[relevant], len(groups)), (answer, entities)))
    cell = torch.unique(torch.cat(cells))
    bounds = torch.searchsorted(cell, torch.arange(len(groups) + 1) * entities)
    return TrueAnswers(bounds[:-1][row], bounds[1:][row], cell % entities)
