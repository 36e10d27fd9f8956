"""The queries of new entities in a mapped index, as meta-training asks for them."""

from __future__ import annotations

import torch
from torch import Tensor

from metatkgr.graph.index import GraphIndex
from metatkgr.graph.ragged import expand_ranges, pack
from metatkgr.models.metatkgr.queries import QueryColumns

__all__ = ["MappedQueries"]


class MappedQueries:
    """Queries that stay on disk; has all that ``IntervalQueries`` asks for.

    The queries of an entity are its links, and those of an interval lie side by side, since links
    are in the order of their times: an interval is a range found by two binary searches.

    Args:
        index: of the facts behind the queries (``SplitFacts.asked``) and no others.
        entity: (n,) int64 the new entities of the split, ascending; others have links in the index
            too, which are not queries.
        intervals: M.
    """

    def __init__(self, index: GraphIndex, entity: Tensor, intervals: int) -> None:
        self._index, self.intervals = index, intervals
        entity = entity[index.start[entity + 1] > index.start[entity]]
        first = last = entity.new_zeros(1)
        if len(entity):
            first = index.key[index.start[entity]] - entity * index.steps
            last = index.key[index.start[entity + 1] - 1] - entity * index.steps
        begin, span = int(first.min()), int(last.max() - first.min()) + 1
        # The first step whose distance from the beginning, times M / span, is m or more.
        self._bounds = [begin + -(-number * span // intervals) for number in range(intervals + 1)]
        counts = torch.stack([self.counts(number, entity) for number in range(intervals)])
        self._entities = [entity[count > 0] for count in counts]
        self._sizes: list[int] = counts.sum(1).tolist()

    def size(self, interval: int) -> int:
        """|D|."""
        return self._sizes[interval]

    def entities(self, interval: int) -> Tensor:
        """(n,) who has a query."""
        return self._entities[interval]

    def counts(self, interval: int, entity: Tensor) -> Tensor:
        """(T,) how many."""
        low, high = self._range(interval, entity)
        return high - low

    def pick(self, interval: int, entity: Tensor, place: Tensor, mask: Tensor) -> QueryColumns:
        """(T, F) queries by number; an empty slot holds the entity's first one."""
        index = self._index
        low, high = self._range(interval, entity)
        row, position = expand_ranges(low, high)
        # By relation; of one relation they stay in the order of time and fact.
        key = pack((row, len(entity)), (index.relation[position], index.relations))
        position = position[torch.sort(key, stable=True).indices]
        start = torch.cumsum(high - low, 0) - (high - low)
        link = position[start.unsqueeze(1) + place * mask]
        who = entity.unsqueeze(1).expand_as(link)
        time = index.key[link] - who * index.steps
        return who, index.relation[link], index.target[link], time

    def _range(self, interval: int, entity: Tensor) -> tuple[Tensor, Tensor]:
        """(T,) where the links of the interval begin and end."""
        begin, end = (
            torch.full_like(entity, self._bounds[number]) for number in (interval, interval + 1)
        )
        return self._index.since(entity, begin)[0], self._index.before(entity, end)[1]
