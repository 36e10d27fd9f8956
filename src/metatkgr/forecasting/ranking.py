r"""From questions to queries, and from the probabilities of candidates to the best few.

Where a query has no relation, each has a probability of its own: what an entity does next, before
asking with whom.

.. math:: P(r \mid e, t) = \frac{\sum_{i: r_i = r} 2^{-(t - t_i)/h} + a\, P(r)}
                               {\sum_i 2^{-(t - t_i)/h} + a}

over the visible facts i of e: what it did lately counts most (half as much after h steps), and the
share P(r) of each relation among all facts before t stands in for what is not known yet, weighed by
how many of those who do what e does were in such facts too: a club does not play for anybody. Each
relation counts once for either side. a = 1; h is a twentieth of the time the graph has lasted by t.
An entity's own first facts, visible at any time, count as if they had just happened.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.tasks import Queries
from metatkgr.deadlines import check
from metatkgr.errors import SettingsError
from metatkgr.forecasting.calibration import Chances
from metatkgr.forecasting.incoming import checked_step
from metatkgr.forecasting.live import Snapshot
from metatkgr.forecasting.names import checked_name

__all__ = [
    "SIDES",
    "Answers",
    "Asked",
    "Asking",
    "Candidate",
    "Question",
    "answered",
    "next_relations",
]

SIDES = ("object", "subject")
LONGEST_HORIZON = 1000
MOST_ANSWERS = 1000
_AT_ONCE = 64
"""Queries that one question asks in one go."""
_RELATIONS = 8
"""So many relations are scored at first; then twice as many, and so on."""
_MOST_RELATIONS = 64
"""At a time."""
_PRIOR = 1.0
"""a of the formula above."""
_LIFE = 20
"""Half-lives h in the time the graph has lasted."""
_ROLES, _PEERS = 16, 64
"""Latest facts of an entity that tell what it does, and facts of each kind that tell who else."""
_UNLIKELY = 0.01
"""What is left to a relation that nobody alike has been in."""
_FACTS = 1 << 15
"""Facts of an entity that tell what it does: of a hub the last ones."""


@dataclass(frozen=True)
class Question:
    """What may be asked; see :meth:`Forecaster.predict`."""

    entity: str
    relation: str | None = None
    at: Any = None
    side: str = "object"
    top: int = 10
    horizon: int | None = None
    explain: bool = False
    as_of: Any = None
    what_if: tuple[tuple[Any, Any, Any, Any], ...] = ()

    def understood(self, snapshot: Snapshot, known: Facts) -> Asked:
        """The question in numbers.

        Args:
            snapshot: the facts.
            known: those that the model was trained on; their relations and length count.

        Raises:
            MetaTKGRError: a name, a date or a number is none.
        """
        if self.side not in SIDES:
            raise SettingsError(f"side is 'object' or 'subject', not {self.side!r}")
        top = _within(self.top, "top", MOST_ANSWERS)
        length = 1 if self.horizon is None else _within(self.horizon, "horizon", LONGEST_HORIZON)
        entity = snapshot.entities.id(checked_name(self.entity, "entity"), "entity")
        step = snapshot.last_step + 1
        if self.at is not None:
            step = checked_step(self.at, snapshot.first.calendar, known.steps)
        relation = None
        if self.relation is not None:
            relation = known.relations.id(checked_name(self.relation, "relation"), "relation")
            relation += len(known.relations) if self.side == "subject" else 0
        return Asked(entity, relation, np.arange(step, step + length), top)


@dataclass(frozen=True, eq=False)
class Asked:
    """A question in numbers."""

    entity: int
    relation: int | None
    """Directed; None: any."""
    moments: IntArray
    """(T,) steps."""
    top: int

    def answers(self, snapshot: Snapshot, shots: int) -> Asking:
        """Ask for the best candidates."""
        if self.relation is not None:
            return _best_candidates(snapshot, self, self.relation)
        share = next_relations(snapshot, self.entity, int(self.moments[0]), shots)
        return _best_facts(snapshot, self, share)


@dataclass(frozen=True)
class Candidate:
    """A possible answer."""

    entity: int
    relation: int
    """Directed."""
    step: int
    score: float
    probability: float


@dataclass(frozen=True)
class Answers:
    """The best candidates of a question, and what is left."""

    best: list[Candidate]
    new: float | None = None
    """Probability of someone whom nobody has heard of, where one relation and moment is asked."""

    @property
    def other(self) -> float:
        """Probability of anything else."""
        return max(0.0, 1.0 - sum(candidate.probability for candidate in self.best))


Asking = Generator[Queries, Chances, Answers]
"""Asks queries, is sent their answers, and ends with the best candidates."""


def answered(askings: Sequence[Asking], ask: Callable[[Queries], Chances]) -> list[Answers]:
    """The candidates of several questions, whose queries are asked together.

    A model answers many queries in hardly more time than one.
    """
    results = [Answers([]) for _ in askings]
    waiting = {number: next(asking) for number, asking in enumerate(askings)}
    while waiting:
        check()
        parts = list(waiting.values())
        columns = zip(*((q.entity, q.relation, q.time) for q in parts), strict=True)
        found, begin = ask(Queries(*(np.concatenate(column) for column in columns))), 0
        for number, queries in list(waiting.items()):
            rows = slice(begin, begin + len(queries))
            begin = rows.stop
            try:
                waiting[number] = askings[number].send(found.kept(rows))
            except StopIteration as end:
                results[number] = end.value
                del waiting[number]
    return results


def _best_candidates(snapshot: Snapshot, asked: Asked, relation: int) -> Asking:
    """The ``top`` likeliest answers to one query; of several moments, each candidate's best.

    The earliest of equal moments counts.
    """
    (answers,) = yield from _answers(asked, [relation])
    new = answers.new if len(asked.moments) == 1 else None
    return Answers(_top(snapshot, asked, relation, answers), new)


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
    share = np.concatenate([counts, counts]) * _alike(snapshot, entity, step, shots)
    share /= share.sum()
    relation, time = snapshot.recent(entity, step, _FACTS)
    own = snapshot.supports([entity], shots)
    later = own.time >= step
    relation = np.concatenate([relation, own.relation[later]])
    age = np.maximum(step - np.concatenate([time, own.time[later]]), 0)
    half = max(step / _LIFE, 1.0)
    known = np.bincount(relation, weights=0.5 ** (age / half), minlength=len(share))
    return np.asarray((known + _PRIOR * share) / (known.sum() + _PRIOR))


def _alike(snapshot: Snapshot, entity: int, step: int, shots: int) -> npt.NDArray[np.float64]:
    """(2R,) how common each directed relation is among those who do what ``entity`` does.

    Everything is possible, a little.
    """
    index, own = snapshot.index, snapshot.supports([entity], shots)
    done, _ = snapshot.recent(entity, step, _ROLES)
    mine = torch.from_numpy(np.unique(np.concatenate([done, own.relation])).astype(np.int64))
    if not len(mine):
        return np.ones(index.relations)
    row, others, _, _ = index.slots.recent_facts(mine, torch.full_like(mine, step), _PEERS)
    cell = torch.unique(row * index.entities + others)
    row, others = cell // index.entities, cell % index.entities
    facts = index.last_facts(others, torch.full_like(others, step), _ROLES)
    cell = torch.unique(facts.row * index.relations + facts.relation)
    peer, role = cell // index.relations, cell % index.relations
    # Each thing that it does counts alike, however many peers it gives.
    part = 1 / torch.bincount(row, minlength=len(mine)).clamp(min=1).double()[row]
    common = torch.zeros(index.relations, dtype=torch.float64)
    common.index_add_(0, role, part[peer])
    return np.asarray((common / len(mine)).numpy()) + _UNLIKELY


def _best_facts(snapshot: Snapshot, asked: Asked, share: npt.NDArray[np.float64]) -> Asking:
    """The ``top`` next facts over all relations.

    A fact's probability is that of its relation times that of the answer given the relation. It is
    at most the relation's, so relations are scored in order of theirs until no other can matter;
    several at a time.

    Args:
        snapshot: the facts.
        asked: the question.
        share: (2R,) probability of each directed relation.
    """
    best: list[Candidate] = []
    order = np.argsort(-share, kind="stable")
    begin, many = 0, _RELATIONS
    while begin < len(order) and not _settled(best, asked.top, float(share[order[begin]])):
        relations = order[begin : begin + many].tolist()
        found = yield from _answers(asked, relations)
        for relation, answers in zip(relations, found, strict=True):
            chance = float(share[relation])
            if _settled(best, asked.top, chance * float(answers.chance.max())):
                continue
            best += [
                Candidate(c.entity, relation, c.step, c.score, chance * c.probability)
                for c in _top(snapshot, asked, relation, answers)
            ]
            best.sort(key=lambda c: -c.probability)
            del best[asked.top :]
        begin, many = begin + many, min(2 * many, _MOST_RELATIONS)
    return Answers(best)


def _settled(best: list[Candidate], top: int, most: float) -> bool:
    """Whether nothing of probability ``most`` or less can enter the list."""
    return len(best) >= top and best[top - 1].probability >= most


@dataclass(frozen=True, eq=False)
class _Answers:
    """Candidates of one relation, each at its best moment."""

    entity: Tensor
    """(U,)."""
    score: Tensor
    """(U,)."""
    chance: Tensor
    """(U,)."""
    moment: Tensor
    """(U,) which of the moments."""
    behind: tuple[float, float, int]
    """Score (at most), chance and moment of each other candidate."""
    new: float
    """Chance of someone new, at the first moment."""

    @classmethod
    def of(cls, found: Chances, row: int, moment: int) -> _Answers:
        """Those of one query."""
        entity, score, chance = found.entity[row], found.score[row], found.chance[row]
        behind = (float(score[-1]), float(found.behind[row]), moment)
        moments = torch.full_like(entity, moment)
        return cls(entity, score, chance, moments, behind, float(found.new[row]))

    def later(self, other: _Answers) -> _Answers:
        """These, or where they are likelier those of later moments."""
        entity = torch.unique(torch.cat([self.entity, other.entity]))
        first, second = self._at(entity), other._at(entity)
        better = second[1] > first[1]
        score, chance, moment = torch.where(better, second, first)
        behind = other.behind if other.behind[1] > self.behind[1] else self.behind
        return _Answers(entity, score, chance, moment.long(), behind, self.new)

    def _at(self, entity: Tensor) -> Tensor:
        """(3, V) score, chance and moment of ascending entities, these among them."""
        columns = torch.tensor(self.behind, dtype=torch.float64, device=entity.device)
        columns = columns.unsqueeze(1).repeat(1, len(entity))
        known = (self.score.double(), self.chance, self.moment.double())
        columns[:, torch.searchsorted(entity, self.entity)] = torch.stack(known)
        return columns


def _answers(asked: Asked, relations: Sequence[int]) -> Generator[Queries, Chances, list[_Answers]]:
    """Candidates of each relation, over all moments."""
    best: list[_Answers] = []
    size = max(_AT_ONCE // len(relations), 1)
    for begin in range(0, len(asked.moments), size):
        some = asked.moments[begin : begin + size]
        directed = np.repeat(np.array(relations, np.int64), len(some))
        moments = np.tile(some, len(relations))
        found = yield Queries(np.full_like(moments, asked.entity), directed, moments)
        for number in range(len(relations)):
            for ahead in range(len(some)):
                part = _Answers.of(found, number * len(some) + ahead, begin + ahead)
                if number == len(best):
                    best.append(part)
                else:
                    best[number] = best[number].later(part)
    return best


def _top(snapshot: Snapshot, asked: Asked, relation: int, answers: _Answers) -> list[Candidate]:
    order = torch.tensor(_top_order(snapshot, answers.entity, answers.chance, asked.top))
    found = (answers.entity, answers.moment, answers.score, answers.chance)
    columns = (column[order.to(column.device)].tolist() for column in found)
    return [
        Candidate(x, relation, int(asked.moments[moment]), float(score), chance)
        for x, moment, score, chance in zip(*columns, strict=True)
    ]


def _top_order(snapshot: Snapshot, entity: Tensor, values: Tensor, top: int) -> list[int]:
    """Positions of the ``top`` largest values, largest first, equal ones by name.

    By name, not by number: an entity's number depends on when it was first heard of.
    """
    edge = torch.topk(values, min(top, len(values))).values[-1]
    inside = torch.nonzero(values >= edge).squeeze(1)
    name = snapshot.entities.name
    columns = (inside.tolist(), values[inside].tolist(), entity[inside].tolist())
    rows = sorted(zip(*columns, strict=True), key=lambda row: (-row[1], name(row[2])))
    return [position for position, _, _ in rows[:top]]


def _within(number: Any, what: str, most: int) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise SettingsError(f"{what} is a whole number, not {number!r}")
    if not 1 <= number <= most:
        raise SettingsError(f"{what} is from 1 to {most:,}, not {number}")
    return int(number)
