"""The law of the simulated world: how likely every fact of a step is, given all that came before.

**What it knows.** Before step t: everything that happened, reported or not (who plays where, who
endorses whom, how active each player is, hidden facts too), and the plan (when how many are born).
**What it does not know.** Anything drawn at t or later: who moves, who is seen, where newcomers go.

The state before t is reached by running the same world again up to t and no further, so nothing of
the history has to be kept, and nothing at or after t can be used.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import IntArray, Vocabulary
from metatkgr.data.tasks import Queries
from metatkgr.data.world.names import names_of
from metatkgr.data.world.plan import (
    CLUB,
    CLUB_SPONSOR,
    COMPETES_IN,
    ENDORSEMENT_CHANGE,
    ENDORSEMENT_NEWS,
    ENDORSES,
    GOALS,
    LEAGUE,
    LEAGUE_CHANGE,
    LEAGUE_NEWS,
    PLAYER,
    PLAYS_FOR,
    RELATIONS,
    SCORES_AGAINST,
    SLOT_KINDS,
    SPONSOR,
    SPONSOR_CHANGE,
    SPONSOR_NEWS,
    SPONSORS,
    STRAY,
    Plan,
    WorldSettings,
)
from metatkgr.data.world.state import CAREER, LEAVERS, FloatArray, Streams, World
from metatkgr.data.world.step import advance
from metatkgr.errors import DataError

__all__ = ["Law", "fact_chances"]


def fact_chances(world: World, relation: int, subjects: IntArray, objects: IntArray) -> FloatArray:
    """The chance that (s, relation, o) is a fact of the next step, for each s and o.

    Args:
        world: the state before the step.
        relation: one of the R relations.
        subjects, objects: (S,), (O,) positions in the arrays of ``world`` of the relation's kinds.

    Returns:
        (S, O) probabilities, exact under ``world.step``.
    """
    law = {
        PLAYS_FOR: _plays_for,
        COMPETES_IN: _competes_in,
        SPONSORS: _sponsors,
        SCORES_AGAINST: _scores_against,
        ENDORSES: _endorses,
    }
    return law[relation](world, subjects, objects)


def _plays_for(world: World, players: IntArray, clubs: IntArray) -> FloatArray:
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


def _competes_in(world: World, clubs: IntArray, leagues: IntArray) -> FloatArray:
    """c / L + (1 - c) n [l is its league]; c: change, n: news, L: number of leagues."""
    stay = (1 - LEAGUE_CHANGE) * world.news(LEAGUE_NEWS)
    own = world.league[clubs][:, None] == leagues
    return np.asarray(LEAGUE_CHANGE / world.plan.leagues + stay * own)


def _sponsors(world: World, sponsors: IntArray, clubs: IntArray) -> FloatArray:
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


def _scores_against(world: World, players: IntArray, clubs: IntArray) -> FloatArray:
    """GOALS a / (size - 1) for the other clubs of his league."""
    own = world.career[players, 0]
    league = world.league[own]
    others = np.bincount(world.league, minlength=world.plan.leagues)[league] - 1
    rate = GOALS * world.activity[players] / np.maximum(others, 1)
    opponent = (league[:, None] == world.league[clubs]) & (own[:, None] != clubs)
    return np.asarray(rate[:, None] * opponent)


def _endorses(world: World, players: IntArray, sponsors: IntArray) -> FloatArray:
    """c (w [s is his club's] + (1 - w) / S) + (1 - c) news [s is his own]; c: signs or changes."""
    now = world.endorsed[players]
    sign = np.where(now >= 0, ENDORSEMENT_CHANGE, world.plan.signing(world.step))[:, None]
    near = world.sponsor[world.career[players, 0]][:, None] == sponsors
    new = CLUB_SPONSOR * near + (1 - CLUB_SPONSOR) / len(world.sponsor_id)
    stay = (1 - ENDORSEMENT_CHANGE) * ENDORSEMENT_NEWS * (now[:, None] == sponsors)
    return np.asarray(sign * new + stay)


class Law:
    """Answers queries with the true chances.

    Args:
        settings: of the world.
        entities: number of entities of the vocabulary, E; or the vocabulary itself, when its order
            is not the order of birth (a world read back from a file).
        relations: the vocabulary of relations, when its order is not that of ``RELATIONS``.
        last_step: the last step with facts. What happens later counts as unknown: queries after
            the step that follows it are answered from the state before that step.
        streams: the randomness of the steps, where it is not that of the settings (in tests).
    """

    def __init__(
        self,
        settings: WorldSettings,
        entities: int | Vocabulary,
        relations: Vocabulary | None = None,
        *,
        last_step: int,
        streams: Streams | None = None,
    ) -> None:
        self.settings = settings
        self.plan = Plan.of(settings)
        self.last_step = last_step
        kind, number = self.plan.numbering(-1, last_step)
        if isinstance(entities, int):
            self.column = np.arange(len(kind))
            self.column[entities:] = -1
            self.entities = entities
        else:
            names = names_of(kind, number)
            self.column = np.array([entities.id(n) if n in entities else -1 for n in names])
            self.entities = len(entities)
        self.relations = np.arange(len(RELATIONS))
        if relations is not None:
            strange = sorted(set(relations) - set(RELATIONS))
            if strange:
                raise DataError(f"the simulated world has no relation {strange[0]!r}")
            self.relations = np.array([RELATIONS.index(name) for name in relations])
        self.kind = np.full(self.entities, -1)
        """(E,) kind of each entity of the vocabulary."""
        self.kind[self.column[self.column >= 0]] = kind[self.column >= 0]
        self._number = np.full(self.entities, -1)
        self._number[self.column[self.column >= 0]] = np.flatnonzero(self.column >= 0)
        self._latest = World(self.plan, streams)
        self._kept = {0: self._latest.copy()}

    def before(self, step: int) -> World:
        """The state before ``step``."""
        step = min(max(step, 0), self.last_step + 1)
        # A few snapshots on the way, so that queries in any order do not start again from 0.
        stride = max(self.plan.steps // 32, 1)
        known = [world for world in (self._latest, *self._kept.values()) if world.step <= step]
        world = max(known, key=lambda world: world.step).copy()
        while world.step < step:
            advance(world)
            if world.step % stride == 0:
                self._kept[world.step] = world.copy()
        self._latest = world
        return world.copy()

    def fills_slot(self, relation: int) -> npt.NDArray[np.bool_]:
        """(E,) which entities are of the kind that fills the answer slot of a directed relation."""
        inverse, base = divmod(relation, len(self.relations))
        return np.asarray(self.kind == SLOT_KINDS[self.relations[base]][0 if inverse else 1])

    def chances(self, queries: Queries) -> FloatArray:
        """P(the fact with answer x happens at t | all before t), for each query and x.

        Returns:
            (Q, E). A row need not sum to 1: perhaps nothing happens, perhaps there are several
            answers. Rows of queries that cannot have an answer (about a retired player, say) are
            zero.
        """
        out = np.zeros((len(queries), self.entities))
        order = np.lexsort([queries.relation, queries.time])
        time, relation = queries.time[order], queries.relation[order]
        new = np.flatnonzero(
            (np.diff(time, prepend=-1) != 0) | (np.diff(relation, prepend=-1) != 0)
        )
        for rows in np.split(order, new[1:]):
            if len(rows):
                world = self.before(int(queries.time[rows[0]]))
                out[rows] = self._answer(
                    world, int(queries.relation[rows[0]]), self._number[queries.entity[rows]]
                )
        return out

    def probabilities(self, queries: Queries) -> FloatArray:
        """The distribution of the answer x of (e, r, ?, t), given that there is an answer.

        ``chances`` divided by their sum. Where a query has at most one answer (a player's club,
        whom he endorses, a club's league, a new entity's first tie) this is exactly the conditional
        distribution given that the fact happens and all before t. Where it may have several (the
        players of a club), it is proportional to the chance that x is among them. Rows without any
        chance are uniform over the entities of the right kind.

        Returns:
            (Q, E), rows sum to 1.
        """
        chances = self.chances(queries)
        total = chances.sum(axis=1, keepdims=True)
        for row in np.flatnonzero(total[:, 0] == 0):
            fits = self.fills_slot(int(queries.relation[row])).astype(float)
            chances[row] = fits if fits.any() else 1.0
            total[row] = chances[row].sum()
        return np.asarray(chances / total)

    def _answer(self, world: World, relation: int, entity: IntArray) -> FloatArray:
        """Chances for queries of one step and directed relation: (Q,) born numbers to (Q, E)."""
        inverse, base = divmod(relation, len(self.relations))
        base = int(self.relations[base])
        ids = {
            LEAGUE: np.arange(world.plan.leagues),
            CLUB: world.club_id,
            SPONSOR: world.sponsor_id,
            PLAYER: world.player_id,
        }
        query_kind, answer_kind = SLOT_KINDS[base][::-1] if inverse else SLOT_KINDS[base]
        sources, answers = ids[query_kind], ids[answer_kind]
        position = np.minimum(np.searchsorted(sources, entity), len(sources) - 1)
        known = np.flatnonzero(sources[position] == entity)
        everything = np.arange(len(answers))
        out = np.zeros((len(entity), self.entities))
        if inverse:
            chance = fact_chances(world, base, everything, position[known]).T
        else:
            chance = fact_chances(world, base, position[known], everything)
        self._put(out, known, answers, chance)
        debut, where = self._debuts(world, base)
        if inverse:
            self._put(out, known, debut, np.full((len(known), len(debut)), 1 / max(where, 1)))
        else:
            new = np.flatnonzero(np.isin(entity, debut))
            self._put(out, new, answers, np.full((len(new), len(answers)), 1 / max(where, 1)))
        return out

    def _put(self, out: FloatArray, rows: IntArray, ids: IntArray, chance: FloatArray) -> None:
        column = self.column[ids]
        listed = column >= 0
        out[rows[:, None], column[listed]] = chance[:, listed]

    def _debuts(self, world: World, relation: int) -> tuple[IntArray, int]:
        """Who makes a first appearance with ``relation`` at this step, among how many objects."""
        subject, object_kind = SLOT_KINDS[relation]
        if relation not in (PLAYS_FOR, COMPETES_IN, SPONSORS):
            return np.zeros(0, np.int64), 0
        plan, step = world.plan, world.step
        first = plan.entities_before(step) + sum(plan.born(k, step) for k in range(subject))
        objects = plan.leagues if object_kind == LEAGUE else len(world.club_id)
        ids = first + np.arange(plan.born(subject, step))
        return ids[ids < len(self.column)], objects
