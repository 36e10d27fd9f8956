"""Explanations of rules and ``evidence``: repeats, contacts, walks, frequency, as facts.

For ``evidence`` there are also neighbours that the entity and the candidate share, which is what
PageRank sees of them; and how much each kind counts is what its weights make of it: the kind's
contribution to the score against that of an average candidate.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.graph.history import History
from metatkgr.models.base import Explanation, Link

__all__ = ["ranker_reasons", "rule_reasons"]

_SHOWN = 20
"""Facts of one explanation; more are counted."""
_WALKS = 5
"""Walks of one explanation."""
_MIDDLES = 2
"""Middles of walks that are shown one by one."""
_WEIGHTS = {"repeat": 8.0, "contact": 4.0, "path": 2.0, "frequency": 1.0}
"""In a lexicographic order each part outweighs all behind it; shares say so in numbers."""
_SHARED = 5
"""Common neighbours that are shown."""
_REPEAT = 3.0
"""A repeat stands above all else: it counts so many times as much as all other explanations."""
_LEAST = 0.05
"""What a kind of explanation counts that is there but does not raise the score."""
_KIND_OF = {"contact": "contact", "path": "walks", "shared": "walks", "frequency": "frequency"}


def rule_reasons(
    history: History, queries: Queries, candidate: Tensor, *, walks: bool
) -> list[list[Explanation]]:
    """The parts of a rule's order that each candidate has.

    The weight of a part is twice that of the next one; those that are there add up to 1.

    Args:
        history: what is visible.
        queries: Q queries.
        candidate: (Q,) one candidate for each.
        walks: whether the rule counts walks.
    """
    result = []
    columns = zip(queries.entity, queries.relation, queries.time, candidate.tolist(), strict=True)
    for entity, relation, time, answer in columns:
        query = (int(entity), int(relation), int(time), int(answer))
        explanations = [*_links(history, *query)]
        if walks:
            explanations += _walks(history, *query)
        explanations += _frequency(history, *query)
        total = sum(_WEIGHTS[kind] for kind in {why.kind for why in explanations})
        shares = ((why, why.weight * _WEIGHTS[why.kind] / total) for why in explanations)
        result.append([replace(why, weight=share) for why, share in shares])
    return result


def _links(
    history: History, entity: int, relation: int, time: int, answer: int
) -> list[Explanation]:
    """The same link before, and other links between the two."""
    facts = history.facts_of(entity, None, answer, time, own=True).tolist()
    explanations = []
    for kind in ("repeat", "contact"):
        of_kind = [row for row in facts if (row[0] == relation) == (kind == "repeat")]
        if of_kind:
            links = tuple(Link(entity, r, x, t) for r, x, t in of_kind[:_SHOWN])
            explanations.append(Explanation(kind, 1.0, links, len(of_kind)))
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
    shared.sort(key=lambda entry: (-entry[0], entry[1]))
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
    """Facts in which the candidate filled this slot of the relation."""
    inverse = (relation + history.relations // 2) % history.relations
    facts = history.facts_of(answer, inverse, None, time, own=False)
    if not len(facts):
        return []
    links = tuple(Link(x, relation, answer, t) for _, x, t in facts[:_SHOWN].tolist())
    return [Explanation("frequency", 1.0, links, len(facts))]


def ranker_reasons(
    history: History, queries: Queries, candidate: Tensor, contributed: list[dict[str, float]]
) -> list[list[Explanation]]:
    """Explanations of each candidate, the weightiest first; their weights add up to 1.

    Args:
        history: what is visible.
        queries: Q queries.
        candidate: (Q,) one candidate for each.
        contributed: Q times, by kind of evidence, what it adds to the candidate's score.
    """
    result = []
    for row, explanations in enumerate(rule_reasons(history, queries, candidate, walks=True)):
        entity, time = int(queries.entity[row]), int(queries.time[row])
        explanations = [*explanations, *_shared(history, entity, int(candidate[row]), time)]
        result.append(_with_weights(explanations, contributed[row]))
    return result


def _with_weights(
    explanations: list[Explanation], contributed: dict[str, float]
) -> list[Explanation]:
    kinds = dict.fromkeys(explanation.kind for explanation in explanations)
    worth = {kind: max(contributed[_KIND_OF[kind]], _LEAST) for kind in kinds if kind != "repeat"}
    if {"path", "shared"} <= set(worth):
        # Two explanations of one kind of evidence.
        worth["path"], worth["shared"] = worth["path"] * 2 / 3, worth["shared"] / 3
    if "repeat" in kinds:
        worth["repeat"] = _REPEAT * max(sum(worth.values()), _LEAST)
    total = sum(worth.values())
    # rule_reasons has weights of its own; within a kind only their proportions matter here.
    of_kind = {kind: sum(c.weight for c in explanations if c.kind == kind) for kind in kinds}
    weighted = [
        Explanation(c.kind, worth[c.kind] / total * c.weight / of_kind[c.kind], c.links, c.count)
        for c in explanations
    ]
    return sorted(weighted, key=lambda explanation: -explanation.weight)


def _shared(history: History, entity: int, answer: int, time: int) -> list[Explanation]:
    """Neighbours of both, by whatever relation; the latest first."""
    entity_facts = history.facts_of(entity, None, None, time, own=True)
    answer_facts = history.facts_of(answer, None, None, time, own=False)
    # A hub has very many facts, of which few are with neighbours of the other.
    entity_facts = entity_facts[torch.isin(entity_facts[:, 1], answer_facts[:, 1])]
    answer_facts = answer_facts[torch.isin(answer_facts[:, 1], entity_facts[:, 1])]
    # A neighbour is shown by its latest link with each of the two; facts come latest first.
    last_of_entity, last_of_answer = _first_rows(entity_facts), _first_rows(answer_facts)
    common = [x for x in last_of_entity if x in last_of_answer and x not in (entity, answer)]
    if not common:
        return []
    links: list[Link] = []
    for x in common[:_SHARED]:
        links.append(Link(entity, last_of_entity[x][0], x, last_of_entity[x][1]))
        links.append(Link(answer, last_of_answer[x][0], x, last_of_answer[x][1]))
    return [Explanation("shared", 1.0, tuple(links), len(common))]


def _first_rows(facts: Tensor) -> dict[int, tuple[int, int]]:
    """Relation and step of the first row of each other end."""
    first: dict[int, tuple[int, int]] = {}
    for relation, other, step in torch.as_tensor(facts).tolist():
        first.setdefault(other, (relation, step))
    return first
