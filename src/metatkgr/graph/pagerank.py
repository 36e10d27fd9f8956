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
from metatkgr.graph.ragged import best_of_each, distinct, expand_ranges, found, some_rows

__all__ = ["THRESHOLD", "PageRank", "Walks", "Without"]

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


@dataclass(frozen=True, eq=False)
class Without:
    """Links of the entities from which walks start, each left out in some of V walks."""

    cell: Tensor
    """(K,) ``row * E + neighbour``, ascending: links of the entity of a row with others."""
    left: Tensor
    """(K, V) bool: in which walks from there."""


@dataclass(frozen=True, eq=False)
class _Missing:
    """What of them is public: after the first step of all, walks follow nothing else."""

    cell: Tensor
    """(K,)."""
    left: Tensor
    """(K, V)."""
    start: Tensor
    """(W,) ``row * E + entity``, ascending."""
    entities: int
    """E."""
    end: Tensor
    """(S,) cells at either end of one of the links, ascending."""
    fewer: Tensor
    """(S, V) int64 how many of them each has."""

    @classmethod
    def of(cls, without: Without, public: Tensor, start: Tensor, entities: int) -> _Missing:
        """Of cells that are linked to those at which walks start, and these."""
        cell, left = some_rows(torch.isin(without.cell, public), without.cell, without.left)
        end = distinct(torch.cat([start, cell]))[0]
        fewer = torch.zeros_like(end).unsqueeze(1).repeat(1, left.shape[1])
        fewer[torch.searchsorted(end, cell)] = left.long()
        of_start = torch.zeros_like(start).unsqueeze(1).repeat(1, left.shape[1])
        of_start.index_add_(0, cell // entities, left.long())
        fewer[torch.searchsorted(end, start)] = of_start
        return cls(cell, left, start, entities, end, fewer)

    def ends(self, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Which of ascending cells are an end of one of the links, and how many links it has less:
        (n,) positions and (n, V)."""
        place, there = found(cell, self.end)
        place, fewer = some_rows(there, place, self.fewer)
        return place, fewer

    def leave_out(self, share: Tensor, at: Tensor, to: Tensor) -> None:
        """Make shares of walkers 0 where these follow one of the links.

        Args:
            share: (L, V), what is changed.
            at: (L,) cells where they are; -1 where it is none of the ends.
            to: (L,) cells where they go.
        """
        few = torch.nonzero(at >= 0).squeeze(1)
        at, to = some_rows(few, at, to)
        (begun,) = some_rows(at // self.entities, self.start)
        leaves = at == begun
        place, there = found(self.cell, torch.where(leaves, to, at))
        there &= leaves | (to == begun)
        few, place = some_rows(there, few, place)
        own, left = some_rows(few, share)[0], some_rows(place, self.left)[0]
        share.index_copy_(0, few, own.masked_fill_(left, 0.0))


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
        self._last: tuple[tuple[int, int, int] | None, Walks] | None = None

    def walks(self, entity: Tensor, time: Tensor, without: Without | None = None) -> Walks:
        """PageRank of the walks from each entity over links before its time.

        Args:
            entity: (W,) int64.
            time: (W,) int64.
            without: from each start V times, each time without some links of its entity; None:
                once, and all are as they are.

        Returns:
            Of each start one row, or one for each time.
        """
        start = torch.arange(len(entity), device=self.device) * self.entities + entity
        times = 1 if without is None else without.left.shape[1]
        mass = torch.full((len(entity), times), self.restart, dtype=torch.float64)
        cells, masses = [start], [mass.to(self.device)]
        cell, mass, missing = self._first_step(entity, time, without, start)
        bound = None if self.neighbours.all_before(time) else time
        for number in range(1, self.steps + 1):
            cells.append(cell)
            masses.append(self.restart * mass)
            if number == self.steps or not len(cell):
                break
            cell, mass = self._step(cell, mass, bound, missing)
        cell, member = distinct(torch.cat(cells))
        share = torch.cat(masses)
        far = _summed(member, share, len(cell))
        short = sum(part.numel() for part in cells[: _NEAR + 1])
        close = _summed(member[:short], share[:short], len(cell)).float()
        row = cell // self.entities
        lost = (1 - _summed(row, far, len(entity))).clamp(min=0).flatten().float()
        if without is not None:  # not all are reached each time
            walk, place = torch.nonzero(far.T, as_tuple=True)
            row = row[place] * times + walk
            if len(entity) > 1:
                order = torch.argsort(row, stable=True)
                row, walk, place = some_rows(order, row, walk, place)
            cell, far, close = cell[place], far[place, walk], close[place, walk]
        return Walks(row, cell % self.entities, far.flatten().float(), close.flatten(), lost)

    def reached(self, entity: Tensor, time: Tensor, most: int) -> Walks:
        """The walks of queries, with the ``most`` entities of each that are reached most often.

        Walks from one entity at one time are walked once, and the last such are remembered: for who
        asks about another relation, or for reasons.

        Args:
            entity: (Q,) int64.
            time: (Q,) int64.
            most: how many of each row are kept.
        """
        room = int(time.max()) + 1 if len(time) else 1
        start, member = distinct(entity * room + time)
        key = (int(start[0]), room, most) if len(start) == 1 else None
        if key is None or self._last is None or self._last[0] != key:
            self._last = key, self.walks(start // room, start % room).best(most)
        walks = self._last[1]
        if len(member) == 1:
            return walks
        low, high = (torch.searchsorted(walks.row, member, right=right) for right in (False, True))
        row, position = expand_ranges(low, high)
        reached, far, near = some_rows(position, walks.entity, walks.far, walks.near)
        return Walks(row, reached, far, near, walks.lost[member])

    def _first_step(
        self, entity: Tensor, time: Tensor, without: Without | None, start: Tensor
    ) -> tuple[Tensor, Tensor, _Missing | None]:
        """Cells and masses after one step: to public neighbours and to those of the own support.

        And what further steps have to leave out.
        """
        row, target = self.neighbours.each(self.neighbours.before(entity, time))
        public = row * self.entities + target
        low = torch.searchsorted(self._own, entity)
        own, position = expand_ranges(low, torch.searchsorted(self._own, entity, right=True))
        cell = distinct(torch.cat([public, own * self.entities + self._other[position]]))[0]
        row = cell // self.entities
        kept, missing = torch.ones_like(cell, dtype=torch.float64).unsqueeze(1), None
        if without is not None:
            place, there = found(cell, without.cell)
            kept = kept.repeat(1, without.left.shape[1])
            kept[place[there]] = (~without.left[there]).double()
            missing = _Missing.of(without, public, start, self.entities)
        reached = _summed(row, kept, len(entity))
        return cell, kept * ((1 - self.restart) / reached.clamp(min=1))[row], missing

    def _step(
        self,
        cell: Tensor,
        mass: Tensor,
        time: Tensor | None,
        missing: _Missing | None,
    ) -> tuple[Tensor, Tensor]:
        """One more step of those walkers that are worth it; no time: after all links."""
        # Where even one neighbour is not worth it, nobody has to look how many there are.
        cell, mass = some_rows(_any(mass > self.threshold), cell, mass)
        entity = cell % self.entities
        first = cell - entity
        now = None if time is None else time.index_select(0, first // self.entities)
        near = self.neighbours.before(entity, now)
        degree = self.neighbours.count(near).unsqueeze(1)
        if missing is not None:
            ends, fewer = missing.ends(cell)
            degree = degree.expand_as(mass).index_add(0, ends, fewer, alpha=-1)
        worth = mass > self.threshold * degree
        # Who has no neighbour left divides by 0, and goes nowhere.
        each = (1 - self.restart) * mass / degree
        if missing is not None:
            each.masked_fill_(~worth, 0.0)
        walker, target = self.neighbours.each(near, _any(worth))
        first, share = some_rows(walker, first, each)
        reached = first.add_(target)
        if missing is not None:
            at = torch.full_like(cell, -1).index_copy_(0, ends, cell.index_select(0, ends))
            missing.leave_out(share, at.index_select(0, walker), reached)
        cell, member = distinct(reached)
        return cell, _summed(member, share, len(cell))


def _any(mask: Tensor) -> Tensor:
    """(N,) whether any of (N, V) is true."""
    return mask.squeeze(1) if mask.shape[1] == 1 else mask.any(1)


def _summed(member: Tensor, values: Tensor, count: int) -> Tensor:
    """(count, V) sums of (N, V) values, in their order."""
    times = values.shape[1]
    if times > 1:
        # One by one: whole rows are added by a call each.
        member = (member.unsqueeze(1) * times + torch.arange(times, device=member.device)).flatten()
    total = values.new_zeros(count * times).index_add_(0, member, values.flatten())
    return total.view(count, times)
