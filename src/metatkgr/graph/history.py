"""What was visible before a moment: evidence about pairs of entities, and walks between them.

Every look-up applies the time bound of ``data.visibility``: of the public facts those strictly
before the question's time; and, where its text says so, the asking entity's own support at any
time.

A history has one or more layers of public facts, so that facts can be added without indexing the
others anew: each look-up asks every layer and puts the answers together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.links import Evidence, Links
from metatkgr.graph.ragged import blocks_by_size, expand_ranges

__all__ = ["Evidence", "Frontier", "History"]

_LARGEST_EXPANSION = 1 << 23
"""How many links a hop looks at in one go; bounds memory when walks meet a hub."""
_SMALL_TABLE = 1 << 18
"""Up to so many cells a table of counts is quicker than sorting."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """A sparse (Q, E) table of whole numbers: how often walks of a question ended at an entity."""

    question: Tensor
    """(L,) row of the question."""
    entity: Tensor
    """(L,) where the walks are; a (question, entity) pair occurs once."""
    count: Tensor
    """(L,) number of walks, at least 1."""


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
        self._fill([Links(visible, device)], supports)

    @classmethod
    def of_layers(cls, layers: Sequence[Links], supports: Supports) -> Self:
        """The history of public facts that are indexed already.

        Args:
            layers: at least one, on one device. No fact is in two of them; the last one has the
                largest vocabulary, with which the others' begin.
            supports: the first facts of the new entities.
        """
        history = cls.__new__(cls)
        history._fill(list(layers), supports)
        return history

    def _fill(self, layers: list[Links], supports: Supports) -> None:
        self.device = layers[0].device
        self.entities, self.relations = layers[-1].entities, layers[-1].relations
        self._layers = [layer for layer in layers if len(layer)] or layers[-1:]
        latest = int(supports.time.max()) + 2 if len(supports) else 2
        self.steps = max(latest, *(layer.steps for layer in layers))
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

    def last_links(self, queries: Queries) -> Evidence:
        """Entities the asking entity was linked to by the asked relation, and when last."""
        entity, relation, time = self.columns(queries)
        public = [layer.last_links(entity, relation, time) for layer in self._layers]
        question, own = self._own_supports(queries)
        same = self._own_relation[own] == relation[question]
        return self._with_own(public, question[same], own[same])

    def last_contacts(self, queries: Queries) -> Evidence:
        """Entities the asking entity was linked to at all, in either direction, and when last."""
        entity, _, time = self.columns(queries)
        public = [layer.last_contacts(entity, time) for layer in self._layers]
        return self._with_own(public, *self._own_supports(queries))

    def _own_supports(self, queries: Queries) -> tuple[Tensor, Tensor]:
        """The own support facts of each question: (question row, row in the supports)."""
        entity, _, _ = self.columns(queries)
        low = torch.searchsorted(self._own_entity, entity)
        high = torch.searchsorted(self._own_entity, entity, right=True)
        return expand_ranges(low, high)

    def _with_own(self, public: list[Evidence], question: Tensor, own: Tensor) -> Evidence:
        """All evidence as one; of several steps for one pair the latest stays."""
        question = torch.cat([*(part.question for part in public), question])
        candidate = torch.cat([*(part.candidate for part in public), self._own_other[own]])
        step = torch.cat([*(part.step for part in public), self._own_time[own]])
        cell, member = torch.unique(question * self.entities + candidate, return_inverse=True)
        latest = torch.full_like(cell, -1).scatter_reduce_(0, member, step, "amax")
        return Evidence(cell // self.entities, cell % self.entities, latest)

    def facts_before(self, queries: Queries) -> Tensor:
        """(Q,) number of public facts of the asked relation before the asked time."""
        _, relation, time = self.columns(queries)
        first, *others = (layer.facts_before(relation, time) for layer in self._layers)
        return sum(others, start=first)

    def place_counts(self, queries: Queries) -> Tensor:
        """How often each entity stood at the far end of the asked relation before the asked time.

        Own supports count like any other public fact: only once their time has passed.

        Returns:
            (Q, E) int64.
        """
        _, relation, time = self.columns(queries)
        # The last layer knows all entities.
        *others, total = (layer.place_counts(relation, time) for layer in self._layers)
        if total.shape[1] < self.entities:
            total = torch.nn.functional.pad(total, (0, self.entities - total.shape[1]))
        for counts in others:
            total[:, : counts.shape[1]] += counts
        return total

    def hop(self, start: Frontier, relation: Tensor, time: Tensor) -> Frontier:
        """Take one step from every entity of a frontier along distinct public links.

        Args:
            start: where the walks of Q questions are.
            relation: (Q,) directed relation each question's walks follow.
            time: (Q,) only links that first occurred before this step exist.

        Returns:
            Where the walks are now; the counts of walks that meet are added.
        """
        parts: list[Frontier] = []
        for number, layer in enumerate(self._layers):
            key = start.entity * layer.relations + relation[start.question]
            low, high = layer.by_relation.range_of(key)
            if number and not bool((high > low).any()):
                continue
            parts += [
                self._hop_block(start, key, low, high, time, rows, number)
                for rows in blocks_by_size(high - low, _LARGEST_EXPANSION)
            ]
        return _gather(parts, self.entities) if len(parts) > 1 else parts[0]

    def _hop_block(
        self,
        start: Frontier,
        key: Tensor,
        low: Tensor,
        high: Tensor,
        time: Tensor,
        rows: slice,
        number: int,
    ) -> Frontier:
        links = self._layers[number].by_relation
        origin, pair = expand_ranges(low[rows], high[rows])
        question = start.question[rows][origin]
        exists = links.first[pair] < time[question]
        target = links.pair[pair] % links.entities
        for earlier in self._layers[:number]:
            # A link is one, in however many layers it occurs.
            known = earlier.by_relation.exists(key[rows][origin], target, time[question])
            exists &= ~known
        question, target, origin = question[exists], target[exists], origin[exists]
        return _gather([Frontier(question, target, start.count[rows][origin])], self.entities)

    def start(self, queries: Queries) -> Frontier:
        """The frontier at which every walk begins: each question at its own entity."""
        entity, _, _ = self.columns(queries)
        rows = torch.arange(len(queries), device=self.device)
        return Frontier(rows, entity, torch.ones_like(rows))

    def neighbours(self, entity: int, relation: int, time: int) -> Tensor:
        """(n,) distinct entities publicly linked by a relation before a time, ascending."""
        parts = [layer.neighbours(entity, relation, time) for layer in self._layers]
        found: Tensor = torch.unique(torch.cat(parts))
        return found

    def facts_of(
        self, entity: int, relation: int | None, target: int | None, time: int, *, own: bool
    ) -> Tensor:
        """The facts of an entity that are visible to its question, latest first.

        Args:
            entity: whose facts.
            relation: only those of a directed relation; None: all.
            target: only those with this other end; None: all.
            time: public facts strictly before this step.
            own: and the entity's own support at any time.

        Returns:
            (n, 3) directed relation, other end, step.
        """
        parts = [layer.of(entity, relation, target, time) for layer in self._layers]
        if own:
            mine = self._own_entity == entity
            columns = (self._own_relation, self._own_other, self._own_time)
            rows = torch.stack([column[mine] for column in columns], dim=1)
            keep = rows[:, 2] >= time  # earlier ones are public
            keep &= True if relation is None else rows[:, 0] == relation
            keep &= True if target is None else rows[:, 1] == target
            parts.append(rows[keep])
        found = torch.cat(parts)
        for column, descending in ((1, False), (0, False), (2, True)):
            found = found[torch.argsort(found[:, column], descending=descending, stable=True)]
        return found


def _gather(parts: list[Frontier], entities: int) -> Frontier:
    """One frontier from several: each (question, entity) pair once, counts added."""
    if len(parts) > 1:
        question = torch.cat([part.question for part in parts])
        entity = torch.cat([part.entity for part in parts])
        count = torch.cat([part.count for part in parts])
    else:
        question, entity, count = parts[0].question, parts[0].entity, parts[0].count
    cells = question * entities + entity
    room = (int(question.max()) + 1) * entities if len(question) else 0
    if 0 < room <= max(_SMALL_TABLE, 4 * len(cells)):
        table = count.new_zeros(room).index_add_(0, cells, count)
        cell = torch.nonzero(table).squeeze(1)
        return Frontier(cell // entities, cell % entities, table[cell])
    cell, member = torch.unique(cells, return_inverse=True)
    total = torch.zeros_like(cell).scatter_add_(0, member, count)
    return Frontier(cell // entities, cell % entities, total)
