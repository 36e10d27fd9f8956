"""Who was linked to whom, and when: the adjacency of the public facts, ordered by time.

The links of an entity lie side by side, oldest first, under one sorted int64 key
``source * steps + time``; "the links of u before t" is then a range found by binary search. The
time bound of ``data.visibility`` is applied here for every sampler, in :meth:`GraphIndex.before`
(public facts) and :meth:`GraphIndex.since` (the part of an entity's own support that is not
public yet).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import DataError
from metatkgr.files import atomic_path, check_file
from metatkgr.graph.ragged import pack

__all__ = ["GraphIndex", "LinkIndex", "index_header", "read_links"]

_FORMAT, _VERSION = "metatkgr graph index", "1"
_COLUMNS = ("key", "relation", "target", "start")
_SIZES = ("entities", "relations", "steps")


def index_header(entities: int, relations: int, steps: int) -> dict[str, str]:
    """What the file of an index with these sizes says about itself; ``relations`` is 2R."""
    sizes = zip(_SIZES, map(str, (entities, relations, steps)), strict=True)
    return {"format": _FORMAT, "version": _VERSION, **dict(sizes)}


class LinkIndex(Protocol):
    """What a sampler asks of an index; :class:`GraphIndex` says what each means."""

    @property
    def entities(self) -> int:
        """E."""

    @property
    def relations(self) -> int:
        """2R."""

    @property
    def device(self) -> torch.device:
        """Where the index lives."""

    def before(
        self, entity: Tensor, time: Tensor, window: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Where the links of each entity strictly before a time lie."""

    def targets(self, source: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """The entities that links lead to."""

    def about(self, source: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Relation and time of single links."""

    def read(self, source: Tensor, position: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Links by their position."""


def read_links(
    columns: tuple[Tensor, Tensor, Tensor],
    steps: int,
    source: Tensor,
    position: Tensor,
    mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Target, relation and time, (Q, b) each, of links at some positions; 0 where masked out.

    Args:
        columns: target, relation and key (source · steps + time) of all links, (D,) each.
        steps: T.
        source: (Q,) whom the links belong to.
        position: (Q, b).
        mask: (Q, b) which of them to read.
    """
    links = len(columns[0])
    if not links:
        return position * 0, position * 0, position * 0
    # Filling is several times as fast as multiplying by a mask, which is widened to int64 first.
    flat, empty = position.clamp(0, links - 1).view(-1), ~mask
    target, relation, time = (
        column.index_select(0, flat).view(position.shape) for column in columns
    )
    time -= (source * steps)[:, None]
    return (
        target.masked_fill_(empty, 0),
        relation.masked_fill_(empty, 0),
        time.masked_fill_(empty, 0),
    )


@dataclass(frozen=True, eq=False)
class GraphIndex:
    """Links by (source, time, row), in compressed sparse rows.

    Of two links of one entity at one time, the one whose row came later in the input is the more
    recent. A fact of an entity with itself is one link, in the fact's own direction: its inverse
    would be the same fact a second time from the same end.
    """

    key: Tensor
    """(D,) int64 ``source * steps + time``, ascending."""
    relation: Tensor
    """(D,) int64 directed relation."""
    target: Tensor
    """(D,) int64 entity the link leads to."""
    start: Tensor
    """(E + 1,) int64; the links of entity e are ``start[e]`` to ``start[e + 1]``, not included."""
    entities: int
    """E."""
    relations: int
    """Number of directed relations, 2R."""
    steps: int
    """One more than the last step that a link may have; ``steps - 1`` itself stays free, so that
    "after the last link" is a time of its own."""

    @classmethod
    def of(cls, visible: VisibleFacts, *, device: torch.device | str = "cpu") -> Self:
        """Index the public facts on ``device``."""
        columns = (visible.source, visible.relation, visible.target, visible.time)
        sizes = (len(visible.entities), 2 * len(visible.relations))
        return cls._build(columns, *sizes, device=torch.device(device))

    @classmethod
    def of_supports(
        cls,
        supports: Supports,
        *,
        entities: int,
        relations: int,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Index the first facts of new entities, from the owner's side only.

        Args:
            supports: the first facts of the new entities.
            entities: number of entities of the graph.
            relations: number of directed relations, 2R.
            device: where the index lives.
        """
        columns = (supports.entity, supports.relation, supports.other, supports.time)
        return cls._build(columns, entities, relations, device=torch.device(device))

    @classmethod
    def _build(
        cls,
        columns: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        entities: int,
        relations: int,
        *,
        device: torch.device,
    ) -> Self:
        source, relation, target, time = (
            torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in columns
        )
        steps = (int(time.max()) if len(time) else 0) + 2
        key, order = torch.sort(pack((source, entities), (time, steps)), stable=True)
        relation, target = relation[order], target[order]
        twice = (target == source[order]) & (relation >= relations // 2)
        if bool(twice.any()):
            key, relation, target = key[~twice], relation[~twice], target[~twice]
        first = torch.arange(entities + 1, device=device) * steps
        start = torch.searchsorted(key, first)
        return cls(key, relation, target, start, entities, relations, steps)

    def __len__(self) -> int:
        return len(self.key)

    @property
    def device(self) -> torch.device:
        """Where the index lives."""
        return self.key.device

    def to(self, device: torch.device | str) -> Self:
        """The same index on another device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in _COLUMNS})

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
            return self.start[entity], high
        return self._first_since(entity, time - window + 1), high

    def since(self, entity: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Where the links of each entity at or after a time lie.

        Only an entity's own support may be read like this, for questions about this entity.

        Returns:
            low, high: (Q,) positions, as in :meth:`before`.
        """
        return self._first_since(entity, time), self.start[entity + 1]

    def _first_since(self, entity: Tensor, time: Tensor) -> Tensor:
        """(Q,) position of the first link of ``entity`` at or after ``time``."""
        return torch.searchsorted(self.key, entity * self.steps + time.clamp(0, self.steps - 1))

    def targets(self, source: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """(Q, b) the entities that links lead to, any where masked out; otherwise :meth:`read`."""
        if not len(self):
            return position * 0
        flat = position.clamp(0, len(self) - 1).view(-1)
        return self.target.index_select(0, flat).view(position.shape)

    def about(self, source: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """(L,) relation and time of links given by source and position, (L,) each."""
        time = self.key.index_select(0, position).sub_(source * self.steps)
        return self.relation.index_select(0, position), time

    def read(self, source: Tensor, position: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Links by their position.

        Args:
            source: (Q,) the entity whose links are read.
            position: (Q, b) positions of its links; anything where ``mask`` is False.
            mask: (Q, b) which of them to read.

        Returns:
            target, relation, time: (Q, b) each, new tensors, 0 where ``mask`` is False.
        """
        columns = self.target, self.relation, self.key
        return read_links(columns, self.steps, source, position, mask)

    def save(self, path: str | Path) -> None:
        """Write the index as a safetensors file that :meth:`open` maps into memory."""
        from safetensors.torch import save_file

        tensors = {name: getattr(self, name).cpu().contiguous() for name in _COLUMNS}
        about = index_header(*(getattr(self, name) for name in _SIZES))
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, about)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Map a saved index into memory; pages are read when links on them are asked for.

        Raises:
            DataError: no such file, or not an index of this version, or damaged.
        """
        from safetensors import SafetensorError, safe_open

        again = f"build it again from the facts with GraphIndex.of(…).save({str(path)!r})"
        try:
            check_file(Path(path))
        except DataError as error:
            raise DataError(f"{error}; {again}") from None
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                if about.get("format") != _FORMAT:
                    raise DataError(f"{path} is a tensor file but not a graph index; {again}")
                if about.get("version") != _VERSION:
                    raise DataError(
                        f"{path} is a graph index of version {about.get('version')}, this program "
                        f"reads version {_VERSION}; {again}"
                    )
                columns = [file.get_tensor(name) for name in _COLUMNS]
                sizes = [int(about[name]) for name in _SIZES]
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}; {again}") from error
        except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            told = str(error)[:200]
            raise DataError(f"{path} is damaged or not a graph index ({told}); {again}") from error
        index = cls(*columns, *sizes)
        index._check(f"{path} is damaged", again)
        return index

    def _check(self, complaint: str, advice: str) -> None:
        """Sizes that fit together; looks at one page, so that opening stays instant."""
        links = len(self.key) if self.key.dim() else 0
        fits = (
            self.entities > 0
            and self.relations > 0
            and self.relations % 2 == 0
            and 0 < self.steps < 2**62
            and all(getattr(self, name).dtype == torch.int64 for name in _COLUMNS)
            and all(getattr(self, name).shape == (links,) for name in ("key", "relation", "target"))
            and self.start.shape == (self.entities + 1,)
            and int(self.start[-1]) == links
        )
        if not fits:
            raise DataError(f"{complaint}: its columns do not fit together; {advice}")
