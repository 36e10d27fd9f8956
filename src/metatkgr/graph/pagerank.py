r"""Personalised PageRank: where a random walk from an entity along visible links ends.

A walker starts at e and at each step goes to a random one of the entities that the one it is at was
linked to before t, whatever the relation. The share of a candidate x is

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
from metatkgr.data.visibility import Supports
from metatkgr.graph.neighbours import Neighbours
from metatkgr.graph.ragged import expand_ranges
from metatkgr.recent import Recent

__all__ = ["PageRank", "Transitions"]

_CACHE_BYTES = 1 << 28
"""Transition matrices that are kept, for as many moments as fit."""


class Transitions:
    """P_t of each moment t, as sparse matrices; those that were used last are kept.

    Args:
        neighbours: the distinct links between entities.
    """

    def __init__(self, neighbours: Neighbours) -> None:
        self.entities, self.device = neighbours.entities, neighbours.device
        # Each pair is there both ways, since the same step.
        self._target, self._source, self._first = neighbours.pairs()
        self._latest = int(self._first.max()) if len(self._first) else -1
        size = 12 * max(len(self._first), 1) + 8 * self.entities
        self.at = Recent(self._matrix, _CACHE_BYTES // size)
        """Of a moment: (E, E) sparse, transposed P_t."""

    def degrees(self, moment: int) -> Tensor:
        """(E,) how many others each entity was linked to before a moment."""
        target, _ = self._before(moment)
        return torch.bincount(target, minlength=self.entities).float()

    def _before(self, moment: int) -> tuple[Tensor, Tensor]:
        """Targets and sources of the links before a moment."""
        if moment > self._latest:
            return self._target, self._source
        there = self._first < moment
        return self._target[there], self._source[there]

    def _matrix(self, moment: int) -> Tensor:
        target, source = self._before(moment)
        degree = torch.bincount(source, minlength=self.entities)
        start = torch.zeros(self.entities + 1, dtype=torch.int64, device=self.device)
        start[1:] = torch.bincount(target, minlength=self.entities).cumsum(0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse")
            return torch.sparse_csr_tensor(
                start,
                source,
                1.0 / degree[source].float(),
                (self.entities, self.entities),
                check_invariants=False,
            )


class PageRank:
    """Walks of many (entity, time) pairs at once.

    Args:
        transitions: the matrices of the public facts.
        supports: the first facts of the new entities.
        restart: α, from 0 to 1.
        steps: n, how far a walk goes at most.
    """

    def __init__(
        self,
        transitions: Transitions,
        supports: Supports,
        *,
        restart: float = 0.15,
        steps: int = 12,
    ) -> None:
        self.transitions = transitions
        self.device, self.entities = transitions.device, transitions.entities
        self.restart, self.steps = restart, steps
        self._own, self._other = (
            torch.from_numpy(np.ascontiguousarray(column)).to(self.device)
            for column in (supports.entity, supports.other)
        )

    def shares(self, queries: Queries) -> Tensor:
        """(Q, E) PageRank of the walks from each query entity at the query's time."""
        return self.shares_within(queries, (self.steps,))[0]

    def shares_within(self, queries: Queries, lengths: tuple[int, ...]) -> Tensor:
        """The same for walks of at most so many steps each, in one go.

        Args:
            queries: Q queries.
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
            row = torch.from_numpy(rows).to(self.device)
            shares[:, row] = walks[:, torch.from_numpy(member).to(self.device)]
        return shares

    def _walk(self, entity: Tensor, moment: int, lengths: tuple[int, ...]) -> Tensor:
        """(lengths, U, E) of distinct entities at one moment."""
        step = self.transitions.at(moment)
        at = torch.zeros(self.entities, len(entity), device=self.device)
        column = torch.arange(len(entity), device=self.device)
        at[entity, column] = 1.0
        total = self.restart * at
        keep = 1 - self.restart
        shares = []
        for number in range(1, lengths[-1] + 1):
            at = self._first_step(step @ at, entity, column) if number == 1 else step @ at
            at = keep * at
            total = total + self.restart * at
            if number in lengths:
                shares.append(total.T)
        return torch.stack(shares)

    def _first_step(self, public: Tensor, entity: Tensor, column: Tensor) -> Tensor:
        """Where the first step leads: to public neighbours and to those of the own support."""
        low = torch.searchsorted(self._own, entity)
        high = torch.searchsorted(self._own, entity, right=True)
        walk, row = expand_ranges(low, high)
        reached = public > 0
        reached[self._other[row], column[walk]] = True
        return reached / reached.sum(0).clamp(min=1)
