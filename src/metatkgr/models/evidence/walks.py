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

from dataclasses import replace

import torch
from torch import Tensor

from metatkgr.data.orders import inverse
from metatkgr.graph.index import EntityFacts, TemporalIndex
from metatkgr.graph.pairs import LatestLinks, last_of_each
from metatkgr.graph.ragged import blocks_by_size, distinct, found, in_order_of, pack, some_rows

__all__ = ["peer_walks"]

_LARGEST_EXPANSION = 1 << 22
_NEVER = 1 << 62
"""A step after all others."""


def peer_walks(
    index: TemporalIndex,
    past: EntityFacts,
    query: tuple[Tensor, Tensor, Tensor],
    wanted: Tensor,
    branches: int,
) -> Tensor:
    """(4, N) of the candidates: shares and timed shares of peers, then those of partners.

    Both families are walked together: walks to partners have rows behind those to peers.

    Args:
        index: the public links.
        past: the facts of the query entities that are followed, in any order.
        query: entity, relation and time, (Q,) each.
        wanted: (N,) ``query * E + candidate``, ascending.
        branches: links followed from each entity, at most.
    """
    relation, queries, count = query[1], len(query[1]), len(wanted)
    shares = torch.zeros(4 * count, dtype=torch.float64, device=relation.device)
    links = _distinct_links(past, queries, index)
    if count and links.row.numel():
        same = links.kept(links.relation == relation.index_select(0, links.row))
        same = _behind(_last(branches, same), queries)
        links = _last(branches, links)
        peers = len(links.row)
        own = LatestLinks.cat([links, same])
        weight = own.shares(2 * queries)
        source, asked, now = (torch.cat([column, column]) for column in query)
        then = now.index_select(0, own.row)
        follow = inverse(links.relation, index.relations)
        second = index.pairs.latest_links(links.target, follow, then[:peers], branches)
        if same.row.numel():
            others = index.pairs.latest_links(same.target, None, then[peers:], branches)
            second = LatestLinks.cat([second, _behind(others, peers)])
        second = second.kept(
            second.target != source.index_select(0, own.row).index_select(0, second.row)
        )
        own = own.kept(second.row)
        weight = weight.index_select(0, second.row) * second.shares(len(weight))
        apart = _apart(own, second)
        to_partners = own.row >= queries
        back = inverse(second.relation, index.relations)
        follow = torch.where(to_partners, back, asked.index_select(0, own.row))
        room = torch.full_like(follow, branches)
        for rows in blocks_by_size(room, _LARGEST_EXPANSION):
            first, middle = own.kept(rows), second.kept(rows)
            then = now.index_select(0, first.row)
            third = index.pairs.latest_links(middle.target, follow[rows], then, branches)
            # A walk that turns back. A peer's answer may be y, unless by the very link that made it
            # a peer.
            before = first.kept(third.row)
            turned = third.relation == before.relation
            turned |= to_partners[rows].index_select(0, third.row)
            third = third.kept(~turned.logical_and_(third.target == before.target))
            share, gap, then = some_rows(third.row, weight[rows], apart[rows], then)
            middle = middle.kept(third.row)
            share = share * third.shares(len(follow[rows]))
            gaps = (1 + gap) * (1 + _apart(middle, third))
            timed = share / gaps / (1 + (then - third.last).clamp(min=0))
            row = first.row.index_select(0, third.row)
            place, hit = found(wanted, row % queries * index.entities + third.target)
            place += row // queries * (2 * count)
            place, share, timed = some_rows(hit, place, share, timed)
            shares.index_add_(0, place, share)
            shares.index_add_(0, place + count, timed)
    return shares.float().view(4, count)


def _distinct_links(facts: EntityFacts, rows: int, index: TemporalIndex) -> LatestLinks:
    """Distinct links out of facts in any order, by row and by when they began."""
    relations, entities = index.relations, index.entities
    columns = (facts.row, rows), (facts.relation, relations), (facts.target, entities)
    triple, member = distinct(pack(*columns))
    first = torch.full_like(triple, _NEVER).scatter_reduce_(0, member, facts.time, "amin")
    last = torch.full_like(triple, -1).scatter_reduce_(0, member, facts.time, "amax")
    slot = triple // entities
    row = slot // relations
    links = LatestLinks(row, slot - row * relations, triple - slot * entities, first, last)
    # Relation and target decide between those that began together.
    return links.kept(in_order_of(row, first))


def _last(most: int, links: LatestLinks) -> LatestLinks:
    """Of each row the links that began last."""
    columns = (links.row, links.relation, links.target, links.first, links.last)
    return LatestLinks(*last_of_each(most, *columns))


def _behind(links: LatestLinks, rows: int) -> LatestLinks:
    """The same with rows that follow so many others."""
    return replace(links, row=links.row + rows)


def _apart(one: LatestLinks, other: LatestLinks) -> Tensor:
    """(L,) steps between the times of two links; 0 where they overlap."""
    return torch.maximum(one.first - other.last, other.first - one.last).clamp_(min=0)
