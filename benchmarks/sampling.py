"""The speed of temporal neighbour sampling: ours, the literal algorithm, and tgm-lib's buffers."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.base import Measurement, Workload, benchmark, best_time
from metatkgr.data import catalog, sources
from metatkgr.data.tasks import Tasks
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import BreadthFirstSampler, Neighbours, RecentSampler, Sampler

__all__ = ["sampling"]

_BUDGET = 16

_Link = tuple[int, int, int, int]
"""Time, fact, directed relation, other end."""
_LinksOf = Callable[[int], Iterator[_Link]]
"""The visible links of an entity, the most recent first."""


@benchmark("sample")
def sampling(work: Workload) -> list[Measurement]:
    """16 neighbours of every (entity, time) of a query, by each of the samplers."""
    name = "YAGO" if catalog.locate("YAGO") and not work.quick else "world:200000"
    facts = sources.load("world:5000" if work.quick else name)
    tasks = Tasks.build(facts)
    queried = np.stack([tasks.questions.entity, tasks.questions.time])
    roots = torch.from_numpy(np.unique(queried, axis=1))
    building, index = best_time(lambda: TemporalIndex.of(tasks.visible), work.repeats)
    sampler = BreadthFirstSampler(index, tasks.supports, budget=_BUDGET)
    seconds, neighbours = best_time(lambda: sampler.sample(roots[0], roots[1]), work.repeats)

    literal = _Literal(tasks)
    generator = np.random.default_rng(0)
    some = generator.permutation(roots.shape[1])
    scans = _time_literal(literal.scan, roots, neighbours, some[: 5 if work.quick else 20])
    loop = _time_literal(literal.look_up, roots, neighbours, some[: 50 if work.quick else 1000])

    total = int(neighbours.mask.sum())
    ours = seconds / len(neighbours) * 1e6
    # Each neighbour is three numbers read and written; the search touches log2(D) keys per root.
    floor = 2 * 24 * total + 8 * len(neighbours) * max(len(index), 2).bit_length()
    note = (
        f"{len(neighbours):,} roots, {total:,} neighbours ({facts.name}), "
        f"{total / seconds / 1e6:.1f} million a second; floor: {floor / 1e6:.0f} MB moved"
    )
    what = f"sample {_BUDGET} neighbours, breadth first"
    return [
        Measurement(what, "µs/root", ours, scans, "Algorithm 1, a pass over all facts each", note),
        Measurement(what, "µs/root", ours, loop, "a plain loop over prebuilt lists", note),
        Measurement(
            "index the links by entity and time",
            "s",
            building,
            literal.building,
            "appending to prebuilt lists",
            f"{len(index):,} links",
        ),
        *_against_tgm(tasks, index, roots, work),
    ]


class _Literal:
    """Algorithm 1 as METHOD corrects it, in plain Python over plain lists."""

    def __init__(self, tasks: Tasks) -> None:
        links = tasks.visible
        base = len(links.relations)
        columns = (links.source, links.relation, links.target, links.time)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        self.facts = [row for row in rows if row[1] < base]
        self.times = [time for *_, time in self.facts]
        self.relations = base
        self.building, self.lists = best_time(lambda: self._lists(rows, base), 1)
        self.number = {fact: i for i, fact in enumerate(self.facts)}
        self.own: dict[int, list[_Link]] = {}
        own = (tasks.supports.entity, tasks.supports.relation, tasks.supports.other)
        for e, r, x, t in zip(
            *(column.tolist() for column in (*own, tasks.supports.time)), strict=True
        ):
            fact = (e, r, x, t) if r < base else (x, r - base, e, t)
            if r < base or x != e:
                self.own.setdefault(e, []).append((t, self.number[fact], r, x))

    @staticmethod
    def _lists(rows: list[tuple[int, int, int, int]], base: int) -> dict[int, list[_Link]]:
        """The links of each entity, oldest first."""
        lists: dict[int, list[_Link]] = {}
        for i, (s, r, o, t) in enumerate(rows):
            if r < base or s != o:
                lists.setdefault(s, []).append((t, i // 2, r, o))
        return lists

    def scan(self, root: int, time: int) -> list[tuple[int, int, int]]:
        """As printed: for each entity taken out, a pass over all facts before ``time``."""
        past = self.facts[: bisect_left(self.times, time)]

        def links_of(entity: int) -> Iterator[_Link]:
            for i in range(len(past) - 1, -1, -1):
                s, r, o, t = past[i]
                if s == entity:
                    yield t, i, r, o
                elif o == entity:
                    yield t, i, r + self.relations, s

        return self._search(root, time, links_of)

    def look_up(self, root: int, time: int) -> list[tuple[int, int, int]]:
        """What one writes next: the links of each entity in a list made beforehand."""

        def links_of(entity: int) -> Iterator[_Link]:
            links = self.lists.get(entity, [])
            for i in range(bisect_left(links, (time,)) - 1, -1, -1):
                yield links[i]

        return self._search(root, time, links_of)

    def _search(self, root: int, time: int, links_of: _LinksOf) -> list[tuple[int, int, int]]:
        queue, ever = deque([root]), {root}
        collected: dict[int, tuple[int, int, int]] = {}
        late = [link for link in reversed(self.own.get(root, [])) if link[0] >= time]
        while queue and len(collected) < _BUDGET:
            entity = queue.popleft()
            for links in (late if entity == root else (), links_of(entity)):
                for t, fact, relation, other in links:
                    if fact in collected:
                        continue
                    collected[fact] = (other, relation, t)
                    if other not in ever:
                        ever.add(other)
                        queue.append(other)
                    if len(collected) == _BUDGET:
                        return list(collected.values())
        return list(collected.values())


def _time_literal(
    search: Callable[[int, int], list[tuple[int, int, int]]],
    roots: Tensor,
    sampled: Neighbours,
    rows: np.ndarray,
) -> float:
    """Microseconds per root of a literal search over some roots; it must find what we found."""
    pairs = roots[:, rows].T.tolist()
    seconds, expected = best_time(lambda: [search(e, t) for e, t in pairs], 1)
    table = torch.stack([sampled.entity, sampled.relation, sampled.time], 2)
    for row, neighbours in zip(rows.tolist(), expected, strict=True):
        if [tuple(x) for x in table[row][sampled.mask[row]].tolist()] != neighbours:
            raise AssertionError(f"the sampler and the literal algorithm disagree on root {row}")
    return seconds / len(rows) * 1e6


def _against_tgm(
    tasks: Tasks, index: TemporalIndex, roots: Tensor, work: Workload
) -> list[Measurement]:
    """One hop, the most recent first, against tgm-lib's buffers of recent neighbours.

    Its buffers know the state after the last update only. So there are two comparisons: all roots
    looked up after the last fact, in one batch and with nothing to update, its best case; and the
    queries' own times, replayed step by step, against building our index and sampling. Where
    both mean the same (the recent links, a root's own support not ahead of its time) the neighbours
    must be the same.
    """
    entity = roots[0]
    end = torch.full_like(entity, int(max(tasks.visible.time[-1], roots[1].max())) + 1)
    try:
        tgm, data, hooks = map(import_module, ("tgm", "tgm.data", "tgm.hooks"))
    except ImportError:
        alone = RecentSampler(index, tasks.supports, budget=_BUDGET)
        seconds, found = best_time(lambda: alone.sample(entity, end), work.repeats)
        return [
            Measurement(
                "sample recent, after the last fact",
                "ns/neighbour",
                seconds / max(int(found.mask.sum()), 1) * 1e9,
                note="not compared: tgm-lib is not installed (pip install 'metatkgr[dev]')",
            )
        ]
    links = tasks.visible
    forward = links.relation < len(links.relations)
    source, target = (
        torch.from_numpy(column[forward]).int() for column in (links.source, links.target)
    )
    time = torch.from_numpy(links.time[forward])
    relation = torch.from_numpy(links.relation[forward])[:, None].float()
    raw = data.DGData.from_raw(time, torch.stack([source, target], 1), relation)
    graph = tgm.DGraph(raw)
    nobody, never = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)

    def empty_buffers() -> Any:
        keys = (["roots"], ["root_times"])
        return hooks.RecencyNeighborHook(len(links.entities), [_BUDGET], *keys)

    def step(buffers: Any, facts: slice, entity: Tensor, when: Tensor) -> tuple[Tensor, Tensor]:
        """Look the roots up, then add the facts; (Q, b) neighbours, -1 where none, and times."""
        batch = tgm.DGBatch(source[facts], target[facts], time[facts], relation[facts])
        # A batch without roots would leave its facts out of the buffers.
        batch.roots, batch.root_times = (entity, when) if len(entity) else (nobody, never)
        buffers(graph, batch)
        return batch.nbr_nids[0], batch.nbr_edge_time[0]

    small = entity.int()
    filled = empty_buffers()
    step(filled, slice(0, len(time)), small[:0], end[:0])
    nothing = slice(0, 0)
    spent, recent = best_time(lambda: step(filled, nothing, small, end), work.repeats)
    filled_time = spent, int((recent[0] >= 0).sum())
    # A fact of an entity with itself is two links there and one here.
    selfish = torch.unique(source[source == target].long())

    def after_the_last(kind: type[Sampler]) -> tuple[float, int]:
        sampler = kind(index, tasks.supports, budget=_BUDGET)
        seconds, neighbours = best_time(lambda: sampler.sample(entity, end), work.repeats)
        if kind is RecentSampler:
            _check_recent(neighbours, *recent, ~torch.isin(entity, selfish))
        return seconds, int(neighbours.mask.sum())

    # Queries in time order, beside the facts of the same step; a step's facts come after them.
    moments = int(max(time[-1], roots[1].max())) + 1
    order = torch.argsort(roots[1], stable=True)
    when, who = roots[1][order], small[order]
    facts_at = torch.searchsorted(time, torch.arange(moments + 1)).tolist()
    roots_at = torch.searchsorted(when, torch.arange(moments + 1)).tolist()

    def replay() -> int:
        buffers, neighbours = empty_buffers(), 0
        for t in range(moments):
            at = slice(roots_at[t], roots_at[t + 1])
            facts = slice(facts_at[t], facts_at[t + 1])
            looked_up, _ = step(buffers, facts, who[at], when[at])
            # Where there is no query, the stand-in has no neighbour: it is never.
            neighbours += int((looked_up >= 0).sum())
        return neighbours

    def from_the_facts(kind: type[Sampler]) -> tuple[float, int]:
        def build_and_sample() -> Neighbours:
            sampler = kind(TemporalIndex.of(links), tasks.supports, budget=_BUDGET)
            return sampler.sample(roots[0], roots[1])

        seconds, neighbours = best_time(build_and_sample, work.repeats)
        return seconds, int(neighbours.mask.sum())

    replayed = best_time(replay, work.repeats)
    sampler = RecentSampler(index, tasks.supports, budget=_BUDGET)
    same = int(sampler.sample(roots[0], roots[1], own=False).mask.sum())
    if len(selfish) == 0 and same != replayed[1]:
        raise AssertionError(f"we find {same} recent neighbours, tgm-lib's replay {replayed[1]}")
    rows = []
    for what, kind in (("recent", RecentSampler), ("breadth first", BreadthFirstSampler)):
        last, built = after_the_last(kind), from_the_facts(kind)
        rows.append((f"{what}, after the last fact", "filled buffers, one hop", last, filled_time))
        rows.append((f"{what}, from the facts", "replay, one hop", built, replayed))
    return [
        Measurement(
            f"sample {what}",
            "ns/neighbour",
            own[0] / max(own[1], 1) * 1e9,
            other[0] / max(other[1], 1) * 1e9,
            f"tgm-lib's {against}",
            f"{len(entity):,} roots; ours {own[1]:,} neighbours, theirs {other[1]:,}",
        )
        for what, against, own, other in rows
    ]


def _check_recent(sampled: Neighbours, entity: Tensor, time: Tensor, rows: Tensor) -> None:
    """Both must have found the same links; at a cut through links of one time, of the same time.

    Args:
        sampled: by our sampler.
        entity: (Q, b) tgm-lib's neighbours, -1 where none.
        time: (Q, b) the times of these.
        rows: (Q,) the roots to compare.
    """
    times = (
        torch.where(mask, when, -1)[rows].sort(1).values
        for mask, when in ((sampled.mask, sampled.time), (entity >= 0, time))
    )
    size = int(sampled.entity.max()) + 2
    few = rows & ~sampled.mask.all(1)
    links = (
        torch.where(mask, when * size + who, -1)[few].sort(1).values
        for mask, when, who in (
            (sampled.mask, sampled.time, sampled.entity),
            (entity >= 0, time, entity.long()),
        )
    )
    if not torch.equal(*times) or not torch.equal(*links):
        raise AssertionError("the recent sampler and tgm-lib's buffers found other links")
