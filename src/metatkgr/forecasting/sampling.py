"""Queries of new entities, drawn from a graph of any size without going over all of it.

They are what a live forecaster is asked: facts of entities that emerged in a split, without those
in the support of the entity itself. So they are those of ``Tasks`` under ``streaming`` visibility
and, unlike these, facts that are in the support of the answer: its other end may be someone whom
nobody has heard of. In a large graph some facts of the period are drawn, and only their ends are
looked up; so a query is as likely to be among them as any other.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.periods import Period, Periods, Shots
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Directed, Supports, directed
from metatkgr.graph.index import TemporalIndex

__all__ = ["DrawnQueries"]

_FACTS = 1 << 17
"""Facts of a period that are looked at."""
_FIRST = 64
"""Facts of a new entity among which its support is looked for, besides K."""


@dataclass(frozen=True, eq=False)
class DrawnQueries:
    """Queries with one answer each, by (relation, time, entity)."""

    queries: Queries
    answer: IntArray
    """(A,)."""
    supports: Supports
    """The first K facts of the new entities that were looked at."""

    @classmethod
    def of(
        cls,
        facts: Facts,
        index: TemporalIndex,
        split: Period,
        shots: int | str = 3,
        *,
        seed: int = 0,
        most: int = _FACTS,
    ) -> DrawnQueries:
        """Draw them.

        Args:
            facts: the whole graph.
            index: of these facts.
            split: the period whose new entities the queries are about.
            shots: K, or a range from which each entity's is drawn.
            seed: of the draw, where the period has more facts than are looked at.
            most: how many are.
        """
        last = Periods.last_steps(facts)
        # While the entities of meta-train and meta-validation are asked about, nobody is newer.
        end = int(last[max(split, Period.META_VALIDATION)])
        low = bisect_right(facts.time, int(last[split - 1]))
        high = bisect_right(facts.time, end)
        rows = np.arange(low, high)
        if len(rows) > most:
            rows = np.unique(np.random.default_rng([seed, 0xD3A]).integers(low, high, most))

        def period(entity: IntArray) -> IntArray:
            first = index.first_step_of(torch.from_numpy(entity).to(index.device))
            return np.searchsorted(last, first.cpu().numpy())

        links = directed(facts.select(rows))
        source, relation, target, time = links
        new, others = period(source) == split, period(target) <= split
        # A fact belongs to the period of its newest end.
        asked = new & others
        first = _first_facts(np.unique(source[asked]), index, Shots.parse(shots).high + _FIRST)
        counted = (first.time <= end) & (period(first.other) <= split)
        supports = _supports(first[counted], Shots.parse(shots), facts)
        known = _in_support(links, asked, supports)
        # A fact of an entity with itself makes one query, in its own direction.
        itself = (source == target) & (relation >= len(facts.relations))
        chosen = np.flatnonzero(asked & ~known & ~itself)
        chosen = chosen[np.lexsort([chosen, source[chosen], time[chosen], relation[chosen]])]
        queries = Queries(source[chosen], relation[chosen], time[chosen])
        return cls(queries, target[chosen], supports)

    def some(self, most: int, seed: int) -> DrawnQueries:
        """At most so many of them, drawn evenly."""
        generator = np.random.default_rng([seed, 0xCA11])
        count = min(most, len(self.answer))
        return self.kept(np.sort(generator.choice(len(self.answer), count, replace=False)))

    def kept(self, rows: npt.NDArray[Any]) -> DrawnQueries:
        """Those of some rows, or of a mask."""
        return DrawnQueries(self.queries[rows], self.answer[rows], self.supports)


def _first_facts(entity: IntArray, index: TemporalIndex, most: int) -> Supports:
    """The first facts of entities, each once."""
    facts = index.first_facts(torch.from_numpy(entity).to(index.device), most)
    columns = (facts.relation, facts.target, facts.time)
    return Supports(entity[facts.row.cpu().numpy()], *(column.cpu().numpy() for column in columns))


def _supports(first: Supports, shots: Shots, facts: Facts) -> Supports:
    """The first K of each entity, those with itself in both directions."""
    ordinal = np.arange(len(first)) - np.searchsorted(first.entity, first.entity)
    shots_of = np.broadcast_to(shots.of_entities(len(facts.entities)), len(facts.entities))
    row = np.flatnonzero(ordinal < shots_of[first.entity])
    row = np.repeat(row, 1 + (first.entity == first.other)[row])
    again = np.zeros(len(row), bool)
    again[1:] = row[1:] == row[:-1]
    kept = first[row]
    return replace(kept, relation=kept.relation + again * len(facts.relations))


def _in_support(
    links: Directed, asked: npt.NDArray[np.bool_], supports: Supports
) -> npt.NDArray[np.bool_]:
    """(L,) which links, seen from new entities, are in their supports."""
    rows = np.flatnonzero(asked)
    own = np.stack(supports.directed(), 1)
    both = np.concatenate([own, np.stack([column[rows] for column in links], 1)])
    number = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    known = np.zeros(len(asked), bool)
    known[rows] = np.isin(number[len(own) :], number[: len(own)])
    return known
