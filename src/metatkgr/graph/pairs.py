"""Distinct links (source, relation, target) with their times: repeats, contacts, walks.

:class:`PairTimes` holds those of one layer, :class:`Pairs` puts the layers of an index together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from metatkgr.data.links import StoredLinks
from metatkgr.data.orders import (
    by_beginning,
    distinct_links,
    narrow,
    renumbered,
    stored_columns,
)
from metatkgr.graph.ragged import bisect_ranges, blocks_by_size, expand_ranges

__all__ = ["LatestLinks", "PairSteps", "PairTimes", "Pairs", "last_of_each"]


@dataclass(frozen=True, eq=False)
class PairSteps:
    """A sparse (Q, E) table: for some candidates of some queries, a step."""

    query: Tensor
    """(L,) row of the query."""
    candidate: Tensor
    """(L,) entity id; a (query, candidate) pair occurs once, unless something else is said."""
    step: Tensor
    """(L,) the step the evidence dates from."""


@dataclass(frozen=True, eq=False)
class LatestLinks:
    """Distinct links that walks follow: from where they are (a row) to a target."""

    row: Tensor
    """(L,) which walk goes on, non-decreasing."""
    relation: Tensor
    target: Tensor
    first: Tensor
    """(L,) step at which the link began."""
    last: Tensor
    """(L,) step at which it was last seen."""

    def kept(self, which: Tensor | slice) -> LatestLinks:
        """Some of them."""
        return LatestLinks(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def shares(self, rows: int) -> Tensor:
        """(L,) one part of as many as the row has links."""
        return 1.0 / torch.bincount(self.row, minlength=rows)[self.row].double()


class PairTimes:
    """Distinct links (u, r, v), each with the ascending steps at which it occurred.

    Args:
        link: (P,) int64 ``(source * 2R + relation) * E + target``, ascending.
        start: (P + 1,) where the steps of each begin.
        time: (D,) int32 steps, ascending within a link.
        entities: E.
        relations: 2R; there may be more in the index.
        now: 2R of the index.
        stored: the folder's index that holds them.
    """

    def __init__(
        self,
        link: Tensor,
        start: Tensor,
        time: Tensor,
        *,
        entities: int,
        relations: int,
        now: int | None = None,
        stored: StoredLinks | None = None,
    ) -> None:
        self.link, self._start, self.time = link, start, time
        self.entities, self.relations = entities, relations
        self._now = relations if now is None else now
        self._stored = stored

    @classmethod
    def of(
        cls, blocks: Iterable[tuple[Tensor, Tensor, Tensor, Tensor]], entities: int, relations: int
    ) -> Self:
        """Of sources, directed relations, targets and times by (source, time).

        Args:
            blocks: all links of some sources each; a link of an entity with itself once.
            entities: E.
            relations: 2R.
        """
        parts = [distinct_links(*block, entities, relations) for block in blocks]
        link, time = (torch.cat([part[at] for part in parts]) for at in (0, 2))
        count = torch.cat([start.diff() for _, start, _ in parts])
        start = torch.cat([count.new_zeros(1), count.cumsum(0)])
        start = start.int() if len(time) < 2**31 else start
        return cls(link, start, time, entities=entities, relations=relations)

    @classmethod
    def mapped(cls, stored: StoredLinks, relations: int, device: torch.device) -> Self:
        """Of links that a folder holds; ``relations`` is 2R now."""
        return cls(
            *stored_columns(stored, device, "link", "link_start", "link_time"),
            entities=stored.entities,
            relations=stored.relations,
            now=relations,
            stored=stored,
        )

    def some(self, mask: Tensor) -> PairTimes:
        """Only the links of a (P,) mask, each with its first step alone."""
        link, first = self.link[mask], self.time[self._start[:-1].long()][mask]
        start = torch.arange(len(link) + 1, device=link.device)
        return PairTimes(link, start, first, entities=self.entities, relations=self.relations)

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
        key = self._known(entity * self._now + relation)
        # Who came later than this layer has no link in it: neither key is there.
        low = torch.searchsorted(self.link, key * self.entities)
        return low, torch.searchsorted(self.link, (key + 1) * self.entities)

    def blocks(self, most: int) -> Iterator[tuple[slice, slice]]:
        """Positions of links and of their steps: some ``most`` steps at a time, of whole slots."""
        low, begin = 0, 0
        while low < len(self):
            high = max(int(torch.searchsorted(self._start, begin + most)), low + 1)
            last = self.link[min(high, len(self)) - 1] // self.entities
            high = int(torch.searchsorted(self.link, (last + 1) * self.entities))
            end = int(self._start[high])
            yield slice(low, high), slice(begin, end)
            low, begin = high, end

    def _known(self, slot: Tensor) -> Tensor:
        """``source * 2R + relation`` with the 2R of these links; negative: there was none."""
        if self._now == self.relations:
            return slot
        relation = renumbered(slot % self._now, self._now, self.relations)
        return torch.where(relation < 0, -1, slot // self._now * self.relations + relation)

    def slot(self, position: Tensor | slice) -> Tensor:
        """``source * 2R + relation`` of links, with the 2R of the index."""
        slot: Tensor = self.link[position] // self.entities
        if self._now == self.relations:
            return slot
        relation = slot % self.relations
        moved = (self._now - self.relations) // 2 * (relation >= self.relations // 2)
        return slot // self.relations * self._now + relation + moved

    def of_entity(self, entity: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) the same for links by any relation."""
        room = self.relations * self.entities
        low = torch.searchsorted(self.link, entity * room)
        return low, torch.searchsorted(self.link, (entity + 1) * room)

    def target(self, position: Tensor | slice) -> Tensor:
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
        wanted = self._known(slot) * self.entities + target
        position = torch.searchsorted(self.link, wanted).clamp(max=len(self) - 1)
        there: Tensor = (self.link[position] == wanted) & (target < self.entities)
        return position, there

    def last(self, position: Tensor, time: Tensor) -> Tensor:
        """(L,) the last step before a time at which each link occurred; -1: none."""
        begin, end = self.start(position), self.start(position + 1)
        after = bisect_ranges(self.time, begin, end, time)
        step = self.time[(after - 1).clamp(min=0)].long() if len(self) else after
        return torch.where(after > begin, step, -1)

    @cached_property
    def since_by_slot(self) -> tuple[Tensor, Tensor]:
        """Links of each (source, relation) by their first step; see :meth:`latest`."""
        return self._since("slot", self.entities)

    @cached_property
    def since_by_entity(self) -> tuple[Tensor, Tensor]:
        """Links of each source by their first step."""
        return self._since("entity", self.entities * self.relations)

    def _since(self, name: str, room: int) -> tuple[Tensor, Tensor]:
        """Positions of the links by (group, first step), and their first steps."""
        if self._stored is not None:
            names = (f"{name}_order", f"{name}_first")
            order, first = stored_columns(self._stored, self.link.device, *names)
            return order, first
        order, first = by_beginning(self.link // room, self.time[self._start[:-1].long()])
        return narrow(order), first

    def latest(
        self, entity: Tensor, relation: Tensor | None, time: Tensor, most: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of each entity, the links (by r, or by any relation) that began last before a time.

        Returns:
            row: (L,) of the entities, non-decreasing.
            position: (L,) of the links; of a row in the order of their first steps, and of equal
                ones in the order of relation and target.
        """
        order, first = self.since_by_entity if relation is None else self.since_by_slot
        low, high = self.of_entity(entity) if relation is None else self.of_slot(entity, relation)
        high = bisect_ranges(first, low, high, time)
        row, rank = expand_ranges(torch.maximum(low, high - most), high)
        return row, order[rank].long()


class Pairs:
    """Time-bounded look-ups over the distinct links of all layers of an index.

    Args:
        layers: those of each layer.
        relations: 2R.
        before: the same of all layers but the last.
    """

    def __init__(
        self, layers: list[PairTimes], relations: int, before: Pairs | None = None
    ) -> None:
        self._layers, self.relations, self._before = layers, relations, before
        self.device = layers[0].link.device

    def distinct(self) -> tuple[Tensor, Tensor, Tensor]:
        """Source, relation and target of each distinct link at any time, (P,) each.

        For what is counted over all known facts, not for answering a query.
        """
        parts = []
        for number, pairs in enumerate(self._layers):
            slot, target = pairs.slot(slice(None)), pairs.target(slice(None))
            if number:  # a link of two layers is one
                earlier = Pairs(self._layers[:number], self.relations)
                new = ~earlier.exist(slot, target)
                slot, target = slot[new], target[new]
            parts.append((slot // self.relations, slot % self.relations, target))
        source, relation, target = (torch.cat(column) for column in zip(*parts, strict=True))
        return source, relation, target

    def exist(self, slot: Tensor, target: Tensor) -> Tensor:
        """Whether there are links at any time, given as ``source * 2R + relation`` and target."""
        there = torch.zeros_like(target, dtype=torch.bool)
        for pairs in self._layers:
            there |= pairs.find(slot, target)[1]
        return there

    def last_links(self, entity: Tensor, relation: Tensor, time: Tensor) -> PairSteps:
        """Whom each entity was linked to by a relation before a time, and when last.

        A pair may occur once for each layer.
        """
        return self._last(time, [pairs.of_slot(entity, relation) for pairs in self._layers])

    def last_contacts(self, entity: Tensor, time: Tensor) -> PairSteps:
        """Whom each entity was linked to at all before a time, and when last.

        A pair may occur once for each relation and layer.
        """
        return self._last(time, [pairs.of_entity(entity) for pairs in self._layers])

    def _last(self, time: Tensor, ranges: list[tuple[Tensor, Tensor]]) -> PairSteps:
        columns = []
        for pairs, (low, high) in zip(self._layers, ranges, strict=True):
            row, position = expand_ranges(low, high)
            step = pairs.last(position, time[row])
            seen = step >= 0
            row, position, step = row[seen], position[seen], step[seen]
            columns.append((row, pairs.target(position), step))
        return PairSteps(*(torch.cat(column) for column in zip(*columns, strict=True)))

    def last_step(self, slot: Tensor, target: Tensor, time: Tensor) -> Tensor:
        """(L,) last step before a time at which links were seen; -1: never.

        Args:
            slot: (L,) ``source * 2R + relation``.
            target: (L,).
            time: (L,).
        """
        latest = torch.full_like(target, -1)
        for pairs in self._layers:
            position, there = pairs.find(slot, target)
            if len(pairs):
                step = torch.where(there, pairs.last(position, time), -1)
                latest = torch.maximum(latest, step)
        return latest

    def times(
        self, slot: Tensor, target: Tensor, time: Tensor, most: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """When links were seen before a time.

        Args:
            slot: (N,) ``source * 2R + relation``.
            target: (N,).
            time: (N,).
            most: so many steps of each link are given, the last ones.

        Returns:
            row: (L,) of the links, ascending.
            step: (L,) of a row the latest first.
            count: (N,) at how many steps each was seen in all.
        """
        count, parts = torch.zeros_like(target), []
        for pairs in self._layers:
            position, there = pairs.find(slot, target)
            asked = torch.nonzero(there).squeeze(1)
            position = position[asked]
            begin, end = pairs.start(position), pairs.start(position + 1)
            after = bisect_ranges(pairs.time, begin, end, time[asked])
            count[asked] += after - begin
            row, place = expand_ranges(torch.maximum(begin, after - most), after)
            parts.append((asked[row], pairs.time[place].long()))
        row, step = (torch.cat(column) for column in zip(*parts, strict=True))
        order = torch.argsort(step, descending=True, stable=True)
        order = order[torch.argsort(row[order], stable=True)]
        row, step = row[order], step[order]
        position = torch.arange(len(row), device=row.device)
        kept = position - torch.searchsorted(row, row) < most
        return row[kept], step[kept], count

    def links_of(
        self, entity: Tensor, relation: Tensor, time: Tensor, block: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Distinct links by a relation that began before a time, in parts of bounded size.

        Args:
            entity: (N,) where they start.
            relation: (N,) which they follow.
            time: (N,) only links that first occurred before this step exist.
            block: how many links may be looked at in one go.

        Returns:
            Parts, of (row of the entity, target), (L,) each; each link is in one of them.
        """
        slot, parts = entity * self.relations + relation, []
        for number, pairs in enumerate(self._layers):
            low, high = pairs.of_slot(entity, relation)
            if number and not bool((high > low).any()):
                continue
            for rows in blocks_by_size(high - low, block):
                row, position = expand_ranges(low[rows], high[rows])
                row = row + (rows.start or 0)
                exists = pairs.first(position) < time[row]
                row, position = row[exists], position[exists]
                target = pairs.target(position)
                for earlier in self._layers[:number]:
                    # A link is one, in however many layers it occurs.
                    earlier_position, there = earlier.find(slot[row], target)
                    if len(earlier):
                        new = ~(there & (earlier.first(earlier_position) < time[row]))
                        row, target = row[new], target[new]
                parts.append((row, target))
        return parts

    def count(self, entity: Tensor, relation: Tensor) -> Tensor:
        """(N,) how many links entities have by a relation at any time; of two layers, in both."""
        ranges = [pairs.of_slot(entity, relation) for pairs in self._layers]
        return sum((high - low for low, high in ranges), start=torch.zeros_like(entity))

    def latest_links(
        self, entity: Tensor, relation: Tensor | None, time: Tensor, most: int | Tensor
    ) -> LatestLinks:
        """The distinct links of entities that began last before a time.

        Args:
            entity: (N,) where walks are.
            relation: (N,) what they follow; None: any.
            time: (N,) only facts before it are seen.
            most: how many links of each; one number, or (N,).
        """
        if len(self._began) == 1:
            ((pairs, _),) = self._began
            row, position = pairs.latest(entity, relation, time, most)
            along, target = pairs.slot(position) % self.relations, pairs.target(position)
            last = pairs.last(position, time[row])
            return LatestLinks(row, along, target, pairs.first(position), last)
        parts = []
        for pairs, began_in_other in self._began:
            row, position = pairs.latest(entity, relation, time, most + len(began_in_other))
            if len(began_in_other):
                kept = ~torch.isin(position, began_in_other)
                row, position = last_of_each(most, row[kept], position[kept])
            slot, target = pairs.slot(position), pairs.target(position)
            parts.append((row, slot, target, pairs.first(position)))
        row, slot, target, first = (torch.cat(column) for column in zip(*parts, strict=True))
        if len(parts) > 1:
            # The last sort decides; the others between equal ones, as in one list of all.
            order = torch.argsort(target, stable=True)
            for column in (slot, first, row):
                order = order[torch.argsort(column[order], stable=True)]
            ordered = (column[order] for column in (row, slot, target, first))
            row, slot, target, first = last_of_each(most, *ordered)
        last = self.last_step(slot, target, time[row])
        return LatestLinks(row, slot % self.relations, target, first, last)

    @cached_property
    def _began(self) -> list[tuple[PairTimes, Tensor]]:
        """The distinct links of each layer; and which of them began in another layer, if any.

        A link of several layers belongs to the one in which it began. That a recent fact is older
        than the base's first one of the same link is rare, so the base keeps it and marks it; later
        layers are small, and made anew without the links that they only repeat.
        """
        nothing = torch.zeros(0, dtype=torch.int64, device=self.device)
        parts = [(self._layers[0], nothing)] if self._before is None else [*self._before._began]
        for pairs in self._layers[len(parts) :]:
            position = torch.arange(len(pairs), device=self.device)
            slot, target = pairs.slot(slice(None)), pairs.target(slice(None))
            new = torch.ones_like(position, dtype=torch.bool)
            for number, (other, began_in_other) in enumerate(parts):
                other_position, there = other.find(slot, target)
                if len(other):
                    earlier = there & (pairs.first(position) < other.first(other_position))
                    parts[number] = other, torch.cat([began_in_other, other_position[earlier]])
                    new &= ~there | earlier
            parts.append((pairs.some(new), nothing))
        return parts


def last_of_each(most: int | Tensor, row: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Columns without all but the last few of each row; ``row`` is ascending."""
    position = torch.arange(len(row), device=row.device)
    most = most[row] if isinstance(most, Tensor) else most
    kept = torch.searchsorted(row, row, right=True) - position <= most
    return tuple(column[kept] for column in (row, *others))
