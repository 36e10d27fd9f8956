"""Worlds that are described by their ties (see ``kinds``): how a step is drawn, and how likely.

Entities are named by their position among all of their type who were ever born. For each tie a
subject keeps its last partners, and an object remembers who started ties with it last; a slot of
these memories is -1 while it is empty, and counts as empty when the one in it has retired.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import IntArray
from metatkgr.data.world.choice import Step, choice, choose, count, paths_of
from metatkgr.data.world.plan import PACE, PACE_SHARE, Plan
from metatkgr.data.world.state import Debut, FloatArray, State, StepFacts

__all__ = ["CALLERS", "Ties"]

CALLERS = 4
"""How many of its last subjects the object of a tie remembers."""

BoolArray = npt.NDArray[np.bool_]


class Ties(State):
    """The state of a world of ties."""

    id: list[IntArray]
    """For each type (N,) entity ids, ascending."""
    alive: list[BoolArray]
    """(N,) who has not retired."""
    pace: list[FloatArray]
    """(N,) how active each is."""
    community: list[IntArray]
    """(N,)"""
    partner: list[IntArray]
    """For each tie (S, keeps) the objects that each subject keeps."""
    started: list[IntArray]
    """(S,) how many ties each subject has started."""
    caller: list[IntArray]
    """(O, CALLERS) the subjects who started ties with each object last."""
    called: list[IntArray]
    """(O,) how many ties were started with each object."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        kind, rng = plan.kind, self.streams(-1)
        number = {type_.name: at for at, type_ in enumerate(kind.types)}
        self.ends = [(number[tie.subject], number[tie.object]) for tie in kind.ties]
        self.paths = [paths_of(kind, tie) for tie in kind.ties]
        count = [plan.total(at, 0) for at in range(len(kind.types))]
        first = np.cumsum([0, *count])
        self.id = [low + np.arange(n) for low, n in zip(first, count, strict=False)]
        self.alive = [np.ones(n, bool) for n in count]
        self.pace = [rng.choice(PACE, n, p=PACE_SHARE) for n in count]
        self.community = [rng.permutation(n) % kind.communities for n in count]
        self.partner, self.started, self.caller, self.called = [], [], [], []
        for tie, (subject, other) in zip(kind.ties, self.ends, strict=True):
            self.partner.append(np.full((count[subject], tie.keeps), -1))
            self.started.append(np.zeros(count[subject], np.int64))
            self.caller.append(np.full((count[other], CALLERS), -1))
            self.called.append(np.zeros(count[other], np.int64))
        for at, (j, as_object) in enumerate(kind.debuts):
            other = self.ends[j][0 if as_object else 1]
            # Dealt out in turn, so that nobody begins without a tie.
            deal = rng.permutation(count[at])
            if other == at:
                partner = np.empty_like(deal)
                partner[deal] = np.roll(deal, 1)
            else:
                partner = deal % count[other]
                self.community[at] = self.community[other][partner]
            self._keep(j, *self._ordered(as_object, np.arange(count[at]), partner))

    def copy(self) -> Self:
        """A snapshot that stays as it is when this world goes on."""
        new = super().copy()
        for name in ("id", "alive", "pace", "community", "partner", "started", "caller", "called"):
            setattr(new, name, list(getattr(self, name)))
        return new

    def ids(self, type_: int) -> IntArray:
        """Entity ids, ascending, of those who have not retired."""
        return self.id[type_][self.alive[type_]]

    def debuts(self, relation: int) -> list[Debut]:
        """Who makes a first appearance with ``relation`` at the next step."""
        kind = self.plan.kind
        return [
            Debut(
                self.newborn(at),
                as_object,
                int(self.alive[self.ends[j][0 if as_object else 1]].sum()),
            )
            for at, (j, as_object) in enumerate(kind.debuts)
            if kind.ties[j].starts == kind.relations[relation]
        ]

    def advance(self) -> StepFacts:
        """Draw the facts of the next step, and let it happen."""
        rng, kind = self.streams(self.step), self.plan.kind
        number = {name: at for at, name in enumerate(kind.relations)}
        facts: list[tuple[IntArray, int, IntArray]] = []
        arrivals = []
        for at, (j, as_object) in enumerate(kind.debuts):
            new = self.newborn(at)
            other = self.ends[j][0 if as_object else 1]
            partner = rng.choice(np.flatnonzero(self.alive[other]), len(new))
            arrivals.append((new, partner))
            subject, object_ = self._ordered(as_object, new, self.id[other][partner])
            facts.append((subject, number[kind.ties[j].starts], object_))
        first = sum(len(subject) for subject, _, _ in facts)
        changes = []
        for j, tie in enumerate(kind.ties):
            reported, ended, new_ties = self._draw(j, rng)
            changes.append((ended, new_ties))
            subjects, objects = (self.id[end] for end in self.ends[j])
            for name in tie.relations:
                # Told in two ways at one step, it is one fact.
                pairs = np.unique(np.concatenate([pair for of, pair in reported if of == name]))
                s, o = np.divmod(pairs, len(objects))
                facts.append((subjects[s], number[name], objects[o]))
        for j, (ended, (subject, object_)) in enumerate(changes):
            self.partner[j] = np.where(ended, -1, self.partner[j])
            self._keep(j, subject, object_)
        self._retire(rng)
        self._arrive(rng, arrivals)
        self.step += 1
        return StepFacts(
            np.concatenate([subject for subject, _, _ in facts]),
            np.repeat([relation for _, relation, _ in facts], [len(s) for s, _, _ in facts]),
            np.concatenate([other for _, _, other in facts]),
            first,
        )

    def chances(self, relation: int, subjects: IntArray, objects: IntArray) -> FloatArray:
        """(S, O) chances: 1 - the product, over all ways to be reported, of none of them."""
        kind = self.plan.kind
        name = kind.relations[relation]
        j = next(at for at, tie in enumerate(kind.ties) if name in tie.relations)
        tie, (subject, other) = kind.ties[j], self.ends[j]
        subjects = np.flatnonzero(self.alive[subject])[subjects]
        objects = np.flatnonzero(self.alive[other])[objects]
        kept = count(self.kept(j)[subjects], objects, len(self.id[other]))
        renew, end = self._renewal(j)
        silent = np.ones(kept.shape)
        if name == tie.starts:
            chosen = choice(self, j, subjects, objects)
            silent *= 1 - self._rate(j)[subjects][:, None] * chosen
            if self.step == 0:  # every tie of the beginning is reported
                silent *= kept == 0
        if name == tie.repeats:
            silent *= (1 - (1 - end) * renew[subjects])[:, None] ** kept
        if name == tie.ends:
            silent *= (1 - end) ** kept
        return np.asarray(1 - silent)

    def _draw(
        self, j: int, rng: np.random.Generator
    ) -> tuple[list[tuple[str, IntArray]], BoolArray, tuple[IntArray, IntArray]]:
        """What happens to tie ``j`` at this step.

        Returns:
            reported: relations, with the pairs (subject, object) of which they tell as one number.
            ended: (S, keeps) which kept ties end.
            new: subjects and objects of the ties that start.
        """
        tie, (subject, other) = self.plan.kind.ties[j], self.ends[j]
        width = len(self.id[other])
        kept = self.kept(j)
        kept[~self.alive[subject]] = -1
        renew, end = self._renewal(j)
        chance = rng.random(kept.shape)
        ended = (kept >= 0) & (chance < end)
        again = (kept >= 0) & ~ended & (chance < end + (1 - end) * renew[:, None])
        actors = np.flatnonzero(rng.random(len(kept)) < self._rate(j))
        chosen = choose(self, j, actors, rng)
        real = (chosen != actors) | (subject != other)
        actors, chosen = actors[real], chosen[real]
        reported = [(tie.starts, actors * width + chosen)]
        pair = np.arange(len(kept))[:, None] * width + kept
        if self.step == 0:
            reported.append((tie.starts, pair[kept >= 0]))
        for name, rows in ((tie.repeats, again), (tie.ends, ended)):
            if name is not None:
                reported.append((name, pair[rows]))
        return reported, ended, (actors, chosen)

    def memory(self, step: Step) -> IntArray:
        """(N, slots) who may be reached from each by one step; -1: nobody."""
        ring = self.caller[step.tie] if step.inverse else self.partner[step.tie]
        return np.where((ring >= 0) & self.alive[step.goal][ring], ring, -1)

    def kept(self, j: int) -> IntArray:
        """(S, keeps) the objects that each subject keeps, if they have not retired."""
        return self.memory(Step(j, False, self.ends[j][1]))

    def _season(self, j: int) -> FloatArray:
        """(S,) factor of the chances of each subject at this step."""
        kind = self.plan.kind
        period, depth = kind.ties[j].season
        turn = self.community[self.ends[j][0]] / kind.communities
        return np.asarray(1 + depth * np.cos(2 * np.pi * (self.step / period - turn)))

    def _rate(self, j: int) -> FloatArray:
        """(S,) chance that each subject starts a tie."""
        tie, subject = self.plan.kind.ties[j], self.ends[j][0]
        tempo = tie.tempo * self.plan.early(tie, self.step)
        return np.minimum(tempo * self.pace[subject] * self._season(j), 1) * self.alive[subject]

    def _renewal(self, j: int) -> tuple[FloatArray, float]:
        """(S,) chance that a tie of each subject is reported again unless it ends, and to end."""
        tie = self.plan.kind.ties[j]
        begun = self.step > 0
        return begun * np.minimum(tie.renew * self._season(j), 1), begun * tie.end

    @staticmethod
    def _ordered(as_object: bool, new: IntArray, other: IntArray) -> tuple[IntArray, IntArray]:
        """Subjects and objects of ties between newcomers and others."""
        return (other, new) if as_object else (new, other)

    def _keep(self, j: int, subject: IntArray, object_: IntArray) -> None:
        """Ties between ``subject`` and ``object_`` start, in this order."""
        self.partner[j], self.started[j] = _pushed(
            self.partner[j], self.started[j], subject, object_
        )
        self.caller[j], self.called[j] = _pushed(self.caller[j], self.called[j], object_, subject)

    def _retire(self, rng: np.random.Generator) -> None:
        for at, type_ in enumerate(self.plan.kind.types):
            stay = self.alive[at] & (rng.random(len(self.alive[at])) >= type_.retires)
            if np.count_nonzero(stay) >= 4:  # a tiny world must not die out
                self.alive[at] = stay

    def _arrive(self, rng: np.random.Generator, arrivals: list[tuple[IntArray, IntArray]]) -> None:
        """The newcomers of this step, with the positions of their partners, join each type."""
        kind = self.plan.kind
        before = [len(ids) for ids in self.id]
        community = list(self.community)
        for at, (new, partner) in enumerate(arrivals):
            j, as_object = kind.debuts[at]
            other = self.ends[j][0 if as_object else 1]
            self.id[at] = np.concatenate([self.id[at], new])
            self.alive[at] = np.pad(self.alive[at], (0, len(new)), constant_values=True)
            pace = rng.choice(PACE, len(new), p=PACE_SHARE)
            self.pace[at] = np.concatenate([self.pace[at], pace])
            self.community[at] = np.concatenate([community[at], community[other][partner]])
        for j, (subject, other) in enumerate(self.ends):
            more = len(arrivals[subject][0])
            self.partner[j] = np.pad(self.partner[j], ((0, more), (0, 0)), constant_values=-1)
            self.started[j] = np.pad(self.started[j], (0, more))
            more = len(arrivals[other][0])
            self.caller[j] = np.pad(self.caller[j], ((0, more), (0, 0)), constant_values=-1)
            self.called[j] = np.pad(self.called[j], (0, more))
        for at, (new, partner) in enumerate(arrivals):
            j, as_object = kind.debuts[at]
            self._keep(j, *self._ordered(as_object, before[at] + np.arange(len(new)), partner))


def _pushed(
    ring: IntArray, count: IntArray, owner: IntArray, value: IntArray
) -> tuple[IntArray, IntArray]:
    """Memories after each of ``owner`` was given a ``value``, in this order; the oldest go.

    Args:
        ring: (N, slots) memories.
        count: (N,) how many values each owner was given so far.
        owner, value: (M,)

    Returns:
        New ``ring`` and ``count``.
    """
    order = np.argsort(owner, kind="stable")
    owner, value = owner[order], value[order]
    nth = np.arange(len(owner)) - np.searchsorted(owner, owner)
    given = np.bincount(owner, minlength=len(ring))
    last = nth >= given[owner] - ring.shape[1]  # earlier ones would be overwritten at once
    ring = ring.copy()
    ring[owner[last], (count[owner] + nth)[last] % ring.shape[1]] = value[last]
    return ring, count + given
