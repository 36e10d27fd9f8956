"""What was visible before a moment: evidence about pairs of entities, and walks between them.

Every look-up applies the time bound of ``data.visibility``: of the public facts those strictly
before the question's time; and, where its text says so, the asking entity's own support at any
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.ragged import blocks_by_size, expand_ranges, pack

__all__ = ["Evidence", "Frontier", "History"]

_LARGEST_EXPANSION = 1 << 23
"""How many links a hop looks at in one go; bounds memory when walks meet a hub."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """A sparse (Q, E) table: for some candidates of some questions, a step."""

    question: Tensor
    """(L,) row of the question."""
    candidate: Tensor
    """(L,) entity id; a (question, candidate) pair occurs once."""
    step: Tensor
    """(L,) the step the evidence dates from."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """A sparse (Q, E) table of whole numbers: how often walks of a question ended at an entity."""

    question: Tensor
    """(L,) row of the question."""
    entity: Tensor
    """(L,) where the walks are; a (question, entity) pair occurs once."""
    count: Tensor
    """(L,) number of walks, at least 1."""


class _PairTimes:
    """For each distinct (key, target) pair the ascending steps at which it occurred."""

    def __init__(self, key: Tensor, target: Tensor, time: Tensor, entities: int, steps: int):
        self.entities, self.steps = entities, steps
        keys = int(key.max()) + 1 if len(key) else 1
        pair = pack((key, keys), (target, entities))
        self.pair, member = torch.unique(pair, return_inverse=True)
        self.occurrence, _ = torch.sort(pack((member, len(self.pair)), (time, steps)))
        numbers = torch.arange(len(self.pair) + 1, device=key.device)
        self.start = torch.searchsorted(self.occurrence, numbers * steps)

    @cached_property
    def first(self) -> Tensor:
        """(P,) step at which each pair occurred first."""
        return self.occurrence[self.start[:-1]] % self.steps

    def last_before(self, key: Tensor, time: Tensor) -> Evidence:
        """Of each key, all targets it was paired with before ``time``, with the last such step."""
        low = torch.searchsorted(self.pair, key * self.entities)
        high = torch.searchsorted(self.pair, (key + 1) * self.entities)
        question, pair = expand_ranges(low, high)
        end = torch.searchsorted(self.occurrence, pair * self.steps + time[question])
        seen = end > self.start[pair]
        question, pair, end = question[seen], pair[seen], end[seen]
        step = self.occurrence[end - 1] - pair * self.steps
        return Evidence(question, self.pair[pair] % self.entities, step)


class History:
    """Time-bounded look-ups over public facts and supports, batched over questions.

    Args:
        visible: the public facts.
        supports: the first facts of the new entities; an entity's own are visible to its own
            questions at any time.
        device: where the index lives and the answers are given.
    """

    def __init__(
        self, visible: VisibleFacts, supports: Supports, device: torch.device | str = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self.entities = len(visible.entities)
        self.relations = 2 * len(visible.relations)
        latest = [int(part.time.max()) for part in (visible, supports) if len(part)]
        # One more step than the last, so that "before any later time" is a time of its own.
        self.steps = max(latest, default=0) + 2
        columns = (visible.source, visible.relation, visible.target, visible.time)
        self._source, self._relation, self._target, self._time = map(self._tensor, columns)
        own = (supports.entity, supports.relation, supports.other, supports.time)
        self._own_entity, self._own_relation, self._own_other, self._own_time = map(
            self._tensor, own
        )

    def _tensor(self, column: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(column)).to(self.device)

    def columns(self, queries: Queries) -> tuple[Tensor, Tensor, Tensor]:
        """Entity, relation and time of the questions, (Q,) each; times are clamped to the index."""
        entity, relation, time = map(self._tensor, (queries.entity, queries.relation, queries.time))
        return entity, relation, time.clamp(0, self.steps - 1)

    @cached_property
    def _by_relation(self) -> _PairTimes:
        key = pack((self._source, self.entities), (self._relation, self.relations))
        return _PairTimes(key, self._target, self._time, self.entities, self.steps)

    @cached_property
    def _by_entity(self) -> _PairTimes:
        return _PairTimes(self._source, self._target, self._time, self.entities, self.steps)

    def last_links(self, queries: Queries) -> Evidence:
        """Entities the asking entity was linked to by the asked relation, and when last."""
        entity, relation, time = self.columns(queries)
        public = self._by_relation.last_before(entity * self.relations + relation, time)
        question, own = self._own_supports(queries)
        same = self._own_relation[own] == relation[question]
        return self._with_own(public, question[same], own[same])

    def last_contacts(self, queries: Queries) -> Evidence:
        """Entities the asking entity was linked to at all, in either direction, and when last."""
        entity, _, time = self.columns(queries)
        return self._with_own(
            self._by_entity.last_before(entity, time), *self._own_supports(queries)
        )

    def _own_supports(self, queries: Queries) -> tuple[Tensor, Tensor]:
        """The own support facts of each question: (question row, row in the supports)."""
        entity, _, _ = self.columns(queries)
        low = torch.searchsorted(self._own_entity, entity)
        high = torch.searchsorted(self._own_entity, entity, right=True)
        return expand_ranges(low, high)

    def _with_own(self, public: Evidence, question: Tensor, own: Tensor) -> Evidence:
        """Add own support facts to public evidence; of two steps for one pair the later stays."""
        question = torch.cat([public.question, question])
        candidate = torch.cat([public.candidate, self._own_other[own]])
        step = torch.cat([public.step, self._own_time[own]])
        cell, member = torch.unique(question * self.entities + candidate, return_inverse=True)
        latest = torch.full_like(cell, -1).scatter_reduce_(0, member, step, "amax")
        return Evidence(cell // self.entities, cell % self.entities, latest)

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Facts by (relation, time): the sorted key, and who stood at the relation's far end."""
        key = pack((self._relation, self.relations), (self._time, self.steps))
        key, order = torch.sort(key, stable=True)
        return key, self._target[order]

    def facts_before(self, queries: Queries) -> Tensor:
        """(Q,) number of public facts of the asked relation before the asked time."""
        _, relation, time = self.columns(queries)
        key, _ = self._places
        begin = torch.searchsorted(key, relation * self.steps)
        return torch.searchsorted(key, relation * self.steps + time) - begin

    def place_counts(self, queries: Queries) -> Tensor:
        """How often each entity stood at the far end of the asked relation before the asked time.

        Own supports count like any other public fact: only once their time has passed.

        Returns:
            (Q, E) int64.
        """
        _, relation, time = self.columns(queries)
        moment, row = torch.unique(relation * self.steps + time, return_inverse=True)
        return self._counts_at(moment)[row]

    def _counts_at(self, moment: Tensor) -> Tensor:
        """(G, E) counts for ascending packed (relation, time) moments."""
        key, target = self._places
        relation = moment // self.steps
        stop = torch.searchsorted(key, moment)
        start = torch.searchsorted(key, relation * self.steps)
        # A moment continues where the previous one of the same relation ended.
        start[1:] = torch.where(relation[1:] == relation[:-1], stop[:-1], start[1:])
        row, position = expand_ranges(start, stop)
        cells = torch.bincount(
            row * self.entities + target[position], minlength=len(moment) * self.entities
        )
        counts = cells.view(len(moment), self.entities)
        for run in torch.unique_consecutive(relation, return_counts=True)[1].cumsum(0).tolist():
            begin = int(torch.searchsorted(relation, relation[run - 1]))
            torch.cumsum(counts[begin:run], 0, out=counts[begin:run])
        return counts

    def hop(self, start: Frontier, relation: Tensor, time: Tensor) -> Frontier:
        """Take one step from every entity of a frontier along distinct public links.

        Args:
            start: where the walks of Q questions are.
            relation: (Q,) directed relation each question's walks follow.
            time: (Q,) only links that first occurred before this step exist.

        Returns:
            Where the walks are now; the counts of walks that meet are added.
        """
        links = self._by_relation
        key = start.entity * self.relations + relation[start.question]
        low = torch.searchsorted(links.pair, key * self.entities)
        high = torch.searchsorted(links.pair, (key + 1) * self.entities)
        parts = [
            self._hop_block(start, low, high, time, rows)
            for rows in blocks_by_size(high - low, _LARGEST_EXPANSION)
        ]
        return _gather(parts, self.entities) if len(parts) != 1 else parts[0]

    def _hop_block(
        self, start: Frontier, low: Tensor, high: Tensor, time: Tensor, rows: slice
    ) -> Frontier:
        links = self._by_relation
        origin, pair = expand_ranges(low[rows], high[rows])
        question = start.question[rows][origin]
        exists = links.first[pair] < time[question]
        question, pair, origin = question[exists], pair[exists], origin[exists]
        reached = Frontier(question, links.pair[pair] % self.entities, start.count[rows][origin])
        return _gather([reached], self.entities)

    def start(self, queries: Queries) -> Frontier:
        """The frontier at which every walk begins: each question at its own entity."""
        entity, _, _ = self.columns(queries)
        rows = torch.arange(len(queries), device=self.device)
        return Frontier(rows, entity, torch.ones_like(rows))


def _gather(parts: list[Frontier], entities: int) -> Frontier:
    """One frontier from several: each (question, entity) pair once, counts added."""
    question = torch.cat([part.question for part in parts])
    entity = torch.cat([part.entity for part in parts])
    count = torch.cat([part.count for part in parts])
    cell, member = torch.unique(question * entities + entity, return_inverse=True)
    total = torch.zeros_like(cell).scatter_add_(0, member, count)
    return Frontier(cell // entities, cell % entities, total)
