"""The temporal index: who was linked to whom, and when, over facts to which facts are added.

It has a base layer (``graph.layer``), which is made once and perhaps mapped from a folder, and
perhaps a recent one, for facts that arrived since. Every look-up asks both and puts the answers
together: to everyone who reads it, it is the index of all facts built anew. When the recent facts
are no longer few, whoever owns them makes them part of the base (``forecasting.graph``).

The time bound of ``data.visibility`` is applied here, for samplers, histories and walks alike:
every look-up takes a time and finds only links strictly before it. The one exception is
:meth:`TemporalIndex.since`, for the part of an entity's own support that is not public yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.layer import LinkLayer, Neighbours, PairTimes, TimeOrder
from metatkgr.graph.ragged import blocks_by_size, expand_ranges

__all__ = [
    "EntityFacts",
    "LatestLinks",
    "PairSteps",
    "SlotTables",
    "TemporalIndex",
    "last_of_each",
]

_Ranges = Callable[[TimeOrder], tuple[Tensor, Tensor]]

_LARGEST_EXPANSION = 1 << 22
"""How many facts are looked at in one go; bounds memory."""
_NEVER = 1 << 62
"""A step after all others."""


@dataclass(frozen=True, eq=False)
class EntityFacts:
    """Facts of entities, one row after another, in any order."""

    row: Tensor
    """(L,) of the entities that were asked for."""
    relation: Tensor
    """(L,) directed, from the entity's side."""
    target: Tensor
    """(L,) the other end."""
    time: Tensor
    """(L,)."""

    def kept(self, which: Tensor) -> EntityFacts:
        """Some of them."""
        return EntityFacts(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    @classmethod
    def cat(cls, parts: list[EntityFacts]) -> EntityFacts:
        """Several as one."""
        columns = ((part.row, part.relation, part.target, part.time) for part in parts)
        return cls(*(torch.cat(column) for column in zip(*columns, strict=True)))


@dataclass(frozen=True, eq=False)
class PairSteps:
    """A sparse (Q, E) table: for some candidates of some queries, a step."""

    question: Tensor
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


@dataclass(frozen=True, eq=False)
class SlotTables:
    """How each entity has filled relation slots, for G distinct (relation, time) pairs."""

    count: Tensor
    """(G, E) how often."""
    decayed: list[Tensor]
    """(G, E) each: the same, a fact τ steps old counting 1/e, for each τ."""
    last: Tensor
    """(G, E) the last step; -1: never."""
    row: Tensor
    """(Q,) which of the G is a query's."""


class TemporalIndex:
    """Time-bounded look-ups over links, in one or two layers.

    Args:
        layers: the base, and perhaps recent facts. No fact is in both; the last one has the larger
            vocabulary, with which the base's begins.
    """

    def __init__(self, layers: list[LinkLayer]) -> None:
        latest = layers[-1]
        self.entities, self.relations, self.device = (
            latest.entities,
            latest.relations,
            latest.device,
        )
        self.steps = max(layer.steps for layer in layers)
        """One more than the last step, which stays free: "after all links" is a time of its own."""
        self._layers = [layer for layer in layers if len(layer)] or layers[-1:]

    @classmethod
    def of(cls, visible: VisibleFacts, *, device: torch.device | str = "cpu") -> Self:
        """The index of public facts; who asks again while it is in use gets the same layers."""
        device = torch.device(device)
        base = visible.layers.get(str(device))
        if base is None:
            base = _layer(replace(visible, recent=None), visible.base, device)
            visible.layers[str(device)] = base
        if visible.recent is None:
            return cls([base])
        recent = VisibleFacts.of(visible.recent)
        return cls([base, _layer(recent, visible.recent, device)])

    @classmethod
    def of_supports(
        cls,
        supports: Supports,
        *,
        entities: int,
        relations: int,
        device: torch.device | str = "cpu",
    ) -> Self:
        """The first facts of new entities, from the owner's side only.

        Args:
            supports: the first facts of the new entities.
            entities: number of entities of the graph.
            relations: number of directed relations, 2R.
            device: where the index lives.
        """
        device = torch.device(device)
        return cls([LinkLayer(supports, entities=entities, relations=relations, device=device)])

    # By (source, time): positions count the links of one entity after another, oldest first.

    @cached_property
    def _orders(self) -> list[TimeOrder]:
        """The layers by time; one of all, where a recent fact is older than some of the base."""
        orders = [layer.by_time for layer in self._layers]
        if len(orders) > 1 and self._layers[1].first_step < self._layers[0].last_step:
            return [_merged(orders, self.entities, self.steps)]
        return orders

    @property
    def by_time(self) -> TimeOrder:
        """All links by (source, time) as one, for who goes over all of them."""
        orders = self._orders
        if len(orders) == 1 and orders[0].entities == self.entities:
            return orders[0]
        return _merged(orders, self.entities, self.steps)

    def __len__(self) -> int:
        return sum(map(len, self._orders))

    def before(
        self, entity: Tensor, time: Tensor, window: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Where the links of each entity strictly before a time lie.

        Args:
            entity: (Q,) int64.
            time: (Q,) int64, any time, also beyond the last link.
            window: only links later than ``time - window``; None for no lower bound.

        Returns:
            low, high: (Q,) positions; the links are ``low`` to ``high``, not included, oldest
            first.
        """
        high = self._first_since(entity, time)
        if window is None:
            return self._start(entity), high
        return self._first_since(entity, time - window + 1), high

    def since(self, entity: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Where the links of each entity at or after a time lie.

        Only an entity's own support may be read like this, for queries about this entity.

        Returns:
            low, high: (Q,) positions, as in :meth:`before`.
        """
        return self._first_since(entity, time), self._start(entity + 1)

    def _start(self, entity: Tensor) -> Tensor:
        return _sum([order.starts(entity) for order in self._orders])

    def _first_since(self, entity: Tensor, time: Tensor) -> Tensor:
        # Layers follow one another in time: what comes before is before in each of them.
        return _sum([order.since(entity, time) for order in self._orders])

    def targets(self, source: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """(Q, b) the entities that links lead to, any where masked out; otherwise :meth:`read`."""
        order = self._orders[0]
        if len(self._orders) > 1:
            return self.read(source, position, mask)[0]
        if not len(order):
            return position * 0
        flat = position.clamp(0, len(order) - 1).view(-1)
        return order.target.index_select(0, flat).long().view(position.shape)

    def about(self, source: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """(L,) relation and time of links given by source and position, (L,) each."""
        if len(self._orders) > 1:
            mask = torch.ones_like(position, dtype=torch.bool)[:, None]
            _, relation, time = self.read(source, position[:, None], mask)
            return relation.squeeze(1), time.squeeze(1)
        order = self._orders[0]
        time = order.key.index_select(0, position).sub_(source * order.steps)
        return order.relation.index_select(0, position).long(), time

    def read(self, source: Tensor, position: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Links by their position.

        Args:
            source: (Q,) the entity whose links are read.
            position: (Q, b) positions of its links; anything where ``mask`` is False.
            mask: (Q, b) which of them to read.

        Returns:
            target, relation, time: (Q, b) each, new tensors, 0 where ``mask`` is False.
        """
        if len(self._orders) == 1:
            return self._orders[0].read(source, position, mask)
        ordinal = position - self._start(source)[:, None]  # among all links of the source
        before = torch.zeros_like(source)
        columns = tuple(torch.zeros_like(position) for _ in range(3))
        for order in self._orders:
            first, end = order.starts(source), order.starts(source + 1)
            after = before + end - first
            here = mask & (ordinal >= before[:, None]) & (ordinal < after[:, None])
            part = order.read(source, ordinal + (first - before)[:, None], here)
            # Each slot is 0 in all but one of the layers, so the sum is the one that is filled.
            for total, values in zip(columns, part, strict=True):
                total.add_(values)
            before = after
        target, relation, time = columns
        return target, relation, time

    def facts_of(self, entity: Tensor, time: Tensor) -> EntityFacts:
        """The facts of each entity strictly before its time."""
        return self._facts(entity, lambda order: (order.starts(entity), order.since(entity, time)))

    def first_facts(self, entity: Tensor, most: int) -> EntityFacts:
        """The first facts of each entity, oldest first, whenever they happened.

        Only for an entity's own support, and for who shows its facts; see :meth:`since`.
        """
        facts = self._facts(
            entity,
            lambda order: (
                order.starts(entity),
                torch.minimum(order.starts(entity) + most, order.starts(entity + 1)),
            ),
        )
        order = torch.argsort(facts.time, stable=True)
        facts = facts.kept(order[torch.argsort(facts.row[order], stable=True)])
        place = torch.arange(len(facts.row), device=self.device)
        return facts.kept(place - torch.searchsorted(facts.row, facts.row) < most)

    def happened(self, subject: int, relation: int, object_: int, step: int) -> bool:
        """Whether there is this very fact."""
        entity = torch.tensor([subject], device=self.device)
        time = torch.full_like(entity, step)
        facts = self._facts(
            entity, lambda order: (order.since(entity, time), order.since(entity, time + 1))
        )
        same = (facts.relation == relation) & (facts.target == object_) & (facts.time == step)
        return bool(same.any())

    def facts_since(self, entity: Tensor, time: Tensor) -> EntityFacts:
        """The facts of each entity at or after its time; see :meth:`since`."""
        return self._facts(
            entity, lambda order: (order.since(entity, time), order.starts(entity + 1))
        )

    def _facts(self, entity: Tensor, ranges: _Ranges) -> EntityFacts:
        parts = []
        for layer in self._layers:
            order = layer.by_time
            row, position = expand_ranges(*ranges(order))
            time = order.time(entity[row], position)
            parts.append(
                EntityFacts(
                    row, order.relation[position].long(), order.target[position].long(), time
                )
            )
        return EntityFacts.cat(parts)

    @cached_property
    def first_seen(self) -> Tensor:
        """(E,) step of each entity's first link; a step after all others for who has none."""
        entity = torch.arange(self.entities, device=self.device)
        first = torch.full_like(entity, _NEVER)
        for layer in self._layers:
            order = layer.by_time
            if len(order):
                low, high = order.starts(entity), order.starts(entity + 1)
                step = order.time(entity, low.clamp(max=len(order) - 1))
                first = torch.minimum(first, torch.where(high > low, step, _NEVER))
        return first

    def last_seen(self, moment: int) -> Tensor:
        """(E,) step of each entity's last link before a moment; -1 for who has none."""
        entity = torch.arange(self.entities, device=self.device)
        last = torch.full_like(entity, -1)
        for layer in self._layers:
            order = layer.by_time
            if len(order):
                low, high = order.starts(entity), order.since(entity, torch.full_like(last, moment))
                step = order.time(entity, (high - 1).clamp(min=0))
                last = torch.maximum(last, torch.where(high > low, step, -1))
        return last

    # By (source, relation, target): distinct links and their times.

    def last_links(self, entity: Tensor, relation: Tensor, time: Tensor) -> PairSteps:
        """Whom each entity was linked to by a relation before a time, and when last.

        A pair may occur once for each layer.
        """
        return self._last(time, [layer.pairs.of_slot(entity, relation) for layer in self._layers])

    def last_contacts(self, entity: Tensor, time: Tensor) -> PairSteps:
        """Whom each entity was linked to at all before a time, and when last.

        A pair may occur once for each relation and layer.
        """
        return self._last(time, [layer.pairs.of_entity(entity) for layer in self._layers])

    def _last(self, time: Tensor, ranges: list[tuple[Tensor, Tensor]]) -> PairSteps:
        columns = []
        for layer, (low, high) in zip(self._layers, ranges, strict=True):
            row, position = expand_ranges(low, high)
            step = layer.pairs.last(position, time[row])
            seen = step >= 0
            row, position, step = row[seen], position[seen], step[seen]
            columns.append((row, layer.pairs.target(position), step))
        return PairSteps(*(torch.cat(column) for column in zip(*columns, strict=True)))

    def last_step(self, slot: Tensor, target: Tensor, time: Tensor) -> Tensor:
        """(L,) last step before a time at which links were seen; -1: never.

        Args:
            slot: (L,) ``source * 2R + relation``.
            target: (L,).
            time: (L,).
        """
        latest = torch.full_like(target, -1)
        for layer in self._layers:
            position, there = layer.pairs.find(slot, target)
            if len(layer.pairs):
                step = torch.where(there, layer.pairs.last(position, time), -1)
                latest = torch.maximum(latest, step)
        return latest

    def occurrences(
        self, entity: int, relation: int | None, target: int | None, time: int
    ) -> Tensor:
        """All facts of an entity before a time, perhaps only of a relation or with one other.

        Returns:
            (n, 3) directed relation, other end, step, in any order; a fact of the entity with
            itself is seen from both ends.
        """
        parts = []
        who = torch.tensor([entity], device=self.device)
        for pairs in (layer.pairs for layer in self._layers):
            low, high = (
                pairs.of_entity(who)
                if relation is None
                else pairs.of_slot(who, torch.full_like(who, relation))
            )
            position = torch.arange(int(low), int(high), device=self.device)
            if target is not None:
                position = position[pairs.target(position) == target]
            row, place = expand_ranges(pairs.start(position), pairs.start(position + 1))
            link, step = pairs.link[position[row]], pairs.time[place].long()
            columns = (link // pairs.entities % self.relations, link % pairs.entities, step)
            parts.append(torch.stack(columns, dim=1)[step < time])
        return torch.cat(parts)

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
        for number, layer in enumerate(self._layers):
            low, high = layer.pairs.of_slot(entity, relation)
            if number and not bool((high > low).any()):
                continue
            for rows in blocks_by_size(high - low, block):
                row, position = expand_ranges(low[rows], high[rows])
                row = row + (rows.start or 0)
                exists = layer.pairs.first(position) < time[row]
                row, position = row[exists], position[exists]
                target = layer.pairs.target(position)
                for earlier in self._layers[:number]:
                    # A link is one, in however many layers it occurs.
                    place, there = earlier.pairs.find(slot[row], target)
                    if len(earlier.pairs):
                        new = ~(there & (earlier.pairs.first(place) < time[row]))
                        row, target = row[new], target[new]
                parts.append((row, target))
        return parts

    def latest_links(
        self, entity: Tensor, relation: Tensor | None, time: Tensor, most: int
    ) -> LatestLinks:
        """The distinct links of entities that began last before a time.

        Args:
            entity: (N,) where walks are.
            relation: (N,) what they follow; None: any.
            time: (N,) only facts before it are seen.
            most: how many links of each.
        """
        parts = []
        for pairs, elsewhere in self._began:
            row, position = pairs.latest(entity, relation, time, most + len(elsewhere))
            if len(elsewhere):
                kept = ~torch.isin(position, elsewhere)
                row, position = last_of_each(most, row[kept], position[kept])
            link = pairs.link[position]
            slot, target = link // pairs.entities, link % pairs.entities
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

        A link of both layers belongs to the one in which it began. That a recent fact is older
        than the base's first one of the same link is rare, so the base keeps it and is told; the
        recent layer is small, and made anew without those that it only repeats.
        """
        pairs = [layer.pairs for layer in self._layers]
        nothing = torch.zeros(0, dtype=torch.int64, device=self.device)
        if len(pairs) == 1:
            return [(pairs[0], nothing)]
        base, recent = pairs
        position = torch.arange(len(recent), device=self.device)
        slot, target = recent.link // recent.entities, recent.link % recent.entities
        place, there = base.find(slot, target)
        earlier = there & (recent.first(position) < base.first(place))
        return [(base, place[earlier]), (recent.some(~there | earlier), nothing)]

    # By (relation, time): who filled a slot.

    def facts_before(self, relation: Tensor, time: Tensor) -> Tensor:
        """(Q,) number of facts of a relation before a time."""
        ranges = (layer.slots.before(relation, time) for layer in self._layers)
        return _sum([high - low for low, high in ranges])

    def slot_counts(self, relation: Tensor, time: Tensor) -> Tensor:
        """(Q, E) how often each entity stood at the far end of a relation before a time."""
        asked, row = torch.unique(relation * self.steps + self._within(time), return_inverse=True)
        relation, time = asked // self.steps, asked % self.steps
        counts = torch.zeros(len(asked), self.entities, dtype=torch.int64, device=self.device)
        for layer in self._layers:
            start, stop = layer.slots.before(relation, time)
            # A time continues where the previous one of the same relation ended.
            same = relation[1:] == relation[:-1]
            start[1:] = torch.where(same, stop[:-1], start[1:])
            if len(asked) == 1:
                # The far ends of one relation before one time lie side by side.
                ends = layer.slots.fillers(int(relation[0]), int(start[0]), int(stop[0]))
                counts[0] += torch.bincount(ends, minlength=self.entities)
                continue
            group, position = expand_ranges(start, stop)
            cell = group * self.entities + layer.slots.filler(relation[group], position)
            counts.view(-1).add_(torch.bincount(cell, minlength=counts.numel()))
        for run in torch.unique_consecutive(relation, return_counts=True)[1].cumsum(0).tolist():
            begin = int(torch.searchsorted(relation, relation[run - 1]))
            if run - begin > 1:
                torch.cumsum(counts[begin:run], 0, out=counts[begin:run])
        return counts if len(row) == 1 else counts[row]

    def slot_tables(self, relation: Tensor, time: Tensor, decays: tuple[float, ...]) -> SlotTables:
        """Counts, decayed counts and last steps of every entity in each query's slot.

        Args:
            relation: (Q,) directed.
            time: (Q,).
            decays: τ of each decayed count.
        """
        moment, row = torch.unique(torch.stack([relation, time], 1), dim=0, return_inverse=True)
        relation, now = moment[:, 0].contiguous(), moment[:, 1].contiguous()
        shape = (len(moment), self.entities)
        count = torch.zeros(shape, device=self.device)
        # In double precision, so that the order in which facts are added does not show.
        decayed = [torch.zeros(shape, dtype=torch.float64, device=self.device) for _ in decays]
        last = torch.full(shape, -1, device=self.device)
        for layer in self._layers:
            start, stop = layer.slots.before(relation, now)
            for rows in blocks_by_size(stop - start, _LARGEST_EXPANSION):
                group, position = expand_ranges(start[rows], stop[rows])
                group = group + rows.start
                when = layer.slots.time[position].long()
                age = (now[group] - when).float()
                cell = group * self.entities + layer.slots.filler(relation[group], position)
                count.view(-1).scatter_add_(0, cell, torch.ones_like(age))
                for table, decay in zip(decayed, decays, strict=True):
                    table.view(-1).scatter_add_(0, cell, (-age / decay).exp().double())
                last.view(-1).scatter_reduce_(0, cell, when, "amax")
        return SlotTables(count, [table.float() for table in decayed], last, row)

    def _within(self, time: Tensor) -> Tensor:
        """Times, clamped to those that the index can tell apart."""
        return time.clamp(0, self.steps - 1)

    # By (target, source): neighbours by any relation.

    @cached_property
    def neighbours(self) -> Neighbours:
        """Who was linked to whom at all, and since when."""
        first, *others = (layer.neighbours for layer in self._layers)
        for other in others:
            first = first.merged(other)
        if first.entities < self.entities:
            first = replace(first, entities=self.entities)
        return first


GraphIndex = TemporalIndex


def last_of_each(most: int, row: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Columns without all but the last few of each row; ``row`` is ascending."""
    place = torch.arange(len(row), device=row.device)
    kept = torch.searchsorted(row, row, right=True) - place <= most
    return tuple(column[kept] for column in (row, *others))


def _layer(links: VisibleFacts, facts: Facts, device: torch.device) -> LinkLayer:
    entities, relations = len(facts.entities), 2 * len(facts.relations)
    return LinkLayer(links, entities=entities, relations=relations, device=device)


def _merged(orders: list[TimeOrder], entities: int, steps: int) -> TimeOrder:
    """One order of all links; of links at one time those of a later layer are more recent."""
    columns = []
    for order in orders:
        count = order.start.diff()
        source = torch.repeat_interleave(torch.arange(order.entities, device=count.device), count)
        columns.append((order.key - source * order.steps + source * steps, order))
    key, place = torch.sort(torch.cat([key for key, _ in columns]), stable=True)
    relation = torch.cat([order.relation for order in orders])[place]
    target = torch.cat([order.target for order in orders])[place]
    first = torch.arange(entities + 1, device=key.device) * steps
    return TimeOrder(key, relation, target, torch.searchsorted(key, first), steps)


def _sum(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], start=parts[0])
