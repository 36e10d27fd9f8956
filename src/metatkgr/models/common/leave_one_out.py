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

from metatkgr.data.orders import DECAYS, inverse
from metatkgr.data.tasks import Queries
from metatkgr.graph.history import Frontier, History
from metatkgr.graph.index import EntityFacts
from metatkgr.graph.pagerank import PageRank, Walks, Without
from metatkgr.graph.ragged import distinct, expand_ranges, found, some_rows
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
        (asked,) = some_rows(facts.row, self.query[1])
        return self._hidden(cell, facts.relation == asked)

    def _hidden(self, cell: Tensor, by_same: Tensor) -> Tensor:
        if not len(self.cell):
            return torch.zeros_like(by_same)
        place, there = found(self.cell, cell)
        same, other = some_rows(place, self.same, self.other)
        return torch.where(by_same, same, other).logical_and_(there)

    @cached_property
    def own(self) -> tuple[EntityFacts, EntityFacts]:
        """Facts of e with those whose links are left out and with the candidate: kept and not."""
        entities, relations = self.history.entities, self.history.relations
        entity, _, time = self.query
        cell = distinct(torch.cat([self.cell, self.cells]))[0]
        row, target = cell // entities, cell % entities
        # Many rows are about the same two entities, whose facts are looked up once.
        steps = self.history.steps
        asked, number = distinct(entity * steps + time)
        pairs, member = distinct(number[row] * entities + target)
        asked = asked[pairs // entities]
        along = torch.arange(relations, device=cell.device).repeat(len(pairs))
        columns = (asked // steps * relations, pairs % entities, asked % steps)
        slot, other, now = (column.repeat_interleave(relations) for column in columns)
        slot += along
        link, step, _ = self.history.index.pairs.times(slot, other, now, _FACTS)
        of = torch.arange(len(pairs), device=cell.device)
        low, high = (torch.searchsorted(link // relations, of, right=way) for way in (False, True))
        each, place = expand_ranges(low[member], high[member])
        link, step = some_rows(place, link, step)
        row, target = some_rows(each, row, target)
        public = EntityFacts(row, along.index_select(0, link), target, step)
        later = self.history.own_later(entity, time)
        later = later.kept(found(cell, later.row * entities + later.target)[1])
        facts = EntityFacts.cat([public, later])
        hidden = self.hides(facts)
        return facts.kept(~hidden), facts.kept(hidden)

    @cached_property
    def gone(self) -> Tensor:
        """``row * E + y``, ascending: who has no link with e left."""
        left, hidden = (
            distinct(facts.row * self.history.entities + facts.target)[0] for facts in self.own
        )
        (gone,) = some_rows(~found(left, hidden)[1], hidden)
        return gone

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
        last, some = usage.last, torch.nonzero(less.count > 0).squeeze(1)
        if some.numel():
            # Who met it last, where that was e.
            back = inverse(relation, self.history.relations)
            who, back, time = some_rows(some, who, back, time)
            links = self.history.index.pairs.latest_links(who, back, time, _LINKS)
            links = links.kept(links.target != entity[some[links.row]])
            others = alone.last[some].scatter_reduce_(0, links.row, links.last, "amax")
            last = last.index_copy(0, some, others)

        def left(whole: Tensor, gone: Tensor, own: Tensor) -> Tensor:
            return torch.where(self.slot, own, (whole - gone).clamp(min=0))

        columns = zip(usage.decayed, less.decayed, alone.decayed, strict=True)
        return Usage(
            left(usage.count, less.count, alone.count),
            tuple(left(*column) for column in columns),
            torch.where(self.slot, alone.last, last),
        )

    def _in_slot(self, facts: EntityFacts) -> EntityFacts:
        """The public ones by r with the candidate."""
        _, relation, time = self.query
        answer, along, now = some_rows(facts.row, self.answer, relation, time)
        wanted = (facts.target == answer) & (facts.relation == along)
        return facts.kept(wanted & (facts.time < now))

    def walks(self, past: EntityFacts | None = None) -> Frontier:
        """Walks e -r-> y <-r- z -r-> x without those that would need what is left out.

        Args:
            past: facts of each e that are left, with which walks begin; None: all that are left.
        """
        history, entities = self.history, self.history.entities
        entity, relation, time = self.query
        back = inverse(relation, history.relations)
        _, hidden = self.own
        along, now = some_rows(hidden.row, relation, time)
        hidden = hidden.kept((hidden.relation == along) & (hidden.time < now))
        cut = distinct(hidden.row * entities + hidden.target)[0]
        if past is None:
            walks = history.hop(history.start(self.queries), relation, time)
            walks = _some(walks, ~found(cut, walks.query * entities + walks.entity)[1])
        else:
            along, now = some_rows(past.row, relation, time)
            begun = past.kept((past.relation == along) & (past.time < now))
            links = distinct(begun.row * entities + begun.target)[0]
            walks = Frontier(links // entities, links % entities, torch.ones_like(links))
        walks = history.hop(walks, back, time)
        slot, own = some_rows(walks.query, self.slot, entity)
        walks = _some(walks, ~slot | (walks.entity == own))
        # How often walks are at e again, where they cannot go on to those that are left out.
        here = _some(walks, walks.entity == entity.index_select(0, walks.query))
        again = torch.zeros_like(entity).index_add_(0, here.query, here.count)
        walks = history.hop(walks, relation, time)
        fewer = found(cut, walks.query * entities + walks.entity)[1]
        count = walks.count - fewer.long() * again.index_select(0, walks.query)
        return _some(Frontier(walks.query, walks.entity, count), count > 0)

    def seen(self) -> tuple[Tensor, Tensor, Tensor]:
        """First and last step of the candidates, and how many others they were linked to."""
        who, index, (entity, _, time) = self.answer, self.history.index, self.query
        degree = index.neighbours.degree(who, time)
        degree = degree - found(self.gone, self.cells)[1].long()
        first, last = index.first_step_of(who), index.last_step_of(who, time)
        _, hidden = self.own
        some = distinct(hidden.row[hidden.target == who[hidden.row]])[0]
        if some.numel():  # facts with them are left out
            facts = index.first_facts(who[some], _ENDS)
            facts = replace(facts, row=some[facts.row])
            first = _first_of(facts.kept(~self._met(facts, entity)), first, some)
            facts = index.last_facts(who[some], time[some], _ENDS)
            facts = replace(facts, row=some[facts.row])
            facts = facts.kept(~self._met(facts, entity))
            left = torch.full_like(who, -1).scatter_reduce_(0, facts.row, facts.time, "amax")
            last = last.index_copy(0, some, left[some])
        return first, last, degree

    def entity_first(self) -> Tensor:
        """(W,) when each e was first seen."""
        index, (entity, _, _) = self.history.index, self.query
        first, some = index.first_step_of(entity), distinct(self.own[1].row)[0]
        if not some.numel():
            return first
        facts = index.first_facts(entity[some], _ENDS)
        facts = replace(facts, row=some[facts.row])
        return _first_of(facts.kept(~self.hides(facts)), first, some)

    def _met(self, facts: EntityFacts, entity: Tensor) -> Tensor:
        """Which facts of the candidates are with e and left out."""
        relation = inverse(facts.relation, self.history.relations)
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
        straight = found(self.gone, self.cells)[1] & (degree > _NEIGHBOURS)
        share = (1 - pagerank.restart) / degree.clamp(min=1) * (known & straight)

        rows = torch.nonzero(there).squeeze(1)
        answer, share, place, at_e = some_rows(rows, self.answer, share, place, at_e)

        def rest(mass: Tensor) -> Tensor:
            whole, through_e = mass.index_select(0, place), mass.index_select(0, at_e)
            return (whole - share * through_e).clamp_(min=0)

        return Walks(rows, answer, rest(walks.far), rest(walks.near), walks.lost[walked_as])


def _others(why: Explanation) -> list[int]:
    """Whose links with e an explanation rests on."""
    if why.kind in ("repeat", "contact", "path"):
        return [why.links[0].target]
    # Two links for each shared neighbour: of e and of the candidate.
    return [link.target for link in why.links[::2]] if why.kind == "shared" else []


def _counted(facts: EntityFacts, time: Tensor) -> Usage:
    """How often each row has one of some facts before its time."""
    row, age = facts.row, time.index_select(0, facts.row) - facts.time
    zero = torch.zeros_like(time, dtype=torch.float32)
    return Usage(
        torch.bincount(row, minlength=len(time)),
        tuple(zero.index_add(0, row, (-age / decay).exp().float()) for decay in DECAYS),
        torch.full_like(time, -1).scatter_reduce_(0, row, facts.time, "amax"),
    )


def _first_of(facts: EntityFacts, first: Tensor, some: Tensor) -> Tensor:
    """(W,) first steps; of some rows the first of these facts."""
    left = torch.full_like(first, _NEVER).scatter_reduce_(0, facts.row, facts.time, "amin")
    return first.index_copy(0, some, left[some])


def _some(walks: Frontier, which: Tensor) -> Frontier:
    return Frontier(*some_rows(which, walks.query, walks.entity, walks.count))


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
