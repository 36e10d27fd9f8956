"""One layer of the temporal index: the links of some facts, in each order in which they are read.

A *link* is a fact seen from one of its ends: source, directed relation, target, time. Five orders,
each made when it is first read, in one stable sort (facts come in time order):

==============  ==============================  =============================================
``by_time``     (source, time)                  neighbours of an entity: samplers, its history
``pairs``       (source, relation, target)      distinct links with all their times: repeats, walks
``slots``       (relation, time)                who filled a relation slot, how often and when
``usage``       (source, relation, time)        how often an entity filled a slot before a time
``neighbours``  (source, first time)            who is linked to whom at all, and since when
==============  ==============================  =============================================

Ids and times are kept as int32 and handed out as int64. Nothing here knows of queries; the time
bound of ``data.visibility`` is an argument of every look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.data.manifest import StoredLinks
from metatkgr.data.orders import pack, stored_columns
from metatkgr.data.visibility import Directed, Supports, VisibleFacts
from metatkgr.graph.co_occurrence import CoOccurrence
from metatkgr.graph.neighbours import NeighbourOrder
from metatkgr.graph.pairs import PairTimes
from metatkgr.graph.ragged import some_rows
from metatkgr.graph.slots import SlotOrder
from metatkgr.graph.usage import SlotUsage

__all__ = ["LinkLayer", "TimeOrder", "base_layers", "some_facts"]

_BLOCK = 1 << 18
"""How many links are ordered in one go; bounds memory."""
_LARGE = 1 << 20
"""Links of a selection that are rather written to disk than held."""


@dataclass(frozen=True, eq=False)
class TimeOrder:
    """Links by (source, time, row), in compressed sparse rows.

    Of two links of one entity at one time, the one whose row came later in the input is the more
    recent. A fact of an entity with itself is one link, in the fact's own direction: its inverse
    would be the same fact a second time from the same end.
    """

    key: Tensor
    """(D,) int64 ``source * steps + time``, ascending."""
    stored_relation: Tensor
    """(D,) int32 directed relation, as it was numbered when the links were written."""
    target: Tensor
    """(D,) int32 entity the link leads to."""
    entities: int
    """E."""
    steps: int
    """One more than the last step that a link may have; ``steps - 1`` itself stays free, so that
    "after the last link" is a time of its own."""
    stored_start: Tensor | None = None
    """What ``start`` is, where it is known."""
    moved: tuple[int, int] = (0, 0)
    """Relations from which number on have moved, and how far: where relations have come since,
    inverse ones have other numbers."""

    @classmethod
    def of(
        cls,
        links: Directed,
        entities: int,
        relations: int,
        steps: int,
        device: torch.device,
    ) -> Self:
        """Of source, directed relation, target and time, (D,) each; ``relations`` is 2R."""
        source, relation, target, time = (
            torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in links
        )
        twice = (target == source) & (relation >= relations // 2)
        if bool(twice.any()):
            source, relation, target, time = (c[~twice] for c in (source, relation, target, time))
        key = pack((source, entities), (time, steps))
        del source, time, twice, links
        key, order = torch.sort(key, stable=True)
        return cls(key, relation[order].int(), target[order].int(), entities, steps)

    @classmethod
    def mapped(cls, stored: StoredLinks, relations: int, device: torch.device) -> Self:
        """Of links that a folder holds; nothing is read before it is looked at.

        Args:
            stored: perhaps written when there were fewer relations.
            relations: 2R now.
            device: where the columns are to be; they stay in the file on a CPU.
        """
        names = ("key", "relation", "target", "start")
        key, relation, target, start = stored_columns(stored, device, *names)
        # The inverse of r is r + R, and R may have grown.
        moved = (stored.relations // 2, (relations - stored.relations) // 2)
        return cls(key, relation, target, stored.entities, stored.steps, start, moved)

    @classmethod
    def merged(cls, orders: list[TimeOrder], entities: int, steps: int) -> Self:
        """One order of all links; of links at one time those of a later one are more recent."""
        columns = []
        for order in orders:
            source = order.key // order.steps
            columns.append(order.key + source * (steps - order.steps))
        key, permutation = torch.sort(torch.cat(columns), stable=True)
        relation = torch.cat([order.relation for order in orders])[permutation]
        target = torch.cat([order.target for order in orders])[permutation]
        return cls(key, relation, target, entities, steps)

    def __len__(self) -> int:
        return self.key.numel()

    @cached_property
    def relation(self) -> Tensor:
        """(D,) int32 directed relation, for who goes over all of them."""
        return self._numbered(self.stored_relation)

    def relations_of(self, position: Tensor | slice) -> Tensor:
        """(L,) int32 directed relations of links by their positions."""
        return self._numbered(*some_rows(position, self.stored_relation))

    def _numbered(self, relation: Tensor) -> Tensor:
        low, by = self.moved
        return relation + by * (relation >= low).int() if by else relation

    @cached_property
    def start(self) -> Tensor:
        """(E + 1,) int64; entity e's links are ``start[e]`` to ``start[e + 1]``, not included."""
        if self.stored_start is not None:
            return self.stored_start
        first = torch.arange(self.entities + 1, device=self.key.device) * self.steps
        return torch.searchsorted(self.key, first)

    def starts(self, entity: Tensor) -> Tensor:
        """(Q,) position of the first link of each entity; the end, for entities that came later."""
        entity = entity.clamp(max=self.entities)
        if len(self) < self.entities:
            # A few recent facts: nothing that grows with the number of entities is made for them.
            return torch.searchsorted(self.key, entity * self.steps)
        return torch.take(self.start, entity)

    def since(self, entity: Tensor, time: Tensor) -> Tensor:
        """(Q,) position of the first link of each entity at or after a time."""
        wanted = entity * self.steps + time.clamp(0, self.steps - 1)
        return torch.searchsorted(self.key, wanted)

    def time(self, source: Tensor, position: Tensor) -> Tensor:
        """Times of links, given their sources and positions (of one shape)."""
        return torch.take(self.key, position) - source * self.steps

    def blocks(self, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Sources, relations, targets and times of all links, some ``most`` links at a time.

        All links of a source are in one of them; there is at least one.
        """
        begin = end = 0
        while not begin or begin < len(self):
            if len(self):
                last = self.key[min(begin + most, len(self)) - 1] // self.steps
                end = int(torch.searchsorted(self.key, (last + 1) * self.steps))
            links = slice(begin, end)
            source = self.key[links] // self.steps
            time = self.key[links] - source * self.steps
            yield source, self.relations_of(links), self.target[links], time
            begin = max(end, 1)

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
            for column in (self.target, self.stored_relation, self.key)
        )
        relation = self._numbered(relation)
        time -= (source * self.steps)[:, None]
        return (
            target.masked_fill_(empty, 0),
            relation.masked_fill_(empty, 0),
            time.masked_fill_(empty, 0),
        )


class LinkLayer:
    """The links of some facts.

    Args:
        links: the facts; of supports, from their owners' side only and by time alone.
        entities: E.
        relations: 2R.
        device: where the orders live.
        stored: the same links in all orders, where a folder holds them.
    """

    def __init__(
        self,
        links: VisibleFacts | Supports,
        *,
        entities: int,
        relations: int,
        device: torch.device,
        stored: StoredLinks | None = None,
    ) -> None:
        self._links, self._stored = links, stored
        self.entities, self.relations, self.device = entities, relations, device
        time = links.time_range()
        self.first_step, self.last_step = time if time else (0, 0)
        self.steps = self.last_step + 2
        self._size = len(links)
        self.arrived: tuple[int, int, Any] | None = None
        """Of facts that came later: the number of the last, how many, and the index of this layer,
        those before it, and them."""
        self.co_occurrence: CoOccurrence | None = None
        """Which relations go together in this layer and those before it, once it was asked for."""

    @classmethod
    def of(
        cls, links: VisibleFacts, device: torch.device, stored: StoredLinks | None = None
    ) -> Self:
        """Of facts with their own vocabularies."""
        sizes = {"entities": len(links.entities), "relations": 2 * len(links.relations)}
        return cls(links, **sizes, device=device, stored=stored)

    def __len__(self) -> int:
        """Number of links, D."""
        return self._size

    @cached_property
    def by_time(self) -> TimeOrder:
        """Links by (source, time); mapped, where the folder of the facts holds them."""
        if self._stored is not None:
            return TimeOrder.mapped(self._stored, self.relations, self.device)
        sizes = (self.entities, self.relations, self.steps)
        return TimeOrder.of(self._links.directed(np.int32), *sizes, self.device)

    @cached_property
    def pairs(self) -> PairTimes:
        """Distinct links by (source, relation, target)."""
        if self._stored is not None:
            return PairTimes.mapped(self._stored, self.relations, self.device)
        return PairTimes.of(self.by_time.blocks(_BLOCK), self.entities, self.relations)

    @cached_property
    def slots(self) -> SlotOrder:
        """Facts by (relation, time)."""
        if self._stored is not None:
            return SlotOrder.mapped(self._stored, self.relations, self.device)
        assert isinstance(self._links, VisibleFacts)
        return SlotOrder.of(self._links.facts(), self.device)

    @cached_property
    def usage(self) -> SlotUsage:
        """Steps by (source, relation)."""
        return SlotUsage(self.pairs, self.relations, self._stored)

    @cached_property
    def neighbours(self) -> NeighbourOrder:
        """Distinct neighbours by (source, first step)."""
        if self._stored is not None:
            return NeighbourOrder.mapped(self._stored, self.device)
        return NeighbourOrder.of(self.pairs)


def base_layers(visible: VisibleFacts, device: torch.device) -> list[LinkLayer]:
    """The layers of the public facts of the base: those that somebody uses already, or new ones.

    What a folder holds the links of is apart from what it does not: appends to a folder leave its
    links as they are, until the new facts are no longer few.
    """
    base, folder = replace(visible, recent=None), visible.base.folder
    stored = folder.links() if folder is not None and visible.public is None else None
    parts = [base]
    if stored is not None and stored.facts < len(visible.base):
        parts = [
            VisibleFacts.of(some_facts(visible.base, rows))
            for rows in (slice(stored.facts), slice(stored.facts, None))
        ]
    layers: list[LinkLayer] = []
    for number, part in enumerate(parts):
        name = f"{device} {number}"
        layer: LinkLayer | None = visible.layers.get(name)
        if layer is None:
            links = _on_disk(part, device) if stored is None else None if number else stored
            layer = visible.layers[name] = LinkLayer.of(part, device, links)
        layers.append(layer)
    return layers


def _on_disk(visible: VisibleFacts, device: torch.device) -> StoredLinks | None:
    """The links of some facts of a large folder, in files of their own; None: in memory.

    So a training or an evaluation that goes over all links, and may not see all facts, holds as
    little of a large graph as a forecast. Who reads near queries needs nothing written: see
    ``graph.nearby``.
    """
    masked = visible.base.folder is not None and visible.public is not None
    if not masked or device.type != "cpu" or len(visible) < _LARGE or not find_spec("duckdb"):
        return None
    from metatkgr.data.index_writer import links_on_disk

    return links_on_disk(visible)


def some_facts(facts: Facts, rows: slice | npt.NDArray[np.bool_]) -> Facts:
    """Some facts; those of a slice are not copied."""
    columns = (facts.subject, facts.relation, facts.object, facts.time)
    subject, relation, object_, time = (column[rows] for column in columns)
    return replace(facts, subject=subject, relation=relation, object=object_, time=time)
