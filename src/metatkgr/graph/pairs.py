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

from metatkgr.data.manifest import StoredLinks
from metatkgr.data.orders import (
    by_beginning,
    distinct_links,
    narrow,
    renumbered,
    stored_columns,
)
from metatkgr.graph.ragged import (
    bisect_ranges,
    blocks_by_size,
    expand_ranges,
    in_order_of,
    nothing_in,
    some_rows,
)

__all__ = ["LatestLinks", "PairSteps", "PairTimes", "Pairs", "last_of_each"]

Ranges = tuple[Tensor, Tensor]
"""First positions, and ends that are not included."""


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
        """Some of them: a mask, positions or a slice."""
        return LatestLinks(*some_rows(which, *vars(self).values()))

    @classmethod
    def cat(cls, parts: list[LatestLinks]) -> LatestLinks:
        """Several as one; their rows have to follow one another."""
        parts = [part for part in parts if part.row.numel()] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        columns = (vars(part).values() for part in parts)
        return cls(*(torch.cat(column) for column in zip(*columns, strict=True)))

    def shares(self, rows: int) -> Tensor:
        """(L,) one part of as many as the row has links."""
        share = 1.0 / torch.bincount(self.row, minlength=rows).double()
        return share.index_select(0, self.row)


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

    @cached_property
    def last_step(self) -> int:
        """No link was seen later."""
        if self._stored is not None:
            return self._stored.steps - 2
        return int(self.time.max()) if len(self.time) else -1

    def some(self, mask: Tensor) -> PairTimes:
        """Only the links of a (P,) mask, each with its first step alone."""
        link, first = self.link[mask], self.time[self._start[:-1].long()][mask]
        start = torch.arange(len(link) + 1, device=link.device)
        return PairTimes(link, start, first, entities=self.entities, relations=self.relations)

    def __len__(self) -> int:
        return self.link.numel()

    def start(self, position: Tensor) -> Tensor:
        """Where the steps of links begin in ``time``; of position p + 1, where those of p end."""
        return self._start.index_select(0, position).long()

    def first(self, position: Tensor) -> Tensor:
        """The steps at which links occurred first."""
        return self.time.index_select(0, self.start(position)).long()

    def of_slot(self, entity: Tensor, relation: Tensor) -> Ranges:
        """(Q,) first and last position, not included, of the links of entities by a relation."""
        # Who came later than this layer has no link in it: neither key is there.
        return self._between(self._known(entity * self._now + relation), self.entities)

    def _between(self, group: Tensor, room: int) -> Ranges:
        """(Q,) positions of the first link of groups of so many keys, and of the next groups."""
        key = group * room
        return torch.searchsorted(self.link, key), torch.searchsorted(self.link, key + room)

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

    def ends(self, position: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``source * 2R + relation`` of links, with the 2R of the index, and their targets."""
        link = self.link if position is None else self.link.index_select(0, position)
        slot = link // self.entities
        target = link - slot * self.entities
        if self._now == self.relations:
            return slot, target
        relation = slot % self.relations
        moved = (self._now - self.relations) // 2 * (relation >= self.relations // 2)
        return slot // self.relations * self._now + relation + moved, target

    def of_entity(self, entity: Tensor) -> Ranges:
        """(Q,) the same for links by any relation."""
        return self._between(entity, self.relations * self.entities)

    def target(self, position: Tensor) -> Tensor:
        """The entities that links lead to."""
        return self.link.index_select(0, position) % self.entities

    def find(self, slot: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of links given as ``source * 2R + relation`` and target, and which are there.

        A target that came later than this layer must not be taken for another one's: its number
        has no room in the key.
        """
        if not len(self):
            return torch.zeros_like(slot), torch.zeros_like(slot, dtype=torch.bool)
        wanted = self._known(slot) * self.entities + target
        position = torch.searchsorted(self.link, wanted).clamp_(max=len(self) - 1)
        there = self.link.index_select(0, position).eq(wanted)
        return position, there.logical_and_(target < self.entities)

    def last(self, position: Tensor, time: Tensor) -> Tensor:
        """(L,) the last step before a time at which each link occurred; -1: none."""
        begin, end = self.start(position), self.start(position + 1)
        after = bisect_ranges(self.time, begin, end, time, largest=self.last_step)
        if after is end:  # none of them began later
            return self.time.index_select(0, end - 1).long()
        step = self.time.index_select(0, (after - 1).clamp_(min=0)).long()
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
        self, links: Ranges, by_slot: bool, time: Tensor, most: int | Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of each entity, the links (by r, or by any relation) that began last before a time.

        Args:
            links: where they lie: what :meth:`of_slot` or :meth:`of_entity` gave.
            by_slot: whether these are links by r.
            time: (N,).
            most: how many of each; one number, or (N,).

        Returns:
            row: (L,) of the entities, non-decreasing.
            position: (L,) of the links; of a row in the order of their first steps, and of equal
                ones in the order of relation and target.
            first: (L,) those steps.
        """
        order, first = self.since_by_slot if by_slot else self.since_by_entity
        low, high = links
        high = bisect_ranges(first, low, high, time, largest=self.last_step)
        row, rank = expand_ranges(torch.maximum(low, high - most), high)
        return row, order.index_select(0, rank).long(), first.index_select(0, rank).long()


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
            slot, target = pairs.ends()
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

    def _last(self, time: Tensor, ranges: list[Ranges]) -> PairSteps:
        columns: list[tuple[Tensor, Tensor, Tensor]] = []
        for pairs, (low, high) in zip(self._layers, ranges, strict=True):
            if columns and nothing_in(low, high):
                continue
            row, position = expand_ranges(low, high)
            step = pairs.last(position, time.index_select(0, row))
            row, position, step = some_rows(step >= 0, row, position, step)
            columns.append((row, pairs.target(position), step))
        return PairSteps(*(torch.cat(column) for column in zip(*columns, strict=True)))

    def last_step(self, slot: Tensor, target: Tensor, time: Tensor) -> Tensor:
        """(L,) last step before a time at which links were seen; -1: never.

        Args:
            slot: (L,) ``source * 2R + relation``.
            target: (L,).
            time: (L,).
        """
        return self._last_step(slot, target, time, None)

    def _last_step(
        self, slot: Tensor, target: Tensor, time: Tensor, position: Tensor | None
    ) -> Tensor:
        """The same; ``position`` is that of the links in the base, where all are there."""
        base, *others = self._layers
        if position is not None:
            latest = base.last(position, time)
        else:
            latest, (position, there) = torch.full_like(target, -1), base.find(slot, target)
            if len(base):
                latest = torch.where(there, base.last(position, time), latest)
        for pairs in others:
            # Of recent links only a few are asked for.
            position, there = pairs.find(slot, target)
            some = torch.nonzero(there).squeeze(1)
            if some.numel():
                step = pairs.last(*some_rows(some, position, time))
                step = torch.maximum(step, latest.index_select(0, some))
                latest = latest.index_copy(0, some, step)
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
            if not asked.numel():
                continue
            position = position.index_select(0, asked)
            begin, end = pairs.start(position), pairs.start(position + 1)
            now = time.index_select(0, asked)
            after = bisect_ranges(pairs.time, begin, end, now, largest=pairs.last_step)
            count.index_add_(0, asked, after - begin)
            low = torch.maximum(begin, after - most)
            row, place = expand_ranges(low, after)
            place = (low + after - 1).index_select(0, row) - place  # the latest first
            step = pairs.time.index_select(0, place).long()
            parts.append((asked.index_select(0, row), step))
        if not parts:
            return slot[:0], slot[:0], count
        row, step = (torch.cat(column) for column in zip(*parts, strict=True))
        if len(parts) > 1:
            row, step = some_rows(in_order_of(row, -step), row, step)
            position = torch.arange(row.numel(), device=row.device)
            row, step = some_rows(position - torch.searchsorted(row, row) < most, row, step)
        return row, step, count

    def of_slot(self, entity: Tensor, relation: Tensor) -> list[Ranges]:
        """Where the links of entities by a relation lie in each layer, (N,) low and high."""
        return [pairs.of_slot(entity, relation) for pairs in self._layers]

    def links_in(
        self, ranges: list[Ranges], time: Tensor, block: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Distinct links that began before a time, in parts of bounded size.

        Args:
            ranges: what :meth:`of_slot` gave, (N,) each.
            time: (N,) only links that first occurred before this step exist.
            block: how many links may be looked at in one go.

        Returns:
            Parts, of (row of the entity, target), (L,) each; each link is in one of them.
        """
        parts: list[tuple[Tensor, Tensor]] = []
        earliest = int(time.min()) if time.numel() else 0
        for number, (pairs, (low, high)) in enumerate(zip(self._layers, ranges, strict=True)):
            if number and nothing_in(low, high):
                continue
            for rows in blocks_by_size(high - low, block):
                row, position = expand_ranges(low[rows], high[rows])
                row = row + rows.start if rows.start else row
                if earliest <= pairs.last_step:
                    exists = pairs.first(position) < time.index_select(0, row)
                    row, position = some_rows(exists, row, position)
                slot, target = pairs.ends(position)
                for earlier in self._layers[:number]:
                    # A link is one, in however many layers it occurs.
                    earlier_position, there = earlier.find(slot, target)
                    if len(earlier):
                        new = ~(there & (earlier.first(earlier_position) < time[row]))
                        row, slot, target = some_rows(new, row, slot, target)
                parts.append((row, target))
        return parts

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
        parts: list[tuple[Tensor, ...]] = []
        for number, (pairs, began_in_other) in enumerate(self._began):
            many, by_slot = began_in_other.numel(), relation is not None
            links = pairs.of_entity(entity) if relation is None else pairs.of_slot(entity, relation)
            if number and nothing_in(*links):
                continue
            row, position, first = pairs.latest(links, by_slot, time, most + many)
            if many:
                kept = ~torch.isin(position, began_in_other)
                row, position, first = last_of_each(most, *some_rows(kept, row, position, first))
            slot, target = pairs.ends(position)
            now = time.index_select(0, row)
            last = self._last_step(slot, target, now, None if number else position)
            parts.append((row, slot, target, first, last))
        row, slot, target, first, last = parts[0]
        if len(parts) > 1:
            columns = [torch.cat(column) for column in zip(*parts, strict=True)]
            row, slot, target, first, last = columns
            order = in_order_of(row, first, slot, target)
            row, slot, target, first, last = last_of_each(most, *some_rows(order, *columns))
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
            slot, target = pairs.ends()
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
    count = row.numel()
    if isinstance(most, Tensor):
        most = most[row]
    elif count <= most:
        return row, *others
    position = torch.arange(count, device=row.device)
    kept = torch.searchsorted(row, row, right=True).sub_(position) <= most
    return some_rows(kept, row, *others)
