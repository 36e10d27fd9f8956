"""Relation slots: who filled the domain or the range of a relation, how often and when.

:class:`SlotOrder` holds the facts of one layer by (relation, time), ``graph.usage`` the same by
entity. :class:`Slots` puts the layers of an index together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import Column, Facts
from metatkgr.data.manifest import StoredLinks
from metatkgr.data.orders import DECAYS, by_cell, inverse, stored_columns
from metatkgr.graph.pairs import last_of_each
from metatkgr.graph.ragged import bisect_ranges, distinct, expand_ranges, in_order_of, some_rows
from metatkgr.graph.usage import SlotOrdinals, SlotUsage, Usage

__all__ = ["SlotOrder", "Slots"]

_LATEST = 1 << 12
"""Facts of a slot that tell who fills it lately."""
_SEASON = DECAYS[1]
"""τ by which these facts fade."""
_FEW, _MOST_KEPT = 64, 4096
"""Slots of one call of which it is kept what was made of them; and of how many it is kept."""

Made = tuple[Tensor, ...]
"""Of slots: (L,) their rows, ascending, and other columns."""


@dataclass(frozen=True, eq=False)
class SlotOrder:
    """Facts by (relation, time): who filled either slot of a relation, and when."""

    object: Tensor
    """(N,) int32 who filled the range."""
    subject: Tensor
    """(N,) int32 who filled the domain."""
    time: Tensor
    """(N,) int32 steps, ascending within a relation."""
    start: Tensor
    """(R + 1,) int64; the facts of r are ``start[r]`` to ``start[r + 1]``, not included."""
    last_step: int
    """No fact is later."""

    @classmethod
    def of(
        cls,
        facts: Facts,
        device: torch.device,
        public: npt.NDArray[np.bool_] | None = None,
    ) -> Self:
        """Of facts in time order, or of some of them.

        Args:
            facts: all.
            device: where the columns are to be.
            public: (N,) which of them; None: all.
        """

        def column(values: Column) -> Tensor:
            some = values if public is None else values[public]
            return torch.from_numpy(np.ascontiguousarray(some)).to(device)

        # One column after another: of a large graph, each copy counts.
        relation, order = torch.sort(column(facts.relation), stable=True)
        kinds = torch.arange(len(facts.relations) + 1, dtype=relation.dtype, device=device)
        start = torch.searchsorted(relation, kinds)
        del relation
        object_, subject, time = (
            column(values)[order] for values in (facts.object, facts.subject, facts.time)
        )
        return cls(object_, subject, time, start, int(time.max()) if len(time) else -1)

    @classmethod
    def mapped(cls, stored: StoredLinks, relations: int, device: torch.device) -> Self:
        """Of facts that a folder holds; ``relations`` is 2R now."""
        names = ("filler_object", "filler_subject", "filler_time", "filler_start")
        object_, subject, time, start = stored_columns(stored, device, *names)
        more = start[-1:].expand((relations - stored.relations) // 2)
        return cls(object_, subject, time, torch.cat([start, more]), stored.steps - 2)

    @property
    def relations(self) -> int:
        """R."""
        return self.start.numel() - 1

    def before(self, relation: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) where the facts of directed relations before a time lie."""
        kind = relation % self.relations
        low, high = self.start.index_select(0, kind), self.start.index_select(0, kind + 1)
        return low, bisect_ranges(self.time, low, high, time, largest=self.last_step)

    def filler(self, relation: Tensor, position: Tensor) -> Tensor:
        """(L,) who filled the far slot of a directed relation, in facts by their positions."""
        object_, subject = some_rows(position, self.object, self.subject)
        return torch.where(relation < self.relations, object_, subject).long()


class Slots:
    """Time-bounded look-ups over the slots of all layers of an index.

    Args:
        layers: the facts of each layer.
        usage: how entities filled slots, in layers of the same facts, perhaps others.
        entities: E of the index.
        relations: 2R.
        steps: of the index, one more than the last.
        before: the same with all layers of usage but the last.
    """

    def __init__(
        self,
        layers: list[SlotOrder],
        usage: list[SlotUsage],
        entities: int,
        relations: int,
        steps: int,
        before: Slots | None = None,
    ) -> None:
        self._layers, self._usage, self._before = layers, usage, before
        self.entities, self.relations, self.steps = entities, relations, steps
        self.device = self._layers[0].time.device
        self._kept: dict[tuple[str, int, int], tuple[Tensor, ...]] = {}

    def remembered(
        self,
        what: str,
        relation: Tensor,
        time: Tensor,
        make: Callable[[Tensor, Tensor], Made],
    ) -> Made:
        """What is made of distinct slots: of few, what was made of them before.

        Queries about today ask for the same few slots again and again, until a fact arrives.

        Args:
            what: a name for it.
            relation: (S,) int64, directed.
            time: (S,) int64.
            make: of each slot apart from the others.
        """
        if not 0 < len(relation) <= _FEW:
            return make(relation, time)
        slots = zip(relation.tolist(), time.tolist(), strict=True)
        keys = [(what, *slot) for slot in slots]
        kept = self._kept
        if len(kept) > _MOST_KEPT:  # who reads the old ones meanwhile still has them
            kept = self._kept = {}
        missing = [number for number, key in enumerate(keys) if key not in kept]
        if missing:
            some = torch.tensor(missing, device=relation.device)
            row, *columns = make(*some_rows(some, relation, time))
            sizes = torch.bincount(row, minlength=len(missing)).tolist()
            parts = zip(*(torch.split(column, sizes) for column in columns), strict=True)
            kept |= zip((keys[number] for number in missing), parts, strict=True)
        made = [kept[key] for key in keys]
        if len(made) == 1:
            return relation.new_zeros(len(made[0][0])), *made[0]
        sizes = [len(part[0]) for part in made]
        row = torch.repeat_interleave(torch.tensor(sizes, device=relation.device))
        return row, *(torch.cat(column) for column in zip(*made, strict=True))

    def remembered_of_each(
        self,
        what: str,
        relation: Tensor,
        time: Tensor,
        make: Callable[[Tensor, Tensor], Made],
    ) -> Made:
        """The same of (Q,) slots that need not be distinct, as those of queries."""
        if len(relation) == 1:
            return self.remembered(what, relation, time, make)
        room = int(time.max()) + 1 if len(time) else 1
        slot, member = distinct(relation * room + time)
        row, *columns = self.remembered(what, slot // room, slot % room, make)
        low = torch.searchsorted(row, member)
        query, position = expand_ranges(low, torch.searchsorted(row, member, right=True))
        return query, *some_rows(position, *columns)

    def usage(
        self, entity: Tensor, relation: Tensor, time: Tensor, decays: tuple[float, ...] = ()
    ) -> Usage:
        """How entities have filled the far slots of directed relations before a time.

        Args:
            entity: (L,) int64, who.
            relation: (L,) int64, directed.
            time: (L,) int64.
            decays: τ of each decayed count.
        """
        base, *others = self._usage
        usage = base.read(base.of_slot(entity, relation), time, decays)
        for part in others:
            # Of recent facts only a few are of these slots.
            low, high = part.of_slot(entity, relation)
            some = torch.nonzero(high > low).squeeze(1)
            if some.numel():
                low, high, now = some_rows(some, low, high, time)
                more = part.read((low, high), now, decays)
                usage.count.index_add_(0, some, more.count)
                for total, other in zip(usage.decayed, more.decayed, strict=True):
                    total.index_add_(0, some, other)
                latest = torch.maximum(usage.last.index_select(0, some), more.last)
                usage.last.index_copy_(0, some, latest)
        return usage

    def recent(self, relation: Tensor, time: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """The latest facts of slots before a time.

        Args:
            relation: (Q,) int64, directed.
            time: (Q,) int64.
            most: how many of each.

        Returns:
            row: (L,) of the slots, non-decreasing.
            filler: (L,) who filled the far slot.
            step: (L,) when; of a row oldest first.
        """
        row, _, filler, step = self._recent(relation, time, most, near=False)
        return row, filler, step

    def recent_facts(
        self, relation: Tensor, time: Tensor, most: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same with who stood at the near end: row, near end, filler and step, (L,) each."""
        return self._recent(relation, time, most, near=True)

    def lately(self, relation: Tensor, time: Tensor) -> Made:
        """Who filled each of S distinct slots in its latest facts, and how often.

        Returns:
            row: (L,) of the slots, ascending.
            filler: (L,) ascending within a row; each once.
            weight: (L,) float32 sums over these facts, one τ steps old counting 1/e.
        """
        return self.remembered("lately", relation, time, self._lately)

    def _lately(self, relation: Tensor, time: Tensor) -> Made:
        row, filler, step = self.recent(relation, time, _LATEST)
        cell, place = distinct(row * self.entities + filler)
        weight = (-(time.index_select(0, row) - step) / _SEASON).exp()
        weight = weight.new_zeros(len(cell)).index_add_(0, place, weight)
        return cell // self.entities, cell % self.entities, weight

    def _recent(
        self, relation: Tensor, time: Tensor, most: int, *, near: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        parts: list[tuple[Tensor, ...]] = []
        for slots in self._layers:
            low, high = slots.before(relation, time)
            row, position = expand_ranges(torch.maximum(low, high - most), high)
            if parts and not row.numel():
                continue
            step = slots.time.index_select(0, position).long()
            kind = relation.index_select(0, row)
            filler = slots.filler(kind, position)
            other = slots.filler(inverse(kind, self.relations), position) if near else filler
            parts.append((row, other, filler, step))
        row, other, filler, step = parts[0]
        if len(parts) > 1:
            row, other, filler, step = (torch.cat(column) for column in zip(*parts, strict=True))
            rank = in_order_of(row, step)
            columns = some_rows(rank, row, other, filler, step)
            row, other, filler, step = last_of_each(most, *columns)
        return row, other, filler, step

    def count_ranks(self, relation: Tensor, time: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """How many of all entities filled slots more often than so often, and how many as often.

        Args:
            relation: (A,) int64, directed.
            time: (A,) int64; only facts before it count.
            count: (A,) int64; also 0.

        Returns:
            more, equal: (A,) int64.
        """
        more = self.above(relation, time, count)
        at_least = self.above(relation, time, (count - 1).clamp(min=0))
        return more, torch.where(count > 0, at_least, self.entities) - more

    def above(self, relation: Tensor, time: Tensor, count: Tensor) -> Tensor:
        """(A,) how many entities filled slots more often than so often; see above."""
        total = torch.zeros_like(count)
        for right, wrong in self._ordinals:
            total += right.above(relation, time, count)
            if wrong is not None:
                total -= wrong.above(relation, time, count)
        return total

    @cached_property
    def _ordinals(self) -> list[tuple[SlotOrdinals, SlotOrdinals | None]]:
        """The ordinals of the base; for each later layer those it makes right, and wrong."""
        usage, known = self._usage, [] if self._before is None else self._before._ordinals
        later = range(len(known) or 1, len(usage))
        changed = [self._changed(usage[:number], usage[number]) for number in later]
        return [*(known or [(usage[0].ordinals(), None)]), *changed]

    def _changed(
        self, earlier: list[SlotUsage], latest: SlotUsage
    ) -> tuple[SlotOrdinals, SlotOrdinals | None]:
        """The ordinals of a layer's facts and of earlier ones that are not before all of them; and
        those that these earlier ones had without the layer, if there are any."""
        # Only the base may be of a time with fewer relations.
        group, member = torch.unique_consecutive(latest.slots(), return_inverse=True)
        first = torch.full_like(group, 2**31 - 1, dtype=torch.int32)
        first.scatter_reduce_(0, member, latest.time, "amin")
        relation = inverse(group % self.relations, self.relations)
        before, rows, steps = torch.zeros_like(group), [], []
        for part in earlier:
            low, high = part.of_slot(group // self.relations, relation)
            changed = bisect_ranges(part.time, low, high, first)
            before += changed - low
            row, position = expand_ranges(changed, high)
            rows.append(row)
            steps.append(part.time.index_select(0, position))

        def ordinals(rows: list[Tensor], steps: list[Tensor]) -> SlotOrdinals:
            row, step = torch.cat(rows), torch.cat(steps)
            rank = in_order_of(row, step)
            row, step = row[rank], step[rank]
            ordinal = torch.arange(len(row), device=self.device)
            ordinal += before[row] - torch.searchsorted(row, row)
            return self._few(relation[row], ordinal, step)

        wrong = ordinals(rows, steps) if any(row.numel() for row in rows) else None
        return ordinals([*rows, member], [*steps, latest.time]), wrong

    def _few(self, relation: Tensor, ordinal: Tensor, step: Tensor) -> SlotOrdinals:
        room = int(ordinal.max()) + 1 if len(ordinal) else 1
        columns = by_cell(relation * room + ordinal, step)
        return SlotOrdinals(*columns, room, self.relations, self.relations)

    def facts_before(self, relation: Tensor, time: Tensor) -> Tensor:
        """(Q,) number of facts of a relation before a time."""
        count = torch.zeros_like(relation)
        for slots in self._layers:
            low, high = slots.before(relation, time)
            count += high - low
        return count
