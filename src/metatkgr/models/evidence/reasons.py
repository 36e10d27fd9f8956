"""What a weighed score rests on, as facts one can look at.

The facts are those of the rules (repeats, contacts, walks, frequency), and neighbours that the
entity and the candidate share, which is what PageRank sees of them; how much each kind counts is
what the weights make of it: its contribution to the score against that of an average candidate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.graph.history import History
from metatkgr.models.base import Explanation, Link
from metatkgr.models.common.rule_reasons import rule_reasons
from metatkgr.models.evidence.features import columns_of

__all__ = ["weighed_reasons"]

_SHARED = 5
"""Common neighbours that are told."""
_REPEAT = 3.0
"""A repeat stands above all else: it counts so many times as much as all other explanations."""
_LEAST = 0.05
"""What a kind of explanation counts that is there but does not raise the score."""
_KIND_OF = {"contact": "contact", "path": "walks", "shared": "walks", "frequency": "frequency"}


def weighed_reasons(
    history: History, queries: Queries, candidate: Tensor, contributed: Tensor
) -> list[list[Explanation]]:
    """Clues of each candidate, the weightiest first; their weights add up to 1.

    Args:
        history: what is visible.
        queries: Q questions.
        candidate: (Q,) one candidate for each.
        contributed: (Q, F) what each feature adds to the candidate's score.
    """
    told = rule_reasons(history, queries, candidate, walks=True)
    result = []
    for row, explanations in enumerate(told):
        entity, time = int(queries.entity[row]), int(queries.time[row])
        explanations = [*explanations, *_shared(history, entity, int(candidate[row]), time)]
        result.append(_weighed(explanations, contributed[row]))
    return result


def _weighed(explanations: list[Explanation], contributed: Tensor) -> list[Explanation]:
    kinds = dict.fromkeys(explanation.kind for explanation in explanations)
    worth = {kind: _worth(kind, contributed) for kind in kinds if kind != "repeat"}
    if {"path", "shared"} <= set(worth):
        # Two ways to tell one kind of evidence.
        worth["path"], worth["shared"] = worth["path"] * 2 / 3, worth["shared"] / 3
    if "repeat" in kinds:
        worth["repeat"] = _REPEAT * max(sum(worth.values()), _LEAST)
    whole = sum(worth.values())
    # rule_reasons has weights of its own; within a kind only their proportions matter here.
    of_kind = {kind: sum(c.weight for c in explanations if c.kind == kind) for kind in kinds}
    weighed = [
        Explanation(c.kind, worth[c.kind] / whole * c.weight / of_kind[c.kind], c.links, c.count)
        for c in explanations
    ]
    return sorted(weighed, key=lambda explanation: -explanation.weight)


def _worth(kind: str, contributed: Tensor) -> float:
    return max(float(contributed[columns_of(_KIND_OF[kind])].sum()), _LEAST)


def _shared(history: History, entity: int, answer: int, time: int) -> list[Explanation]:
    """Neighbours of both, by whatever relation; the latest first."""
    mine = history.facts_of(entity, None, None, time, own=True)
    theirs = history.facts_of(answer, None, None, time, own=False)
    # A hub has very many facts, of which few are with neighbours of the other.
    mine = mine[torch.isin(mine[:, 1], theirs[:, 1])]
    theirs = theirs[torch.isin(theirs[:, 1], mine[:, 1])]
    # A neighbour is told by its latest link with each of the two; facts come latest first.
    last_mine, last_theirs = _first_rows(mine), _first_rows(theirs)
    common = [x for x in last_mine if x in last_theirs and x not in (entity, answer)]
    if not common:
        return []
    links: list[Link] = []
    for x in common[:_SHARED]:
        links.append(Link(entity, last_mine[x][0], x, last_mine[x][1]))
        links.append(Link(answer, last_theirs[x][0], x, last_theirs[x][1]))
    return [Explanation("shared", 1.0, tuple(links), len(common))]


def _first_rows(facts: Tensor) -> dict[int, tuple[int, int]]:
    """Relation and step of the first row of each other end."""
    found: dict[int, tuple[int, int]] = {}
    for relation, other, step in torch.as_tensor(facts).tolist():
        found.setdefault(other, (relation, step))
    return found
