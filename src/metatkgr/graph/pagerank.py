r"""Personalised PageRank: where a walk from an entity along visible links is found.

A walker starts at e and at each step goes to a random one of the entities that its place was linked
to before t, whatever the relation. The share of a candidate x is

.. math:: \alpha \sum_{k=0}^{n} (1 - \alpha)^k \; [P_t^k]_{e x}

with the restart probability α, n steps, and the row-normalised matrix P_t of the distinct links
strictly before t. From e itself the first step may also follow e's own support, whatever its time.
"""

from __future__ import annotations

import warnings
from typing import Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.ragged import expand_ranges, pack

__all__ = ["DistinctLinks", "PageRank"]

_CACHE_BYTES = 1 << 28
"""Transition matrices that are kept, for as many moments as fit."""


class DistinctLinks:
    """Who was linked to whom, whatever the relation, and since when.

    Args:
        visible: the public facts.
        device: where the walks are computed.
    """

    def __init__(self, visible: VisibleFacts, device: torch.device | str = "cpu") -> None:
        device = torch.device(device)
        source, target, time = (
            torch.from_numpy(np.ascontiguousarray(column)).to(device)
            for column in (visible.source, visible.target, visible.time)
        )
        entities = len(visible.entities)
        # By target, because a step of a walk goes over the links *into* each entity.
        pair = pack((target, entities), (source, entities))
        pair, member = torch.unique(pair, return_inverse=True)
        latest = int(time.max()) + 1 if len(time) else 0
        first = torch.full_like(pair, latest).scatter_reduce_(0, member, time, "amin")
        self._fill(pair // max(entities, 1), pair % max(entities, 1), first, entities)

    def _fill(self, target: Tensor, source: Tensor, first: Tensor, entities: int) -> None:
        self.target, self.source, self.first = target, source, first
        self.entities, self.device = entities, first.device
        self._latest = int(first.max()) if len(first) else -1
        self._matrices: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.first)

    def joined(self, recent: VisibleFacts) -> Self:
        """These links and those of further facts: equal to what is made of all facts at once.

        Args:
            recent: facts whose vocabulary begins with that of these.
        """
        entities = len(recent.entities)
        if len(recent) == 0 and entities == self.entities:
            return self
        added = DistinctLinks(recent, self.device)
        mine, theirs = (
            pack((links.target, entities), (links.source, entities)) for links in (self, added)
        )
        place = torch.searchsorted(mine, theirs)
        known = torch.zeros_like(theirs, dtype=torch.bool)
        if len(mine):
            known = mine[place.clamp(max=len(mine) - 1)] == theirs
        first = self.first.clone()
        first[place[known]] = torch.minimum(first[place[known]], added.first[known])
        new = ~known
        # Behind what is smaller, of these and of the new ones.
        position = place[new] + torch.arange(len(place[new]), device=self.device)
        stays = torch.ones(len(mine) + len(position), dtype=torch.bool, device=self.device)
        stays[position] = False
        rest = torch.nonzero(stays).squeeze(1)

        def merged(old: Tensor, more: Tensor) -> Tensor:
            whole = torch.empty(len(stays), dtype=torch.int64, device=self.device)
            whole[rest], whole[position] = old, more[new]
            return whole

        whole = type(self).__new__(type(self))
        whole._fill(
            merged(self.target, added.target),
            merged(self.source, added.source),
            merged(first, added.first),
            entities,
        )
        return whole

    def degrees(self, moment: int) -> Tensor:
        """(E,) how many others each entity was linked to before a moment."""
        target, _ = self._before(moment)
        return torch.bincount(target, minlength=self.entities).float()

    def _before(self, moment: int) -> tuple[Tensor, Tensor]:
        """Targets and sources of the links before a moment."""
        if moment > self._latest:
            return self.target, self.source
        there = self.first < moment
        return self.target[there], self.source[there]

    def transition(self, moment: int) -> Tensor:
        """(E, E) sparse, transposed P_t."""
        found = self._matrices.get(moment)
        if found is None:
            target, source = self._before(moment)
            degree = torch.bincount(source, minlength=self.entities)
            start = torch.zeros(self.entities + 1, dtype=torch.int64, device=self.device)
            start[1:] = torch.bincount(target, minlength=self.entities).cumsum(0)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Sparse")
                found = torch.sparse_csr_tensor(
                    start,
                    source,
                    1.0 / degree[source].float(),
                    (self.entities, self.entities),
                    check_invariants=False,
                )
            size = 12 * max(len(source), 1) + 8 * self.entities
            while self._matrices and (len(self._matrices) + 1) * size > _CACHE_BYTES:
                del self._matrices[next(iter(self._matrices))]
            self._matrices[moment] = found
        return found


class PageRank:
    """Walks of many (entity, time) pairs at once.

    Args:
        visible: the public facts, or their distinct links.
        supports: the first facts of the new entities.
        device: where the walks are computed; of links, where these are.
        restart: α, from 0 to 1.
        steps: n, how far a walk goes at most.
    """

    def __init__(
        self,
        visible: VisibleFacts | DistinctLinks,
        supports: Supports,
        device: torch.device | str = "cpu",
        *,
        restart: float = 0.15,
        steps: int = 12,
    ) -> None:
        if not isinstance(visible, DistinctLinks):
            visible = DistinctLinks(visible, device)
        self.links = visible
        self.device, self.entities = self.links.device, self.links.entities
        self.restart, self.steps = restart, steps
        self._own, self._other = (
            torch.from_numpy(np.ascontiguousarray(column)).to(self.device)
            for column in (supports.entity, supports.other)
        )

    def shares(self, queries: Queries) -> Tensor:
        """(Q, E) where the walks of each question's entity, at its time, are found."""
        return self.shares_within(queries, (self.steps,))[0]

    def shares_within(self, queries: Queries, lengths: tuple[int, ...]) -> Tensor:
        """The same for walks of at most so many steps each, in one go.

        Args:
            queries: Q questions.
            lengths: ascending numbers of steps, the last at most ``steps``.

        Returns:
            (lengths, Q, E) shares.
        """
        shape = (len(lengths), len(queries), self.entities)
        shares = torch.zeros(shape, device=self.device)
        for moment in np.unique(queries.time):
            rows = np.flatnonzero(queries.time == moment)
            entity, member = np.unique(queries.entity[rows], return_inverse=True)
            walks = self._walk(torch.from_numpy(entity).to(self.device), int(moment), lengths)
            place = torch.from_numpy(rows).to(self.device)
            shares[:, place] = walks[:, torch.from_numpy(member).to(self.device)]
        return shares

    def _walk(self, entity: Tensor, moment: int, lengths: tuple[int, ...]) -> Tensor:
        """(lengths, U, E) of distinct entities at one moment."""
        step = self.links.transition(moment)
        at = torch.zeros(self.entities, len(entity), device=self.device)
        column = torch.arange(len(entity), device=self.device)
        at[entity, column] = 1.0
        total = self.restart * at
        keep = 1 - self.restart
        found = []
        for number in range(1, lengths[-1] + 1):
            at = self._first_step(step @ at, entity, column) if number == 1 else step @ at
            at = keep * at
            total = total + self.restart * at
            if number in lengths:
                found.append(total.T)
        return torch.stack(found)

    def _first_step(self, public: Tensor, entity: Tensor, column: Tensor) -> Tensor:
        """Where the first step leads: to public neighbours and to those of the own support."""
        low = torch.searchsorted(self._own, entity)
        high = torch.searchsorted(self._own, entity, right=True)
        walk, row = expand_ranges(low, high)
        reached = public > 0
        reached[self._other[row], column[walk]] = True
        return reached / reached.sum(0).clamp(min=1)
