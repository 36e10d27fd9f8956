"""The temporal neighbours of an entity: up to b facts around it, before a moment.

What exactly is collected for a root (e, t), with budget b and window Δt:

* A queue starts with e. The entity u at its head is taken out; u's visible links are gone through,
  the most recent first, and of links at one time the one whose row comes later in the facts first.
* A visible link is public and has ``time < t``; or it is in e's own support, whatever its time (the
  support of e only, as the queries about e may see it). With a window, ``time > t - Δt`` as well.
* Each link u -r-> v gives the neighbour (v, r, time of the link) with r directed: r + R where the
  fact points from v to u. v is put into the queue unless it was ever in it (the root was).
* A *fact* is collected once: its other direction, met when v is taken out, is passed over. A fact
  of u with itself is collected once, in its own direction.
* It ends when b facts are collected or the queue is empty.

The batched form works on all roots at once, one taken-out entity of each per round. Why it is
exact: before a root takes out its next entity u it has collected *every* visible link of those
before, so u's links to them, and no others, are facts that it has already. These and the ones it
still needs number b at most: the b most recent links of u are enough. Own support facts that are
not public yet all lie at the root, which is taken out first; later rounds read public facts alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from metatkgr.data.visibility import Supports
from metatkgr.errors import SettingsError, UnknownNameError
from metatkgr.graph.index import TemporalIndex

__all__ = [
    "SAMPLERS",
    "BreadthFirstSampler",
    "Neighbours",
    "RecentSampler",
    "Sampler",
    "UniformSampler",
    "create_sampler",
]

_SLOTS_AT_ONCE = {"cpu": 1 << 19, "cuda": 1 << 23}
"""How many slots for neighbours are filled in one go, by device; bounds memory. On a GPU a round
costs the launch of its kernels, whatever its size: better few rounds over many roots."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Up to b neighbours of each of Q roots, in the order in which they were collected."""

    entity: Tensor
    """(Q, b) int64 the entity the fact leads to; 0 in empty slots."""
    relation: Tensor
    """(Q, b) int64 directed relation; 0 in empty slots."""
    time: Tensor
    """(Q, b) int64 step of the fact; 0 in empty slots. An own support fact may be at or after the
    root's time."""
    mask: Tensor
    """(Q, b) bool, whether there is a neighbour in this slot; the empty slots come last."""

    def __len__(self) -> int:
        return len(self.mask)

    @classmethod
    def cat(cls, parts: list[Neighbours]) -> Neighbours:
        """The neighbours of several batches of roots, one batch after another."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            torch.cat([part.entity for part in parts]),
            torch.cat([part.relation for part in parts]),
            torch.cat([part.time for part in parts]),
            torch.cat([part.mask for part in parts]),
        )


@dataclass(frozen=True, eq=False)
class _Links:
    """Where the visible links of Q roots lie. Rank 0 is the most recent link of a root."""

    low: Tensor
    """(Q,) first public link in the index."""
    high: Tensor
    """(Q,) end of the public links, not included."""
    own_low: Tensor
    """(Q,) first own support link that is not public yet."""
    own_high: Tensor
    """(Q,) end of these, not included."""

    @property
    def own(self) -> Tensor:
        """(Q,) how many own support links are not public yet; these are the most recent ones."""
        return self.own_high - self.own_low

    @property
    def count(self) -> Tensor:
        """(Q,) number of visible links."""
        return self.own + self.high - self.low


class Sampler(ABC):
    """Finds the neighbours of many (entity, time) roots at once.

    Args:
        index: the public facts.
        supports: the first facts of the new entities; an entity's own are visible at any time where
            it is the root. Those before the root's time are public and are not collected twice.
        budget: b, how many neighbours a root gets at most.
        window: Δt, only facts later than ``time - window``; None for all.
        generator: the source of randomness, on the index's device; for samplers that draw.
    """

    name: ClassVar[str]
    """What the sampler is called in settings."""

    def __init__(
        self,
        index: TemporalIndex,
        supports: Supports,
        *,
        budget: int = 16,
        window: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if budget < 1:
            raise SettingsError(f"the budget is {budget} neighbours; give at least 1")
        if window is not None and window < 1:
            raise SettingsError(f"the window is {window} steps; give at least 1, or none at all")
        self.index, self.budget, self.window = index, budget, window
        self.generator = generator
        self._own = TemporalIndex.of_supports(
            supports, entities=index.entities, relations=index.relations, device=index.device
        )
        self._slot = torch.arange(budget, device=index.device)

    def sample(self, entity: Tensor, time: Tensor, *, own: bool | Tensor = True) -> Neighbours:
        """The neighbours of each root.

        Args:
            entity: (Q,) int64 root entities.
            time: (Q,) int64 the moments before which to look.
            own: whether the roots see their own supports at any time, all of them or (Q,) each.
                Right for the entities that queries are about; False for others, such as
                candidate answers, whose supports are visible only once their time has passed.

        Returns:
            Neighbours on the index's device.
        """
        entity, time = (x.to(self.index.device, torch.int64) for x in (entity, time))
        rows = max(_SLOTS_AT_ONCE[self.index.device.type] // self.budget, 1)
        starts = range(0, max(len(entity), 1), rows)
        return Neighbours.cat(
            [
                self._sample(
                    entity[i : i + rows],
                    time[i : i + rows],
                    own if isinstance(own, bool) else own[i : i + rows],
                )
                for i in starts
            ]
        )

    @abstractmethod
    def _sample(self, entity: Tensor, time: Tensor, own: bool | Tensor) -> Neighbours:
        """``sample`` for a batch that fits into memory."""

    def _visible(self, entity: Tensor, time: Tensor, own: bool | Tensor) -> _Links:
        """The links of each root that it may see."""
        low, high = self.index.before(entity, time, self.window)
        if own is False:
            return _Links(low, high, low, low)
        first, last = self._own.since(entity, time)
        return _Links(low, high, first if own is True else torch.where(own, first, last), last)

    def _take(self, entity: Tensor, links: _Links, rank: Tensor, mask: Tensor) -> Neighbours:
        """The links of given ranks.

        Args:
            entity: (Q,) the roots.
            links: where their visible links lie.
            rank: (Q, b) which links; a rank beyond the last where ``mask`` is False.
            mask: (Q, b) whether a slot is filled.
        """
        own = links.own
        public = (links.high + own - 1)[:, None] - rank
        columns = self.index.read(entity, public, mask & (rank >= own[:, None]))
        rows = own.nonzero().squeeze(1)
        if len(rows):
            early = mask[rows] & (rank[rows] < own[rows, None])
            position = (links.own_high[rows] - 1)[:, None] - rank[rows]
            late = self._own.read(entity[rows], position, early)
            # Each slot is 0 in one of the two, so the sum is the one that is filled.
            for column, values in zip(columns, late, strict=True):
                column[rows] += values
        return Neighbours(*columns, mask)

    def _most_recent(self, entity: Tensor, time: Tensor, own: bool | Tensor) -> Neighbours:
        """The b most recent links of each root."""
        links = self._visible(entity, time, own)
        mask = self._slot < links.count[:, None]
        return self._take(entity, links, self._slot.expand(mask.shape), mask)


class RecentSampler(Sampler):
    """One hop: the b most recent links of the root."""

    name = "recent"

    def _sample(self, entity: Tensor, time: Tensor, own: bool | Tensor) -> Neighbours:
        return self._most_recent(entity, time, own)


class UniformSampler(Sampler):
    """One hop: b of the root's links, uniformly at random without replacement, recent ones first.

    A root with b links or fewer gets all of them.
    """

    name = "uniform"

    def _sample(self, entity: Tensor, time: Tensor, own: bool | Tensor) -> Neighbours:
        if self.generator is None:
            raise SettingsError("the uniform sampler draws: give it a torch.Generator")
        links = self._visible(entity, time, own)
        count = links.count
        size = (len(entity), self.budget)
        device = self.index.device
        draw = torch.rand(size, dtype=torch.float64, generator=self.generator, device=device)
        # Floyd's subset: the i-th of b draws is among the first n - b + i + 1 links; where it hits
        # one chosen before, the last of these is taken instead, which cannot have been chosen yet.
        last = (count - self.budget)[:, None] + self._slot
        drawn = (draw * (last + 1)).long().clamp_(min=0).minimum(last)
        rank = torch.full(size, -1, device=device)
        for i in range(self.budget):
            taken = (rank[:, :i] == drawn[:, i : i + 1]).any(1)
            rank[:, i] = torch.where(taken, last[:, i], drawn[:, i])
        few = (count <= self.budget)[:, None]
        rank = torch.where(few, self._slot, rank.sort(1).values)
        return self._take(entity, links, rank, self._slot < count[:, None])


class BreadthFirstSampler(Sampler):
    """Breadth first, as many hops as the budget needs: the paper's Algorithm 1, corrected.

    The module's text says precisely what is collected.
    """

    name = "bfs"

    def _sample(self, entity: Tensor, time: Tensor, own: bool | Tensor) -> Neighbours:
        recent = self._most_recent(entity, time, own)
        count = recent.mask.sum(1)
        size = recent.entity.shape
        # Flat, with one more slot at the end for all that is not collected: to write it there is
        # cheaper than to pick out the rest.
        targets = torch.cat([recent.entity.view(-1), entity.new_zeros(1)])
        links, sources = torch.full_like(targets, -1), torch.zeros_like(targets)
        queues = targets[:-1].view(size)
        # The queue is the list of neighbours itself: in round ``slot`` each root takes out the
        # entity of that slot, unless an earlier slot or the root itself is the same entity.
        rows = torch.arange(len(entity), device=entity.device)
        for slot in range(self.budget):
            have = count.index_select(0, rows)
            rows = rows[(have > slot) & (have < self.budget)]
            if not len(rows):
                break
            # The root, the entities taken out before, and the one whose turn it is: (A, slot + 2).
            queue = queues[:, : slot + 1].index_select(0, rows)
            queue = torch.cat([entity.index_select(0, rows)[:, None], queue], 1)
            fresh = (~_is_among(queue[:, -1:], queue[:, :-1])).squeeze(1).nonzero().squeeze(1)
            queue, roots = queue.index_select(0, fresh), rows.index_select(0, fresh)
            taken, when = queue[:, -1], time.index_select(0, roots)
            target, link, new = self._links_of(taken, when, queue[:, :-1])
            before = count.index_select(0, roots)
            cell = new.cumsum(1).add_((before - 1)[:, None])
            new &= cell < self.budget
            count.scatter_(0, roots, before + new.sum(1))
            cell += (roots * self.budget)[:, None]
            cell = torch.where(new, cell, targets.numel() - 1).view(-1)
            targets.scatter_(0, cell, target.view(-1))
            links.scatter_(0, cell, link.view(-1))
            sources.scatter_(0, cell, taken[:, None].expand(new.shape).reshape(-1))
        kept = (links[:-1] >= 0).nonzero().squeeze(1)
        about = self.index.about(sources.index_select(0, kept), links.index_select(0, kept))
        for column, values in zip((recent.relation, recent.time), about, strict=True):
            column.view(-1).scatter_(0, kept, values)
        mask = torch.lt(self._slot, count[:, None], out=recent.mask)
        return Neighbours(queues, recent.relation, recent.time, mask)

    def _links_of(
        self, taken: Tensor, time: Tensor, earlier: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The b most recent links of entities that are taken out.

        Args:
            taken: (A,) the entities.
            time: (A,) before which to look.
            earlier: (A, k) who was taken out before: the facts with them are collected already.

        Returns:
            (A, b) each: whom links lead to, their positions, and whether they are there and new.
        """
        low, high = self.index.before(taken, time, self.window)
        position = (high - 1)[:, None] - self._slot
        new = position >= low[:, None]
        target = self.index.targets(taken, position, new)
        new &= ~_is_among(target, earlier)
        return target, position, new


def _is_among(values: Tensor, others: Tensor) -> Tensor:
    """(A, n) whether a value is one of the (A, k) others in its row."""
    if values.is_cuda:
        # Two launches, however many others.
        return (values[:, :, None] == others[:, None, :]).any(2)
    # On a CPU the (A, n, k) comparisons cost more than they save.
    among = torch.zeros_like(values, dtype=torch.bool)
    for other in others.unbind(1):
        among |= values == other[:, None]
    return among


SAMPLERS: dict[str, type[Sampler]] = {
    sampler.name: sampler for sampler in (BreadthFirstSampler, RecentSampler, UniformSampler)
}
"""All samplers by name."""


def create_sampler(
    name: str,
    index: TemporalIndex,
    supports: Supports,
    *,
    budget: int = 16,
    window: int | None = None,
    generator: torch.Generator | None = None,
) -> Sampler:
    """A sampler by name; the arguments are those of :class:`Sampler`."""
    if name not in SAMPLERS:
        raise UnknownNameError("sampler", name, SAMPLERS)
    return SAMPLERS[name](index, supports, budget=budget, window=window, generator=generator)
