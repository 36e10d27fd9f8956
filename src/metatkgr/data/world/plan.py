"""The frame of a simulated world: its settings, its fixed rates, and who is born when.

Everything here is decided before the first die is cast: it is part of the law.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.data.world.kinds import CAREERS, KINDS, Kind, Tie
from metatkgr.errors import SettingsError, UnknownNameError

__all__ = [
    "CLUB",
    "COMPETES_IN",
    "ENDORSES",
    "LEAGUE",
    "PLAYER",
    "PLAYS_FOR",
    "SCORES_AGAINST",
    "SPONSOR",
    "SPONSORS",
    "Plan",
    "WorldSettings",
    "report_chance",
]

# What ``careers`` calls its types and relations, and its fixed rates.
LEAGUE, CLUB, SPONSOR, PLAYER = range(4)
PLAYS_FOR, COMPETES_IN, SPONSORS, SCORES_AGAINST, ENDORSES = range(5)

# Chances per step. An unchanged tie is reported again with a chance of its own; a new tie always.
ACTIVITY = np.array([0.10, 0.25, 0.60])
"""How often a substitute, a regular and a star are seen playing."""
ACTIVITY_SHARE = np.array([0.5, 0.3, 0.2])
GOALS = 0.25
"""``scores against``, as a multiple of a player's activity."""
LEAGUE_CHANGE, LEAGUE_NEWS = 0.004, 0.10
SPONSOR_CHANGE, SPONSOR_NEWS = 0.03, 0.15
ENDORSEMENT_EARLY, ENDORSEMENT_LATE = 0.0002, 0.06
"""Chance that a player without an endorsement signs one, before and after the shift."""
ENDORSEMENT_CHANGE, ENDORSEMENT_NEWS = 0.01, 0.25
CLUB_SPONSOR = 0.6
"""How often an endorsement goes to the sponsor of the player's club, not to just any."""
STRAY = 0.1
"""How often a move that follows nobody leads anywhere, not into the player's own league."""

# How active a subject of a tie is, as a multiple of the tie's tempo.
PACE = np.array([0.4, 1.0, 2.4])
PACE_SHARE = np.array([0.5, 0.3, 0.2])
EARLY = 0.02
"""By how much a late tie's tempo is lower before its time."""


@dataclass(frozen=True)
class WorldSettings:
    """What can be chosen about a simulated world."""

    facts: int = 20_000
    """Number of facts, exactly; the number of entities grows in proportion."""
    seed: int = 0
    """Seed of all randomness; the same settings give the same facts, bit for bit."""
    moves: float = 0.05
    """Chance per step that a player moves to another club."""
    follow: float = 0.8
    """Share of moves (and of new sponsorships) along a shared neighbour, the rest is noise."""
    shift: float = 0.7
    """Share of the planned time after which ``endorses`` becomes common."""
    kind: str = CAREERS.name
    """What happens in it, one of ``KINDS``; the three settings above are those of 'careers'."""

    def __post_init__(self) -> None:
        for name in ("facts", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise SettingsError(f"a world's {name} must be a whole number, not {value!r}")
        if self.facts < 200:
            raise SettingsError(f"a world needs at least 200 facts, not {self.facts}")
        if self.seed < 0:
            raise SettingsError(f"a world's seed must not be negative, but is {self.seed}")
        if self.kind not in KINDS:
            raise UnknownNameError("kind of world", str(self.kind), KINDS)
        for name in ("moves", "follow", "shift"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise SettingsError(
                    f"a world's {name} must lie between 0 and 1, not {getattr(self, name)}"
                )
            if self.kind != CAREERS.name and getattr(self, name) != getattr(type(self), name):
                raise SettingsError(f"{name} is a setting of careers, not of a {self.kind} world")


@dataclass(frozen=True)
class Plan:
    """How large a world is, how long it is meant to last, and how many are born at each step.

    Entities are numbered in the order of their birth: those of the beginning, type by type; then,
    step by step, its newcomers, type by type.
    """

    settings: WorldSettings
    steps: int
    """Planned number of steps; the world ends when all its facts are reported, about then."""
    scale: float
    """1 is a world of about 20,000 facts."""

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, settings: WorldSettings) -> Plan:
        """Choose length and scale so that the expected number of facts is ``settings.facts``."""
        planned = KINDS[settings.kind].steps
        steps = max(round(planned * (settings.facts / 20_000) ** 0.2), 10)
        least = cls(settings, steps, 0.0).expected_facts()
        if least >= settings.facts:
            return cls(settings, max(int(steps * settings.facts / least), 10), 0.0)
        low, high = 0.0, settings.facts / 8_000
        for _ in range(16):
            middle = (low + high) / 2
            if cls(settings, steps, middle).expected_facts() < settings.facts:
                low = middle
            else:
                high = middle
        return cls(settings, steps, high)

    @cached_property
    def kind(self) -> Kind:
        """What happens in the world."""
        return KINDS[self.settings.kind]

    @cached_property
    def leagues(self) -> int:
        """Number of leagues, the same at all times."""
        return self.total(LEAGUE, 0)

    def total(self, type_: int, step: int) -> int:
        """Number of entities of a type born before ``step`` (those of the beginning included)."""
        of = self.kind.types[type_]
        start = max(of.least, round(of.start * self.scale))
        # Births speed up slowly, so that every period has its newcomers.
        share = (0.8 * step + 0.2 * step * step / self.steps) / self.steps
        join = of.join * self.scale * (self.steps / 200 if of.retires else 1)
        return start + int(max(join, of.least_join) * share)

    def born(self, type_: int, step: int) -> int:
        """Number of entities of a type that make their first appearance at ``step``."""
        return self.total(type_, step + 1) - self.total(type_, step)

    def entities_before(self, step: int) -> int:
        """Number of all entities born before ``step``; the next one has this number as its id."""
        return sum(self.total(type_, step) for type_ in range(len(self.kind.types)))

    def numbering(self, first: int, last: int) -> tuple[IntArray, IntArray]:
        """Type and number within the type of the entities born at steps ``first`` to ``last``.

        Args:
            first: first step; -1 for the entities of the beginning.
            last: last step, inclusive.

        Returns:
            type, number: one entry for each entity, in the order of ids.
        """
        types: list[IntArray] = []
        numbers: list[IntArray] = []
        for step in range(first, last + 1):
            for type_ in range(len(self.kind.types)):
                low = 0 if step < 0 else self.total(type_, step)
                high = self.total(type_, step + 1)
                types.append(np.full(high - low, type_, np.int64))
                numbers.append(np.arange(low, high, dtype=np.int64))
        return np.concatenate(types), np.concatenate(numbers)

    def signing(self, step: int) -> float:
        """Chance that a player without an endorsement signs one at ``step``."""
        late = step >= self.settings.shift * self.steps
        return ENDORSEMENT_LATE if late else ENDORSEMENT_EARLY

    def expected_facts(self) -> float:
        """Mean number of facts over the planned steps; of ties, about."""
        return self._facts_of_ties() if self.kind.ties else self._facts_of_careers()

    def _facts_of_careers(self) -> float:
        activity = float(ACTIVITY @ ACTIVITY_SHARE)
        moves, retirement = self.settings.moves, self.kind.types[PLAYER].retires
        players, endorsing, facts = float(self.total(PLAYER, 0)), 0.0, 0.0
        for step in range(self.steps):
            sign = self.signing(step)
            clubs = self.total(CLUB, step)
            seen = 1.0 if step == 0 else moves + (1 - moves) * activity
            ties = (
                2.0
                if step == 0
                else report_chance(LEAGUE_CHANGE, LEAGUE_NEWS)
                + report_chance(SPONSOR_CHANGE, SPONSOR_NEWS)
            )
            born = self.born(PLAYER, step)
            facts += players * (seen + GOALS * activity) + clubs * ties
            facts += born + self.born(CLUB, step) + self.born(SPONSOR, step)
            facts += (players - endorsing) * sign
            facts += endorsing * report_chance(ENDORSEMENT_CHANGE, ENDORSEMENT_NEWS)
            endorsing = (1 - retirement) * (endorsing + (players - endorsing) * sign)
            players = (1 - retirement) * players + born
        return facts

    def early(self, tie: Tie, step: int) -> float:
        """Factor of a tie's tempo at ``step``, for ties that become common only late."""
        return EARLY if step < tie.late * self.steps else 1.0

    def _facts_of_ties(self) -> float:
        """Populations and kept ties, each as if all of a pace were alike."""
        kind = self.kind
        number = {type_.name: at for at, type_ in enumerate(kind.types)}
        living = np.array([self.total(at, 0) for at in range(len(kind.types))], float)
        facts = float(living.sum())
        kept = np.zeros((len(kind.ties), len(PACE)))
        for at, (first, as_object) in enumerate(kind.debuts):
            share = living[at] / living[number[kind.ties[first].subject]] if as_object else 1.0
            kept[first] += share
        for step in range(self.steps):
            born = np.array([self.born(at, step) for at in range(len(kind.types))])
            facts += born.sum()
            for at, tie in enumerate(kind.ties):
                of = number[tie.subject]
                rate = np.minimum(tie.tempo * PACE * self.early(tie, step), 1)
                reported = rate + kept[at] * (
                    (tie.repeats is not None) * (1 - tie.end) * tie.renew
                    + (tie.ends is not None) * tie.end
                )
                facts += living[of] * float(reported @ PACE_SHARE) * (step > 0)
                lasting = (1 - tie.end) * (1 - kind.types[number[tie.object]].retires)
                kept[at] = np.minimum(kept[at] * lasting + rate, tie.keeps)
                stay = living[of] * (1 - kind.types[of].retires)
                debut = kind.debuts[of] == (at, False)
                kept[at] = (kept[at] * stay + debut * born[of]) / (stay + born[of])
            retire = np.array([type_.retires for type_ in kind.types])
            living = living * (1 - retire) + born
        return facts


def report_chance(change: float, news: float) -> float:
    """Chance that a tie is reported at a step: if it changes, or else with the chance ``news``."""
    return change + (1 - change) * news
