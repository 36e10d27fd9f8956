"""The frame of the simulated world: its settings, its fixed rates, and who is born when.

Everything here is decided before the first die is cast: it is part of the law.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.errors import SettingsError

__all__ = [
    "CLUB",
    "COMPETES_IN",
    "ENDORSES",
    "KINDS",
    "LEAGUE",
    "PLAYER",
    "PLAYS_FOR",
    "RELATIONS",
    "SCORES_AGAINST",
    "SLOT_KINDS",
    "SPONSOR",
    "SPONSORS",
    "Plan",
    "WorldSettings",
    "report_chance",
]

KINDS = ("league", "club", "sponsor", "player")
LEAGUE, CLUB, SPONSOR, PLAYER = range(4)

RELATIONS = ("plays for", "competes in", "sponsors", "scores against", "endorses")
PLAYS_FOR, COMPETES_IN, SPONSORS, SCORES_AGAINST, ENDORSES = range(5)
SLOT_KINDS = ((PLAYER, CLUB), (CLUB, LEAGUE), (SPONSOR, CLUB), (PLAYER, CLUB), (PLAYER, SPONSOR))
"""For each relation the kinds of its subjects and of its objects."""

# Chances per step. An unchanged tie is reported again with a chance of its own; a new tie always.
ACTIVITY = np.array([0.10, 0.25, 0.60])
"""How often a substitute, a regular and a star are seen playing."""
ACTIVITY_SHARE = np.array([0.5, 0.3, 0.2])
RETIREMENT = 1 / 60
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

# Populations per unit of scale: at the start, and how many join over the planned time (of players,
# who retire: over 200 steps).
_START = {CLUB: 24.0, SPONSOR: 10.0, PLAYER: 130.0}
_JOIN = {CLUB: 26.0, SPONSOR: 20.0, PLAYER: 640.0}
_LEAGUES = 6.0
_LEAST = {LEAGUE: 2, CLUB: 4, SPONSOR: 2, PLAYER: 8}
_LEAST_JOIN = {CLUB: 4, SPONSOR: 4, PLAYER: 40}


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

    def __post_init__(self) -> None:
        for name in ("facts", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise SettingsError(f"a world's {name} must be a whole number, not {value!r}")
        if self.facts < 200:
            raise SettingsError(f"a world needs at least 200 facts, not {self.facts}")
        if self.seed < 0:
            raise SettingsError(f"a world's seed must not be negative, but is {self.seed}")
        for name in ("moves", "follow", "shift"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise SettingsError(
                    f"a world's {name} must lie between 0 and 1, not {getattr(self, name)}"
                )

    def as_dict(self) -> dict[str, int | float]:
        """The settings by name, as plain numbers."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Plan:
    """How large a world is, how long it is meant to last, and how many are born at each step.

    Entities are numbered in the order of their birth: before step 0 all leagues and the first
    clubs, sponsors and players; then, step by step, its new clubs, sponsors and players.
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
        steps = max(round(200 * (settings.facts / 20_000) ** 0.2), 10)
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
    def leagues(self) -> int:
        """Number of leagues, the same at all times."""
        return max(_LEAST[LEAGUE], round(_LEAGUES * self.scale))

    def total(self, kind: int, step: int) -> int:
        """Number of entities of ``kind`` born before ``step`` (those of the beginning included)."""
        if kind == LEAGUE:
            return self.leagues
        start = max(_LEAST[kind], round(_START[kind] * self.scale))
        # Births speed up slowly, so that every period has its newcomers.
        share = (0.8 * step + 0.2 * step * step / self.steps) / self.steps
        join = _JOIN[kind] * self.scale * (self.steps / 200 if kind == PLAYER else 1)
        return start + int(max(join, _LEAST_JOIN[kind]) * share)

    def born(self, kind: int, step: int) -> int:
        """Number of entities of ``kind`` that make their first appearance at ``step``."""
        return self.total(kind, step + 1) - self.total(kind, step)

    def entities_before(self, step: int) -> int:
        """Number of all entities born before ``step``; the next one has this number as its id."""
        return sum(self.total(kind, step) for kind in range(len(KINDS)))

    def numbering(self, first: int, last: int) -> tuple[IntArray, IntArray]:
        """Kind and number within the kind of the entities born at steps ``first`` to ``last``.

        Args:
            first: first step; -1 for the entities of the beginning.
            last: last step, inclusive.

        Returns:
            kind, number: one entry for each entity, in the order of ids.
        """
        kinds: list[IntArray] = []
        numbers: list[IntArray] = []
        for step in range(first, last + 1):
            for kind in range(len(KINDS)):
                low = 0 if step < 0 else self.total(kind, step)
                high = self.total(kind, step + 1)
                kinds.append(np.full(high - low, kind, np.int64))
                numbers.append(np.arange(low, high, dtype=np.int64))
        return np.concatenate(kinds), np.concatenate(numbers)

    def signing(self, step: int) -> float:
        """Chance that a player without an endorsement signs one at ``step``."""
        late = step >= self.settings.shift * self.steps
        return ENDORSEMENT_LATE if late else ENDORSEMENT_EARLY

    def expected_facts(self) -> float:
        """Mean number of facts over the planned steps."""
        activity = float(ACTIVITY @ ACTIVITY_SHARE)
        moves = self.settings.moves
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
            endorsing = (1 - RETIREMENT) * (endorsing + (players - endorsing) * sign)
            players = (1 - RETIREMENT) * players + born
        return facts


def report_chance(change: float, news: float) -> float:
    """Chance that a tie is reported at a step: if it changes, or else with the chance ``news``."""
    return change + (1 - change) * news
