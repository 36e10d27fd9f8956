"""An index that grows: facts and entities are appended without building the large part anew.

The links of an entity are those of the base, which may be mapped from disk, followed by those of
each later layer. A position is the one that the link would have in an index built anew, so nothing
that reads an index can tell the two apart.

Directed relations are numbered r and R + r, so a new relation renumbers every inverse one. Each
layer keeps the R that it was written with, and what is read from it is moved to today's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.facts import IntArray
from metatkgr.errors import DataError
from metatkgr.graph.mapped import GraphIndex, read_links
from metatkgr.graph.ragged import pack

__all__ = ["GrowingIndex", "LinkLayer"]


@dataclass(frozen=True, eq=False)
class LinkLayer:
    """Links found by their keys alone: no number per entity."""

    key: Tensor
    """(D,) int64 ``source * steps + time``, ascending."""
    relation: Tensor
    """(D,) int64 directed relation."""
    target: Tensor
    """(D,) int64 entity the link leads to."""
    relations: int
    """2R."""
    steps: int
    """One more than the last step that a link may have, as in :class:`GraphIndex`."""

    @classmethod
    def of(
        cls, facts: Sequence[IntArray], entities: int, relations: int, device: torch.device
    ) -> Self:
        """Of facts in memory.

        Args:
            facts: subject, relation, object, step, (N,) each, in time order.
            entities: E.
            relations: 2R.
            device: where the links are to live.
        """
        subject, kind, other, when = facts
        columns = (
            np.stack([subject, other], axis=1),
            np.stack([kind, kind + relations // 2], axis=1),
            np.stack([other, subject], axis=1),
            np.stack([when, when], axis=1),
        )
        source, relation, target, time = (
            torch.from_numpy(column.reshape(-1)).to(device) for column in columns
        )
        steps = (int(time.max()) if len(time) else 0) + 2
        key, order = torch.sort(pack((source, entities), (time, steps)), stable=True)
        relation, target = relation[order], target[order]
        once = ~((target == source[order]) & (relation >= relations // 2))
        return cls(key[once], relation[once], target[once], relations, steps)

    def __len__(self) -> int:
        return len(self.key)

    def start(self, entity: Tensor) -> Tensor:
        """(Q,) position of the first link of each entity."""
        return torch.searchsorted(self.key, entity * self.steps)

    def since(self, entity: Tensor, time: Tensor) -> Tensor:
        """(Q,) position of the first link of each entity at or after a time."""
        return torch.searchsorted(self.key, entity * self.steps + time.clamp(0, self.steps - 1))

    def read(self, source: Tensor, position: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As :meth:`GraphIndex.read`."""
        columns = self.target, self.relation, self.key
        return read_links(columns, self.steps, source, position, mask)


class GrowingIndex:
    """A base and what was appended to it; has all that a sampler asks of an index.

    Args:
        base: an index, perhaps a mapped one; it is never changed.
        layers: what was appended, oldest first; perhaps mapped (``graph.stored``).
        entities: how many there are now; those of the base, where nothing is said.
        relations: R now, not counting inverse ones; the same.

    Links that :meth:`append` adds are in memory and are indexed anew each time, so append in
    batches, and build a new base (``graph.build``) when they are no longer few.
    """

    def __init__(
        self,
        base: GraphIndex,
        layers: Sequence[LinkLayer] = (),
        *,
        entities: int | None = None,
        relations: int | None = None,
    ) -> None:
        self.base, self._stored = base, tuple(layers)
        self.entities = base.entities if entities is None else entities
        self.relations = base.relations if relations is None else 2 * relations
        self.steps = max([base.steps, *(layer.steps for layer in layers)])
        self._columns: list[IntArray] = [np.zeros(0, np.int64) for _ in range(4)]
        self._layers = self._stored

    def append(
        self,
        facts: Sequence[IntArray],
        *,
        entities: int | None = None,
        relations: int | None = None,
    ) -> Self:
        """Add facts, and perhaps entities and relations.

        Args:
            facts: subject, relation, object, step, (N,) each, in time order; none of them before
                the last fact there is.
            entities: how many there are now; never fewer than before.
            relations: how many there are now, not counting inverse ones; the same.
        """
        new = [np.asarray(column, np.int64) for column in facts]
        entities = self.entities if entities is None else entities
        directed = self.relations if relations is None else 2 * relations
        if entities < self.entities:
            raise DataError(f"an index of {self.entities:,} entities cannot have {entities:,}")
        if directed < self.relations:
            raise DataError(
                f"an index of {self.relations // 2:,} relations cannot have {directed // 2:,}"
            )
        if len(new[3]):
            self._check(new, entities, directed // 2)
        self._columns = [np.concatenate(pair) for pair in zip(self._columns, new, strict=True)]
        recent = LinkLayer.of(self._columns, entities, directed, self.device)
        self._layers = (*self._stored, recent)
        self.entities, self.relations = entities, directed
        self.steps = max(self.steps, recent.steps)
        return self

    def _check(self, facts: Sequence[IntArray], entities: int, relations: int) -> None:
        subject, relation, other, time = facts
        if int(time[0]) < self.steps - 2 or bool((time[1:] < time[:-1]).any()):
            raise DataError(
                f"appended facts must come in time order, from step {self.steps - 2} on; "
                "build the index anew to add earlier ones"
            )
        for ids, size, what in (
            (subject, entities, "entity"),
            (other, entities, "entity"),
            (relation, relations, "relation"),
        ):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= size:
                wrong = low if low < 0 else high
                raise DataError(f"there is no {what} {wrong}: there are {size:,}")

    @property
    def stored(self) -> tuple[LinkLayer, ...]:
        """The layers that it was made of."""
        return self._stored

    def __len__(self) -> int:
        return len(self.base) + sum(map(len, self._layers))

    @property
    def device(self) -> torch.device:
        """Where the index lives."""
        return self.base.device

    def before(
        self, entity: Tensor, time: Tensor, window: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """As :meth:`GraphIndex.before`."""
        high = self._first_since(entity, time)
        if window is None:
            return self._start(entity), high
        return self._first_since(entity, time - window + 1), high

    def since(self, entity: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`GraphIndex.since`."""
        return self._first_since(entity, time), self._start(entity + 1)

    def targets(self, source: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """As :meth:`GraphIndex.targets`."""
        return self.read(source, position, mask)[0]

    def about(self, source: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`GraphIndex.about`."""
        mask = torch.ones_like(position, dtype=torch.bool)[:, None]
        _, relation, time = self.read(source, position[:, None], mask)
        return relation.squeeze(1), time.squeeze(1)

    def read(self, source: Tensor, position: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As :meth:`GraphIndex.read`."""
        first, end = self._base_range(source)
        place = position - self._start(source)[:, None]  # among all links of the source
        here = mask & (place < (end - first)[:, None])
        target, relation, time = self.base.read(source, place + first[:, None], here)
        self._move(relation, self.base.relations)
        before = end - first
        for layer in self._layers:
            first, end = layer.start(source), layer.start(source + 1)
            after = before + end - first
            here = mask & (place >= before[:, None]) & (place < after[:, None])
            found = layer.read(source, place + (first - before)[:, None], here)
            self._move(found[1], layer.relations)
            # Each slot is 0 in all but one of the layers, so the sum is the one that is filled.
            for total, part in zip((target, relation, time), found, strict=True):
                total.add_(part)
            before = after
        return target, relation, time

    def _move(self, relation: Tensor, relations: int) -> None:
        """Number directed relations of a layer with so many as today's are, in place."""
        if relations != self.relations:
            inverse = relation >= relations // 2
            relation.add_(inverse, alpha=(self.relations - relations) // 2)

    def _start(self, entity: Tensor) -> Tensor:
        """(Q,) position of the first link of each entity."""
        start = self.base.start[entity.clamp(max=self.base.entities)]
        for layer in self._layers:
            start = start + layer.start(entity)
        return start

    def _base_range(self, entity: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) where an entity's links lie in the base; for a later one, an empty range."""
        known = self.base.entities
        return self.base.start[entity.clamp(max=known)], self.base.start[
            (entity + 1).clamp(max=known)
        ]

    def _first_since(self, entity: Tensor, time: Tensor) -> Tensor:
        known = (entity < self.base.entities).long()
        # An entity that the base does not know has nothing before its first appended link.
        found = torch.where(known.bool(), self.base.since(entity * known, time)[0], len(self.base))
        for layer in self._layers:
            found = found + layer.since(entity, time)
        return found
