"""Explanations of rules and ``evidence``: repeats, contacts, walks, frequency, as facts.

For ``evidence`` and ``pagerank`` there are also neighbours that the entity and the candidate share,
which is what PageRank sees of them. What each is worth is measured: see ``leave_one_out``.

All candidates of a call are looked up together, and of an entity only the links that began last:
the cost does not grow with a hub. Where links were left out, counts are lower bounds and say so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from metatkgr.data.orders import inverse
from metatkgr.data.tasks import Queries
from metatkgr.graph.history import History
from metatkgr.graph.index import EntityFacts
from metatkgr.graph.pairs import LatestLinks, Pairs
from metatkgr.graph.ragged import distinct, expand_ranges, in_order_of, some_rows
from metatkgr.models.base import Explanation, Link

__all__ = ["supporting"]

_LINKS = 512
"""Links of an entity that are looked at: those that began last."""
_PAIRS = 1024
"""Of walks to a candidate, pairs of a first and a last link that are looked at."""
_SHOWN = 20
"""Facts of one explanation; more are counted."""
_WALKS = 5
"""Walks of one explanation."""
_MIDDLES = 2
"""Middles of walks that are shown one by one."""
_SHARED = 5
"""Common neighbours that are shown."""
_Explanations = list[list[Explanation]]
"""Of each query."""


def supporting(
    history: History, queries: Queries, candidate: Tensor, *, walks: bool, shared: bool = False
) -> _Explanations:
    """What speaks for each candidate, not yet weighed (see ``leave_one_out``).

    Args:
        history: what is visible.
        queries: Q queries.
        candidate: (Q,) one candidate for each.
        walks: whether walks count.
        shared: whether neighbours of both do.
    """
    asked = _Asked.of(history, queries, candidate)
    parts = [_links(asked)]
    if walks:
        ends, along = [asked.answer, asked.entity], [asked.inverse, asked.relation]
        fillers, first = asked.latest(ends, along)
        parts.append(_walks(asked, first, fillers))
    else:
        (fillers,) = asked.latest([asked.answer], [asked.inverse])
    parts.append(_frequency(asked, fillers))
    parts += [_shared(asked)] if shared else []
    return _joined(*parts)


def _joined(*parts: _Explanations) -> _Explanations:
    return [[why for some in of_query for why in some] for of_query in zip(*parts, strict=True)]


@dataclass(frozen=True, eq=False)
class _Asked:
    """Q queries with one candidate each, and what is visible."""

    history: History
    queries: Queries
    entity: Tensor
    """(Q,), like all below."""
    relation: Tensor
    time: Tensor
    answer: Tensor

    @classmethod
    def of(cls, history: History, queries: Queries, candidate: Tensor) -> _Asked:
        """In the form of look-ups."""
        return cls(history, queries, *history.columns(queries), candidate.to(history.device))

    @property
    def pairs(self) -> Pairs:
        """The public links."""
        return self.history.index.pairs

    @cached_property
    def later(self) -> EntityFacts:
        """The own support facts of the query entities that are not public yet."""
        return self.history.own_later(self.entity, self.time)

    @property
    def inverse(self) -> Tensor:
        """(Q,) the relation, seen from the candidate."""
        return inverse(self.relation, self.history.relations)

    def latest(self, ends: list[Tensor], relations: list[Tensor] | None) -> list[_Latest]:
        """The links of entities of each query that began last; all are looked up together.

        Args:
            ends: (Q,) entities of the queries, some times.
            relations: (Q,) by which, as often; None: by any.
        """
        along = None if relations is None else torch.cat(relations)
        time = torch.cat([self.time] * len(ends))
        links = self.pairs.latest_links(torch.cat(ends), along, time, _LINKS + 1)
        there = torch.bincount(links.row, minlength=len(time))
        links, count = _last_few(links, there, torch.full_like(there, _LINKS))
        found, begin, queries = [], 0, len(self.time)
        for number, some in enumerate(count.view(len(ends), queries)):
            rows = slice(begin, begin := begin + int(some.sum()))
            own = links.kept(rows)
            own = replace(own, row=own.row - number * queries)
            found.append(_Latest(own, some, there.view(len(ends), queries)[number] > some))
        return found


@dataclass(frozen=True, eq=False)
class _Latest:
    """Links of one entity of each query."""

    links: LatestLinks
    count: Tensor
    """(Q,) how many these are."""
    cut: Tensor
    """(Q,) whether there are more."""


def _last_few(links: LatestLinks, count: Tensor, most: Tensor) -> tuple[LatestLinks, Tensor]:
    """The last (Q,) few links of each row, of (Q,) so many; and (Q,) how many these are."""
    if bool((count <= most).all()):
        return links, count
    behind = count.cumsum(0).index_select(0, links.row)
    behind -= torch.arange(behind.numel(), device=behind.device)
    return links.kept(behind <= most[links.row]), torch.minimum(count, most)


def _links(asked: _Asked) -> _Explanations:
    """The same link before, and other links between the two."""
    relations, queries = asked.history.relations, len(asked.time)
    row = torch.arange(queries, device=asked.time.device).repeat_interleave(relations)
    along = torch.arange(relations, device=row.device).repeat(queries)
    entity, time, answer = some_rows(row, asked.entity, asked.time, asked.answer)
    slot = entity * relations + along
    link, step, count = asked.pairs.times(slot, answer, time, _SHOWN)
    later = asked.later
    later = later.kept(later.target == asked.answer[later.row])
    link = torch.cat([link, later.row * relations + later.relation])
    facts: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, when in zip(link.tolist(), torch.cat([step, later.time]).tolist(), strict=True):
        facts[number // relations].append((-when, number % relations))
    count.index_add_(0, later.row * relations + later.relation, torch.ones_like(later.row))
    all_links = count.view(queries, relations).sum(1)
    repeats = count.view(queries, relations).gather(1, asked.relation.unsqueeze(1)).squeeze(1)
    columns = (asked.entity, asked.answer, asked.relation, repeats, all_links - repeats)
    result: _Explanations = []
    for query, ends in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        entity, answer, relation, *counts = ends
        result.append([])
        for kind, many in zip(("repeat", "contact"), counts, strict=True):
            of_kind = [f for f in facts[query] if (f[1] == relation) == (kind == "repeat")]
            shown = tuple(Link(entity, r, answer, -t) for t, r in sorted(of_kind)[:_SHOWN])
            if many:
                result[-1].append(Explanation(kind, 0.0, shown, many))
    return result


def _walks(asked: _Asked, first: _Latest, fillers: _Latest) -> _Explanations:
    """Others that share a neighbour with the entity and are linked to the candidate.

    Walks e -r-> y <-r- z -r-> x: each middle y with each other z is a pair that may be linked.
    """
    queries, relations = len(asked.time), asked.history.relations
    if not first.links.row.numel() or not fillers.links.row.numel():
        return [[] for _ in range(queries)]
    # The fewer there are of the one, the more of the other can be looked at.
    few = math.isqrt(_PAIRS)
    room = (_PAIRS // fillers.count.clamp(min=1)).clamp(min=few)
    middles, many = _last_few(first.links, first.count, room)
    others, left = _last_few(fillers.links, fillers.count, _PAIRS // many.clamp(min=1))
    cut = first.cut | fillers.cut | (many < first.count) | (left < fillers.count)
    end = torch.cumsum(many, 0)
    other, middle = expand_ranges((end - many)[others.row], end[others.row])
    query, z, seen = some_rows(other, others.row, others.target, others.last)
    y, began = some_rows(middle, middles.target, middles.last)
    columns = (asked.entity, asked.inverse, asked.time, asked.answer)
    entity, back, time, answer = some_rows(query, *columns)
    # Seen from y, of whom there are few: what is looked at lies close together.
    last = asked.pairs.last_step(y * relations + back, z, time)
    walk = (last >= 0) & (z != entity) & (y != answer)
    walks: list[defaultdict[int, list[tuple[int, ...]]]] = [
        defaultdict(list) for _ in range(queries)
    ]
    found = some_rows(walk, query, y, z, began, last, seen)
    for row, via, *rest in zip(*(column.tolist() for column in found), strict=True):
        walks[row][via].append(tuple(rest))
    ends = (asked.entity, asked.relation, asked.answer, cut)
    result: _Explanations = []
    for by_middle, e, r, x, fewer in zip(walks, *(c.tolist() for c in ends), strict=True):
        most = sorted(by_middle, key=lambda via: (-len(by_middle[via]), via))[:_MIDDLES]
        result.append([])
        for via in most:
            links: list[Link] = []
            for who, *times in sorted(by_middle[via])[:_WALKS]:
                hops = ((e, via), (who, via), (who, x))
                links += [Link(a, r, b, t) for (a, b), t in zip(hops, times, strict=True)]
            count = len(by_middle[via])
            result[-1].append(Explanation("path", 0.0, tuple(links), count, at_least=fewer))
    return result


def _frequency(asked: _Asked, fillers: _Latest) -> _Explanations:
    """Facts in which the candidate filled this slot of the relation."""
    links, queries = fillers.links, len(asked.time)
    slot = asked.answer * asked.history.relations + asked.inverse
    # The latest facts are among those of the links that were seen last.
    links = links.kept(in_order_of(links.row, -links.last, links.target))
    start = torch.searchsorted(links.row, links.row)
    links = links.kept(torch.arange(len(start), device=start.device) - start < _SHOWN)
    time = asked.time[links.row]
    row, step, _ = asked.pairs.times(slot[links.row], links.target, time, _SHOWN)
    query, other = some_rows(row, links.row, links.target)
    # The latest first, of equal ones by the other's number.
    order = in_order_of(query * asked.history.steps - step, other)
    query, step, other = some_rows(order, query, step, other)
    place = torch.arange(query.numel(), device=query.device) - torch.searchsorted(query, query)
    shown = some_rows(place < _SHOWN, query, step, other)
    facts: list[list[tuple[int, int]]] = [[] for _ in range(queries)]
    for number, when, whom in zip(*(column.tolist() for column in shown), strict=True):
        facts[number].append((when, whom))
    usage = asked.history.index.slots.usage(asked.answer, asked.relation, asked.time)
    ends = (asked.relation, asked.answer, usage.count)
    result: _Explanations = []
    for some, end in zip(facts, zip(*(c.tolist() for c in ends), strict=True), strict=True):
        relation, answer, many = end
        latest = tuple(Link(whom, relation, answer, when) for when, whom in some)
        result.append([Explanation("frequency", 0.0, latest, many)] if latest else [])
    return result


def _shared(asked: _Asked) -> _Explanations:
    """Neighbours of both, by whatever relation; the latest first."""
    entity, answer = asked.latest([asked.entity, asked.answer], None)
    later, own = asked.later, entity.links
    rows = torch.cat([own.row, later.row])
    targets = torch.cat([own.target, later.target])
    # Few of a hub's neighbours are those of the other.
    common, theirs = _in_both(
        rows * asked.history.entities + targets,
        answer.links.row * asked.history.entities + answer.links.target,
    )
    relation = torch.cat([own.relation, later.relation])
    last = torch.cat([own.last, later.time])
    of_entity = _latest_links(*some_rows(common, rows, targets, relation, last))
    seen = answer.links.kept(theirs)
    of_answer = _latest_links(seen.row, seen.target, seen.relation, seen.last)
    neighbours: list[list[tuple[int, int, int]]] = [[] for _ in range(len(asked.time))]
    for (query, x), link in of_entity.items():
        neighbours[query].append((*link, x))
    cut = (entity.cut | answer.cut).tolist()
    result: _Explanations = []
    for query, (e, a) in enumerate(zip(asked.entity.tolist(), asked.answer.tolist(), strict=True)):
        found = sorted(link for link in neighbours[query] if link[2] not in (e, a))
        links: list[Link] = []
        for when, r, x in found[:_SHARED]:
            again, q = of_answer[query, x]
            links += [Link(e, r, x, -when), Link(a, q, x, -again)]
        explanation = Explanation("shared", 0.0, tuple(links), len(found), at_least=cut[query])
        result.append([explanation] if found else [])
    return result


def _in_both(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Which values of each are also in the other."""
    values, member = distinct(torch.cat([one, other]))
    members = member[: len(one)], member[len(one) :]
    there = torch.zeros(2, len(values), dtype=torch.bool, device=one.device)
    for row, some in zip(there, members, strict=True):
        row.index_fill_(0, some, True)
    both = there.all(0)
    return both.index_select(0, members[0]), both.index_select(0, members[1])


def _latest_links(
    row: Tensor, target: Tensor, relation: Tensor, last: Tensor
) -> dict[tuple[int, int], tuple[int, int]]:
    """Of each row and target the latest link: minus its step, and its relation."""
    latest: dict[tuple[int, int], tuple[int, int]] = {}
    columns = (column.tolist() for column in (row, target, relation, last))
    for query, x, r, t in zip(*columns, strict=True):
        latest[query, x] = min(latest.get((query, x), (1, 0)), (-t, r))
    return latest
