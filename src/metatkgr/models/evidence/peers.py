r"""Walks over three links that know what kind of links they follow, and when these were.

Two families, for a question (e, r, ?, t):

=========  ======================  =============================================================
``peers``  e -q-> y <-q- z -r-> x  z shares (q, y) with e, for any q: what did such peers answer?
``likes``  e -r-> y -q-> w <-q- x  x shares (q, w), for any q, with an earlier answer y of e
=========  ======================  =============================================================

At each place one of the n links there that began last (at most ``branches``) is followed, with
probability 1 / n. A walk that turns back on its own link does not count. The share of x is the sum
over all walks that end there; in the *timed* share a walk counts

.. math:: \frac{1}{(1 + g_{12}) (1 + g_{23}) (1 + t - l_3)}

with g the steps between two links one after another (0 where the times at which they are known to
hold, first to last, overlap) and l_3 the last step of the last link: a team mate of long ago, or a
peer's answer of long ago, counts less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from metatkgr.graph.links import Links
from metatkgr.graph.ragged import blocks_by_size, expand_ranges, pack

__all__ = ["Began", "DistinctSince", "Steps", "peer_walks"]

_LARGEST_EXPANSION = 1 << 22
_NEVER = 1 << 62
"""A step after all others."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Links that walks take: from where they are (a row) to a target."""

    row: Tensor
    """(L,) which walk goes on, non-decreasing."""
    relation: Tensor
    target: Tensor
    first: Tensor
    """(L,) step at which the link began."""
    last: Tensor
    """(L,) step at which it was last seen."""

    def kept(self, which: Tensor | slice) -> Steps:
        """Some of them."""
        return Steps(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def shares(self, rows: int) -> Tensor:
        """(L,) one part of as many as the row has links."""
        return 1.0 / torch.bincount(self.row, minlength=rows)[self.row].double()

    @classmethod
    def latest(
        cls,
        row: tuple[Tensor, int],
        relation: tuple[Tensor, int],
        target: tuple[Tensor, int],
        time: Tensor,
        most: int,
    ) -> Steps:
        """Distinct links out of facts in any order; of each row those that began last.

        Args:
            row: (N,) of facts, and the number of rows.
            relation: (N,), and the number of relations.
            target: (N,), and the number of entities.
            time: (N,).
            most: how many of a row are kept.
        """
        triple, member = torch.unique(pack(row, relation, target), return_inverse=True)
        first = torch.full_like(triple, _NEVER).scatter_reduce_(0, member, time, "amin")
        last = torch.full_like(triple, -1).scatter_reduce_(0, member, time, "amax")
        links = cls(
            triple // (relation[1] * target[1]),
            triple // target[1] % relation[1],
            triple % target[1],
            first,
            last,
        )
        # By row, then by when they began; relation and target decide between equal ones.
        order = torch.argsort(first, stable=True)
        links = links.kept(order[torch.argsort(links.row[order], stable=True)])
        columns = (links.row, links.relation, links.target, links.first, links.last)
        return cls(*_last_of_each(most, *columns))


class DistinctSince:
    """Distinct links (u, q, v), ordered by when they began.

    Args:
        pair: (P,) links as numbers (source · relations + relation) · entities + target, ascending.
        first: (P,) step at which each began.
        sizes: numbers of entities, of directed relations, and of steps.
    """

    def __init__(self, pair: Tensor, first: Tensor, sizes: tuple[int, int, int]) -> None:
        self.pair, self.first = pair, first
        self.entities, self.relations, self.steps = sizes

    @classmethod
    def of(cls, links: Links) -> DistinctSince:
        """Those of all facts of a layer."""
        times, sizes = links.by_relation, (links.entities, links.relations, links.steps)
        return cls(times.pair, times.first, sizes)

    def as_of(self, entities: int) -> Tensor:
        """(P,) the links as numbers of a larger vocabulary, ascending."""
        return self.pair // self.entities * entities + self.pair % self.entities

    @cached_property
    def by_relation(self) -> tuple[Tensor, Tensor]:
        """Sorted (source, relation, first), and the links in that order."""
        return _sorted(self.pair // self.entities * self.steps + self.first)

    @cached_property
    def by_entity(self) -> tuple[Tensor, Tensor]:
        """Sorted (source, first), and the links in that order."""
        source = self.pair // (self.entities * self.relations)
        return _sorted(source * self.steps + self.first)

    def latest(
        self, entity: Tensor, relation: Tensor | None, time: Tensor, most: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Row, source and relation as one number, target and first step of the latest begun."""
        key, order = self.by_entity if relation is None else self.by_relation
        base = entity if relation is None else entity * self.relations + relation
        low = torch.searchsorted(key, base * self.steps)
        # A time after the last fact has all facts before it.
        high = torch.searchsorted(key, base * self.steps + time.clamp(0, self.steps - 1))
        row, place = expand_ranges(torch.maximum(low, high - most), high)
        link = order[place]
        pair = self.pair[link]
        return row, pair // self.entities, pair % self.entities, self.first[link]


class Began:
    """The links of public facts that lie in layers, by when they began.

    Args:
        layers: the facts; the last layer has the largest vocabulary.
        since: the links of each layer by itself, which need not be sorted anew with the layers.
    """

    def __init__(self, layers: Sequence[Links], since: Sequence[DistinctSince]) -> None:
        there = [number for number, layer in enumerate(layers) if len(layer)]
        self._layers, self._since = [layers[n] for n in there], [since[n] for n in there]
        self.entities, self.relations = layers[-1].entities, layers[-1].relations
        self._steps = max(layer.steps for layer in layers)

    @cached_property
    def _parts(self) -> list[DistinctSince]:
        """The layers without what is in an earlier one; one of all, if a link began earlier."""
        found: list[DistinctSince] = []
        for since in self._since:
            pair = since.as_of(self.entities)
            new = torch.ones_like(pair, dtype=torch.bool)
            for part in found:
                theirs = part.as_of(self.entities)
                place = torch.searchsorted(theirs, pair).clamp(max=max(len(theirs) - 1, 0))
                same = theirs[place] == pair if len(theirs) else ~new
                if bool((same & (since.first < part.first[place])).any()):
                    return [self._merged()]
                new &= ~same
            if found:
                sizes = (since.entities, since.relations, since.steps)
                since = DistinctSince(since.pair[new], since.first[new], sizes)
            found.append(since)
        return [part for part in found if len(part.pair)]

    def _merged(self) -> DistinctSince:
        pairs = torch.cat([since.as_of(self.entities) for since in self._since])
        pair, member = torch.unique(pairs, return_inverse=True)
        began = torch.cat([since.first for since in self._since])
        first = torch.full_like(pair, _NEVER).scatter_reduce_(0, member, began, "amin")
        return DistinctSince(pair, first, (self.entities, self.relations, self._steps))

    def steps_from(self, entity: Tensor, relation: Tensor | None, time: Tensor, most: int) -> Steps:
        """The links of entities that began last before a time.

        Args:
            entity: (N,) where walks are.
            relation: (N,) what they follow; None: any.
            time: (N,) only facts before it are seen.
            most: how many links of each.
        """
        nothing = entity[:0]
        parts = [part.latest(entity, relation, time, most) for part in self._parts]
        columns = zip(*(parts or [(nothing,) * 4]), strict=True)
        row, key, target, first = (torch.cat(column) for column in columns)
        if len(parts) > 1:
            # The last sort decides; the others between equal ones, as in one list of all.
            order = torch.argsort(target, stable=True)
            for column in (key, first, row):
                order = order[torch.argsort(column[order], stable=True)]
            ordered = (column[order] for column in (row, key, target, first))
            row, key, target, first = _last_of_each(most, *ordered)
        last = self._last(key, target, time[row])
        return Steps(row, key % self.relations, target, first, last)

    def _last(self, key: Tensor, target: Tensor, time: Tensor) -> Tensor:
        """(L,) last step before a time at which links were seen; -1: never."""
        latest = torch.full_like(target, -1)
        for layer in self._layers:
            times = layer.by_relation
            wanted = key * times.entities + target
            place = torch.searchsorted(times.pair, wanted).clamp(max=len(times.pair) - 1)
            here = (times.pair[place] == wanted) & (target < times.entities)
            end = torch.searchsorted(times.occurrence, place * times.steps + layer.within(time))
            seen = here & (end > times.start[place])
            step = times.occurrence[(end - 1).clamp(min=0)] - place * times.steps
            latest = torch.where(seen, torch.maximum(latest, step), latest)
        return latest


def peer_walks(
    began: Began,
    own: Steps,
    questions: tuple[Tensor, Tensor, Tensor],
    chosen: Tensor,
    branches: int,
    *,
    likes: bool,
) -> tuple[Tensor, Tensor]:
    """Shares and timed shares of the candidates, (Q, C) each.

    Args:
        began: the public links.
        own: the links of each question's e that are followed: for ``likes`` those by r.
        questions: entity, relation and time, (Q,) each.
        chosen: (Q, C) candidates.
        branches: links followed at each place, at most.
        likes: which family of walks.
    """
    entity, asked, time = questions
    half = began.relations // 2

    def back(relation: Tensor) -> Tensor:
        return (relation + half) % began.relations

    weight = own.shares(len(entity))
    follow = None if likes else back(own.relation)
    second = began.steps_from(own.target, follow, time[own.row], branches)
    second = second.kept(second.target != entity[own.row[second.row]])
    question = own.row[second.row]
    weight = weight[second.row] * second.shares(len(own.row))
    apart = _apart(own.kept(second.row), second)
    follow = back(second.relation) if likes else asked[question]
    table = torch.zeros(2, len(entity) * began.entities, dtype=torch.float64, device=time.device)
    room = torch.full_like(question, branches)
    for rows in blocks_by_size(room, _LARGEST_EXPANSION):
        now = time[question[rows]]
        third = began.steps_from(second.target[rows], follow[rows], now, branches)
        before = second.row[rows][third.row]
        turned = third.target == own.target[before]
        if not likes:
            # A peer's answer may be y, unless by the very link that made it a peer.
            turned = turned & (third.relation == own.relation[before])
        third = third.kept(~turned)
        share = weight[rows][third.row] * third.shares(len(now))
        gaps = (1 + apart[rows][third.row]) * (1 + _apart(second.kept(rows).kept(third.row), third))
        timed = share / gaps / (1 + (now[third.row] - third.last).clamp(min=0))
        cell = question[rows][third.row] * began.entities + third.target
        table.scatter_add_(1, cell.expand(2, -1), torch.stack([share, timed]))
    found = table.view(2, len(entity), -1).gather(2, chosen.expand(2, -1, -1)).float()
    return found[0], found[1]


def _apart(one: Steps, other: Steps) -> Tensor:
    """(L,) steps between the times of two links; 0 where they overlap."""
    return torch.maximum(one.first - other.last, other.first - one.last).clamp(min=0)


def _last_of_each(most: int, row: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Columns without all but the last few of each row; ``row`` is ascending."""
    place = torch.arange(len(row), device=row.device)
    kept = torch.searchsorted(row, row, right=True) - place <= most
    return tuple(column[kept] for column in (row, *others))


def _sorted(key: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.sort(key, stable=True)
    return found.values, found.indices
