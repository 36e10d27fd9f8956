"""How one step of ``careers`` follows from the state before it, and how likely every fact is.

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
from metatkgr.data.world.state import CAREER, LEAVERS, Clubs, Debut, FloatArray, StepFacts

__all__ = ["Careers"]


class Careers(Clubs):
    """A world of leagues, clubs, players and sponsors."""

    def advance(self) -> StepFacts:
        """Draw the facts of the next step, and let it happen."""
        draw = _Draw(self)
        league_of_new, sponsored_by_new, club_of_new = draw.newcomers()
        first = sum(len(subject) for subject, _, _ in draw.facts)
        club = draw.play()
        draw.score()
        endorsed = draw.endorse()
        league = draw.compete()
        sponsor = draw.find_sponsors()

        self.move(club)
        self.endorsed, self.league, self.sponsor = endorsed, league, sponsor
        self.retire(draw.rng)
        self.arrive(draw.rng, league_of_new, sponsored_by_new, club_of_new)
        self.step += 1
        relations = [relation for _, relation, _ in draw.facts]
        return StepFacts(
            np.concatenate([subject for subject, _, _ in draw.facts]),
            np.repeat(relations, [len(subject) for subject, _, _ in draw.facts]),
            np.concatenate([other for _, _, other in draw.facts]),
            first,
        )

    def ids(self, type_: int) -> IntArray:
        """Entity ids, ascending; of players those who have not retired."""
        leagues = np.arange(self.plan.leagues)
        return (leagues, self.club_id, self.sponsor_id, self.player_id)[type_]

    def chances(self, relation: int, subjects: IntArray, objects: IntArray) -> FloatArray:
        """(S, O) chances of facts of the next step."""
        law = {
            PLAYS_FOR: _plays_for,
            COMPETES_IN: _competes_in,
            SPONSORS: _sponsors,
            SCORES_AGAINST: _scores_against,
            ENDORSES: _endorses,
        }
        return law[relation](self, subjects, objects)

    def debuts(self, relation: int) -> list[Debut]:
        """Who makes a first appearance with ``relation`` at the next step."""
        if relation not in (PLAYS_FOR, COMPETES_IN, SPONSORS):
            return []
        subject, object_ = self.plan.kind.slot_types[relation]
        return [Debut(self.newborn(subject), False, len(self.ids(object_)))]


class _Draw:
    """What happens at one step, drawn from the state before it, which no method changes."""

    def __init__(self, world: Clubs) -> None:
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


def _plays_for(world: Clubs, players: IntArray, clubs: IntArray) -> FloatArray:
    """m q(c) + (1 - m) a [c is his club]; m: moves, a: seen playing, q: destination of a move.

    q(c) = f n(c) / N + (1 - f n / N) ((1 - STRAY) [c in his league] / its size + STRAY / C), where
    of the N = CAREER * LEAVERS positions with an old team-mate n(c) lead to c, n lead anywhere.
    """
    settings = world.plan.settings
    column = np.full(len(world.club_id) + 1, len(clubs))
    column[clubs] = np.arange(len(clubs))
    mates = world.mates_clubs(players).reshape(len(players), CAREER * LEAVERS)
    # Other clubs and empty positions (-1, the last entry) are counted in one column too many.
    width = len(clubs) + 1
    cell = np.arange(len(players))[:, None] * width + column[mates]
    count = np.bincount(cell.reshape(-1), minlength=len(players) * width)
    count = count.reshape(len(players), width)
    share = settings.follow / (CAREER * LEAVERS)
    alone = 1 - share * (mates >= 0).sum(axis=1)[:, None]
    own = world.career[players, 0]
    size = np.bincount(world.league, minlength=world.plan.leagues)
    near = (world.league[own][:, None] == world.league[clubs]) / size[world.league[own]][:, None]
    anywhere = (1 - STRAY) * near + STRAY / len(world.club_id)
    move = settings.moves * (share * count[:, :-1] + alone * anywhere)
    stay = (1 - settings.moves) * world.seen_playing()[players]
    return np.asarray(move + stay[:, None] * (own[:, None] == clubs))


def _competes_in(world: Clubs, clubs: IntArray, leagues: IntArray) -> FloatArray:
    """c / L + (1 - c) n [l is its league]; c: change, n: news, L: number of leagues."""
    stay = (1 - LEAGUE_CHANGE) * world.news(LEAGUE_NEWS)
    own = world.league[clubs][:, None] == leagues
    return np.asarray(LEAGUE_CHANGE / world.plan.leagues + stay * own)


def _sponsors(world: Clubs, sponsors: IntArray, clubs: IntArray) -> FloatArray:
    """c (f n(s) / (size - 1) + (1 - f) / S) + (1 - c) news [s is its sponsor].

    n(s): clubs among the others in its league whom s sponsors (f = 0 if there is no other club).
    """
    league = world.league[clubs]
    own = sponsors[:, None] == world.sponsor[clubs]
    key = world.sponsor * world.plan.leagues + world.league
    counts = np.bincount(key, minlength=len(world.sponsor_id) * world.plan.leagues)
    sponsored = counts[sponsors[:, None] * world.plan.leagues + league] - own
    others = np.bincount(world.league, minlength=world.plan.leagues)[league] - 1
    follow = np.where(others > 0, world.plan.settings.follow, 0.0)
    change = follow * sponsored / np.maximum(others, 1) + (1 - follow) / len(world.sponsor_id)
    stay = (1 - SPONSOR_CHANGE) * world.news(SPONSOR_NEWS)
    return np.asarray(SPONSOR_CHANGE * change + stay * own)


def _scores_against(world: Clubs, players: IntArray, clubs: IntArray) -> FloatArray:
    """GOALS a / (size - 1) for the other clubs of his league."""
    own = world.career[players, 0]
    league = world.league[own]
    others = np.bincount(world.league, minlength=world.plan.leagues)[league] - 1
    rate = GOALS * world.activity[players] / np.maximum(others, 1)
    opponent = (league[:, None] == world.league[clubs]) & (own[:, None] != clubs)
    return np.asarray(rate[:, None] * opponent)


def _endorses(world: Clubs, players: IntArray, sponsors: IntArray) -> FloatArray:
    """c (w [s is his club's] + (1 - w) / S) + (1 - c) news [s is his own]; c: signs or changes."""
    now = world.endorsed[players]
    sign = np.where(now >= 0, ENDORSEMENT_CHANGE, world.plan.signing(world.step))[:, None]
    near = world.sponsor[world.career[players, 0]][:, None] == sponsors
    new = CLUB_SPONSOR * near + (1 - CLUB_SPONSOR) / len(world.sponsor_id)
    stay = (1 - ENDORSEMENT_CHANGE) * ENDORSEMENT_NEWS * (now[:, None] == sponsors)
    return np.asarray(sign * new + stay)
