"""What the inner loop of new entities reads: distinct links before a time, and walks along them.

The walks are a learned sampler: which links it follows is attention, trained by the outer loop. A
walk for a query (e, r, ?, t) starts at e with the mass 1. In each hop every entity y that holds
mass m looks at a pool of its latest visible links (y, r', z) and divides the mass among them,

    m' = m · exp(l_z) / (Σ exp(l))^κ_h,    l = a_h[came by, kind(r')] - λ_h log(1 + age)

where kind(r') says whether r' is r, its inverse, or another relation, and ``came by`` is the kind
of the link before. κ of 1 is a random walk, 0 counts walks, as the rule ``paths`` does. Walks never
come back to e. After each hop the sampler keeps the b states with the largest mass: its choice
within the budget follows what the outer loss has taught, and the gradient reaches a, λ and κ
through the masses of what was chosen. A candidate x gets

    v · log(1 + Σ_h exp(c_h) m_h(x) / ε)

with learned v, c and ε. Nothing in it knows an entity or a relation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.data.visibility import Supports
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.ragged import best_of_each, distinct, expand_ranges
from metatkgr.models.common.few_shot import fixed_negatives

__all__ = [
    "Around",
    "Hop",
    "Links",
    "Moment",
    "Reached",
    "Walks",
    "explore",
    "initial_walk",
    "kinds_of",
    "spread",
]

_EVERYTHING = 1 << 40
"""More links than any entity has."""
_SHOWN = 100
"""Facts of one link that are listed, the latest."""
_KINDS = 3
"""The query's relation, its inverse, others."""


class Links(NamedTuple):
    """Distinct links of n entities, one after another."""

    row: Tensor
    """(L,) int64 whose, 0..n-1, non-decreasing."""
    relation: Tensor
    """(L,) int64 directed."""
    target: Tensor
    """(L,) int64 entity."""
    age: Tensor
    """(L,) float32 steps since it was last seen, 0 or more."""

    def of(self, row: Tensor) -> Links:
        """The links of (Q,) rows, which are numbered anew."""
        start = torch.searchsorted(self.row, row)
        number, position = expand_ranges(start, torch.searchsorted(self.row, row, right=True))
        return Links(number, *(column[position] for column in self[1:]))

    def sums(self, values: Tensor, rows: int) -> Tensor:
        """(n, ...) sums of (L, ...) values over the links of each entity."""
        return values.new_zeros(rows, *values.shape[1:]).index_add(0, self.row, values)


class Moment(NamedTuple):
    """What everybody may see at a time."""

    time: int
    entity: Tensor
    """(n,) int64 the entities without a row that have been seen, ascending."""
    links: Links
    """Theirs."""
    seen: int
    """How many entities have been seen, with or without a row."""
    contrast: Tensor
    """(M,) int64 entities that have been seen, drawn by a fixed rule."""
    cell: Tensor
    """(P,) int64 ``relation * E + entity`` of all who have filled the far slot of a relation."""
    filled: Tensor
    """(P,) float32 by how many others each was linked to."""
    entities: int

    def fillers(self, relation: Tensor, entity: Tensor) -> Tensor:
        """(...) how many others have been linked to entities by relations."""
        cell = relation * self.entities + entity
        if not len(self.cell):
            return torch.zeros_like(cell, dtype=torch.float32)
        position = torch.searchsorted(self.cell, cell).clamp(max=len(self.cell) - 1)
        return torch.where(self.cell[position] == cell, self.filled[position], 0.0)


class Around:
    """Reads the links that the inner loop is made of; every look-up is bounded by a time.

    Args:
        index: the public facts.
        supports: the first facts of the new entities, which their own queries see at any time.
        has_row: (E,) bool, who has a vector from training.
        budget: b, how many links of an entity are read, those that began last.
        contrast: M.
    """

    def __init__(
        self,
        index: TemporalIndex,
        supports: Supports,
        has_row: Tensor,
        *,
        budget: int,
        contrast: int,
    ) -> None:
        self.index, self.budget, self.contrast = index, budget, contrast
        self.history, self.supports = History(index, supports), supports
        everyone = torch.arange(index.entities, device=index.device)
        self._without = everyone[~has_row]
        self._draw = fixed_negatives(everyone, torch.ones_like(everyone), 1, 1 << 40).squeeze(1)

    def at(self, time: int) -> Moment:
        """What everybody may see at a time."""
        index = self.index
        seen = index.first_seen < time
        entity = self._without[seen[self._without]]
        everyone = seen.nonzero().squeeze(1)
        drawn = torch.argsort(self._draw[everyone], stable=True)[: self.contrast]
        every = self._public(everyone, time, _EVERYTHING)
        cell, filled = torch.unique(
            every.relation * index.entities + every.target, return_counts=True
        )
        return Moment(
            time,
            entity,
            self._public(entity, time, self.budget),
            len(everyone),
            everyone[drawn].sort().values,
            cell,
            filled.float(),
            index.entities,
        )

    def own(self, entity: Tensor, time: int) -> Links:
        """The links of (n,) query entities, their own supports at any time among them."""
        public = self._public(entity, time, self.budget)
        own = self.history.own_later(entity, torch.full_like(entity, time))
        row = torch.cat([public.row, own.row])
        order = torch.argsort(row, stable=True)
        return Links(
            row[order],
            torch.cat([public.relation, own.relation])[order],
            torch.cat([public.target, own.target])[order],
            torch.cat([public.age, torch.zeros_like(own.time, dtype=torch.float32)])[order],
        )

    def steps(self, entity: int, relation: int, target: int, time: int) -> list[int]:
        """When a link of a query entity was seen, the latest first; of very many, some."""
        slot, other, when = (
            torch.tensor([value], device=self.index.device)
            for value in (entity * self.index.relations + relation, target, time)
        )
        public = self.index.pairs.times(slot, other, when, _SHOWN)[1].tolist()
        own = self.supports.of(entity)
        same = (own.relation == relation) & (own.other == target)
        return sorted({*public, *own.time[same].tolist()}, reverse=True)

    def _public(self, entity: Tensor, time: int, most: int) -> Links:
        found = self.index.pairs.latest_links(entity, None, torch.full_like(entity, time), most)
        return Links(found.row, found.relation, found.target, (time - found.last).float())


class Hop(NamedTuple):
    """What walks of Q queries may follow in one hop, and where that leads."""

    source: Tensor
    """(L,) where each link starts: a state kept by the hop before; at first, the query."""
    kept: Tensor
    """(K,) which states of the hop before are gone on from; at first, none."""
    turn: Tensor
    """(L,) ``came by * 3 + kind``; at first, kind."""
    age: Tensor
    """(L,) float32."""
    member: Tensor
    """(L,) the state that each link leads to."""
    cell: Tensor
    """(S,) ``query * E + entity`` of each state."""


class Walks(NamedTuple):
    """What :func:`explore` found for Q queries."""

    hops: list[Hop]
    queries: int
    """Q."""
    cell: Tensor
    """(C,) ``query * E + entity`` of all who are reached, ascending."""
    member: Tensor
    """(S of all hops,) which of them each state is."""
    entities: int


class Reached(NamedTuple):
    """A sparse (Q, E) table of what walks add to the scores of candidates."""

    query: Tensor
    """(C,)."""
    entity: Tensor
    """(C,)."""
    value: Tensor
    """(C,) 0 or more."""


def initial_walk(hops: int) -> dict[str, Tensor]:
    """What the outer loop learns of walks of so many hops, before it has learned."""
    # Back and forth by the query's own relation is how the rule of paths walks.
    turn = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    return {
        "walk_first": torch.tensor([1.0, 0.0, 0.0]),  # a of the first hop
        "walk_turn": turn.repeat(hops - 1, 1, 1),  # (H - 1, came by, kind): a of the others
        "walk_fade": torch.full((hops,), -2.0),  # λ, by softplus
        "walk_norm": torch.full((hops,), 2.0),  # κ, by sigmoid
        "walk_hop": torch.zeros(hops),  # c
        "walk_floor": torch.tensor([-6.0]),  # ε, by exp
        "walk_weight": torch.tensor([-0.7]),  # v, by softplus
    }


def kinds_of(relation: Tensor, asked: Tensor, half: int) -> Tensor:
    """0 where a directed relation is the one that is asked about, 1 its inverse, 2 others."""
    inverse = relation % half == asked % half
    return torch.where(relation == asked, 0, torch.where(inverse, 1, 2))


@torch.no_grad()
def explore(
    learned: Mapping[str, Tensor],
    index: TemporalIndex,
    entity: Tensor,
    relation: Tensor,
    time: Tensor,
    links: Links,
    *,
    pool: int,
    budget: int,
) -> Walks:
    """Which links the walks of Q queries follow.

    Args:
        learned: see :func:`initial_walk`.
        index: the public facts.
        entity: (Q,) who is asked about.
        relation: (Q,) directed.
        time: (Q,) only links that began before it are followed.
        links: of the query entities, a row for each query: the first hop.
        pool: how many links of each entity are looked at, those that began last.
        budget: b, how many states of a query are kept after a hop.
    """
    half, entities = index.relations // 2, index.entities
    query, target = links.row, links.target
    source, kept, cell = query, query[:0], query[:0]
    turn, mass = kinds_of(links.relation, relation[query], half), links.age.new_ones(len(entity))
    age = links.age
    hops: list[Hop] = []
    last = len(learned["walk_hop"]) - 1
    for number in range(last + 1):
        # Several links may lead to one state: an entity, reached by a link of this kind.
        state, member = distinct((query * entities + target) * _KINDS + turn % _KINDS)
        cell = state // _KINDS
        hops.append(Hop(source, kept, turn, age, member, cell))
        if number == last or not len(state):
            break
        mass = _masses(learned, number, hops[-1], mass)
        kept = best_of_each(budget, cell // entities, mass)
        mass, came, holder = mass[kept], state[kept] % _KINDS, cell[kept] // entities
        found = index.pairs.latest_links(cell[kept] % entities, None, time[holder], pool)
        found = found.kept(found.target != entity[holder[found.row]])
        source, target = found.row, found.target
        query = holder[source]
        turn = came[source] * _KINDS + kinds_of(found.relation, relation[query], half)
        age = (time[query] - found.last).float()
    cell, member = distinct(torch.cat([hop.cell for hop in hops]))
    return Walks(hops, len(entity), cell, member, entities)


def spread(learned: Mapping[str, Tensor], walks: Walks) -> Reached:
    """What walks add to the scores of those they reach; see :func:`initial_walk`."""
    mass, parts = learned["walk_hop"].new_ones(walks.queries), []
    for number, step in enumerate(walks.hops):
        mass = mass[step.kept] if number else mass
        mass = _masses(learned, number, step, mass)
        parts.append(learned["walk_hop"][number].exp() * mass)
    total = mass.new_zeros(len(walks.cell)).index_add(0, walks.member, torch.cat(parts))
    strength = functional.softplus(learned["walk_weight"])
    value = strength * torch.log1p(total * torch.exp(-learned["walk_floor"]))
    return Reached(walks.cell // walks.entities, walks.cell % walks.entities, value)


def _masses(learned: Mapping[str, Tensor], number: int, hop: Hop, mass: Tensor) -> Tensor:
    """(S,) masses of the states after a hop, of the (K,) masses it starts from."""
    table = learned["walk_turn"][number - 1].flatten() if number else learned["walk_first"]
    fade = functional.softplus(learned["walk_fade"][number])
    logit = table[hop.turn] - fade * torch.log1p(hop.age)
    weight = logit.exp()
    total = weight.new_zeros(len(mass)).index_add(0, hop.source, weight)
    norm = torch.sigmoid(learned["walk_norm"][number]) * torch.log(total.clamp(min=1e-12))
    moved = mass[hop.source] * torch.exp(logit - norm[hop.source])
    return moved.new_zeros(len(hop.cell)).index_add(0, hop.member, moved)
