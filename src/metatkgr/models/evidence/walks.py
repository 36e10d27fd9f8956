r"""Walks over three links that know what kind of links they follow, and when these were.

Two families, for a query (e, r, ?, t):

============  ======================  ==========================================================
peers         e -q-> y <-q- z -r-> x  z shares (q, y) with e, for any q: what did peers answer?
partners      e -r-> y -q-> w <-q- x  x shares (q, w), for any q, with an earlier answer y of e
============  ======================  ==========================================================

From each entity one of its n links that began last (at most ``branches``) is followed, with
probability 1 / n. A walk that turns back on its own link does not count. The share of x is the sum
over all walks that end there; in the *timed* share a walk counts

.. math:: \frac{1}{(1 + g_{12}) (1 + g_{23}) (1 + t - l_3)}

with g the steps between two links one after another (0 where the times at which they are known to
hold, first to last, overlap) and l_3 the last step of the last link: a team mate of long ago, or a
peer's answer of long ago, counts less.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metatkgr.graph.index import EntityFacts, TemporalIndex
from metatkgr.graph.pairs import LatestLinks, last_of_each
from metatkgr.graph.ragged import blocks_by_size, pack

__all__ = ["latest_of_facts", "peer_walks"]

_LARGEST_EXPANSION = 1 << 22
_NEVER = 1 << 62
"""A step after all others."""


def latest_of_facts(facts: EntityFacts, rows: int, index: TemporalIndex, most: int) -> LatestLinks:
    """Distinct links out of facts in any order; of each row those that began last.

    Args:
        facts: of the query entities.
        rows: the number of queries.
        index: whose relations and entities they name.
        most: how many of a row are kept.
    """
    relations, entities = index.relations, index.entities
    columns = (facts.row, rows), (facts.relation, relations), (facts.target, entities)
    triple, member = torch.unique(pack(*columns), return_inverse=True)
    first = torch.full_like(triple, _NEVER).scatter_reduce_(0, member, facts.time, "amin")
    last = torch.full_like(triple, -1).scatter_reduce_(0, member, facts.time, "amax")
    links = LatestLinks(
        triple // (relations * entities),
        triple // entities % relations,
        triple % entities,
        first,
        last,
    )
    # By row, then by when they began; relation and target decide between equal ones.
    order = torch.argsort(first, stable=True)
    links = links.kept(order[torch.argsort(links.row[order], stable=True)])
    ordered = (links.row, links.relation, links.target, links.first, links.last)
    return LatestLinks(*last_of_each(most, *ordered))


def peer_walks(
    index: TemporalIndex,
    own: LatestLinks,
    query: tuple[Tensor, Tensor, Tensor],
    wanted: Tensor,
    branches: int,
    *,
    partners: bool,
) -> tuple[Tensor, Tensor]:
    """Shares and timed shares of the candidates, (N,) each.

    Args:
        index: the public links.
        own: the links of each query entity e that are followed: for ``partners`` those by r.
        query: entity, relation and time, (Q,) each.
        wanted: (N,) ``query * E + candidate``, ascending.
        branches: links followed from each entity, at most.
        partners: which family of walks.
    """
    entity, relation, time = query
    shares = torch.zeros(2, len(wanted), dtype=torch.float64, device=time.device)
    if not wanted.numel() or not own.row.numel():
        peers, peers_timed = shares.float()
        return peers, peers_timed
    half = index.relations // 2

    def back(along: Tensor) -> Tensor:
        return (along + half) % index.relations

    weight = own.shares(len(entity))
    follow = None if partners else back(own.relation)
    second = index.pairs.latest_links(own.target, follow, time[own.row], branches)
    second = second.kept(second.target != entity[own.row[second.row]])
    row = own.row[second.row]
    weight = weight[second.row] * second.shares(len(own.row))
    apart = _apart(own.kept(second.row), second)
    follow = back(second.relation) if partners else relation[row]
    room = torch.full_like(row, branches)
    for rows in blocks_by_size(room, _LARGEST_EXPANSION):
        now = time[row[rows]]
        third = index.pairs.latest_links(second.target[rows], follow[rows], now, branches)
        before = second.row[rows][third.row]
        turned = third.target == own.target[before]
        if not partners:
            # A peer's answer may be y, unless by the very link that made it a peer.
            turned = turned & (third.relation == own.relation[before])
        third = third.kept(~turned)
        share = weight[rows][third.row] * third.shares(len(now))
        gaps = (1 + apart[rows][third.row]) * (1 + _apart(second.kept(rows).kept(third.row), third))
        timed = share / gaps / (1 + (now[third.row] - third.last).clamp(min=0))
        cell = row[rows][third.row] * index.entities + third.target
        place = torch.searchsorted(wanted, cell).clamp(max=len(wanted) - 1)
        hit = torch.nonzero(wanted[place] == cell).squeeze(1)
        shares.index_add_(1, place[hit], torch.stack([share, timed])[:, hit].double())
    peers, peers_timed = shares.float()
    return peers, peers_timed


def _apart(one: LatestLinks, other: LatestLinks) -> Tensor:
    """(L,) steps between the times of two links; 0 where they overlap."""
    return torch.maximum(one.first - other.last, other.first - one.last).clamp(min=0)
