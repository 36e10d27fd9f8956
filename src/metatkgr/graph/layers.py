"""An index that grows: facts and entities are appended without building the large part anew.

The links of an entity are those of the base, which may be mapped from disk, followed by those that
were appended since. A position is the one that the link would have in an index built anew, so
nothing that reads an index can tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.facts import IntArray
from metatkgr.errors import DataError
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.ragged import pack

__all__ = ["GrowingIndex"]


class GrowingIndex:
    """A base and what was appended to it; has all that a sampler asks of an index.

    Args:
        base: an index, perhaps a mapped one; it is never changed.

    The appended links are in memory and are indexed anew by each :meth:`append`, so append in
    batches, and build a new base (``graph.build``) when they are no longer few.
    """

    def __init__(self, base: GraphIndex) -> None:
        self.base = base
        self.entities, self.relations, self.steps = base.entities, base.relations, base.steps
        self._columns: list[IntArray] = [np.zeros(0, np.int64) for _ in range(4)]
        self._recent = _Recent(self._columns, base.entities, base.relations, base.device)

    def append(self, facts: Sequence[IntArray], *, entities: int | None = None) -> Self:
        """Add facts, and perhaps entities.

        Args:
            facts: subject, relation, object, step, (N,) each, in time order; none of them before
                the last fact there is.
            entities: how many there are now; never fewer than before.
        """
        subject, relation, other, time = (np.asarray(column, np.int64) for column in facts)
        entities = self.entities if entities is None else entities
        if entities < self.entities:
            raise DataError(f"an index of {self.entities:,} entities cannot have {entities:,}")
        if len(time):
            self._check(subject, relation, other, time, entities)
        half = self.relations // 2
        links = (
            np.stack([subject, other], axis=1).reshape(-1),
            np.stack([relation, relation + half], axis=1).reshape(-1),
            np.stack([other, subject], axis=1).reshape(-1),
            np.repeat(time, 2),
        )
        self._columns = [
            np.concatenate([old, new]) for old, new in zip(self._columns, links, strict=True)
        ]
        self._recent = _Recent(self._columns, entities, self.relations, self.device)
        self.entities = entities
        self.steps = max(self.steps, self._recent.steps)
        return self

    def _check(
        self, subject: IntArray, relation: IntArray, other: IntArray, time: IntArray, entities: int
    ) -> None:
        if int(time[0]) < self.steps - 2 or bool((time[1:] < time[:-1]).any()):
            raise DataError(
                f"appended facts must come in time order, from step {self.steps - 2} on; "
                "build the index anew to add earlier ones"
            )
        for ids, size, what in (
            (subject, entities, "entity"),
            (other, entities, "entity"),
            (relation, self.relations // 2, "relation"),
        ):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= size:
                wrong = low if low < 0 else high
                raise DataError(f"there is no {what} {wrong}: there are {size:,}")

    def __len__(self) -> int:
        return len(self.base) + len(self._recent)

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
        place = position - self._start(source)[:, None]
        old = place < (end - first)[:, None]
        base = self.base.read(source, place + first[:, None], mask & old)
        later = place + (self._recent.start(source) - (end - first))[:, None]
        recent = self._recent.read(source, later, mask & ~old)
        # Each slot is 0 in one of the two, so the sum is the one that is filled.
        target, relation, time = (a.add_(b) for a, b in zip(base, recent, strict=True))
        return target, relation, time

    def _start(self, entity: Tensor) -> Tensor:
        """(Q,) position of the first link of each entity."""
        return self.base.start[entity.clamp(max=self.base.entities)] + self._recent.start(entity)

    def _base_range(self, entity: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) where an entity's links lie in the base; for a later one, an empty range."""
        known = self.base.entities
        return self.base.start[entity.clamp(max=known)], self.base.start[
            (entity + 1).clamp(max=known)
        ]

    def _first_since(self, entity: Tensor, time: Tensor) -> Tensor:
        known = (entity < self.base.entities).long()
        old, recent = self.base.since(entity * known, time)[0], self._recent.since(entity, time)
        # An entity that the base does not know has nothing before its first appended link.
        return torch.where(known.bool(), old, len(self.base)) + recent


class _Recent:
    """The appended links, found by their keys alone: no number per entity.

    Args:
        columns: source, directed relation, target, step, (D,) each, in time order.
        entities: E.
        relations: 2R.
        device: where they live.
    """

    def __init__(
        self, columns: Sequence[IntArray], entities: int, relations: int, device: torch.device
    ) -> None:
        source, relation, target, time = (torch.from_numpy(c).to(device) for c in columns)
        self.steps = (int(time.max()) if len(time) else 0) + 2
        key, order = torch.sort(pack((source, entities), (time, self.steps)), stable=True)
        relation, target = relation[order], target[order]
        once = ~((target == source[order]) & (relation >= relations // 2))
        self._key, self._relation, self._target = key[once], relation[once], target[once]

    def __len__(self) -> int:
        return len(self._key)

    def start(self, entity: Tensor) -> Tensor:
        """(Q,) position of the first link of each entity."""
        return torch.searchsorted(self._key, entity * self.steps)

    def since(self, entity: Tensor, time: Tensor) -> Tensor:
        """(Q,) position of the first link of each entity at or after a time."""
        return torch.searchsorted(self._key, entity * self.steps + time.clamp(0, self.steps - 1))

    def read(self, source: Tensor, position: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As :meth:`GraphIndex.read`."""
        if not len(self):
            return position * 0, position * 0, position * 0
        flat = (position * mask).view(-1)
        target, relation, time = (
            column.index_select(0, flat).view(position.shape)
            for column in (self._target, self._relation, self._key)
        )
        time -= (source * self.steps)[:, None]
        return target.mul_(mask), relation.mul_(mask), time.mul_(mask)
