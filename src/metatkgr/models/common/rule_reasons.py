"""What the rules rest on: repeats, contacts, walks and frequency, as facts one can look at."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.graph.history import History
from metatkgr.models.base import Explanation, Link

__all__ = ["rule_reasons"]

_SHOWN = 20
"""Facts of one explanation; more are counted."""
_WALKS = 5
"""Walks of one explanation."""
_MIDDLES = 2
"""Middles of walks that are told one by one."""
_WEIGHTS = {"repeat": 8.0, "contact": 4.0, "path": 2.0, "frequency": 1.0}
"""In a lexicographic order each part outweighs all behind it; shares say so in numbers."""


def rule_reasons(
    history: History, queries: Queries, candidate: Tensor, *, walks: bool
) -> list[list[Explanation]]:
    """The parts of a rule's order that each candidate has.

    The weight of a part is twice that of the next one; those that are there add up to 1.

    Args:
        history: what is visible.
        queries: Q questions.
        candidate: (Q,) one candidate for each.
        walks: whether the rule counts walks.
    """
    result = []
    asked = zip(queries.entity, queries.relation, queries.time, candidate.tolist(), strict=True)
    for entity, relation, time, answer in asked:
        question = (int(entity), int(relation), int(time), int(answer))
        explanations = [*_links(history, *question)]
        if walks:
            explanations += _walks(history, *question)
        explanations += _frequency(history, *question)
        whole = sum(_WEIGHTS[kind] for kind in {why.kind for why in explanations})
        shares = ((why, why.weight * _WEIGHTS[why.kind] / whole) for why in explanations)
        result.append([replace(why, weight=share) for why, share in shares])
    return result


def _links(
    history: History, entity: int, relation: int, time: int, answer: int
) -> list[Explanation]:
    """The same link before, and other links between the two."""
    found = history.facts_of(entity, None, answer, time, own=True).tolist()
    explanations = []
    for kind in ("repeat", "contact"):
        mine = [row for row in found if (row[0] == relation) == (kind == "repeat")]
        if mine:
            links = tuple(Link(entity, r, x, t) for r, x, t in mine[:_SHOWN])
            explanations.append(Explanation(kind, 1.0, links, len(mine)))
    return explanations


def _walks(
    history: History, entity: int, relation: int, time: int, answer: int
) -> list[Explanation]:
    """Others that share a neighbour with the entity and are linked to the candidate."""
    inverse = (relation + history.relations // 2) % history.relations
    known = history.neighbours(entity, relation, time)
    linked = history.neighbours(answer, inverse, time)
    linked = linked[linked != entity]
    shared = []
    for middle in known.tolist():
        others = history.neighbours(middle, inverse, time)
        others = others[torch.isin(others, linked)]
        if len(others) and middle != answer:
            shared.append((len(others), middle, others.tolist()))
    shared.sort(key=lambda found: (-found[0], found[1]))
    total = sum(count for count, _, _ in shared)

    def last(source: int, target: int) -> Link:
        r, x, t = history.facts_of(source, relation, target, time, own=False)[0].tolist()
        return Link(source, r, x, t)

    explanations = []
    for count, middle, walkers in shared[:_MIDDLES]:
        links: list[Link] = []
        for other in walkers[:_WALKS]:
            links += [last(entity, middle), last(other, middle), last(other, answer)]
        explanations.append(Explanation("path", count / total, tuple(links), count))
    return explanations


def _frequency(
    history: History, entity: int, relation: int, time: int, answer: int
) -> list[Explanation]:
    """Facts in which the candidate stood in this place of the relation."""
    inverse = (relation + history.relations // 2) % history.relations
    found = history.facts_of(answer, inverse, None, time, own=False)
    if not len(found):
        return []
    links = tuple(Link(x, relation, answer, t) for _, x, t in found[:_SHOWN].tolist())
    return [Explanation("frequency", 1.0, links, len(found))]
