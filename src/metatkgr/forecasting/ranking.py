"""From scores and probabilities of all candidates to the best few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import IntArray
from metatkgr.data.tasks import Queries
from metatkgr.forecasting.graph import Snapshot

__all__ = ["Ask", "Candidate", "best_candidates", "best_facts"]

_CELLS = 1 << 22
"""Scores computed in one go; bounds memory."""
_TIES = 2000
"""So many candidates at the edge of the list are put in order by name."""

Ask = Callable[[Queries], tuple[Tensor, Tensor]]
"""(Q, E) scores and probabilities of questions."""


@dataclass(frozen=True)
class Candidate:
    """A possible answer."""

    entity: int
    relation: int
    """Directed."""
    step: int
    score: float
    probability: float


def best_candidates(
    ask: Ask, snapshot: Snapshot, entity: int, relation: int, moments: IntArray, top: int
) -> list[Candidate]:
    """The ``top`` answers to one question; of several moments, each candidate's best.

    Over several moments candidates are ordered by probability, because scores of different
    questions cannot be compared; the earliest of equal moments counts.
    """
    best: Tensor | None = None
    block = max(_CELLS // len(snapshot.entities), 1)
    for begin in range(0, len(moments), block):
        some = moments[begin : begin + block]
        scores, chance = ask(_queries(entity, relation, some))
        if len(moments) == 1:
            return _top(snapshot, relation, moments, scores[0], chance[0], top)
        value, place = chance.max(0)
        score = scores.gather(0, place.unsqueeze(0))[0].double()
        found = torch.stack([value, score, place.double() + begin])
        better = None if best is None else found[0] > best[0]
        best = found if best is None or better is None else torch.where(better, found, best)
    assert best is not None
    value, score, place = best
    order = _top_order(snapshot, value, top)
    return [
        Candidate(x, relation, int(moments[int(place[x])]), float(score[x]), float(value[x]))
        for x in order
    ]


def best_facts(
    ask: Ask,
    snapshot: Snapshot,
    entity: int,
    share: npt.NDArray[np.float64],
    moments: IntArray,
    top: int,
) -> list[Candidate]:
    """The ``top`` next facts over all relations.

    A fact's probability is that of its relation times that of the answer given the relation. It is
    at most the relation's, so relations are asked in order of theirs until no other can matter.

    Args:
        ask: scores questions.
        snapshot: the facts.
        entity: who is asked about.
        share: (2R,) probability of each directed relation.
        moments: (T,) steps.
        top: how many.
    """
    found: list[Candidate] = []
    for relation in np.argsort(-share, kind="stable").tolist():
        chance = float(share[relation])
        if len(found) >= top and found[top - 1].probability >= chance:
            break
        found += [
            Candidate(c.entity, relation, c.step, c.score, chance * c.probability)
            for c in best_candidates(ask, snapshot, entity, relation, moments, top)
        ]
        found.sort(key=lambda c: -c.probability)
        del found[top:]
    return found


def _queries(entity: int, relation: int, moments: IntArray) -> Queries:
    return Queries(np.full_like(moments, entity), np.full_like(moments, relation), moments)


def _top(
    snapshot: Snapshot, relation: int, moments: IntArray, scores: Tensor, chance: Tensor, top: int
) -> list[Candidate]:
    step = int(moments[0])
    order = _top_order(snapshot, scores, top)
    picked = torch.tensor(order, device=scores.device)
    columns = zip(order, scores[picked].tolist(), chance[picked].tolist(), strict=True)
    return [Candidate(x, relation, step, float(score), p) for x, score, p in columns]


def _top_order(snapshot: Snapshot, values: Tensor, top: int) -> list[int]:
    """Ids of the ``top`` largest values, largest first, equal ones by name.

    By name, not by number: an entity's number depends on when it was first heard of.
    """
    edge = torch.topk(values, min(top, len(values))).values[-1]
    inside = torch.nonzero(values >= edge).squeeze(1)
    if len(inside) > _TIES:
        inside = torch.cat(
            [torch.nonzero(values > edge).squeeze(1), torch.nonzero(values == edge)[:_TIES, 0]]
        )
    name = snapshot.entities.name
    pairs = zip(inside.tolist(), values[inside].tolist(), strict=True)
    return [x for x, _ in sorted(pairs, key=lambda pair: (-pair[1], name(pair[0])))[:top]]
