"""Public facts, indexed by who was linked to whom and when: one layer of a ``History``.

Everything is looked up by binary search in sorted keys, batched over questions, and bounded by
time: only facts strictly before a question's time are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.visibility import VisibleFacts
from metatkgr.graph.ragged import expand_ranges, pack

__all__ = ["Evidence", "Links"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """A sparse (Q, E) table: for some candidates of some questions, a step."""

    question: Tensor
    """(L,) row of the question."""
    candidate: Tensor
    """(L,) entity id; a (question, candidate) pair occurs once."""
    step: Tensor
    """(L,) the step the evidence dates from."""


class PairTimes:
    """For each distinct (key, target) pair the ascending steps at which it occurred."""

    def __init__(self, key: Tensor, target: Tensor, time: Tensor, entities: int, steps: int):
        self.entities, self.steps = entities, steps
        keys = int(key.max()) + 1 if len(key) else 1
        pair = pack((key, keys), (target, entities))
        self.pair, member = torch.unique(pair, return_inverse=True)
        self.occurrence, _ = torch.sort(pack((member, len(self.pair)), (time, steps)))
        self.start = torch.zeros(len(self.pair) + 1, dtype=torch.int64, device=key.device)
        torch.cumsum(torch.bincount(member, minlength=len(self.pair)), 0, out=self.start[1:])

    @cached_property
    def first(self) -> Tensor:
        """(P,) step at which each pair occurred first."""
        return self.occurrence[self.start[:-1]] % self.steps

    def range_of(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """First and last position, not included, of the pairs of each key."""
        low = torch.searchsorted(self.pair, key * self.entities)
        return low, torch.searchsorted(self.pair, (key + 1) * self.entities)

    def last_before(self, key: Tensor, time: Tensor) -> Evidence:
        """Of each key, all targets it was paired with before ``time``, with the last such step."""
        question, pair = expand_ranges(*self.range_of(key))
        end = torch.searchsorted(self.occurrence, pair * self.steps + time[question])
        seen = end > self.start[pair]
        question, pair, end = question[seen], pair[seen], end[seen]
        step = self.occurrence[end - 1] - pair * self.steps
        return Evidence(question, self.pair[pair] % self.entities, step)

    def exists(self, key: Tensor, target: Tensor, time: Tensor) -> Tensor:
        """(L,) whether each (key, target) pair occurred before ``time``."""
        if len(self.pair) == 0:
            return torch.zeros_like(key, dtype=torch.bool)
        wanted = key * self.entities + target
        place = torch.searchsorted(self.pair, wanted).clamp(max=len(self.pair) - 1)
        same = (self.pair[place] == wanted) & (target < self.entities)
        found: Tensor = same & (self.first[place] < time)
        return found


class Links:
    """An index of public facts.

    Args:
        visible: the facts.
        device: where the index lives.
    """

    def __init__(self, visible: VisibleFacts, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.entities = len(visible.entities)
        self.relations = 2 * len(visible.relations)
        # One more step than the last, so that "before any later time" is a time of its own.
        self.steps = (int(visible.time.max()) if len(visible) else 0) + 2
        columns = (visible.source, visible.relation, visible.target, visible.time)
        self._source, self._relation, self._target, self._time = (
            torch.from_numpy(np.ascontiguousarray(column)).to(self.device) for column in columns
        )

    def __len__(self) -> int:
        return len(self._time)

    @cached_property
    def by_relation(self) -> PairTimes:
        """Keys are ``source * relations + relation``."""
        key = pack((self._source, self.entities), (self._relation, self.relations))
        return PairTimes(key, self._target, self._time, self.entities, self.steps)

    @cached_property
    def by_entity(self) -> PairTimes:
        """Keys are sources."""
        return PairTimes(self._source, self._target, self._time, self.entities, self.steps)

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Facts by (relation, time): the sorted key, and who stood at the relation's far end."""
        key = pack((self._relation, self.relations), (self._time, self.steps))
        key, order = torch.sort(key, stable=True)
        return key, self._target[order]

    def within(self, time: Tensor) -> Tensor:
        """Times, clamped to those that the index can tell apart."""
        return time.clamp(0, self.steps - 1)

    def last_links(self, entity: Tensor, relation: Tensor, time: Tensor) -> Evidence:
        """Entities that each entity was linked to by a relation before a time, and when last."""
        key = entity * self.relations + relation
        return self.by_relation.last_before(key, self.within(time))

    def last_contacts(self, entity: Tensor, time: Tensor) -> Evidence:
        """Entities that each entity was linked to at all before a time, and when last."""
        return self.by_entity.last_before(entity, self.within(time))

    def facts_before(self, relation: Tensor, time: Tensor) -> Tensor:
        """(Q,) number of facts of a relation before a time."""
        key, _ = self.places
        begin = torch.searchsorted(key, relation * self.steps)
        return torch.searchsorted(key, relation * self.steps + self.within(time)) - begin

    def place_counts(self, relation: Tensor, time: Tensor) -> Tensor:
        """(Q, E) how often each entity stood at the far end of a relation before a time."""
        packed = relation * self.steps + self.within(time)
        moment, row = torch.unique(packed, return_inverse=True)
        counts = self._counts_at(moment)
        return counts if len(row) == 1 else counts[row]

    def _counts_at(self, moment: Tensor) -> Tensor:
        """(G, E) counts for ascending packed (relation, time) moments."""
        key, target = self.places
        relation = moment // self.steps
        stop = torch.searchsorted(key, moment)
        start = torch.searchsorted(key, relation * self.steps)
        # A moment continues where the previous one of the same relation ended.
        start[1:] = torch.where(relation[1:] == relation[:-1], stop[:-1], start[1:])
        if len(moment) == 1:
            # The far ends of one relation before one time lie side by side.
            found = target[int(start[0]) : int(stop[0])]
            return torch.bincount(found, minlength=self.entities).unsqueeze(0)
        row, position = expand_ranges(start, stop)
        cells = torch.bincount(
            row * self.entities + target[position], minlength=len(moment) * self.entities
        )
        counts = cells.view(len(moment), self.entities)
        for run in torch.unique_consecutive(relation, return_counts=True)[1].cumsum(0).tolist():
            begin = int(torch.searchsorted(relation, relation[run - 1]))
            torch.cumsum(counts[begin:run], 0, out=counts[begin:run])
        return counts

    def neighbours(self, entity: int, relation: int, time: int) -> Tensor:
        """(n,) distinct entities that an entity was linked to by a relation before a time."""
        links, key = self.by_relation, entity * self.relations + relation
        low, high = (int(x) for x in links.range_of(torch.tensor(key, device=self.device)))
        found: Tensor = links.pair[low:high][links.first[low:high] < time] % self.entities
        return found

    def of(self, entity: int, relation: int | None, target: int | None, time: int) -> Tensor:
        """All facts of an entity before a time, perhaps only of a relation or with one other.

        Returns:
            (n, 3) directed relation, other end, step.
        """
        links = self.by_relation
        first = entity * self.relations + (0 if relation is None else relation)
        last = first + (self.relations if relation is None else 1)
        bounds = torch.tensor([first * self.entities, last * self.entities], device=self.device)
        low, high = torch.searchsorted(links.pair, bounds).tolist()
        number = torch.arange(low, high, device=self.device)
        if target is not None:
            number = number[links.pair[low:high] % self.entities == target]
        row, place = expand_ranges(links.start[number], links.start[number + 1])
        pair = links.pair[number[row]]
        step = links.occurrence[place] % self.steps
        found = torch.stack(
            [pair // self.entities % self.relations, pair % self.entities, step], dim=1
        )
        return found[step < time]
