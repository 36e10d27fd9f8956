r"""From scores and probabilities of all candidates to the best few.

Where a query has no relation, each has a probability of its own: what an entity does next, before
asking with whom.

.. math:: P(r \mid e, t) = \frac{\sum_{i: r_i = r} 2^{-(t - t_i)/h} + a\, P(r)}
                               {\sum_i 2^{-(t - t_i)/h} + a}

over the visible facts i of e: what it did lately counts most (half as much after h steps), and the
share P(r) of each relation among all facts before t stands in for what is not known yet. Each
relation counts once for either side. a = 1; h is a twentieth of the time the graph has lasted by t.
An entity's own first facts, visible at any time, count as if they had just happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import IntArray
from metatkgr.data.tasks import Queries
from metatkgr.evaluation.evaluator import in_chunks
from metatkgr.forecasting.live import Snapshot

__all__ = ["Ask", "Candidate", "best_candidates", "best_facts", "next_relations"]

_CELLS = 1 << 22
"""Scores computed in one go; bounds memory."""
_TIES = 2000
"""So many candidates at the edge of the list are put in order by name."""
_RELATIONS = 8
"""So many relations are scored at first; then twice as many, and so on."""
_MOST_RELATIONS = 64
"""At a time."""
_PRIOR = 1.0
"""a of the formula above."""
_LIFE = 20
"""Half-lives h in the time the graph has lasted."""

Ask = Callable[[Queries], tuple[Tensor, Tensor]]
"""(Q, E) scores and probabilities of queries."""


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
    """The ``top`` answers to one query; of several moments, each candidate's best.

    Over several moments candidates are ordered by probability, because scores of different
    queries cannot be compared; the earliest of equal moments counts.
    """
    answers = _answers(ask, snapshot, entity, [relation], moments)
    return _top(snapshot, relation, answers, 0, moments, top)


def next_relations(
    snapshot: Snapshot, entity: int, step: int, shots: int = 0
) -> npt.NDArray[np.float64]:
    """(2R,) probability that the next fact of ``entity`` has each directed relation; sums to 1.

    Args:
        snapshot: the facts.
        entity: the query entity.
        step: when.
        shots: so many first facts of the entity are visible at any time.
    """
    counts = snapshot.relation_counts(step).astype(float) + 1
    share = np.concatenate([counts, counts]) / (2 * counts.sum())
    relation, _, time = snapshot.links(entity)
    visible = (time < step) | (np.arange(len(time)) < shots)
    age = np.maximum(step - time[visible], 0)
    half = max(step / _LIFE, 1.0)
    own = np.bincount(relation[visible], weights=0.5 ** (age / half), minlength=len(share))
    return np.asarray((own + _PRIOR * share) / (own.sum() + _PRIOR))


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
    at most the relation's, so relations are scored in order of theirs until no other can matter;
    several at a time, because a model answers many queries in hardly more time than one.

    Args:
        ask: scores queries.
        snapshot: the facts.
        entity: the query entity.
        share: (2R,) probability of each directed relation.
        moments: (T,) steps.
        top: how many.
    """
    best: list[Candidate] = []
    order = np.argsort(-share, kind="stable")
    begin, many = 0, _RELATIONS
    while begin < len(order) and not _settled(best, top, float(share[order[begin]])):
        relations = order[begin : begin + many].tolist()
        answers = _answers(ask, snapshot, entity, relations, moments)
        likeliest = answers.chance.amax(1).tolist()
        for row, relation in enumerate(relations):
            chance = float(share[relation])
            if _settled(best, top, chance * likeliest[row]):
                continue
            best += [
                Candidate(c.entity, relation, c.step, c.score, chance * c.probability)
                for c in _top(snapshot, relation, answers, row, moments, top)
            ]
            best.sort(key=lambda c: -c.probability)
            del best[top:]
        begin, many = begin + many, min(2 * many, _MOST_RELATIONS)
    return best


def _settled(best: list[Candidate], top: int, most: float) -> bool:
    """Whether nothing of probability ``most`` or less can enter the list."""
    return len(best) >= top and best[top - 1].probability >= most


@dataclass(frozen=True, eq=False)
class _Answers:
    """All candidates of B relations; of several moments, each at its best."""

    value: Tensor
    """(B, E) by which candidates are ordered."""
    score: Tensor
    """(B, E)."""
    chance: Tensor
    """(B, E)."""
    moment: Tensor | None
    """(B, E) which moment; None: there is one."""


def _answers(
    ask: Ask, snapshot: Snapshot, entity: int, relations: Sequence[int], moments: IntArray
) -> _Answers:
    best: list[Tensor] = []

    def look(begin: int, end: int) -> None:
        some = moments[begin:end]
        directed = np.repeat(np.array(relations, np.int64), len(some))
        scores, chance = ask(_queries(entity, directed, np.tile(some, len(relations))))
        if len(moments) == 1:
            best[:] = [scores, chance]
            return
        shape = (len(relations), len(some), -1)
        value, moment = chance.reshape(shape).max(1)
        score = scores.reshape(shape).gather(1, moment.unsqueeze(1)).squeeze(1).double()
        merged = torch.stack([value, score, moment.double() + begin])
        if best:
            merged = torch.where(merged[0] > best[0][0], merged, best[0])
        best[:] = [merged]

    size = max(_CELLS // (len(snapshot.entities) * len(relations)), 1)
    in_chunks(len(moments), size, look)
    if len(moments) == 1:
        return _Answers(best[0], best[0], best[1], None)
    value, score, moment = best[0]
    return _Answers(value, score, value, moment)


def _queries(entity: int, relations: IntArray, moments: IntArray) -> Queries:
    return Queries(np.full_like(moments, entity), relations, moments)


def _top(
    snapshot: Snapshot, relation: int, answers: _Answers, row: int, moments: IntArray, top: int
) -> list[Candidate]:
    order = _top_order(snapshot, answers.value[row], top)
    picked = torch.tensor(order, device=answers.value.device)
    scores, chances = answers.score[row][picked].tolist(), answers.chance[row][picked].tolist()
    which = [0.0] * len(order) if answers.moment is None else answers.moment[row][picked].tolist()
    return [
        Candidate(x, relation, int(moments[int(when)]), float(score), chance)
        for x, score, chance, when in zip(order, scores, chances, which, strict=True)
    ]


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
