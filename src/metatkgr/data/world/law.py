"""The law of a simulated world: how likely every fact of a step is, given all that came before.

**What it knows.** Before step t: everything that happened, reported or not (who plays where, who
keeps which ties, how active everybody is, hidden facts too), and the plan (when how many are born).
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
from metatkgr.data.world.plan import Plan, WorldSettings
from metatkgr.data.world.state import FloatArray, State
from metatkgr.data.world.step import Careers
from metatkgr.data.world.ties import Ties
from metatkgr.errors import DataError

__all__ = ["Law", "begin"]


def begin(plan: Plan) -> State:
    """The state of a world before its first step."""
    return Ties(plan) if plan.kind.ties else Careers(plan)


class Law:
    """Answers queries with the true chances.

    Args:
        settings: of the world.
        entities: number of entities of the vocabulary, E; or the vocabulary itself, when its order
            is not the order of birth (a world read back from a file).
        relations: the vocabulary of relations, when its order is not that of the kind.
        last_step: the last step with facts. What happens later counts as unknown: queries after
            the step that follows it are answered from the state before that step.
    """

    def __init__(
        self,
        settings: WorldSettings,
        entities: int | Vocabulary,
        relations: Vocabulary | None = None,
        *,
        last_step: int,
    ) -> None:
        self.settings = settings
        self.plan = Plan.of(settings)
        self.last_step = last_step
        kind = self.plan.kind
        types, number = self.plan.numbering(-1, last_step)
        if isinstance(entities, int):
            self.column = np.arange(len(types))
            self.column[entities:] = -1
            self.entities = entities
        else:
            names = names_of(kind.types, types, number)
            self.column = np.array([entities.id(n) if n in entities else -1 for n in names])
            self.entities = len(entities)
        self.relations = np.arange(len(kind.relations))
        if relations is not None:
            strange = sorted(set(relations) - set(kind.relations))
            if strange:
                raise DataError(f"the simulated world has no relation {strange[0]!r}")
            self.relations = np.array([kind.relations.index(name) for name in relations])
        self.type_of = np.full(self.entities, -1)
        """(E,) type of each entity of the vocabulary."""
        self.type_of[self.column[self.column >= 0]] = types[self.column >= 0]
        self._number = np.full(self.entities, -1)
        self._number[self.column[self.column >= 0]] = np.flatnonzero(self.column >= 0)
        self._latest = begin(self.plan)
        self._kept = {0: self._latest.copy()}

    def before(self, step: int) -> State:
        """The state before ``step``."""
        step = min(max(step, 0), self.last_step + 1)
        # A few snapshots on the way, so that queries in any order do not start again from 0.
        stride = max(self.plan.steps // 32, 1)
        known = [world for world in (self._latest, *self._kept.values()) if world.step <= step]
        world = max(known, key=lambda world: world.step).copy()
        while world.step < step:
            world.advance()
            if world.step % stride == 0:
                self._kept[world.step] = world.copy()
        self._latest = world
        return world.copy()

    def fills_slot(self, relation: int) -> npt.NDArray[np.bool_]:
        """(E,) which entities are of the type that fills the answer slot of a directed relation."""
        inverse, base = divmod(relation, len(self.relations))
        types = self.plan.kind.slot_types[self.relations[base]]
        return np.asarray(self.type_of == types[0 if inverse else 1])

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
        chance are uniform over the entities of the right type.

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

    def _answer(self, world: State, relation: int, entity: IntArray) -> FloatArray:
        """Chances for queries of one step and directed relation: (Q,) born numbers to (Q, E)."""
        inverse, base = divmod(relation, len(self.relations))
        base = int(self.relations[base])
        types = self.plan.kind.slot_types[base]
        query_type, answer_type = types[::-1] if inverse else types
        sources, answers = world.ids(query_type), world.ids(answer_type)
        position = np.minimum(np.searchsorted(sources, entity), len(sources) - 1)
        known = np.flatnonzero(sources[position] == entity)
        everything = np.arange(len(answers))
        out = np.zeros((len(entity), self.entities))
        if inverse:
            chance = world.chances(base, everything, position[known]).T
        else:
            chance = world.chances(base, position[known], everything)
        self._put(out, known, answers, chance)
        for debut in world.debuts(base):
            if debut.as_object == bool(inverse):
                rows, columns = np.flatnonzero(np.isin(entity, debut.ids)), answers
            else:
                rows, columns = known, debut.ids
            one = 1 / max(debut.partners, 1)
            self._put(out, rows, columns, np.full((len(rows), len(columns)), one))
        return out

    def _put(self, out: FloatArray, rows: IntArray, ids: IntArray, chance: FloatArray) -> None:
        # Who is born after the last step with facts has no number here.
        column = np.where(
            ids < len(self.column), self.column[np.minimum(ids, len(self.column) - 1)], -1
        )
        listed = column >= 0
        out[rows[:, None], column[listed]] = chance[:, listed]
