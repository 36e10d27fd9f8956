r"""Personalised PageRank, read locally: where a random walk from an entity along links ends.

A walker starts at e and at each step goes to a random one of the entities that the one it is at was
linked to before t, whatever the relation. The share of a candidate x is

.. math:: \alpha \sum_{k=0}^{n} (1 - \alpha)^k \; [P_t^k]_{e x}

with the restart probability α, n steps, and the row-normalised matrix P_t of the distinct links
strictly before t. From e itself the first step may also follow e's own support, whatever its time.

Only the neighbourhood of e is looked at. After each step, walkers at an entity u go on if they are
worth it: if each of u's d_u neighbours would be reached by more than a share ε of all walkers. The
others stop there. So a step looks at less than 1 / ε links, whatever the size of the graph; a share
is never too large, and too small by no more than what :attr:`Walks.lost` says of all shares
together. What is given up are walks through hubs: they end nearly anywhere, with nearly equal
shares, and tell little. (Left out, they make the ranks of novel answers better where there are many
hubs, and no worse elsewhere.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.visibility import Supports
from metatkgr.graph.neighbours import Neighbours
from metatkgr.graph.ragged import best_of_each, distinct, expand_ranges, some_rows

__all__ = ["THRESHOLD", "PageRank", "Walks"]

THRESHOLD = 3e-5
"""ε, as meta-validation has chosen it."""
_NEAR = 3
"""Steps of the short walks."""


@dataclass(frozen=True, eq=False)
class Walks:
    """Where walks end: shares of the entities that are reached from each of W starts."""

    row: Tensor
    """(L,) which start, ascending."""
    entity: Tensor
    """(L,) ascending within a row; each pair once."""
    far: Tensor
    """(L,) float32 share of walks of any length."""
    near: Tensor
    """(L,) float32 share of walks of at most three steps."""
    lost: Tensor
    """(W,) share of walkers whose end is not known."""

    def best(self, most: int) -> Walks:
        """Of each start only so many entities, those that are reached most often."""
        kept = best_of_each(most, self.row, self.far)
        row, entity, far, near = some_rows(kept, self.row, self.entity, self.far, self.near)
        return Walks(row, entity, far, near, self.lost)


class PageRank:
    """Walks from many (entity, time) pairs at once.

    Args:
        neighbours: who is linked to whom by public facts, and since when.
        supports: the first facts of the new entities.
        restart: α, from 0 to 1.
        steps: n, how far a walk goes at most.
        threshold: ε.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        supports: Supports,
        *,
        restart: float = 0.15,
        steps: int = 12,
        threshold: float = THRESHOLD,
    ) -> None:
        self.neighbours = neighbours
        self.device, self.entities = neighbours.device, neighbours.entities
        self.restart, self.steps, self.threshold = restart, steps, threshold
        self._own, self._other = (
            torch.from_numpy(np.ascontiguousarray(column)).to(self.device)
            for column in (supports.entity, supports.other)
        )

    def walks(self, entity: Tensor, time: Tensor, without: Tensor | None = None) -> Walks:
        """PageRank of the walks from each entity over links before its time.

        Args:
            entity: (W,) int64.
            time: (W,) int64.
            without: ``row * E + neighbour``, ascending: the entity of a row and this neighbour of
                it are taken as not linked. None: all are as they are.
        """
        start = torch.arange(len(entity), device=self.device) * self.entities + entity
        cells, masses = [start], [torch.full_like(start, self.restart, dtype=torch.float64)]
        cell, mass, without = self._first_step(entity, time, without)
        bound = None if self.neighbours.all_before(time) else time
        for number in range(1, self.steps + 1):
            cells.append(cell)
            masses.append(self.restart * mass)
            if number == self.steps or not len(cell):
                break
            cell, mass = self._step(cell, mass, bound, entity, without)
        cell, member = distinct(torch.cat(cells))
        share = torch.cat(masses)
        far = share.new_zeros(len(cell)).index_add_(0, member, share)
        short = sum(part.numel() for part in cells[: _NEAR + 1])
        close = share.new_zeros(len(cell)).index_add_(0, member[:short], share[:short])
        row = cell // self.entities
        known = share.new_zeros(len(entity)).index_add_(0, row, far)
        lost = (1 - known).clamp(min=0)
        return Walks(row, cell % self.entities, far.float(), close.float(), lost.float())

    def reached(self, entity: Tensor, time: Tensor, most: int) -> Walks:
        """The walks of queries, with the ``most`` entities of each that are reached most often.

        Walks from one entity at one time are walked once.

        Args:
            entity: (Q,) int64.
            time: (Q,) int64.
            most: how many of each row are kept.
        """
        room = int(time.max()) + 1 if len(time) else 1
        start, member = torch.unique(entity * room + time, return_inverse=True)
        walks = self.walks(start // room, start % room).best(most)
        if len(member) == 1:
            return walks
        low, high = (torch.searchsorted(walks.row, member, right=right) for right in (False, True))
        row, position = expand_ranges(low, high)
        reached, far, near = some_rows(position, walks.entity, walks.far, walks.near)
        return Walks(row, reached, far, near, walks.lost[member])

    def _first_step(
        self, entity: Tensor, time: Tensor, without: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cells and masses after one step: to public neighbours and to those of the own support.

        And the part of ``without`` that further steps have to leave out: they follow public links.
        """
        row, target = self.neighbours.each(self.neighbours.before(entity, time))
        public = row * self.entities + target
        low = torch.searchsorted(self._own, entity)
        own, position = expand_ranges(low, torch.searchsorted(self._own, entity, right=True))
        cell = torch.unique(torch.cat([public, own * self.entities + self._other[position]]))
        if without is not None:
            cell = cell[~torch.isin(cell, without)]
            without = without[torch.isin(without, public)]
        row = cell // self.entities
        reached = torch.bincount(row, minlength=len(entity)).double()
        return cell, (1 - self.restart) / reached[row], without

    def _step(
        self,
        cell: Tensor,
        mass: Tensor,
        time: Tensor | None,
        entity: Tensor,
        without: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """One more step of those walkers that are worth it; no time: after all links."""
        # Where even one neighbour is not worth it, nobody has to look how many there are.
        cell, mass = some_rows(mass > self.threshold, cell, mass)
        row = cell // self.entities
        first = row * self.entities
        now = None if time is None else time.index_select(0, row)
        ranges = self.neighbours.before(cell - first, now)
        degree = self.neighbours.count(ranges)
        if without is not None:
            start = first + entity[row]
            fewer = torch.bincount(without // self.entities, minlength=len(entity))[row]
            degree = degree - torch.where(cell == start, fewer, torch.isin(cell, without).long())
        worth = (mass > self.threshold * degree).logical_and_(degree > 0)
        go_on = torch.nonzero(worth).squeeze(1)
        first, mass, degree = some_rows(go_on, first, mass, degree)
        each = (1 - self.restart) * mass / degree
        some = [(low.index_select(0, go_on), high.index_select(0, go_on)) for low, high in ranges]
        walker, target = self.neighbours.each(some)
        if without is not None:
            at, of, left = some_rows(go_on.index_select(0, walker), cell, row, cell == start)
            # Only links of e itself can be missing, and few walkers are about to follow those.
            own = torch.nonzero(left | (target == entity.index_select(0, of))).squeeze(1)
            other = torch.where(left[own], of[own] * self.entities + target[own], at[own])
            stays = torch.ones_like(left).index_fill_(0, own[torch.isin(other, without)], False)
            walker, target = some_rows(stays, walker, target)
        first, each = some_rows(walker, first, each)
        cell, member = distinct(first.add_(target))
        return cell, each.new_zeros(cell.numel()).index_add_(0, member, each)
