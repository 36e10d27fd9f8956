"""What was visible before a moment: evidence about pairs of entities, and walks between them.

A history is the temporal index with the supports beside it. Every look-up applies the time bound of
``data.visibility``: of the public facts those strictly before the query's time; and, where its
text says so, the query entity's own support at any time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.orders import inverse
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports
from metatkgr.deadlines import check
from metatkgr.graph.index import EntityFacts, TemporalIndex
from metatkgr.graph.pairs import PairSteps
from metatkgr.graph.ragged import distinct, expand_ranges, some_rows

__all__ = ["Frontier", "History"]

_LARGEST_EXPANSION = 1 << 23
"""How many links a hop looks at in one go; bounds memory when walks meet a hub."""
_MOST_LINKS = 1 << 16
"""How many links a hop looks at for one query."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """A sparse (Q, E) table of whole numbers: how often walks of a query ended at an entity."""

    query: Tensor
    """(L,) row of the query."""
    entity: Tensor
    """(L,) where the walks are; a (query, entity) pair occurs once."""
    count: Tensor
    """(L,) number of walks, at least 1."""


class History:
    """Time-bounded look-ups over public facts and supports, batched over queries.

    Args:
        index: the public facts.
        supports: the first facts of the new entities; an entity's own are visible to its own
            queries at any time.
    """

    def __init__(self, index: TemporalIndex, supports: Supports) -> None:
        self.index, self.device = index, index.device
        self.entities, self.relations = self.index.entities, self.index.relations
        latest = int(supports.time.max()) + 2 if len(supports) else 2
        self.steps = max(latest, self.index.steps)
        self._own_entity, self._own_relation, self._own_other, self._own_time = map(
            self._tensor, supports.directed()
        )

    def _tensor(self, column: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(column)).to(self.device)

    def columns(self, queries: Queries) -> tuple[Tensor, Tensor, Tensor]:
        """Entity, relation and time of the queries, (Q,) each; times are clamped to the index."""
        entity, relation, time = queries.columns(self.device)
        return entity, relation, time.clamp(0, self.steps - 1)

    def last_links(self, queries: Queries) -> PairSteps:
        """Entities the query entity was linked to by the query's relation, and when last."""
        entity, relation, time = self.columns(queries)
        public = self.index.pairs.last_links(entity, relation, time)
        query, own = self._own_supports(entity)
        same = self._own_relation[own] == relation[query]
        return self._with_own(public, query[same], own[same])

    def last_contacts(self, queries: Queries) -> PairSteps:
        """Entities the query entity was linked to at all, in either direction, and when last."""
        entity, _, time = self.columns(queries)
        public = self.index.pairs.last_contacts(entity, time)
        return self._with_own(public, *self._own_supports(entity))

    def _own_supports(self, entity: Tensor) -> tuple[Tensor, Tensor]:
        """The own support facts of the entities of queries: (query row, row in the supports)."""
        low = torch.searchsorted(self._own_entity, entity)
        high = torch.searchsorted(self._own_entity, entity, right=True)
        return expand_ranges(low, high)

    def own_later(self, entity: Tensor, time: Tensor) -> EntityFacts:
        """The own support facts of queries that are not public yet: visible to these alone.

        Args:
            entity: (Q,) the query entities.
            time: (Q,) of the queries.
        """
        query, own = self._own_supports(entity)
        columns = (self._own_relation, self._own_other, self._own_time)
        facts = EntityFacts(query, *some_rows(own, *columns))
        return facts.kept(facts.time >= time.index_select(0, query))

    def _with_own(self, public: PairSteps, query: Tensor, own: Tensor) -> PairSteps:
        """All evidence as one, by query and candidate; of several steps for one pair the latest
        stays."""
        other, when = some_rows(own, self._own_other, self._own_time)
        query = torch.cat([public.query, query])
        candidate = torch.cat([public.candidate, other])
        step = torch.cat([public.step, when])
        cell, member = distinct(query * self.entities + candidate)
        latest = torch.full_like(cell, -1).scatter_reduce_(0, member, step, "amax")
        query = cell // self.entities
        return PairSteps(query, cell - query * self.entities, latest)

    def facts_before(self, queries: Queries) -> Tensor:
        """(Q,) number of public facts of the query's relation before its time."""
        _, relation, time = self.columns(queries)
        return self.index.slots.facts_before(relation, time)

    def hop(self, start: Frontier, relation: Tensor, time: Tensor) -> Frontier:
        """Take one step from every entity of a frontier along distinct public links.

        A step of one query looks at some 65,000 links at most: beyond that, each entity of its
        frontier follows an equal number of its links, those that began last.

        Args:
            start: where the walks of Q queries are.
            relation: (Q,) directed relation each query's walks follow.
            time: (Q,) only links that first occurred before this step exist.

        Returns:
            Where the walks are now; the counts of walks that meet are added.
        """
        if not start.entity.numel():
            return start
        check()
        pairs = self.index.pairs
        along, now = some_rows(start.query, relation, time)
        ranges = pairs.of_slot(start.entity, along)
        cut = False
        if sum(int((high - low).sum()) for low, high in ranges) > _MOST_LINKS:
            total = torch.zeros_like(relation)
            for low, high in ranges:
                total.index_add_(0, start.query, high - low)
            some = torch.nonzero((total > _MOST_LINKS)[start.query]).squeeze(1)
            cut = some.numel() > 0
            # What is cut has no links left here, and follows below.
            for low, high in ranges:
                high.index_copy_(0, some, low[some])
        links = pairs.links_in(ranges, now, _LARGEST_EXPANSION)
        if cut:
            size = torch.bincount(start.query, minlength=len(relation))
            most = (_MOST_LINKS // size.clamp(min=1)).clamp(min=1)[start.query[some]]
            latest = pairs.latest_links(start.entity[some], along[some], now[some], most)
            links.append((some[latest.row], latest.target))
        parts = []
        for row, target in links:
            query, count = some_rows(row, start.query, start.count)
            parts.append(_gather([Frontier(query, target, count)], self.entities))
        return _gather(parts, self.entities) if len(parts) > 1 else parts[0]

    def walks(self, queries: Queries) -> Frontier:
        """Number of walks e -r-> y <-r- z -r-> x to every candidate x that has any.

        Like the counts of a slot, and unlike the last links, they take own support facts only once
        their time has passed.
        """
        _, relation, time = self.columns(queries)
        frontier = self.start(queries)
        for along in (relation, inverse(relation, self.relations), relation):
            frontier = self.hop(frontier, along, time)
        return frontier

    def start(self, queries: Queries) -> Frontier:
        """The frontier at which every walk begins: each query at its own entity."""
        entity, _, _ = self.columns(queries)
        rows = torch.arange(len(queries), device=self.device)
        return Frontier(rows, entity, torch.ones_like(rows))


def _gather(parts: list[Frontier], entities: int) -> Frontier:
    """One frontier from several: each (query, entity) pair once, counts added."""
    if len(parts) > 1:
        query = torch.cat([part.query for part in parts])
        entity = torch.cat([part.entity for part in parts])
        count = torch.cat([part.count for part in parts])
    else:
        query, entity, count = parts[0].query, parts[0].entity, parts[0].count
    cells = query * entities + entity
    cell, member = distinct(cells)
    total = torch.zeros_like(cell).index_add_(0, member, count)
    query = cell // entities
    return Frontier(query, cell - query * entities, total)
