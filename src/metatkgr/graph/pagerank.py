r"""Personalised PageRank: where a walk from an entity along visible links is found.

A walker starts at e and at each step goes to a random one of the entities that its place was linked
to before t, whatever the relation. The share of a candidate x is

.. math:: \alpha \sum_{k=0}^{n} (1 - \alpha)^k \; [P_t^k]_{e x}

with the restart probability α, n steps, and the row-normalised matrix P_t of the distinct links
strictly before t. From e itself the first step may also follow e's own support, whatever its time.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.ragged import expand_ranges, pack

__all__ = ["PageRank"]

_CACHE_BYTES = 1 << 28
"""Transition matrices that are kept, for as many moments as fit."""


class PageRank:
    """Walks of many (entity, time) pairs at once.

    Args:
        visible: the public facts.
        supports: the first facts of the new entities.
        device: where the walks are computed.
        restart: α, from 0 to 1.
        steps: n, how far a walk goes at most.
    """

    def __init__(
        self,
        visible: VisibleFacts,
        supports: Supports,
        device: torch.device | str = "cpu",
        *,
        restart: float = 0.15,
        steps: int = 12,
    ) -> None:
        self.device = torch.device(device)
        self.entities, self.restart, self.steps = len(visible.entities), restart, steps
        source, target, time, self._own, self._other = (
            torch.from_numpy(np.ascontiguousarray(column)).to(self.device)
            for column in (
                visible.source,
                visible.target,
                visible.time,
                supports.entity,
                supports.other,
            )
        )
        # By target, because the product below goes over the links *into* each entity.
        pair = pack((target, self.entities), (source, self.entities))
        pair, member = torch.unique(pair, return_inverse=True)
        self._target, self._source = pair // self.entities, pair % self.entities
        latest = int(time.max()) + 1 if len(time) else 0
        start = torch.full_like(pair, latest)
        self._first = start.scatter_reduce_(0, member, time, "amin")
        self._matrices: dict[int, Tensor] = {}

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

    def degrees(self, moment: int) -> Tensor:
        """(E,) how many others each entity was linked to before a moment."""
        there = self._target[self._first < moment]
        return torch.bincount(there, minlength=self.entities).float()

    def _walk(self, entity: Tensor, moment: int, lengths: tuple[int, ...]) -> Tensor:
        """(lengths, U, E) of distinct entities at one moment."""
        step = self._transition(moment)
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

    def _transition(self, moment: int) -> Tensor:
        """(E, E) sparse, transposed P_t."""
        found = self._matrices.get(moment)
        if found is None:
            there = self._first < moment
            target, source = self._target[there], self._source[there]
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
