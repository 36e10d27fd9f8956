"""Which other answers are true, and therefore not counted against a ranking.

``static`` drops other x with (e, r, x) true at any time, ``time`` those true at the very same time.
Built by sorting and searching over the whole graph; no loop over facts or questions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import VisibleFacts
from metatkgr.graph.ragged import pack

__all__ = ["FILTERS", "TrueAnswers", "true_answers"]

FILTERS = ("static", "time")
"""The two filters; both are always reported."""


@dataclass(frozen=True, eq=False)
class TrueAnswers:
    """For each question its true answers: entities ``entity[start[q]:stop[q]]``, ascending."""

    start: Tensor
    """(Q,) first position of each question's answers."""
    stop: Tensor
    """(Q,) end of each question's answers, not included."""
    entity: Tensor
    """(L,) entity ids."""

    def to(self, device: torch.device) -> TrueAnswers:
        """The same table on another device."""
        return TrueAnswers(self.start.to(device), self.stop.to(device), self.entity.to(device))


def true_answers(facts: Facts, questions: Queries, name: str) -> TrueAnswers:
    """Collect the true answers of all questions under the filter ``name``.

    Args:
        facts: the whole graph; also what no model may see.
        questions: Q questions.
        name: 'static' or 'time'.
    """
    if name not in FILTERS:
        raise ValueError(f"unknown filter {name!r}; choose one of {FILTERS}")
    links = VisibleFacts.of(facts)
    relations, entities, steps = 2 * len(facts.relations), len(facts.entities), facts.steps
    timed = name == "time"

    def group(source: Tensor, relation: Tensor, time: Tensor) -> Tensor:
        columns = [(source, entities), (relation, relations)]
        return pack(*columns, (time, steps)) if timed else pack(*columns)

    asked = group(*map(torch.from_numpy, (questions.entity, questions.relation, questions.time)))
    groups, row = torch.unique(asked, return_inverse=True)
    if len(groups) == 0:
        nothing = torch.zeros(0, dtype=torch.int64)
        return TrueAnswers(nothing, nothing, nothing)
    known = group(*map(torch.from_numpy, (links.source, links.relation, links.time)))
    place = torch.searchsorted(groups, known).clamp_(max=len(groups) - 1)
    relevant = groups[place] == known
    # Numbered groups keep this key small whatever the graph: at most questions x entities.
    target = torch.from_numpy(links.target)[relevant]
    cell = torch.unique(pack((place[relevant], len(groups)), (target, entities)))
    bounds = torch.searchsorted(cell, torch.arange(len(groups) + 1) * entities)
    return TrueAnswers(bounds[:-1][row], bounds[1:][row], cell % entities)
