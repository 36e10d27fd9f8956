"""The temporal index: who was linked to whom, and when, over facts to which facts are added.

It has a base layer (``graph.layer``), which is made once and perhaps mapped from a folder, and
perhaps recent ones, for facts that arrived since. Every look-up reads all and puts the results
together: to everyone who reads it, it is the index of all facts built anew. When the recent facts
are no longer few, whoever owns them makes them part of the base (``forecasting.live`` in memory,
``data.ingest`` in a folder).

The time bound of ``data.visibility`` is applied here, for samplers, histories and walks alike:
every look-up takes a time and finds only links strictly before it. The one exception is
:meth:`TemporalIndex.since`, for the part of an entity's own support that is not public yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.co_occurrence import CoOccurrence
from metatkgr.graph.layer import LinkLayer, TimeOrder, base_layers, some_facts
from metatkgr.graph.neighbours import Neighbours
from metatkgr.graph.pairs import Pairs
from metatkgr.graph.ragged import expand_ranges, in_order_of, nothing_in, some_rows
from metatkgr.graph.slots import Slots

__all__ = ["EntityFacts", "TemporalIndex"]

_Ranges = Callable[[TimeOrder], tuple[Tensor, Tensor]]

_FEW = 256
"""Recent facts that are indexed anew whenever more arrive."""
_NEVER = 1 << 62
"""A step after all others."""


@dataclass(frozen=True, eq=False)
class EntityFacts:
    """Facts of entities, one row after another, in any order."""

    row: Tensor
    """(L,) row of the entities that were looked up."""
    relation: Tensor
    """(L,) directed, from the entity's side."""
    target: Tensor
    """(L,) the other end."""
    time: Tensor
    """(L,)."""

    def kept(self, which: Tensor) -> EntityFacts:
        """Some of them: a mask or positions."""
        return EntityFacts(*some_rows(which, *vars(self).values()))

    def in_order(self) -> EntityFacts:
        """By row and time; at one time those of a later layer are more recent."""
        return self.kept(in_order_of(self.row, self.time))

    @classmethod
    def cat(cls, parts: list[EntityFacts]) -> EntityFacts:
        """Several as one."""
        parts = [part for part in parts if part.row.numel()] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        columns = ((part.row, part.relation, part.target, part.time) for part in parts)
        return cls(*(torch.cat(column) for column in zip(*columns, strict=True)))


class TemporalIndex:
    """Time-bounded look-ups over links, in one or a few layers.

    Args:
        layers: the base, and perhaps recent facts. No fact is in two; each vocabulary begins with
            the one before.
        before: an index of all layers but the last: what is known of those is not made again.
        by_time: the same facts in layers in which those of one step are in the order of the facts;
            None: the layers are such. Recent facts in the order in which they came are not.
    """

    def __init__(
        self,
        layers: list[LinkLayer],
        before: TemporalIndex | None = None,
        by_time: list[LinkLayer] | None = None,
    ) -> None:
        self._before, latest = before, layers[-1]
        self.entities, self.relations, self.device = (
            latest.entities,
            latest.relations,
            latest.device,
        )
        self.steps = max(layer.steps for layer in layers)
        """One more than the last step, which stays free: "after all links" is a time of its own."""
        self._layers = [layer for layer in layers if len(layer)] or layers[-1:]
        by_time = self._layers if by_time is None else by_time
        self._by_time = [layer for layer in by_time if len(layer)] or by_time[-1:]

    @classmethod
    def of(cls, visible: VisibleFacts, *, device: torch.device | str = "cpu") -> Self:
        """The index of public facts; a second call while it is in use gives the same one.

        Facts that have grown since, and those from which they grew, share layers with it: the
        base, and what is recent in both but for the latest.
        """
        device = torch.device(device)
        kept: Self | None = visible.indices.get(str(device))
        if kept is None:
            kept = visible.indices[str(device)] = cls._made(visible, device)
        return kept

    @classmethod
    def _made(cls, visible: VisibleFacts, device: torch.device) -> Self:
        layers, arrival = base_layers(visible, device), visible.arrival
        if visible.recent is None:
            return cls(layers)
        recent = LinkLayer.of(VisibleFacts.of(visible.recent), device)
        if arrival is None:
            return cls([*layers, recent])
        last, count, before = layers[-1].arrived or (-1, 0, None)
        later = arrival > last
        if len(arrival) - np.count_nonzero(later) != count:  # some of them are gone
            before, later = None, np.ones_like(later)
        if np.count_nonzero(later) > _FEW:
            before, later = cls([*layers, recent]), np.zeros_like(later)
            layers[-1].arrived = (int(arrival.max()), len(arrival), before)
        if before is None or not later.any():
            return cls([*layers, recent])
        latest = LinkLayer.of(VisibleFacts.of(some_facts(visible.recent, later)), device)
        return cls([*before._layers, latest], before, [*layers, recent])

    def forget_arrivals(self) -> None:
        """Let go of the index that is kept for facts that grow from these: they will not any more.

        It has the layers that keep it: without this, they would stay until garbage is collected,
        which in a large process is seldom.
        """
        for layer in self._layers:
            layer.arrived = None

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
        orders = [layer.by_time for layer in self._by_time]
        ahead = zip(self._by_time[1:], self._by_time, strict=False)
        if any(later.first_step < layer.last_step for later, layer in ahead):
            return [TimeOrder.merged(orders, self.entities, self.steps)]
        return orders

    @property
    def by_time(self) -> TimeOrder:
        """All links by (source, time) as one, for who goes over all of them."""
        orders = self._orders
        if len(orders) == 1 and orders[0].entities == self.entities:
            return orders[0]
        return TimeOrder.merged(orders, self.entities, self.steps)

    def __len__(self) -> int:
        return sum(len(layer.by_time) for layer in self._by_time)

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
        return order.relations_of(position).long(), time

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

    def facts_of(self, entity: Tensor, time: Tensor, most: int | None = None) -> EntityFacts:
        """The facts of each entity strictly before its time; of a hub's, the latest of a layer.

        Args:
            entity: (Q,) int64.
            time: (Q,) int64.
            most: how many of each entity are read from a layer; None: all.
        """

        def ranges(order: TimeOrder) -> tuple[Tensor, Tensor]:
            low, high = order.starts(entity), order.since(entity, time)
            return (low if most is None else torch.maximum(low, high - most)), high

        return self._facts(entity, ranges)

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
        if len(self._by_time) > 1:
            facts = facts.in_order()
        if len(facts.row) <= most:
            return facts
        position = torch.arange(len(facts.row), device=self.device)
        return facts.kept(position - torch.searchsorted(facts.row, facts.row) < most)

    def last_facts(self, entity: Tensor, time: Tensor, most: int) -> EntityFacts:
        """The last facts of each entity strictly before its time, oldest first."""

        def ranges(order: TimeOrder) -> tuple[Tensor, Tensor]:
            end = order.since(entity, time)
            return torch.maximum(order.starts(entity), end - most), end

        facts = self._facts(entity, ranges)
        if len(self._by_time) > 1:
            facts = facts.in_order()
        if len(facts.row) <= most:
            return facts
        end = torch.searchsorted(facts.row, facts.row, right=True)
        position = torch.arange(len(facts.row), device=self.device)
        return facts.kept(end - position <= most)

    def facts_before(self, entity: Tensor, time: Tensor) -> Tensor:
        """(Q,) how many links each entity has strictly before its time."""
        orders = [layer.by_time for layer in self._by_time]
        return _sum([order.since(entity, time) - order.starts(entity) for order in orders])

    def happened(self, subject: int, relation: int, object_: int, step: int) -> bool:
        """Whether there is this very fact."""
        entity = torch.tensor([subject], device=self.device)
        time = torch.full_like(entity, step)
        facts = self._facts(
            entity, lambda order: (order.since(entity, time), order.since(entity, time + 1))
        )
        same = (facts.relation == relation) & (facts.target == object_) & (facts.time == step)
        return bool(same.any())

    def _facts(self, entity: Tensor, ranges: _Ranges) -> EntityFacts:
        parts: list[EntityFacts] = []
        for layer in self._by_time:
            order = layer.by_time
            low, high = ranges(order)
            if parts and nothing_in(low, high):
                continue
            row, position = expand_ranges(low, high)
            time = order.time(entity.index_select(0, row), position)
            relation, target = order.relations_of(position), order.target.index_select(0, position)
            parts.append(EntityFacts(row, relation.long(), target.long(), time))
        return EntityFacts.cat(parts)

    def first_step_of(self, entity: Tensor) -> Tensor:
        """Step of each entity's first link; a step after all others for who has none.

        Args:
            entity: int64 of any shape, which is that of the steps.
        """
        first = torch.full_like(entity, _NEVER)
        for layer in self._by_time:
            order = layer.by_time
            if len(order):
                low, high = order.starts(entity), order.starts(entity + 1)
                step = order.time(entity, low.clamp(max=len(order) - 1))
                first = torch.minimum(first, torch.where(high > low, step, _NEVER))
        return first

    def last_step_of(self, entity: Tensor, time: Tensor) -> Tensor:
        """Step of each entity's last link before a time; -1 for who has none.

        Args:
            entity: int64 of any shape, which is that of the steps.
            time: of the same shape.
        """
        last = torch.full_like(entity, -1)
        for layer in self._by_time:
            order = layer.by_time
            if len(order):
                low, high = order.starts(entity), order.since(entity, time)
                step = order.time(entity, (high - 1).clamp(min=0))
                last = torch.maximum(last, torch.where(high > low, step, -1))
        return last

    @cached_property
    def first_seen(self) -> Tensor:
        """(E,) the first step of every entity, for who goes over all of them."""
        return self.first_step_of(torch.arange(self.entities, device=self.device))

    def known_before(self, time: Tensor) -> Tensor:
        """(Q,) how many entities have a fact before a time."""
        return torch.searchsorted(self._first_steps, time)

    @cached_property
    def _first_steps(self) -> Tensor:
        return torch.sort(self.first_seen).values

    # The other orders.

    @cached_property
    def pairs(self) -> Pairs:
        """By (source, relation, target): distinct links and their times."""
        before = None if self._before is None else self._before.pairs
        return Pairs([layer.pairs for layer in self._layers], self.relations, before)

    @cached_property
    def slots(self) -> Slots:
        """By (relation, time): who filled a slot; by (entity, relation): how often, and when."""
        orders = [layer.slots for layer in self._by_time]
        usage = [layer.usage for layer in self._layers]
        before = None if self._before is None else self._before.slots
        return Slots(orders, usage, self.entities, self.relations, self.steps, before)

    @cached_property
    def neighbours(self) -> Neighbours:
        """Who was linked to whom at all, and since when."""
        before = None if self._before is None else self._before.neighbours
        return Neighbours([layer.neighbours for layer in self._layers], self.entities, before)

    @cached_property
    def co_occurrence(self) -> CoOccurrence:
        """Which relations go together."""
        counts: CoOccurrence | None = None
        for number, layer in enumerate(self._layers):
            if layer.co_occurrence is None:
                if counts is None:
                    counts = CoOccurrence.of(layer.pairs, self.relations, layer.steps)
                else:
                    others, steps = self._layers[:number], max(counts.steps, layer.steps)
                    earlier, met = [o.pairs for o in others], [o.neighbours for o in others]
                    counts = counts.grown(earlier, met, layer.pairs, steps)
                layer.co_occurrence = counts
            counts = layer.co_occurrence
        assert counts is not None
        return counts


def _sum(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], start=parts[0])
