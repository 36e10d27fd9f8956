"""One layer of the temporal index: the links of some facts, in each order in which they are read.

A *link* is a fact seen from one of its ends: source, directed relation, target, time. Four orders,
each made when it is first asked for, in one stable sort (facts come in time order):

==============  ==============================  =============================================
``by_time``     (source, time)                  neighbours of an entity: samplers, its history
``pairs``       (source, relation, target)      distinct links with all their times: repeats, walks
``slots``       (relation, time)                who filled a relation slot, how often and when
``neighbours``  (target, source)                who is linked to whom at all, and since when
==============  ==============================  =============================================

Ids and times are kept as int32 and handed out as int64. Nothing here knows of questions; the time
bound of ``data.visibility`` is an argument of every look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.ragged import bisect_ranges, expand_ranges, pack

__all__ = ["LinkLayer", "Neighbours", "PairTimes", "Slots", "TimeOrder"]


@dataclass(frozen=True, eq=False)
class TimeOrder:
    """Links by (source, time, row), in compressed sparse rows.

    Of two links of one entity at one time, the one whose row came later in the input is the more
    recent. A fact of an entity with itself is one link, in the fact's own direction: its inverse
    would be the same fact a second time from the same end.
    """

    key: Tensor
    """(D,) int64 ``source * steps + time``, ascending."""
    relation: Tensor
    """(D,) int32 directed relation."""
    target: Tensor
    """(D,) int32 entity the link leads to."""
    start: Tensor
    """(E + 1,) int64; the links of entity e are ``start[e]`` to ``start[e + 1]``, not included."""
    steps: int
    """One more than the last step that a link may have; ``steps - 1`` itself stays free, so that
    "after the last link" is a time of its own."""

    @classmethod
    def of(
        cls,
        links: tuple[IntArray, IntArray, IntArray, IntArray],
        entities: int,
        relations: int,
        steps: int,
        device: torch.device,
    ) -> Self:
        """Of source, directed relation, target and time, (D,) each; ``relations`` is 2R."""
        source, relation, target, time = (
            torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in links
        )
        key, order = torch.sort(pack((source, entities), (time, steps)), stable=True)
        relation, target = relation[order].int(), target[order].int()
        twice = (target == source[order]) & (relation >= relations // 2)
        if bool(twice.any()):
            key, relation, target = key[~twice], relation[~twice], target[~twice]
        first = torch.arange(entities + 1, device=device) * steps
        return cls(key, relation, target, torch.searchsorted(key, first), steps)

    def __len__(self) -> int:
        return len(self.key)

    @property
    def entities(self) -> int:
        """E."""
        return len(self.start) - 1

    def starts(self, entity: Tensor) -> Tensor:
        """(Q,) position of the first link of each entity; the end, for entities that came later."""
        return self.start[entity.clamp(max=self.entities)]

    def since(self, entity: Tensor, time: Tensor) -> Tensor:
        """(Q,) position of the first link of each entity at or after a time."""
        wanted = entity * self.steps + time.clamp(0, self.steps - 1)
        return torch.searchsorted(self.key, wanted)

    def time(self, source: Tensor, position: Tensor) -> Tensor:
        """Times of links, given their sources and positions (of one shape)."""
        return self.key[position] - source * self.steps

    def read(self, source: Tensor, position: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Target, relation and time, (Q, b) each, of links by position; 0 where masked out.

        Args:
            source: (Q,) whom the links belong to.
            position: (Q, b); anything where ``mask`` is False.
            mask: (Q, b) which of them to read.
        """
        if not len(self):
            return position * 0, position * 0, position * 0
        # Filling is several times as fast as multiplying by a mask, which is widened to int64.
        flat, empty = position.clamp(0, len(self) - 1).view(-1), ~mask
        target, relation, time = (
            column.index_select(0, flat).long().view(position.shape)
            for column in (self.target, self.relation, self.key)
        )
        time -= (source * self.steps)[:, None]
        return (
            target.masked_fill_(empty, 0),
            relation.masked_fill_(empty, 0),
            time.masked_fill_(empty, 0),
        )


class PairTimes:
    """Distinct links (u, r, v), each with the ascending steps at which it occurred.

    Args:
        links: source, directed relation, target and time, (D,) each, in time order.
        entities: E.
        relations: 2R.
        device: where they live.
    """

    def __init__(
        self,
        links: tuple[IntArray, IntArray, IntArray, IntArray],
        entities: int,
        relations: int,
        device: torch.device,
    ) -> None:
        self.entities, self.relations = entities, relations
        source, relation, target, time = (
            torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in links
        )
        key = pack((source, entities), (relation, relations), (target, entities))
        del source, relation, target
        key, order = torch.sort(key, stable=True)
        self.time = time[order].int()
        """(D,) int32 steps, ascending within a link."""
        self.link, count = torch.unique_consecutive(key, return_counts=True)
        """(P,) int64 ``(source * 2R + relation) * E + target``, ascending."""
        self.longest = int(count.max()) if len(count) else 0
        start = torch.zeros(len(count) + 1, dtype=torch.int64, device=device)
        torch.cumsum(count, 0, out=start[1:])
        self._start = start.int() if len(time) < 2**31 else start

    def some(self, mask: Tensor) -> PairTimes:
        """Only the links of a (P,) mask, each with its first step alone."""
        fewer = PairTimes.__new__(PairTimes)
        fewer.entities, fewer.relations = self.entities, self.relations
        fewer.link, fewer.time = self.link[mask], self.time[self._start[:-1].long()][mask]
        fewer.longest = 1
        fewer._start = torch.arange(len(fewer.link) + 1, device=self.link.device)
        return fewer

    def __len__(self) -> int:
        return len(self.link)

    def start(self, position: Tensor) -> Tensor:
        """Where the steps of links begin in ``time``; of position p + 1, where those of p end."""
        return self._start[position].long()

    def first(self, position: Tensor) -> Tensor:
        """The steps at which links occurred first."""
        return self.time[self.start(position)].long()

    def of_slot(self, entity: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) first and last position, not included, of the links of entities by a relation."""
        key = entity * self.relations + relation
        # Who came later than this layer has no link in it; neither key is found.
        low = torch.searchsorted(self.link, key * self.entities)
        return low, torch.searchsorted(self.link, (key + 1) * self.entities)

    def of_entity(self, entity: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) the same for links by any relation."""
        room = self.relations * self.entities
        low = torch.searchsorted(self.link, entity * room)
        return low, torch.searchsorted(self.link, (entity + 1) * room)

    def target(self, position: Tensor) -> Tensor:
        """The entities that links lead to."""
        target: Tensor = self.link[position] % self.entities
        return target

    def find(self, slot: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of links given as ``source * 2R + relation`` and target, and which are there.

        A target that came later than this layer must not be taken for another one's: its number
        has no room in the key.
        """
        if not len(self):
            return torch.zeros_like(slot), torch.zeros_like(slot, dtype=torch.bool)
        wanted = slot * self.entities + target
        position = torch.searchsorted(self.link, wanted).clamp(max=len(self) - 1)
        there: Tensor = (self.link[position] == wanted) & (target < self.entities)
        return position, there

    def last(self, position: Tensor, time: Tensor) -> Tensor:
        """(L,) the last step before a time at which each link occurred; -1: none."""
        begin, end = self.start(position), self.start(position + 1)
        place = bisect_ranges(self.time, begin, end, time, self.longest)
        step = self.time[(place - 1).clamp(min=0)].long() if len(self) else place
        return torch.where(place > begin, step, -1)

    @cached_property
    def since_by_slot(self) -> tuple[Tensor, Tensor, int]:
        """Links of each (source, relation) by their first step; see :meth:`latest`."""
        return self._since(self.link // self.entities)

    @cached_property
    def since_by_entity(self) -> tuple[Tensor, Tensor, int]:
        """Links of each source by their first step."""
        return self._since(self.link // (self.entities * self.relations))

    def _since(self, group: Tensor) -> tuple[Tensor, Tensor, int]:
        """Positions of the links by (group, first step), their first steps, the largest group."""
        first = self.time[self._start[:-1].long()]
        steps = int(first.max()) + 1 if len(first) else 1
        order = torch.sort(group * steps + first, stable=True).indices
        _, count = torch.unique_consecutive(group, return_counts=True)
        largest = int(count.max()) if len(count) else 0
        return order.int() if len(order) < 2**31 else order, first[order], largest

    def latest(
        self, entity: Tensor, relation: Tensor | None, time: Tensor, most: int
    ) -> tuple[Tensor, Tensor]:
        """Of each entity, the links (by r, or by any relation) that began last before a time.

        Returns:
            row: (L,) of the entities, non-decreasing.
            position: (L,) of the links; of a row in the order of their first steps, and of equal
                ones in the order of relation and target.
        """
        order, first, largest = self.since_by_entity if relation is None else self.since_by_slot
        low, high = self.of_entity(entity) if relation is None else self.of_slot(entity, relation)
        high = bisect_ranges(first, low, high, time, largest)
        row, place = expand_ranges(torch.maximum(low, high - most), high)
        return row, order[place].long()


class Slots:
    """Facts by (relation, time): who stood at either end of a relation, and when.

    Args:
        facts: in time order.
        device: where the columns live.
    """

    def __init__(self, facts: Facts, device: torch.device) -> None:
        self.relations = len(facts.relations)
        columns = (facts.relation, facts.subject, facts.object, facts.time)
        relation, subject, object_, time = (
            torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in columns
        )
        relation, order = torch.sort(relation, stable=True)
        self._ends = torch.stack([object_[order], subject[order]])  # (2, N)
        self.time = time[order]
        """(N,) int32 steps, ascending within a relation."""
        kinds = torch.arange(self.relations + 1, dtype=relation.dtype, device=device)
        self._start = torch.searchsorted(relation, kinds)
        self._longest = int(self._start.diff().max()) if self.relations else 0

    def before(self, relation: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) where the facts of directed relations before a time lie."""
        kind = relation % self.relations
        low, high = self._start[kind], self._start[kind + 1]
        return low, bisect_ranges(self.time, low, high, time, self._longest)

    def filler(self, relation: Tensor, position: Tensor) -> Tensor:
        """(L,) who stood at the far end of a directed relation, in facts by their positions."""
        return self._ends[(relation >= self.relations).long(), position].long()

    def fillers(self, relation: int, low: int, high: int) -> Tensor:
        """The same for a range of facts of one directed relation."""
        return self._ends[int(relation >= self.relations), low:high].long()


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Who was linked to whom, whatever the relation, and since when; each pair once.

    By target, because a step of a walk goes over the links *into* each entity.
    """

    target: Tensor
    """(P,) int32, ascending."""
    source: Tensor
    """(P,) int32, ascending within a target."""
    first: Tensor
    """(P,) int32 step of the first link."""
    entities: int
    """E."""

    @classmethod
    def of(cls, pairs: PairTimes) -> Self:
        """Of distinct links; as each has its inverse, a source is a target too."""
        entities = pairs.entities
        ends = pairs.link // (entities * pairs.relations) * entities + pairs.link % entities
        pair, member = torch.unique(ends, return_inverse=True)
        first = pairs.time[pairs._start[:-1].long()]
        first = torch.full_like(pair, 2**31 - 1, dtype=torch.int32).scatter_reduce_(
            0, member, first, "amin"
        )
        return cls((pair // entities).int(), (pair % entities).int(), first, entities)

    def __len__(self) -> int:
        return len(self.first)

    def merged(self, other: Neighbours) -> Neighbours:
        """These and others, whose vocabulary begins with that of these."""
        entities = other.entities
        mine, theirs = (pack((n.target, entities), (n.source, entities)) for n in (self, other))
        place = torch.searchsorted(mine, theirs)
        known = torch.zeros_like(theirs, dtype=torch.bool)
        if len(mine):
            known = mine[place.clamp(max=len(mine) - 1)] == theirs
        first = self.first.clone()
        first[place[known]] = torch.minimum(first[place[known]], other.first[known])
        new = ~known
        # Behind what is smaller, of these and of the new ones.
        position = place[new] + torch.arange(len(place[new]), device=place.device)
        stays = torch.ones(len(mine) + len(position), dtype=torch.bool, device=place.device)
        stays[position] = False
        rest = torch.nonzero(stays).squeeze(1)

        def both(old: Tensor, more: Tensor) -> Tensor:
            column = torch.empty(len(stays), dtype=torch.int32, device=place.device)
            column[rest], column[position] = old, more[new]
            return column

        return Neighbours(
            both(self.target, other.target),
            both(self.source, other.source),
            both(first, other.first),
            entities,
        )


class LinkLayer:
    """The links of some facts.

    Args:
        links: the facts; of supports, from their owners' side only and by time alone.
        entities: E.
        relations: 2R.
        device: where the orders live.
    """

    def __init__(
        self,
        links: VisibleFacts | Supports,
        *,
        entities: int,
        relations: int,
        device: torch.device,
    ) -> None:
        self._links = links
        self.entities, self.relations, self.device = entities, relations, device
        time = links.time_range()
        self.first_step, self.last_step = time if time else (0, 0)
        self.steps = self.last_step + 2
        self._size = len(links)

    def __len__(self) -> int:
        """Number of links, D."""
        return self._size

    @cached_property
    def by_time(self) -> TimeOrder:
        """Links by (source, time)."""
        columns = self._links.directed()
        return TimeOrder.of(columns, self.entities, self.relations, self.steps, self.device)

    @cached_property
    def pairs(self) -> PairTimes:
        """Distinct links by (source, relation, target)."""
        return PairTimes(self._links.directed(), self.entities, self.relations, self.device)

    @cached_property
    def slots(self) -> Slots:
        """Facts by (relation, time)."""
        assert isinstance(self._links, VisibleFacts)
        return Slots(self._links.facts(), self.device)

    @cached_property
    def neighbours(self) -> Neighbours:
        """Distinct neighbours by (target, source)."""
        return Neighbours.of(self.pairs)
