"""Look-ups as if some facts were not there: what a reason is worth is what is lost without it.

One row is one deletion: a query (e, r, ?, t), a candidate x, and the facts of one explanation.
These are links of e, by r or by other relations, or all facts in which others met x by r. Each
look-up tells what it would had these facts never been seen; but for what would cost more than it
changes. How relations go together stays as it is. So does PageRank where e has more than a dozen
neighbours, but for walkers that go straight from e to x. Of a hub its latest facts are read. Where
x's facts with others are left out, its use of the slot and the walks that end there change, and
nothing else.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from metatkgr.data.orders import DECAYS
from metatkgr.data.tasks import Queries
from metatkgr.graph.history import Frontier, History
from metatkgr.graph.index import EntityFacts
from metatkgr.graph.pagerank import PageRank, Walks, Without
from metatkgr.graph.ragged import expand_ranges, found
from metatkgr.graph.usage import Usage
from metatkgr.models.base import Explanation

__all__ = ["Deletions", "by_weight", "lost", "weighed"]

_NEVER = 1 << 62
"""A step after all others."""
_ENDS = 64
"""First and last facts of an entity among which one is looked for that is not left out."""
_LINKS = 512
"""Links of a candidate which say when others met it last."""
_FACTS = 4096
"""Facts of a link that are looked at, the latest."""
_LEAST = 1e-3
"""A smaller share is none."""
_NEIGHBOURS = 12
"""With more of them, PageRank is not walked again without one."""


@dataclass(frozen=True, eq=False)
class Deletions:
    """W deletions, one row each."""

    history: History
    queries: Queries
    """W of them."""
    answer: Tensor
    """(W,) the candidate."""
    cell: Tensor
    """(L,) ``row * E + y``, ascending: whose links with e are left out."""
    same: Tensor
    """(L,) bool: those by r."""
    other: Tensor
    """(L,) bool: those by other relations."""
    slot: Tensor
    """(W,) bool: the facts in which others met the candidate by r are left out."""

    @classmethod
    def of(
        cls,
        history: History,
        queries: Queries,
        candidate: Tensor,
        explanations: Sequence[Sequence[Explanation]],
    ) -> tuple[Deletions, Tensor]:
        """For each query first nothing is left out, then each explanation in turn.

        Args:
            history: what is visible.
            queries: Q of them.
            candidate: (Q,) one for each.
            explanations: of each.

        Returns:
            The deletions, and (Q,) the rows in which nothing is left out.
        """
        cells: dict[int, tuple[bool, bool]] = {}
        row_of: list[int] = []
        slot: list[bool] = []
        first: list[int] = []
        for number, some in enumerate(explanations):
            first.append(len(row_of))
            row_of += [number] * (1 + len(some))
            slot += [False, *(why.kind == "frequency" for why in some)]
            for row, why in enumerate(some, first[-1] + 1):
                for y in _others(why):
                    by = why.kind in ("repeat", "path", "shared"), why.kind in ("contact", "shared")
                    cells[row * history.entities + y] = by
        rows = torch.tensor(row_of, dtype=torch.int64)
        ordered = sorted(cells)
        same, other = (
            torch.tensor([cells[cell][n] for cell in ordered], dtype=torch.bool) for n in (0, 1)
        )
        columns = (torch.tensor(ordered, dtype=torch.int64), same, other, torch.tensor(slot))
        asked = queries[rows.numpy()]
        device = history.device
        made = cls(history, asked, candidate[rows.to(device)], *(c.to(device) for c in columns))
        return made, torch.tensor(first, device=device)

    @cached_property
    def query(self) -> tuple[Tensor, Tensor, Tensor]:
        """Entity, relation and time, (W,) each."""
        return self.history.columns(self.queries)

    @cached_property
    def first_alike(self) -> Tensor:
        """(W,) the first row that asks the same and leaves the same out, for any candidate.

        Of walks that begin with facts of e, those of one row serve all that are alike.
        """
        left_out: list[list[tuple[int, ...]]] = [[] for _ in range(len(self))]
        for cell, *by in zip(
            *(c.tolist() for c in (self.cell, self.same, self.other)), strict=True
        ):
            left_out[cell // self.history.entities].append((cell % self.history.entities, *by))
        columns = (*self.query, self.slot)
        keys = zip(*(column.tolist() for column in columns), map(tuple, left_out), strict=True)
        first: dict[tuple[Any, ...], int] = {}
        rows = [first.setdefault(key, row) for row, key in enumerate(keys)]
        return torch.tensor(rows, device=self.answer.device)

    @property
    def cells(self) -> Tensor:
        """(W,) ``row * E + candidate``."""
        rows = torch.arange(len(self), device=self.answer.device)
        return rows * self.history.entities + self.answer

    def __len__(self) -> int:
        return len(self.answer)

    def hides(self, facts: EntityFacts) -> Tensor:
        """(L,) which facts of the rows' entities e are left out."""
        cell = facts.row * self.history.entities + facts.target
        return self._hidden(cell, facts.relation == self.query[1][facts.row])

    def _hidden(self, cell: Tensor, by_same: Tensor) -> Tensor:
        if not len(self.cell):
            return torch.zeros_like(by_same)
        place = torch.searchsorted(self.cell, cell).clamp(max=len(self.cell) - 1)
        which = torch.where(by_same, self.same[place], self.other[place])
        return (self.cell[place] == cell) & which

    @cached_property
    def own(self) -> tuple[EntityFacts, EntityFacts]:
        """Facts of e with those whose links are left out and with the candidate: kept and not."""
        entities, relations = self.history.entities, self.history.relations
        entity, _, time = self.query
        cell = torch.unique(torch.cat([self.cell, self.cells]))
        row, target = cell // entities, cell % entities
        # Many rows are about the same two entities, whose facts are looked up once.
        pairs, member = torch.unique(
            torch.stack([entity[row], target, time[row]]), dim=1, return_inverse=True
        )
        source, other, now = pairs.repeat_interleave(relations, 1)
        along = torch.arange(relations, device=cell.device).repeat(pairs.shape[1])
        slot = source * relations + along
        link, step, _ = self.history.index.pairs.times(slot, other, now, _FACTS)
        of = torch.arange(pairs.shape[1], device=cell.device)
        low, high = (torch.searchsorted(link // relations, of, right=way) for way in (False, True))
        each, place = expand_ranges(low[member], high[member])
        public = EntityFacts(row[each], along[link[place]], target[each], step[place])
        later = self.history.own_later(self.queries)
        later = later.kept(torch.isin(later.row * entities + later.target, cell))
        facts = EntityFacts.cat([public, later])
        hidden = self.hides(facts)
        return facts.kept(~hidden), facts.kept(hidden)

    @cached_property
    def gone(self) -> Tensor:
        """``row * E + y``, ascending: who has no link with e left."""
        kept, hidden = (facts.row * self.history.entities + facts.target for facts in self.own)
        every: Tensor = torch.unique(hidden)
        return every[~torch.isin(every, kept)]

    def last_steps(self, *, same: bool) -> Tensor:
        """(W,) when e and the candidate last met, by r or at all; -1: never."""
        _, relation, _ = self.query
        kept, _ = self.own
        with_answer = kept.target == self.answer[kept.row]
        if same:
            with_answer &= kept.relation == relation[kept.row]
        last = torch.full_like(self.answer, -1)
        return last.scatter_reduce_(0, kept.row[with_answer], kept.time[with_answer], "amax")

    def usage(self) -> Usage:
        """How the candidates have filled the slot of their query."""
        who, (entity, relation, time) = self.answer, self.query
        usage = self.history.index.slots.usage(who, relation, time, DECAYS)
        kept, hidden = (self._in_slot(facts) for facts in self.own)
        less, alone = _counted(hidden, time), _counted(kept, time)
        # Who met it last, where that was e.
        back = (relation + self.history.relations // 2) % self.history.relations
        links = self.history.index.pairs.latest_links(who, back, time, _LINKS)
        links = links.kept(links.target != entity[links.row])
        last = torch.full_like(who, -1).scatter_reduce_(0, links.row, links.last, "amax")
        last = torch.maximum(last, alone.last)

        def left(whole: Tensor, gone: Tensor, own: Tensor) -> Tensor:
            return torch.where(self.slot, own, (whole - gone).clamp(min=0))

        columns = zip(usage.decayed, less.decayed, alone.decayed, strict=True)
        return Usage(
            left(usage.count, less.count, alone.count),
            tuple(left(*column) for column in columns),
            torch.where(self.slot, alone.last, torch.where(less.count > 0, last, usage.last)),
        )

    def _in_slot(self, facts: EntityFacts) -> EntityFacts:
        """The public ones by r with the candidate."""
        _, relation, time = self.query
        row = facts.row
        wanted = (facts.target == self.answer[row]) & (facts.relation == relation[row])
        return facts.kept(wanted & (facts.time < time[row]))

    def walks(self, past: EntityFacts | None = None) -> Frontier:
        """Walks e -r-> y <-r- z -r-> x without those that would need what is left out.

        Args:
            past: facts of each e that are left, with which walks begin; None: all that are left.
        """
        history, entities = self.history, self.history.entities
        entity, relation, time = self.query
        back = (relation + history.relations // 2) % history.relations
        _, hidden = self.own
        hidden = hidden.kept(hidden.relation == relation[hidden.row])
        hidden = hidden.kept(hidden.time < time[hidden.row])
        cut = torch.unique(hidden.row * entities + hidden.target)
        if past is None:
            walks = history.hop(history.start(self.queries), relation, time)
            walks = _some(walks, ~torch.isin(walks.query * entities + walks.entity, cut))
        else:
            begun = past.kept((past.relation == relation[past.row]) & (past.time < time[past.row]))
            links = torch.unique(begun.row * entities + begun.target)
            walks = Frontier(links // entities, links % entities, torch.ones_like(links))
        walks = history.hop(walks, back, time)
        walks = _some(walks, ~self.slot[walks.query] | (walks.entity == entity[walks.query]))
        # How often walks are at e again, where they cannot go on to those that are left out.
        here = walks.entity == entity[walks.query]
        again = torch.zeros_like(entity).index_add_(0, walks.query[here], walks.count[here])
        walks = history.hop(walks, relation, time)
        fewer = torch.isin(walks.query * entities + walks.entity, cut)
        count = walks.count - fewer.long() * again[walks.query]
        return _some(Frontier(walks.query, walks.entity, count), count > 0)

    def seen(self) -> tuple[Tensor, Tensor, Tensor]:
        """First and last step of the candidates, and how many others they were linked to."""
        who, index, (entity, _, time) = self.answer, self.history.index, self.query
        degree = index.neighbours.degree(who, time)
        degree = degree - torch.isin(self.cells, self.gone).long()
        first = self._first(who, entity)
        last = index.last_step_of(who, time)
        facts = index.last_facts(who, time, _ENDS)
        facts = facts.kept(~self._met(facts, entity))
        left = torch.full_like(who, -1).scatter_reduce_(0, facts.row, facts.time, "amax")
        return first, torch.where(self._touched(who), left, last), degree

    def entity_first(self) -> Tensor:
        """(W,) when each e was first seen."""
        return self._first(self.query[0], None)

    def _first(self, who: Tensor, entity: Tensor | None) -> Tensor:
        """(W,) first step of e, or of candidates whose facts with e may be left out."""
        index = self.history.index
        facts = index.first_facts(who, _ENDS)
        hidden = self.hides(facts) if entity is None else self._met(facts, entity)
        facts = facts.kept(~hidden)
        left = torch.full_like(who, _NEVER).scatter_reduce_(0, facts.row, facts.time, "amin")
        touched = self._touched(who if entity is not None else None)
        return torch.where(touched, left, index.first_step_of(who))

    def _touched(self, who: Tensor | None) -> Tensor:
        """(W,) whether facts of e are left out; of candidates, facts with them."""
        _, hidden = self.own
        touched = torch.zeros_like(self.slot)
        which = hidden.row if who is None else hidden.row[hidden.target == who[hidden.row]]
        touched[which] = True
        return touched

    def _met(self, facts: EntityFacts, entity: Tensor) -> Tensor:
        """Which facts of the candidates are with e and left out."""
        half = self.history.relations // 2
        relation = (facts.relation + half) % self.history.relations
        cell = facts.row * self.history.entities + self.answer[facts.row]
        hidden = self._hidden(cell, relation == self.query[1][facts.row])
        return hidden & (facts.target == entity[facts.row])

    def reached(self, pagerank: PageRank, most: int) -> Walks:
        """How walks from e reach the candidates: at most one entity a row.

        Args:
            pagerank: makes the walks.
            most: of each start only so many entities count, those that are reached most often.
        """
        entities, (entity, _, time) = self.history.entities, self.query
        degree = pagerank.neighbours.degree(entity, time)
        gone: list[list[int]] = [[] for _ in range(len(self))]
        for cell in self.gone.tolist():
            gone[cell // entities].append(cell % entities)
        columns = (entity.tolist(), time.tolist(), degree.tolist(), gone)
        # From each start one walk for each set of neighbours left out; all are walked together.
        starts: dict[tuple[int, int], int] = {}
        sets: dict[tuple[int, tuple[int, ...]], int] = {}
        many: Counter[int] = Counter()
        walked: list[tuple[int, int]] = []
        for e, t, neighbours, others in zip(*columns, strict=True):
            start = starts.setdefault((e, t), len(starts))
            without = start, tuple(others) if neighbours <= _NEIGHBOURS else ()
            if without not in sets:
                sets[without] = many[start]
                many[start] += 1
            walked.append((start, sets[without]))
        device, times = entity.device, max(many.values())
        who, when = torch.tensor(list(zip(*starts, strict=True)), device=device)
        left: defaultdict[int, list[bool]] = defaultdict(lambda: [False] * times)
        for (start, ys), number in sets.items():
            for y in ys:
                left[start * entities + y][number] = True
        if left:
            cells = sorted(left)
            table = torch.tensor([left[cell] for cell in cells], device=device)
            leave = Without(torch.tensor(cells, device=device), table)
            walks = pagerank.walks(who, when, leave).best(most)
        else:
            walks = pagerank.reached(who, when, most)
        row, walk = torch.tensor(list(zip(*walked, strict=True)), device=device)
        walked_as = row * times + walk
        ends = walks.row * entities + walks.entity
        place, there = found(ends, walked_as * entities + self.answer)
        at_e, known = found(ends, walked_as * entities + entity)
        # Of many neighbours: who goes straight from e to one that is no neighbour any more.
        straight = torch.isin(self.cells, self.gone) & (degree > _NEIGHBOURS)
        share = (1 - pagerank.restart) / degree.clamp(min=1) * (known & straight)

        def rest(mass: Tensor) -> Tensor:
            return (mass[place] - share * mass[at_e]).clamp(min=0)[there]

        rows = torch.nonzero(there).squeeze(1)
        return Walks(
            rows, self.answer[rows], rest(walks.far), rest(walks.near), walks.lost[walked_as]
        )


def _others(why: Explanation) -> list[int]:
    """Whose links with e an explanation rests on."""
    if why.kind in ("repeat", "contact", "path"):
        return [why.links[0].target]
    # Two links for each shared neighbour: of e and of the candidate.
    return [link.target for link in why.links[::2]] if why.kind == "shared" else []


def _counted(facts: EntityFacts, time: Tensor) -> Usage:
    """How often each row has one of some facts before its time."""
    row, age = facts.row, time[facts.row] - facts.time
    zero = torch.zeros_like(time, dtype=torch.float32)
    return Usage(
        torch.bincount(row, minlength=len(time)),
        tuple(zero.index_add(0, row, (-age / decay).exp().float()) for decay in DECAYS),
        torch.full_like(time, -1).scatter_reduce_(0, row, facts.time, "amax"),
    )


def _some(walks: Frontier, which: Tensor) -> Frontier:
    return Frontier(walks.query[which], walks.entity[which], walks.count[which])


def by_weight(
    explanations: Sequence[Sequence[Explanation]], chance: Tensor, first: Tensor
) -> list[list[Explanation]]:
    """Explanations with what they are worth: those for the candidate first, then those against it.

    Args:
        explanations: of each query.
        chance: (W,) logarithm of the candidate's chance in each deletion.
        first: (Q,) the rows in which nothing is left out.
    """
    values, result = chance.double().tolist(), []
    for some, begin in zip(explanations, first.tolist(), strict=True):
        changes = zip(some, values[begin + 1 :], strict=False)
        result.append(weighed([(why, now - values[begin]) for why, now in changes]))
    return result


def weighed(changes: Iterable[tuple[Explanation, float]]) -> list[Explanation]:
    """In order, by how the logarithm of a candidate's chance changes without each."""
    found = [replace(why, weight=lost(change)) for why, change in changes]
    return sorted(found, key=lambda why: (why.weight < 0, -abs(why.weight)))


def lost(change: float) -> float:
    """The share of a chance that is lost with a fact; below 0: the share that the fact takes."""
    share = -math.expm1(change) if change <= 0 else math.expm1(-change)
    return share if abs(share) >= _LEAST else 0.0
