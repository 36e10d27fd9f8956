"""A learned sampler that walks: which links it follows is attention, trained by the outer loop.

A walk for a query (e, r, ?, t) starts at e with the mass 1. In each hop every entity y that holds
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

from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.ragged import best_of_each, distinct
from metatkgr.models.metatkgr.links import Links

__all__ = ["Hop", "Reached", "Walks", "explore", "initial_walk", "kinds_of", "spread"]

_KINDS = 3
"""The query's relation, its inverse, others."""


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
