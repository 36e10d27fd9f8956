"""How one step of the simulated world follows from the state before it.

**The transition.** Let S be the state before step t: every player's club and earlier clubs, every
club's league, sponsor and most recent leavers, every player's endorsement. All that happens at t is
drawn from S, independently for each player and each club:

* a player p *moves* with chance ``moves``: he picks one of the ``CAREER`` last clubs of his own and
  one of the ``LEAVERS`` players who left it last, and joins that old team-mate's club (chance
  ``follow``; if the place is empty, or the mate is himself or has retired, he follows nobody). A
  player who follows nobody joins any club of his league, or (chance ``STRAY``) of the world.
  A move is always reported as ``plays for``; a player who stays is seen with a chance of his own.
* he ``scores against`` another club of his league, any with equal chance: unpredictable.
* he signs an endorsement (rarely before the shift, often after it) with the sponsor of his club or
  with any sponsor; an existing one is reported again, or replaced, with fixed chances.
* a club changes its league, any with equal chance; or its ``competes in`` is reported again.
* a club changes its sponsor, for that of another club in its league (chance ``follow``) or for any;
  or the old one is reported again.
* the clubs, sponsors and players due at t appear with one fact: in any league, for any club.

After the facts of t the changes take effect and some players retire. A new sponsor takes the place
of the old one. What is drawn may be what already was (then a tie is renewed): no case is excluded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.data.world.plan import (
    CLUB,
    CLUB_SPONSOR,
    COMPETES_IN,
    ENDORSEMENT_CHANGE,
    ENDORSEMENT_NEWS,
    ENDORSES,
    GOALS,
    LEAGUE_CHANGE,
    LEAGUE_NEWS,
    PLAYER,
    PLAYS_FOR,
    SCORES_AGAINST,
    SPONSOR,
    SPONSOR_CHANGE,
    SPONSOR_NEWS,
    SPONSORS,
    STRAY,
    report_chance,
)
from metatkgr.data.world.state import CAREER, LEAVERS, World

__all__ = ["StepFacts", "advance"]


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


def advance(world: World) -> StepFacts:
    """Draw the facts of the next step, and let it happen."""
    draw = _Draw(world)
    league_of_new, sponsored_by_new, club_of_new = draw.newcomers()
    first = sum(len(subject) for subject, _, _ in draw.facts)
    club = draw.play()
    draw.score()
    endorsed = draw.endorse()
    league = draw.compete()
    sponsor = draw.find_sponsors()

    world.move(club)
    world.endorsed, world.league, world.sponsor = endorsed, league, sponsor
    world.retire(draw.rng)
    world.arrive(draw.rng, league_of_new, sponsored_by_new, club_of_new)
    world.step += 1
    relations = [relation for _, relation, _ in draw.facts]
    return StepFacts(
        np.concatenate([subject for subject, _, _ in draw.facts]),
        np.repeat(relations, [len(subject) for subject, _, _ in draw.facts]),
        np.concatenate([other for _, _, other in draw.facts]),
        first,
    )


class _Draw:
    """What happens at one step, drawn from the state before it, which no method changes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.streams(world.step)
        self.order, self.start, self.size = world.by_league()
        self.facts: list[tuple[IntArray, int, IntArray]] = []
        """Blocks of facts: entity ids of the subjects, relation, entity ids of the objects."""

    def newcomers(self) -> tuple[IntArray, IntArray, IntArray]:
        """The leagues of the new clubs, the clubs of the new sponsors and of the new players."""
        world, rng, plan, step = self.world, self.rng, self.world.plan, self.world.step
        clubs = len(world.club_id)
        league = rng.integers(plan.leagues, size=plan.born(CLUB, step))
        sponsored = rng.integers(clubs, size=plan.born(SPONSOR, step))
        club = rng.integers(clubs, size=plan.born(PLAYER, step))
        number = plan.entities_before(step)
        for relation, other in (
            (COMPETES_IN, league),
            (SPONSORS, world.club_id[sponsored]),
            (PLAYS_FOR, world.club_id[club]),
        ):
            self.facts.append((number + np.arange(len(other)), relation, other))
            number += len(other)
        return league, sponsored, club

    def play(self) -> IntArray:
        """(P,) the club of each player from now on."""
        world, moves = self.world, self.world.plan.settings.moves
        chance = self.rng.random(len(world.player_id))
        movers = np.flatnonzero(chance < moves)
        seen = chance < moves + (1 - moves) * world.seen_playing()
        club = world.career[:, 0].copy()
        club[movers] = self.destinations(movers)
        self.facts.append((world.player_id[seen], PLAYS_FOR, world.club_id[club[seen]]))
        return club

    def destinations(self, players: IntArray) -> IntArray:
        """(N,) where each of the ``players`` moves to."""
        world, rng, count = self.world, self.rng, len(players)
        past = world.career[players, rng.integers(CAREER, size=count)]
        mate = world.leavers[past, rng.integers(LEAVERS, size=count)]
        mate[(past < 0) | (rng.random(count) >= world.plan.settings.follow)] = -1
        followed = world.clubs_of(mate, players)
        own = world.league[world.career[players, 0]]
        near = self.order[self.start[own] + (rng.random(count) * self.size[own]).astype(np.int64)]
        far = rng.integers(len(world.club_id), size=count)
        alone = np.where(rng.random(count) < STRAY, far, near)
        return np.where(followed >= 0, followed, alone)

    def score(self) -> None:
        """Goals of some players against other clubs of their leagues."""
        world = self.world
        club = world.career[:, 0]
        scorers = np.flatnonzero(self.rng.random(len(club)) < GOALS * world.activity)
        scorers = scorers[self.size[world.league[club[scorers]]] > 1]
        opponent = self.other_clubs(club[scorers])
        self.facts.append((world.player_id[scorers], SCORES_AGAINST, world.club_id[opponent]))

    def other_clubs(self, clubs: IntArray) -> IntArray:
        """(N,) for each of ``clubs`` another club of its league (which must have one)."""
        order, own = self.order, self.world.league[clubs]
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        pick = (self.rng.random(len(clubs)) * (self.size[own] - 1)).astype(np.int64)
        pick += self.start[own]
        return order[pick + (pick >= position[clubs])]

    def endorse(self) -> IntArray:
        """(P,) whom each player endorses from now on."""
        world, rng = self.world, self.rng
        bound = world.endorsed >= 0
        chance = rng.random(len(bound))
        sign = np.where(bound, ENDORSEMENT_CHANGE, world.plan.signing(world.step))
        signers = np.flatnonzero(chance < sign)
        anyone = rng.integers(len(world.sponsor_id), size=len(signers))
        near = world.sponsor[world.career[signers, 0]]
        endorsed = world.endorsed.copy()
        endorsed[signers] = np.where(rng.random(len(signers)) < CLUB_SPONSOR, near, anyone)
        seen = bound & (chance < report_chance(ENDORSEMENT_CHANGE, ENDORSEMENT_NEWS))
        seen[signers] = True
        self.facts.append((world.player_id[seen], ENDORSES, world.sponsor_id[endorsed[seen]]))
        return endorsed

    def compete(self) -> IntArray:
        """(C,) the league of each club from now on."""
        world = self.world
        chance = self.rng.random(len(world.club_id))
        changes = np.flatnonzero(chance < LEAGUE_CHANGE)
        league = world.league.copy()
        league[changes] = self.rng.integers(world.plan.leagues, size=len(changes))
        seen = chance < report_chance(LEAGUE_CHANGE, world.news(LEAGUE_NEWS))
        self.facts.append((world.club_id[seen], COMPETES_IN, league[seen]))
        return league

    def find_sponsors(self) -> IntArray:
        """(C,) the sponsor of each club from now on (if no newcomer takes its place)."""
        world, rng = self.world, self.rng
        chance = rng.random(len(world.club_id))
        changes = np.flatnonzero(chance < SPONSOR_CHANGE)
        follows = rng.random(len(changes)) < world.plan.settings.follow
        follows &= self.size[world.league[changes]] > 1
        sponsor = world.sponsor.copy()
        sponsor[changes] = rng.integers(len(world.sponsor_id), size=len(changes))
        followers = changes[follows]
        sponsor[followers] = world.sponsor[self.other_clubs(followers)]
        seen = chance < report_chance(SPONSOR_CHANGE, world.news(SPONSOR_NEWS))
        self.facts.append((world.sponsor_id[sponsor[seen]], SPONSORS, world.club_id[seen]))
        return sponsor
