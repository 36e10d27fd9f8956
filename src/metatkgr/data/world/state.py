"""The state of a simulated world before a step: what every kind has, and that of ``careers``."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import IntArray
from metatkgr.data.world.plan import (
    ACTIVITY,
    ACTIVITY_SHARE,
    CLUB,
    PLAYER,
    SPONSOR,
    Plan,
)

__all__ = ["CAREER", "LEAVERS", "Clubs", "Debut", "State", "StepFacts", "Streams", "streams_of"]

CAREER = 3
"""How many of his clubs, the present one first, a player looks back on."""
LEAVERS = 6
"""How many of its last leavers a club remembers."""

Streams = Callable[[int], np.random.Generator]
"""The randomness of each step; -1 is the beginning."""
FloatArray = npt.NDArray[np.float64]


def streams_of(seed: int) -> Streams:
    """One independent generator for each step, so that a step never depends on later ones."""
    return lambda step: np.random.default_rng([seed, step + 1])


@dataclass(frozen=True, eq=False)
class StepFacts:
    """What happened at one step."""

    subject: IntArray
    relation: IntArray
    object: IntArray
    first: int
    """The first so many rows introduce the step's new entities, in the order of their ids."""

    def __len__(self) -> int:
        return len(self.subject)

    def take(self, count: int, rng: np.random.Generator) -> StepFacts:
        """``count`` of the facts: the introductions first, then any others with equal chance."""
        first = min(self.first, count)
        others = self.first + rng.permutation(len(self) - self.first)[: count - first]
        rows = np.concatenate([np.arange(first), np.sort(others)])
        return StepFacts(self.subject[rows], self.relation[rows], self.object[rows], first)


@dataclass(frozen=True, eq=False)
class Debut:
    """Newcomers of the next step whose first fact has a certain relation."""

    ids: IntArray
    """(N,) their entity ids."""
    as_object: bool
    """Whether they are the objects of these facts."""
    partners: int
    """Among how many the other end is drawn, all with equal chance."""


class State(ABC):
    """The state of a world before a step.

    A step replaces arrays and never writes into an old one, so a shallow copy is a snapshot.
    """

    step: int
    """The step that comes next."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.streams = streams_of(plan.settings.seed)
        self.step = 0

    def copy(self) -> Self:
        """A snapshot that stays as it is when this world goes on."""
        return copy.copy(self)

    @abstractmethod
    def advance(self) -> StepFacts:
        """Draw the facts of the next step, and let it happen."""

    @abstractmethod
    def ids(self, type_: int) -> IntArray:
        """Entity ids, ascending, of those of a type who can still take part."""

    @abstractmethod
    def chances(self, relation: int, subjects: IntArray, objects: IntArray) -> FloatArray:
        """The chance that (s, relation, o) is a fact of the next step, newcomers apart.

        Args:
            relation: its number.
            subjects, objects: (S,), (O,) positions in ``ids`` of the relation's types.

        Returns:
            (S, O) probabilities, exact under ``advance``.
        """

    @abstractmethod
    def debuts(self, relation: int) -> list[Debut]:
        """Who makes a first appearance with ``relation`` at the next step."""

    def newborn(self, type_: int) -> IntArray:
        """Entity ids of those of a type who appear at the next step."""
        first = self.plan.entities_before(self.step)
        first += sum(self.plan.born(before, self.step) for before in range(type_))
        return first + np.arange(self.plan.born(type_, self.step))


class Clubs(State):
    """The state of ``careers``.

    Clubs, sponsors and (active) players are named by their position in the arrays below; the
    ``*_id`` arrays, ascending, give their entity ids. The ids of leagues are 0, 1, ….
    """

    club_id: IntArray
    """(C,)"""
    league: IntArray
    """(C,) the league of each club."""
    sponsor: IntArray
    """(C,) the sponsor of each club."""
    leavers: IntArray
    """(C, LEAVERS) entity ids of the players who left each club last; -1: nobody yet."""
    leave_count: IntArray
    """(C,) how many have left so far."""
    sponsor_id: IntArray
    """(S,)"""
    player_id: IntArray
    """(P,) players who have not retired."""
    career: IntArray
    """(P, CAREER) clubs of each player, the present one first; -1: none."""
    endorsed: IntArray
    """(P,) the sponsor whom each player endorses; -1: none."""
    activity: FloatArray
    """(P,) chance to be seen playing at a step."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        rng = self.streams(-1)
        clubs, sponsors = plan.total(CLUB, 0), plan.total(SPONSOR, 0)
        players = plan.total(PLAYER, 0)
        self.club_id = plan.leagues + np.arange(clubs)
        self.sponsor_id = plan.leagues + clubs + np.arange(sponsors)
        self.player_id = plan.leagues + clubs + sponsors + np.arange(players)
        # Dealt out in turn, so that no league and no sponsor begins without a club.
        self.league = rng.permutation(clubs) % plan.leagues
        self.sponsor = rng.permutation(clubs) % sponsors
        self.leavers = np.full((clubs, LEAVERS), -1)
        self.leave_count = np.zeros(clubs, np.int64)
        self.career = np.full((players, CAREER), -1)
        self.career[:, 0] = rng.permutation(players) % clubs
        self.endorsed = np.full(players, -1)
        self.activity = rng.choice(ACTIVITY, players, p=ACTIVITY_SHARE)

    def by_league(self) -> tuple[IntArray, IntArray, IntArray]:
        """The clubs in the order of their leagues.

        Returns:
            order: (C,) clubs; start: (L,) where each league begins in it; size: (L,).
        """
        order = np.argsort(self.league, kind="stable")
        size = np.bincount(self.league, minlength=self.plan.leagues)
        return order, np.cumsum(size) - size, size

    def mates_clubs(self, players: IntArray) -> IntArray:
        """Where the old team-mates are now whom a player may follow.

        Args:
            players: (N,) players.

        Returns:
            (N, CAREER, LEAVERS) clubs; -1 where there is nobody to follow.
        """
        career = self.career[players]
        mates = np.where(career[..., None] >= 0, self.leavers[career], -1)
        return self.clubs_of(mates, players[:, None, None])

    def clubs_of(self, mates: IntArray, players: IntArray) -> IntArray:
        """Present clubs of ``mates`` (entity ids); -1 where retired, nobody, or the player himself.

        Args:
            mates: (...) entity ids of players, -1 for nobody.
            players: (...) the players who would follow them.
        """
        position = np.minimum(np.searchsorted(self.player_id, mates), len(self.player_id) - 1)
        present = (self.player_id[position] == mates) & (position != players)
        return np.where(present, self.career[position, 0], -1)

    def seen_playing(self) -> FloatArray:
        """(P,) chance that a player who stays is seen playing; at step 0 everyone is."""
        return np.ones_like(self.activity) if self.step == 0 else self.activity

    def news(self, chance: float) -> float:
        """Chance that an unchanged tie of a club is reported; at step 0 every one is."""
        return 1.0 if self.step == 0 else chance

    def move(self, club: IntArray) -> None:
        """Players join their clubs of now, and the clubs they leave remember them.

        Args:
            club: (P,) the club of each player from now on.
        """
        movers = np.flatnonzero(club != self.career[:, 0])
        movers = movers[np.argsort(self.career[movers, 0], kind="stable")]
        left = self.career[movers, 0]
        nth = np.arange(len(left)) - np.searchsorted(left, left)
        leavers = self.leavers.copy()
        leavers[left, (self.leave_count[left] + nth) % LEAVERS] = self.player_id[movers]
        self.leavers = leavers
        self.leave_count = self.leave_count + np.bincount(left, minlength=len(self.club_id))
        career = self.career.copy()
        career[movers, 1:] = self.career[movers, :-1]
        career[movers, 0] = club[movers]
        self.career = career

    def retire(self, rng: np.random.Generator) -> None:
        """Some players are seen no more."""
        stay = rng.random(len(self.player_id)) >= self.plan.kind.types[PLAYER].retires
        if np.count_nonzero(stay) < 2:  # a tiny world must not die out
            return
        self.player_id, self.career = self.player_id[stay], self.career[stay]
        self.endorsed, self.activity = self.endorsed[stay], self.activity[stay]

    def arrive(
        self, rng: np.random.Generator, league: IntArray, sponsored: IntArray, club: IntArray
    ) -> None:
        """The newcomers of this step become part of the state.

        Args:
            rng: the randomness of this step.
            league: the league of each new club.
            sponsored: the club of each new sponsor, whose old sponsor it replaces.
            club: the club of each new player.
        """
        number = self.plan.entities_before(self.step)
        sponsors = len(self.sponsor_id)
        sponsor = np.concatenate([self.sponsor, rng.integers(sponsors, size=len(league))])
        sponsor[sponsored] = sponsors + np.arange(len(sponsored))
        self.sponsor = sponsor
        self.league = np.concatenate([self.league, league])
        self.leavers = np.pad(self.leavers, ((0, len(league)), (0, 0)), constant_values=-1)
        self.leave_count = np.pad(self.leave_count, (0, len(league)))
        career = np.full((len(club), CAREER), -1)
        career[:, 0] = club
        self.career = np.concatenate([self.career, career])
        self.endorsed = np.pad(self.endorsed, (0, len(club)), constant_values=-1)
        activity = rng.choice(ACTIVITY, len(club), p=ACTIVITY_SHARE)
        self.activity = np.concatenate([self.activity, activity])
        for name, count in (("club", league), ("sponsor", sponsored), ("player", club)):
            ids = getattr(self, f"{name}_id")
            setattr(self, f"{name}_id", np.concatenate([ids, number + np.arange(len(count))]))
            number += len(count)
