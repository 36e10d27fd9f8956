"""An index of a selection of a folder's facts, read from the folder's own index where it is asked.

A training may not see all facts. Who learns from a few queries looks at what is near them and at
nothing else, so nothing is made of all links of the selection: the links of an entity, of a slot
(an entity and a relation) or its neighbours are read from the folder when they are first asked for,
without what may not be seen, and kept. What is kept is in the order of the folder, which is the
order of an index of the selection alone: every look-up gives the same, to the last bit.

There are the look-ups of who reads near queries (``models.evidence.reader``, ``graph.history``,
``graph.pagerank``) and no others: what goes over all links needs them written down
(``data.index_writer``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.data.manifest import StoredLinks
from metatkgr.data.orders import DECAYS, inverse, running_sums
from metatkgr.data.visibility import PublicRule, VisibleFacts, directed
from metatkgr.graph.co_occurrence import CoOccurrence
from metatkgr.graph.index import EntityFacts, TemporalIndex
from metatkgr.graph.layer import TimeOrder
from metatkgr.graph.neighbours import NeighbourOrder, Neighbours, Span
from metatkgr.graph.pairs import LatestLinks, Pairs, PairTimes
from metatkgr.graph.ragged import (
    bisect_ranges,
    blocks_by_size,
    expand_ranges,
    found,
    some_rows,
)
from metatkgr.graph.slots import SlotOrder, Slots
from metatkgr.graph.usage import SlotUsage

__all__ = ["NearbyIndex"]

_AT_ONCE = 1 << 17
"""Links that are read in one go; bounds memory."""
_DENSE = 1 << 24
"""Groups of which a table says where they are kept; of more, they are searched."""
_NEVER = 1 << 62
"""A step after all others."""

Ranges = list[tuple[Tensor, Tensor]]
Made = tuple[Tensor, tuple[Tensor, ...]]
"""Of groups: (L,) their rows, ascending, and columns."""


class Seen:
    """Which links of a graph are of public facts.

    Args:
        rule: by which facts are public.
        facts: the graph.
        relations: 2R.
    """

    def __init__(self, rule: PublicRule, facts: Facts, relations: int) -> None:
        self._entities, self._relations, self._until = len(facts.entities), relations, rule.until
        self._all = rule.until >= facts.steps - 1
        self._old = None if rule.old is None else torch.from_numpy(rule.old)
        source, relation, target, time = (
            torch.from_numpy(column) for column in directed(facts.select(rule.besides))
        )
        # Nobody has a fact besides that is later than this: most others are told from it alone.
        self._last = torch.full((self._entities,), -1).scatter_reduce_(0, source, time, "amax")
        link = (source * relations + relation) * self._entities + target
        # Stable: the facts of a link stay in their order.
        self._link, order = torch.sort(link, stable=True)
        self._time = time[order]
        self._pair = torch.unique(source * self._entities + target)

    def facts(self, source: Tensor, relation: Tensor, target: Tensor, time: Tensor) -> Tensor:
        """(L,) whether links are of public facts."""
        seen = self._among_old(source, target, time)
        rest = self._perhaps(seen, source, target, time)
        link = self._key(*some_rows(rest, source, relation, target))
        low = torch.searchsorted(self._link, link)
        high = torch.searchsorted(self._link, link, right=True)
        time = time[rest]
        place = bisect_ranges(self._time, low, high, time)
        there = place < high
        there &= self._time[place.clamp(max=max(len(self._time) - 1, 0))] == time
        seen[rest[there]] = True
        return seen

    def through(self, source: Tensor, relation: Tensor, target: Tensor, first: Tensor) -> Tensor:
        """(L,) the last step of each link's public facts, or a later one; -1: there are none.

        Args:
            source, relation, target: (L,).
            first: (L,) the step of the link's first fact. The public ones are the first ones.
        """
        seen = self._among_old(source, target, first)
        through = torch.where(seen, self._until, -1)
        unknown = seen & self._all
        rest = self._perhaps(unknown, source, target, first)
        link = self._key(*some_rows(rest, source, relation, target))
        place = torch.searchsorted(self._link, link, right=True) - 1
        there = place >= 0
        there &= self._link[place.clamp(min=0)] == link
        rest, place = rest[there], place[there]
        through[rest] = torch.maximum(through[rest], self._time[place])
        return through

    def pairs(self, source: Tensor, target: Tensor, first: Tensor) -> Tensor:
        """(L,) whether there are public facts of two entities, given the step of the first."""
        seen = self._among_old(source, target, first)
        rest = self._perhaps(seen, source, target, first)
        there = found(self._pair, source[rest] * self._entities + target[rest])[1]
        seen[rest[there]] = True
        return seen

    def distinct(self, pairs: PairTimes) -> int:
        """How many distinct links have public facts."""
        count = 0
        for low in range(0, len(pairs), _AT_ONCE):
            position = torch.arange(low, min(low + _AT_ONCE, len(pairs)))
            slot, target = pairs.ends(position)
            first = position if self._all else pairs.first(position)
            first = torch.zeros_like(first) if self._all else first
            seen = self._among_old(slot // self._relations, target, first)
            count += int(torch.count_nonzero(seen))
        link = torch.unique_consecutive(self._link)
        position = torch.searchsorted(pairs.link, link)
        slot, target = pairs.ends(position)
        first = pairs.first(position)
        return count + int((~self._among_old(slot // self._relations, target, first)).sum())

    def _key(self, source: Tensor, relation: Tensor, target: Tensor) -> Tensor:
        return (source * self._relations + relation) * self._entities + target

    def _among_old(self, source: Tensor, target: Tensor, time: Tensor) -> Tensor:
        if self._old is None:
            return time <= self._until
        seen = self._old.index_select(0, source) & self._old.index_select(0, target)
        return seen if self._all else seen & (time <= self._until)

    def _perhaps(self, seen: Tensor, source: Tensor, target: Tensor, time: Tensor) -> Tensor:
        """Positions of links that may be of public facts besides: not of much later ones."""
        rest = torch.nonzero(~seen).squeeze(1)
        source, target, time = some_rows(rest, source, target, time)
        last = torch.minimum(self._last[source], self._last[target])
        return rest[time <= last]


class Pool(ABC):
    """What was read of groups, each once, when it was first asked for.

    Args:
        room: groups are numbers below this.
        most: links of all groups; the columns have room for them, and the system gives memory for
            what is written.
        columns: of which types.
    """

    def __init__(self, room: int, most: int, *columns: torch.dtype) -> None:
        self._table = torch.zeros(room, dtype=torch.int32) if room <= _DENSE else None
        self._group = torch.zeros(0, dtype=torch.int64)
        self._number = torch.zeros(0, dtype=torch.int64)
        self._groups = self._length = 0
        self._start = torch.zeros(1, dtype=torch.int64)
        self._columns = [torch.empty(most, dtype=dtype) for dtype in columns]

    @abstractmethod
    def sizes(self, group: Tensor) -> Tensor:
        """(G,) how many links are looked through for groups."""

    @abstractmethod
    def read(self, group: Tensor) -> Made:
        """What is kept of groups of which there is something to look through."""

    def __getitem__(self, number: int) -> Tensor:
        """One of the columns."""
        return self._columns[number][: self._length]

    def columns(self) -> list[Tensor]:
        """All of them."""
        return [column[: self._length] for column in self._columns]

    def __len__(self) -> int:
        return self._length

    def ranges(self, group: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) where what belongs to groups begins and ends."""
        number = self._numbers(group)
        missing = torch.nonzero(number < 0).squeeze(1)
        if missing.numel():
            self._add(torch.unique(group[missing]))
            number = self._numbers(group)
        return self._start.index_select(0, number), self._start.index_select(0, number + 1)

    def _numbers(self, group: Tensor) -> Tensor:
        if self._table is not None:
            return self._table.index_select(0, group).long().sub_(1)
        place, there = found(self._group, group)
        return torch.where(there, self._number[place], -1) if len(self._group) else place - 1

    def _add(self, groups: Tensor) -> None:
        sizes, count = self.sizes(groups), torch.zeros_like(groups)
        filled = torch.nonzero(sizes).squeeze(1)
        for rows in blocks_by_size(sizes[filled], _AT_ONCE):
            some = filled[rows]
            row, columns = self.read(groups[some])
            count[some] = torch.bincount(row, minlength=len(some))
            self._append(columns)
        start = self._start[-1] + count.cumsum(0)
        number = torch.arange(self._groups, self._groups + len(groups))
        self._start, self._groups = torch.cat([self._start, start]), self._groups + len(groups)
        if self._table is not None:
            self._table[groups] = (number + 1).int()
            return
        self._group, order = torch.sort(torch.cat([self._group, groups]))
        self._number = torch.cat([self._number, number])[order]

    def _append(self, columns: tuple[Tensor, ...]) -> None:
        begin, self._length = self._length, self._length + len(columns[0])
        for kept, column in zip(self._columns, columns, strict=True):
            kept[begin : self._length] = column


class FactPool(Pool):
    """Relations, targets and times of the public facts of entities, oldest first."""

    def __init__(self, order: TimeOrder, seen: Seen) -> None:
        super().__init__(order.entities, len(order), torch.int32, torch.int32, torch.int32)
        self._order, self._seen = order, seen

    def sizes(self, group: Tensor) -> Tensor:
        """(G,) how many facts entities have."""
        return self._order.starts(group + 1) - self._order.starts(group)

    def read(self, group: Tensor) -> Made:
        """Those of entities."""
        order = self._order
        row, position = expand_ranges(order.starts(group), order.starts(group + 1))
        source = group.index_select(0, row)
        time = order.time(source, position)
        relation = order.relations_of(position)
        target = order.target.index_select(0, position)
        seen = self._seen.facts(source, relation, target, time)
        row, relation, target, time = some_rows(seen, row, relation, target, time)
        return row, (relation, target, time)


class LinkPool(Pool):
    """Distinct links of slots or of entities, by the time they began: relations, targets, first
    steps, last steps that are public, and where they lie."""

    def __init__(self, links: PairTimes, seen: Seen, *, by_slot: bool) -> None:
        room = links.entities * (links.relations if by_slot else 1)
        super().__init__(room, len(links), *[torch.int32] * 4, torch.int64)
        self._links, self._seen, self._by_slot = links, seen, by_slot

    def _lie(self, group: Tensor) -> tuple[Tensor, Tensor]:
        links = self._links
        if not self._by_slot:
            return links.of_entity(group)
        return links.of_slot(group // links.relations, group % links.relations)

    def sizes(self, group: Tensor) -> Tensor:
        """(G,) how many links there are."""
        low, high = self._lie(group)
        return high - low

    def read(self, group: Tensor) -> Made:
        """Those of slots, or of entities."""
        links = self._links
        row, rank = expand_ranges(*self._lie(group))
        order, first = links.since_by_slot if self._by_slot else links.since_by_entity
        position, first = some_rows(rank, order, first)
        position = position.long()
        slot, target = links.ends(position)
        source, relation = slot // links.relations, slot % links.relations
        through = self._seen.through(source, relation, target, first.long())
        columns = row, relation, target, first, through, position
        row, *kept = some_rows(through >= 0, *columns)
        return row, tuple(kept)


class SlotPool(Pool):
    """Times at which entities filled slots, ascending, and decayed counts of them."""

    def __init__(self, links: PairTimes, facts: FactPool) -> None:
        room = links.entities * links.relations
        super().__init__(room, len(links.time), torch.int32)
        self._links, self._facts = links, facts
        self._sums = {decay: [torch.zeros(0)] for decay in DECAYS}

    def sizes(self, group: Tensor) -> Tensor:
        """(G,) how many facts the entity has, if it ever filled the slot."""
        links, facts = self._links, self._facts
        low, high = links.of_slot(group // links.relations, group % links.relations)
        filled = torch.nonzero(high > low).squeeze(1)
        begin, end = facts.ranges(group[filled] // links.relations)
        return torch.zeros_like(group).index_copy_(0, filled, end - begin)

    def read(self, group: Tensor) -> Made:
        """Those of the public facts of an entity by a relation."""
        relations = self._links.relations
        row, position = expand_ranges(*self._facts.ranges(group // relations))
        wanted = group % relations
        relation = self._facts[0].index_select(0, position)
        fills = relation == wanted.int().index_select(0, row)
        # A fact of an entity with itself is kept in one direction and fills both slots.
        other = inverse(wanted, relations).int().index_select(0, row)
        back = torch.nonzero(relation == other).squeeze(1)
        itself = self._facts[1][position[back]] == group[row[back]] // relations
        fills[back[itself]] = True
        row, position = some_rows(fills, row, position)
        time = self._facts[2].index_select(0, position)
        more = running_sums(time, group[row], DECAYS, len(self))
        for decay, sums in zip(DECAYS, more, strict=True):
            self._sums[decay].append(sums)
        return row, (time,)

    def sums(self, decay: float) -> Tensor:
        """The decayed counts at every eighth time of a slot: see ``orders.running_sums``."""
        self._sums[decay] = [torch.cat(self._sums[decay])]
        return self._sums[decay][0]


class NeighbourPool(Pool):
    """Neighbours of entities by the time they were first linked, and that time."""

    def __init__(self, order: NeighbourOrder, seen: Seen, entities: int) -> None:
        super().__init__(entities, len(order), torch.int32, torch.int32)
        self._order, self._seen = order, seen

    @property
    def target(self) -> Tensor:
        """(L,) the neighbours that were read."""
        return self[0]

    def sizes(self, group: Tensor) -> Tensor:
        """(G,) how many neighbours entities have."""
        low, high = self._order.row(group)
        return high - low

    def read(self, group: Tensor) -> Made:
        """Those of entities."""
        row, position = expand_ranges(*self._order.row(group))
        target, first = some_rows(position, self._order.target, self._order.first)
        seen = self._seen.pairs(group.index_select(0, row), target.long(), first.long())
        row, target, first = some_rows(seen, row, target, first)
        return row, (target, first)


class NearbyIndex(TemporalIndex):
    """Time-bounded look-ups near queries over some facts of a folder.

    Args:
        visible: the facts, public by a rule.
        rule: that one.
        stored: the links of all facts of the folder.
    """

    def __init__(self, visible: VisibleFacts, rule: PublicRule, stored: StoredLinks) -> None:
        self.device = torch.device("cpu")
        self.entities, self.relations = stored.entities, stored.relations
        self.steps = (visible.time_range() or (0, 0))[1] + 2
        self._visible, self._stored = visible, stored
        self._seen = Seen(rule, visible.base, self.relations)
        self._links = PairTimes.mapped(stored, self.relations, self.device)
        order = TimeOrder.mapped(stored, self.relations, self.device)
        self._facts_read = FactPool(order, self._seen)

    @staticmethod
    def or_whole(visible: VisibleFacts, *, device: torch.device | str = "cpu") -> TemporalIndex:
        """The index of public facts for look-ups near queries; or of all, where no folder has it.

        As with any index, a second call while it is in use gives the same one.
        """
        stored = None if torch.device(device).type != "cpu" else _links_of_all(visible)
        if stored is None or visible.rule is None:
            return TemporalIndex.of(visible, device=device)
        kept: TemporalIndex | None = visible.indices.get("nearby")
        if kept is None:
            kept = visible.indices["nearby"] = NearbyIndex(visible, visible.rule, stored)
        return kept

    def _facts_in(self, low: Tensor, high: Tensor) -> EntityFacts:
        row, position = expand_ranges(low, high)
        columns = some_rows(position, *self._facts_read.columns())
        return EntityFacts(row, *(column.long() for column in columns))

    def _until(self, entity: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) where the facts of each entity before a time lie."""
        low, high = self._facts_read.ranges(entity)
        return low, bisect_ranges(self._facts_read[2], low, high, time, largest=self.steps - 2)

    def facts_of(self, entity: Tensor, time: Tensor, most: int | None = None) -> EntityFacts:
        """The facts of each entity strictly before its time; of a hub's, the latest."""
        low, high = self._until(entity, time)
        return self._facts_in(low if most is None else torch.maximum(low, high - most), high)

    def first_step_of(self, entity: Tensor) -> Tensor:
        """(Q,) step of each entity's first link; a step after all others for who has none."""
        low, high = self._facts_read.ranges(entity)
        return _at(self._facts_read[2], low, high > low, _NEVER)

    def last_step_of(self, entity: Tensor, time: Tensor) -> Tensor:
        """(Q,) step of each entity's last link before a time; -1 for who has none."""
        low, high = self._until(entity, time)
        return _at(self._facts_read[2], high - 1, high > low, -1)

    @cached_property
    def pairs(self) -> Pairs:
        """Distinct links and their times."""
        return _NearbyPairs(self._links, self._seen)

    @cached_property
    def slots(self) -> Slots:
        """Who filled a slot, how often, and when."""
        orders = [SlotOrder.of(self._visible.base, self.device, self._visible.public)]
        usage: list[SlotUsage] = [_NearbyUsage(self._links, self._facts_read, self.steps - 2)]
        return Slots(orders, usage, self.entities, self.relations, self.steps)

    @cached_property
    def neighbours(self) -> Neighbours:
        """Who was linked to whom at all, and since when."""
        order = NeighbourOrder.mapped(self._stored, self.device)
        return _NearbyNeighbours(order, self._seen, self.entities)

    @cached_property
    def co_occurrence(self) -> CoOccurrence:
        """Which relations go together."""
        links, seen = self._links, self._seen

        def links_of(entity: Tensor, most: int) -> tuple[Tensor, Tensor]:
            parts = []
            low, high = links.of_entity(entity)
            for rows in blocks_by_size(high - low, _AT_ONCE):
                row, position = expand_ranges(low[rows], high[rows])
                slot, target = links.ends(position)
                ends = slot // self.relations, slot % self.relations, target
                public = seen.through(*ends, links.first(position)) >= 0
                row, position = some_rows(public, row, position)
                rank = torch.arange(len(row)) - torch.searchsorted(row, row)
                parts.append(some_rows(rank < most, row + rows.start, position))
            row, position = (torch.cat(column) for column in zip(*parts, strict=True))
            return row, position

        count = seen.distinct(links)
        return CoOccurrence.sampled(links, count, links_of, self.relations, self.steps)


def _links_of_all(visible: VisibleFacts) -> StoredLinks | None:
    """The links of all facts of the folder of which some are visible; None: there are none such.

    Those that were appended since and are not among them are few; nothing is read near them here.
    """
    base, folder = visible.base, visible.base.folder
    if folder is None or visible.public is None or visible.recent is not None:
        return None
    stored: StoredLinks | None = folder.links()
    if stored is None:
        return None
    sizes = len(base), len(base.entities), 2 * len(base.relations)
    return stored if (stored.facts, stored.entities, stored.relations) == sizes else None


def _at(column: Tensor, position: Tensor, there: Tensor, missing: int) -> Tensor:
    """Values of a column at positions, or something else where there is none."""
    if not column.numel():
        return torch.full_like(position, missing)
    value = torch.take(column, position.clamp(0, column.numel() - 1)).long()
    return torch.where(there, value, missing)


class _NearbyPairs(Pairs):
    """Distinct links: of slots and of entities, by the time they began."""

    def __init__(self, links: PairTimes, seen: Seen) -> None:
        self.relations, self.device, self._links = links.relations, links.link.device, links
        self._of_slot = LinkPool(links, seen, by_slot=True)
        self._of_entity = LinkPool(links, seen, by_slot=False)

    def of_slot(self, entity: Tensor, relation: Tensor) -> Ranges:
        """Where the links of entities by a relation lie, (N,) low and high."""
        return [self._of_slot.ranges(entity * self.relations + relation)]

    def links_in(self, ranges: Ranges, time: Tensor, block: int) -> Ranges:
        """Distinct links that began before a time, in parts of bounded size."""
        parts, pool = [], self._of_slot
        ((low, high),) = ranges
        for rows in blocks_by_size(high - low, block):
            row, place = expand_ranges(low[rows], high[rows])
            row = row + rows.start if rows.start else row
            target, first = some_rows(place, pool[1], pool[2])
            row, target = some_rows(first < time.index_select(0, row), row, target)
            parts.append((row, target.long()))
        return parts

    def latest_links(
        self, entity: Tensor, relation: Tensor | None, time: Tensor, most: int | Tensor
    ) -> LatestLinks:
        """The distinct links of entities that began last before a time."""
        pool = self._of_entity if relation is None else self._of_slot
        low, high = pool.ranges(entity if relation is None else entity * self.relations + relation)
        high = bisect_ranges(pool[2], low, high, time)
        row, place = expand_ranges(torch.maximum(low, high - most), high)
        columns = some_rows(place, *pool.columns())
        along, target, first, through, position = (column.long() for column in columns)
        # Later facts of a link are not public.
        now = torch.minimum(time.index_select(0, row), through + 1)
        return LatestLinks(row, along, target, first, self._links.last(position, now))


class _NearbyUsage(SlotUsage):
    """The steps at which entities filled slots, and decayed counts of them."""

    def __init__(self, links: PairTimes, facts: FactPool, last_step: int) -> None:
        self.relations, self.device = links.relations, links.link.device
        self._pool, self._last = SlotPool(links, facts), last_step

    @property
    def last_step(self) -> int:
        """No step is later."""
        return self._last

    @property
    def time(self) -> Tensor:
        """(D,) int32 steps, ascending within a (source, relation)."""
        return self._pool[0]

    def of_slot(self, entity: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """(L,) where the steps lie at which entities filled the far slot of a relation."""
        return self._pool.ranges(entity * self.relations + inverse(relation, self.relations))

    def sums(self, decay: float) -> Tensor:
        """The decayed counts at every eighth fact of a slot."""
        return self._pool.sums(decay)


class _NearbyNeighbours(Neighbours):
    """Neighbours by the time they were first linked."""

    def __init__(self, order: NeighbourOrder, seen: Seen, entities: int) -> None:
        self.entities, self.device, self._last = entities, order.first.device, order.last_step
        self._pool = NeighbourPool(order, seen, entities)

    def all_before(self, time: Tensor) -> bool:
        """Whether every pair began before all of some times."""
        return bool((time > self._last).all())

    def before(self, entity: Tensor, time: Tensor | None) -> list[Span]:
        """Where the neighbours of entities before a time lie."""
        low, high = self._pool.ranges(entity)
        if time is not None:
            high = bisect_ranges(self._pool[1], low, high, time, largest=self._last)
        return [Span(self._pool, low.new_zeros(0), low, high)]
