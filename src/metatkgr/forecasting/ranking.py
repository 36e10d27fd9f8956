r"""From questions to queries, and from the probabilities of candidates to the best few.

Where a question asks ``within`` some steps, a probability is that the next such fact comes in this
time (``forecasting.hazard``) and is with this candidate. Else it is given that such a fact happens;
and where a query has no relation, each has a probability of its own: what an entity does next,
before asking with whom.

.. math:: P(r \mid e, t) \propto q_r \Big(\sum_{i: r_i = r} 2^{-(t - t_i)/h} + a\, P(r)\Big)

over the visible facts i of e: what it did lately counts most (half as much after h steps), and the
share P(r) of each relation among all facts before t stands in for what is not known yet, weighed by
how many of those who do what e does were in such facts too: a club does not play for anybody. Of
what e has been in, q is the share of such facts that were not somebody's first: nobody is born
twice; else 1. Each relation counts once for either side. a = 2; h is a twentieth of the time the
graph has lasted by t. An entity's own first facts, visible at any time, count as if they had just
happened.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Queries
from metatkgr.deadlines import check
from metatkgr.errors import SettingsError
from metatkgr.forecasting.calibration import Chances
from metatkgr.forecasting.hazard import Hazard
from metatkgr.forecasting.incoming import checked_step, steps_of
from metatkgr.forecasting.live import Snapshot
from metatkgr.forecasting.names import checked_name
from metatkgr.forecasting.schema import Schema
from metatkgr.graph.ragged import distinct

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
LONGEST = 1 << 20
"""Steps that a question may ask for."""
MOST_ANSWERS = 1000
_RELATIONS = 8
"""So many relations are scored at first; then twice as many, and so on."""
_MOST_RELATIONS = 64
"""At a time."""
_PRIOR = 2.0
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
    within: int | str | None = None
    explain: bool = False
    as_of: Any = None
    what_if: tuple[tuple[Any, Any, Any, Any], ...] = ()

    def understood(self, snapshot: Snapshot, known: Facts) -> Asked:
        """The question in numbers.

        Args:
            snapshot: the facts.
            known: those that the model was trained on; their length counts.

        Raises:
            MetaTKGRError: a name, a date or a number is none.
        """
        if self.side not in SIDES:
            raise SettingsError(f"side is 'object' or 'subject', not {self.side!r}")
        top = _within(self.top, "top", MOST_ANSWERS)
        steps = self._steps(snapshot)
        entity = snapshot.entities.id(checked_name(self.entity, "entity"), "entity")
        step = snapshot.last_step + 1
        if self.at is not None:
            step = checked_step(self.at, snapshot.first.calendar, known.steps)
        relation = None
        if self.relation is not None:
            relations = snapshot.first.relations
            relation = relations.id(checked_name(self.relation, "relation"), "relation")
            relation += len(relations) if self.side == "subject" else 0
        return Asked(entity, relation, step, top, steps)

    def _steps(self, snapshot: Snapshot) -> int | None:
        """How many steps are asked for; None: the one moment."""
        steps: Any = self.within
        if isinstance(steps, str):
            given, steps = steps, steps_of(steps, snapshot.first.calendar)
            if steps is None and given.strip().isdecimal():
                steps = int(given)
            elif steps is None:
                raise SettingsError(f"within is a number of steps or a time as 30d, not {given!r}")
        return None if steps is None else _within(steps, "within", LONGEST)


@dataclass(frozen=True, eq=False)
class Asked:
    """A question in numbers."""

    entity: int
    relation: int | None
    """Directed; None: any."""
    step: int
    top: int
    within: int | None = None
    """How many steps from this one on; None: given that it happens at this one."""

    def answers(
        self, snapshot: Snapshot, shots: int, hazard: Hazard, schema: Schema | None = None
    ) -> Asking:
        """Ask for the best candidates."""
        steps, comes = self._comes(snapshot, hazard)
        if self.relation is not None:
            chance = zip(steps, comes[self.relation].tolist(), strict=True)
            when = tuple((self.step + n - 1, p) for n, p in chance)
            return _best_candidates(snapshot, self, self.relation, when)
        if self.within is not None:
            share = comes[:, -1]
        else:
            share = next_relations(snapshot, self.entity, self.step, shots)
        if schema is not None:
            name, many = snapshot.entities.name(self.entity), len(snapshot.visible.relations)
            possible = schema.possible(name, many)
            left = share * possible
            share = left if self.within is not None else left / max(float(left.sum()), 1e-12)
        return _best_facts(snapshot, self, share)

    def queries(self, relations: Sequence[int]) -> Queries:
        """What a model is asked: one query for each relation."""
        directed = np.array(relations, np.int64)
        who, when = np.full_like(directed, self.entity), np.full_like(directed, self.step)
        return Queries(who, directed, when)

    def _comes(
        self, snapshot: Snapshot, hazard: Hazard
    ) -> tuple[list[int], npt.NDArray[np.float64]]:
        """H times, longer and longer, up to the one that is asked for; and (2R, H), that a fact of
        each directed relation comes within them."""
        index = snapshot.index
        relation = torch.arange(index.relations)
        if self.within is None:
            return [], np.empty((index.relations, 0))
        steps = [*takewhile(self.within.__gt__, (1 << n for n in count())), self.within]
        who, when = torch.full_like(relation, self.entity), torch.full_like(relation, self.step)
        return steps, hazard.within(index, (who, relation, when), steps).numpy()


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
    """Probability of someone whom nobody has heard of, where one relation is asked for."""
    comes: float | None = 1.0
    """Probability that there is a fact at all; None: of several relations, which may all come."""
    when: tuple[tuple[int, float], ...] = ()
    """Steps within the time asked for, and the probability that such a fact has come by each."""

    @property
    def other(self) -> float | None:
        """Probability of anything else."""
        if self.comes is None:
            return None
        return max(0.0, self.comes - sum(candidate.probability for candidate in self.best))


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


def _best_candidates(
    snapshot: Snapshot, asked: Asked, relation: int, when: tuple[tuple[int, float], ...]
) -> Asking:
    """The ``top`` likeliest answers to one query, times how likely there is one."""
    found = yield asked.queries([relation])
    times = when[-1][1] if when else 1.0
    best = _top(snapshot, asked, relation, found, 0, times)
    return Answers(best, float(found.new[0]) * times, times, when)


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
    found = known + _PRIOR * share
    done = np.bincount(relation, minlength=len(share)) > 0
    found[done] *= snapshot.again(step)[done]
    return np.asarray(found / found.sum())


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
    cell = distinct(row * index.entities + others)[0]
    row, others = cell // index.entities, cell % index.entities
    facts = index.last_facts(others, torch.full_like(others, step), _ROLES)
    cell = distinct(facts.row * index.relations + facts.relation)[0]
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
        share: (2R,) probability of each directed relation; they sum to 1, or are that of one to
            come within the time.
    """
    best: list[Candidate] = []
    order = np.argsort(-share, kind="stable")
    begin, many = 0, _RELATIONS
    while begin < len(order) and not _settled(best, asked.top, float(share[order[begin]])):
        relations = order[begin : begin + many].tolist()
        found = yield asked.queries(relations)
        for row, relation in enumerate(relations):
            chance = float(share[relation])
            if _settled(best, asked.top, chance * float(found.chance[row].max())):
                continue
            best += _top(snapshot, asked, relation, found, row, chance)
            best.sort(key=lambda c: -c.probability)
            del best[asked.top :]
        begin, many = begin + many, min(2 * many, _MOST_RELATIONS)
    return Answers(best, comes=1.0 if asked.within is None else None)


def _settled(best: list[Candidate], top: int, most: float) -> bool:
    """Whether nothing of probability ``most`` or less can enter the list."""
    return len(best) >= top and best[top - 1].probability >= most


def _top(
    snapshot: Snapshot, asked: Asked, relation: int, found: Chances, row: int, times: float
) -> list[Candidate]:
    """The likeliest candidates of a row, each probability ``times`` that of the relation."""
    entity, score, chance = found.entity[row], found.score[row], found.chance[row]
    order = torch.tensor(_top_order(snapshot, entity, chance, score, asked.top))
    columns = (column[order].tolist() for column in (entity, score, chance))
    return [
        Candidate(x, relation, asked.step, float(value), times * p)
        for x, value, p in zip(*columns, strict=True)
    ]


def _top_order(
    snapshot: Snapshot, entity: Tensor, values: Tensor, score: Tensor, top: int
) -> list[int]:
    """Positions of the ``top`` largest values, largest first, equal ones by score, then by name.

    By name, not by number: an entity's number depends on when it was first heard of.
    """
    edge = torch.topk(values, min(top, len(values))).values[-1]
    inside = torch.nonzero(values >= edge).squeeze(1)
    name = snapshot.entities.name
    columns = (column[inside].tolist() for column in (values, score, entity))
    rows = sorted(
        zip(inside.tolist(), *columns, strict=True),
        key=lambda row: (-row[1], -row[2], name(row[3])),
    )
    return [position for position, *_ in rows[:top]]


def _within(number: Any, what: str, most: int) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise SettingsError(f"{what} is a whole number, not {number!r}")
    if not 1 <= number <= most:
        raise SettingsError(f"{what} is from 1 to {most:,}, not {number}")
    return int(number)
