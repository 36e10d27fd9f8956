"""Who was linked to whom, whatever the relation and however often, and since when.

:class:`NeighbourOrder` holds the distinct neighbours of one layer, :class:`Neighbours` puts the
layers of an index together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from metatkgr.data.manifest import StoredLinks
from metatkgr.data.orders import narrow, neighbour_rows, neighbours, stored_columns
from metatkgr.graph.pairs import PairTimes, last_of_each
from metatkgr.graph.ragged import bisect_ranges, expand_ranges, in_order_of, nothing_in, some_rows

__all__ = ["NeighbourOrder", "Neighbours"]


@dataclass(frozen=True, eq=False)
class NeighbourOrder:
    """Neighbours by (source, first step, target), in compressed sparse rows.

    Those of an entity before a time are the beginning of its row. As each link has its inverse,
    who is in an entity's row has the entity in its own, since the same step.
    """

    start: Tensor | None
    """(E + 1,) int64; the row of entity e is ``start[e]`` to ``start[e + 1]``, not included."""
    source: Tensor | None
    """(P,) int64 instead, where there are fewer pairs than entities."""
    target: Tensor
    """(P,) int32."""
    first: Tensor
    """(P,) int32 step of the first link, ascending within a row."""
    by_target: Tensor
    """(P,) int32 or int64 positions, of each row those of its ascending targets."""
    last_step: int
    """No pair began later; -1: there is none."""

    @classmethod
    def of(cls, pairs: PairTimes) -> Self:
        """Of distinct links."""
        first = pairs.first(torch.arange(len(pairs), device=pairs.link.device))
        columns = neighbours(pairs.link, first, pairs.entities, pairs.relations)
        return cls.by_pair(*columns, pairs.entities)

    @classmethod
    def by_pair(cls, source: Tensor, target: Tensor, first: Tensor, entities: int) -> Self:
        """Of distinct pairs by (source, target) and the steps at which they began, (P,) each."""
        _, target, first, position = neighbour_rows(source, target, first)
        last = int(first.max()) if len(first) else -1
        if len(source) < entities:
            # A few recent facts: nothing that grows with the number of entities is made for them.
            return cls(None, source, target, first, narrow(position), last)
        start = torch.searchsorted(source, torch.arange(entities + 1, device=source.device))
        return cls(start, None, target, first, narrow(position), last)

    @classmethod
    def mapped(cls, stored: StoredLinks, device: torch.device) -> Self:
        """Of links that a folder holds."""
        names = ("neighbour_start", "neighbour", "neighbour_first", "neighbour_order")
        start, *others = stored_columns(stored, device, *names)
        target, first, by_target = others
        return cls(start, None, target, first, by_target, stored.steps - 2)

    def __len__(self) -> int:
        return self.first.numel()

    def row(self, entity: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) first and last position, not included; nothing for entities that came later."""
        if self.start is None:
            assert self.source is not None
            low = torch.searchsorted(self.source, entity)
            return low, torch.searchsorted(self.source, entity, right=True)
        low = entity.clamp(max=self.start.numel() - 1)
        high = (entity + 1).clamp_(max=self.start.numel() - 1)
        return self.start.index_select(0, low), self.start.index_select(0, high)

    def before(self, entity: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) where the neighbours before a time lie."""
        low, high = self.row(entity)
        return low, bisect_ranges(self.first, low, high, time, largest=self.last_step)

    def find(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """(L,) positions of pairs, and which of them are there."""
        if not len(self):
            return torch.zeros_like(source), torch.zeros_like(source, dtype=torch.bool)
        low, high = self.row(source)
        rank = bisect_ranges(self.target, low, high, target, self.by_target)
        position = self.by_target[rank.clamp(max=len(self) - 1)].long()
        return position, (rank < high) & (self.target[position] == target)

    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Source, target and first step of all pairs by (source, target), (P,) each."""
        place, source = self.by_target.long(), self.source
        if source is None:
            assert self.start is not None
            source = torch.repeat_interleave(self.start.diff())
        return source, self.target[place].long(), self.first[place].long()


class HasTargets(Protocol):
    """What neighbours are read from."""

    @property
    def target(self) -> Tensor:
        """(P,) the neighbours, those of one entity together."""


class Span(NamedTuple):
    """Where the neighbours of Q entities lie in one layer."""

    order: HasTargets
    began_in_other: Tensor
    """Ascending positions of pairs that began in another layer, and belong there."""
    low: Tensor
    """(Q,) first position."""
    high: Tensor
    """(Q,) the end, not included."""


class Neighbours:
    """Time-bounded look-ups over the neighbours of all layers of an index.

    Args:
        layers: those of each layer.
        entities: E of the index.
        before: the same of all layers but the last.
    """

    def __init__(
        self, layers: list[NeighbourOrder], entities: int, before: Neighbours | None = None
    ) -> None:
        self._layers, self.entities, self._before = layers, entities, before
        self.device = layers[0].first.device

    def all_before(self, time: Tensor) -> bool:
        """Whether every pair began before all of some times: queries about today."""
        last = max(order.last_step for order, _ in self._began)
        return bool((time > last).all())

    def before(self, entity: Tensor, time: Tensor | None) -> list[Span]:
        """Where the neighbours of entities before a time lie, in each layer that has any.

        Args:
            entity: (Q,) int64.
            time: (Q,) int64; None: one for which :meth:`all_before` holds.
        """
        spans: list[Span] = []
        for order, began_in_other in self._began:
            low, high = order.row(entity)
            if spans and nothing_in(low, high):
                continue
            if time is not None:
                high = bisect_ranges(order.first, low, high, time, largest=order.last_step)
            spans.append(Span(order, began_in_other, low, high))
        return spans

    def degree(self, entity: Tensor, time: Tensor) -> Tensor:
        """(Q,) how many entities each was linked to before a time, itself included if it was.

        Args:
            entity: (Q,) int64.
            time: (Q,) int64.
        """
        return self.count(self.before(entity, time))

    @staticmethod
    def count(spans: list[Span]) -> Tensor:
        """(Q,) how many neighbours lie in what :meth:`before` gave."""
        counts = []
        for _, began_in_other, low, high in spans:
            count = high - low
            if began_in_other.numel():
                count = count - _within(began_in_other, low, high)
            counts.append(count)
        return sum(counts[1:], start=counts[0])

    @staticmethod
    def each(spans: list[Span], which: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(L,) rows and targets of all neighbours in what :meth:`before` gave.

        Rows are in no order where there are several layers.

        Args:
            spans: of (Q,) entities.
            which: (Q,) bool, those whose neighbours are wanted; None: all.
        """
        rows: list[Tensor] = []
        targets: list[Tensor] = []
        for order, began_in_other, low, high in spans:
            if which is not None:
                high = torch.where(which, high, low)
            row, position = expand_ranges(low, high)
            if began_in_other.numel():
                kept = ~torch.isin(position, began_in_other)
                row, position = some_rows(kept, row, position)
            rows.append(row)
            targets.append(order.target.index_select(0, position))
        if len(rows) == 1:
            return rows[0], targets[0].long()
        return torch.cat(rows), torch.cat(targets).long()

    def expand(
        self, entity: Tensor, time: Tensor, most: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The entities that each was linked to before a time, each once.

        Args:
            entity: (Q,) int64.
            time: (Q,) int64.
            most: only so many of each, those whose links began last; None: all.

        Returns:
            row: (L,) of the entities, non-decreasing.
            target: (L,) of a row by the step of the first link, and those of one step by id.
        """
        parts = []
        for order, began_in_other in self._began:
            low, high = order.before(entity, time)
            if most is not None:
                low = torch.maximum(low, high - most - _within(began_in_other, low, high))
            row, position = expand_ranges(low, high)
            if len(began_in_other):
                kept = ~torch.isin(position, began_in_other)
                row, position = row[kept], position[kept]
            if len(row):
                parts.append((row, order.target[position].long(), order.first[position].long()))
        if not parts:
            return torch.zeros_like(entity[:0]), torch.zeros_like(entity[:0])
        row, target, first = (torch.cat(column) for column in zip(*parts, strict=True))
        if len(parts) > 1:
            rank = in_order_of(row, first, target)
            row, target = row[rank], target[rank]
        if most is not None and len(self._began) > 1:
            row, target = last_of_each(most, row, target)
        return row, target

    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Source, target and first step of all pairs by (source, target), (P,) each.

        For who goes over all of them.
        """
        parts = []
        for order, began_in_other in self._began:
            source, target, first = order.pairs()
            if len(began_in_other):
                kept = ~torch.isin(order.by_target, began_in_other)
                source, target, first = source[kept], target[kept], first[kept]
            parts.append((source, target, first))
        if len(parts) == 1:
            return parts[0]
        source, target, first = (torch.cat(column) for column in zip(*parts, strict=True))
        rank = torch.argsort(source * self.entities + target)
        return source[rank], target[rank], first[rank]

    @cached_property
    def _began(self) -> list[tuple[NeighbourOrder, Tensor]]:
        """The pairs of each layer; and the ascending positions of those that began in another.

        As for :class:`metatkgr.graph.pairs.Pairs`: a pair belongs to the layer in which it began.
        The base is left as it is; later layers are made anew without what they only repeat.
        """
        nothing = torch.zeros(0, dtype=torch.int64, device=self.device)
        parts = [(self._layers[0], nothing)] if self._before is None else [*self._before._began]
        for layer in self._layers[len(parts) :]:
            source, target, first = layer.pairs()
            new = torch.ones_like(source, dtype=torch.bool)
            for number, (other, began_in_other) in enumerate(parts):
                position, there = other.find(source, target)
                if len(other):
                    earlier = there & (first < other.first[position])
                    superseded = torch.cat([began_in_other, position[earlier]])
                    parts[number] = other, torch.unique(superseded)
                    new &= ~there | earlier
            fewer = NeighbourOrder.by_pair(source[new], target[new], first[new], self.entities)
            parts.append((fewer, nothing))
        return parts


def _within(positions: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(Q,) how many of some ascending positions lie in each range."""
    return torch.searchsorted(positions, high) - torch.searchsorted(positions, low)
