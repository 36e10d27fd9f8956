r"""Scores of those that something speaks for; all others follow by how often they were there.

A model that reads what is near a query gives scores to some hundred entities, of perhaps millions.
Every other entity x scores

.. math:: a_q + b_q \, c_x

with c_x how often x filled the query's relation slot before its time. So the rank of any answer
follows from counts, as exactly as if each entity had been given its score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metatkgr.graph.ragged import ascending, distinct, pack, some_rows
from metatkgr.graph.slots import Slots

__all__ = ["ListedScores", "Scores", "best_of"]

_MOST = 2.0**53
"""Above every count."""


class ListedScores:
    """Scores of Q queries.

    Args:
        query: (L,) rows of the queries.
        entity: (L,) who is listed; a (query, entity) pair occurs once.
        score: (L,) theirs; not below that of who never filled the slot.
        slots: where the others are counted.
        relation: (Q,) directed.
        time: (Q,).
        entities: E.
        offset: (Q,) a of the formula above, of the scores' dtype.
        slope: (Q,) b, above 0.
    """

    def __init__(
        self,
        query: Tensor,
        entity: Tensor,
        score: Tensor,
        *,
        slots: Slots,
        relation: Tensor,
        time: Tensor,
        entities: int,
        offset: Tensor,
        slope: Tensor,
    ) -> None:
        key, order = ascending(pack((query, len(relation)), (entity, entities)))
        self._key = key
        self.query, self.entity, self.score = some_rows(order, query, entity, score)
        self.rows, self.entities = len(relation), entities
        self.device = score.device
        self._slots, self._relation, self._time = slots, relation, time
        self._offset, self._slope = offset, slope

    def __len__(self) -> int:
        """Q."""
        return self.rows

    def _find(self, query: Tensor, entity: Tensor) -> tuple[Tensor, Tensor]:
        """(A,) positions in the list, and whether they are there."""
        wanted = query * self.entities + entity
        if not len(self._key):
            return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
        position = torch.searchsorted(self._key, wanted).clamp(max=len(self._key) - 1)
        return position, self._key[position] == wanted

    def _counts(self, query: Tensor, entity: Tensor) -> Tensor:
        """(A,) how often entities filled the slots of queries."""
        return self._slots.usage(entity, self._relation[query], self._time[query], ()).count

    def _unlisted(self, query: Tensor, count: Tensor) -> Tensor:
        """(A,) scores of entities by how often they filled the slot."""
        offset, slope = self._offset[query], self._slope[query]
        return offset + slope * count.to(slope.dtype)

    def of(self, query: Tensor, entity: Tensor) -> Tensor:
        """(A,) scores of entities, listed or not."""
        position, there = self._find(query, entity)
        score = self._unlisted(query, torch.zeros_like(entity))
        if len(self._key):
            score = torch.where(there, self.score[position], score)
        rest = torch.nonzero(~there).squeeze(1)
        count = self._counts(query[rest], entity[rest])
        return score.index_copy(0, rest, self._unlisted(query[rest], count))

    def counts(
        self, query: Tensor, answer: Tensor, supposed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """How many candidates score above an answer, and how many others exactly the same.

        Args:
            query: (A,) row of each answer's query.
            answer: (A,) entity ids.
            supposed: (A,) what the answers would score, where all others score what they do; None:
                what they score.

        Returns:
            better, equal: (A,) int64; the answer itself is not among its equals.
        """
        own = self.of(query, answer)
        value = own if supposed is None else supposed
        # Of the list: all its scores by (query, score), as whole numbers that order alike.
        levels = torch.unique(self.score)
        level = torch.searchsorted(levels, self.score)
        key = torch.sort(pack((self.query, self.rows), (level, len(levels) + 1))).values
        room = len(levels) + 1
        below = torch.searchsorted(levels, value)
        up_to = torch.searchsorted(levels, value, right=True)
        end = torch.searchsorted(key, (query + 1) * room)
        above = torch.searchsorted(key, query * room + up_to)
        better = end - above
        equal = above - torch.searchsorted(key, query * room + below)
        # Of all others by their counts: of all entities, less those that are listed.
        bound, same = self._bound(query, value)
        slot = self._relation[query], self._time[query]
        more, alike = self._slots.count_ranks(*slot, bound.clamp(min=0))
        more = torch.where(bound < 0, self.entities, more)
        asked = torch.zeros(self.rows, dtype=torch.bool, device=self.device)
        asked[query[(more > 0) | (alike > 0)]] = True
        listed = torch.nonzero(asked[self.query]).squeeze(1)
        count = self._counts(self.query[listed], self.entity[listed])
        room = int(count.max()) + 2 if len(count) else 2
        key = torch.sort(pack((self.query[listed], self.rows), (count, room))).values
        end = torch.searchsorted(key, (query + 1) * room)
        above = torch.searchsorted(key, query * room + (bound + 1).clamp(max=room - 1))
        first = torch.searchsorted(key, query * room + bound.clamp(0, room - 1))
        better = better + more - torch.where(asked[query], end - above, 0)
        equal = equal + torch.where(same, alike - torch.where(asked[query], above - first, 0), 0)
        return better - (own > value).long(), equal - (own == value).long()

    def _bound(self, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """(A,) the largest count whose score is not above a value; and whether it is the same.

        -1: even who never filled the slot scores above it.
        """
        offset, slope = self._offset[query], self._slope[query]
        bound = ((value - offset).double() / slope.double()).floor().clamp(-1, _MOST).long()
        # Rounding may have moved it by one.
        bound = bound + (self._unlisted(query, bound + 1) <= value).long()
        bound = bound - (self._unlisted(query, bound) > value).long()
        bound = bound.clamp(min=-1)
        return bound, (bound >= 0) & (self._unlisted(query, bound) == value)

    def top(self, most: int) -> tuple[Tensor, Tensor]:
        """The best of each query, best first; of equal ones the listed first, then any.

        Where fewer are listed, the most frequent of the slot's latest facts follow, then anybody.

        Returns:
            score, entity: (Q, m), with m the smaller of ``most`` and E.
        """
        size = min(most, self.entities)
        row = torch.arange(self.rows, device=self.device)
        listed = torch.bincount(self.query, minlength=self.rows)
        wanting = listed < size
        if not bool(wanting.all()):
            score, entity = self._best(self.query, self.entity, self.score, listed, size)
            # Nobody else has filled the slot more often than there are facts.
            facts = self._slots.facts_before(self._relation, self._time)
            wanting |= score[:, -1] < self._unlisted(row, facts)
            if not bool(wanting.any()):
                return score, entity
        query, entity, count = self._frequent(torch.nonzero(wanting).squeeze(1))
        new = ~self._find(query, entity)[1]
        query, entity, count = some_rows(new, query, entity, count)
        known = listed + torch.bincount(query, minlength=self.rows)
        short = torch.nonzero(known < size).squeeze(1)
        if len(short):
            # Of the first numbers, enough are neither listed nor frequent.
            some = min(size + int(known[short].max()), self.entities)
            everybody = short.repeat_interleave(some), torch.arange(some).repeat(len(short))
            rest = tuple(column.to(self.device) for column in everybody)
            rest = some_rows(~self._find(*rest)[1], *rest)
            cell = torch.cat([query, rest[0]]) * self.entities + torch.cat([entity, rest[1]])
            cell = distinct(cell)[0]
            query, entity = cell // self.entities, cell % self.entities
            known = listed + torch.bincount(query, minlength=self.rows)
            count = self._counts(query, entity)
        score = self._unlisted(query, count)
        query, entity = torch.cat([self.query, query]), torch.cat([self.entity, entity])
        return self._best(query, entity, torch.cat([self.score, score]), known, size)

    def _best(
        self, query: Tensor, entity: Tensor, score: Tensor, count: Tensor, most: int
    ) -> tuple[Tensor, Tensor]:
        """(Q, most) best scores of each query and whose, of (Q,) so many; anybody's, of fewer."""
        order = torch.argsort(score, descending=True, stable=True)
        if self.rows > 1:
            order = order[torch.argsort(query[order], stable=True)]
        start = count.cumsum(0) - count
        place = start.unsqueeze(1) + torch.arange(most, device=self.device)
        position = order[place.clamp_(max=len(order) - 1)]
        return score[position], entity[position]

    def _frequent(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Some queries, who filled the slot of each lately, and how often."""
        relation, time = some_rows(rows, self._relation, self._time)
        row, *about = self._slots.remembered_of_each("often", relation, time, self._lately)
        return rows.index_select(0, row), *about

    def _lately(self, relation: Tensor, time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of distinct slots, who filled them lately, and how often at all."""
        row, filler, _ = self._slots.lately(relation, time)
        return row, filler, self._slots.usage(filler, relation[row], time[row]).count

    def dense(self) -> Tensor:
        """(Q, E) scores of all entities; for small graphs."""
        room = int(self._time.max()) + 1 if self.rows else 1
        # Counts hang on the slot and the time alone: once for all queries that share them.
        slot, member = distinct(self._relation * room + self._time)
        cell = slot.repeat_interleave(self.entities)
        entity = torch.arange(self.entities, device=self.device).repeat(len(slot))
        count = self._slots.usage(entity, cell // room, cell % room, ()).count
        row = torch.arange(self.rows, device=self.device).unsqueeze(1)
        table = self._unlisted(row, count.view(len(slot), self.entities)[member])
        table[self.query, self.entity] = self.score
        return table


Scores = Tensor | ListedScores
"""What a model gives: (Q, E) scores of all entities, or those of some."""


def best_of(scores: Scores, most: int) -> tuple[Tensor, Tensor]:
    """(Q, m) the highest scores of each query and whose they are, best first."""
    if isinstance(scores, ListedScores):
        return scores.top(most)
    value, entity = torch.topk(scores, min(most, scores.shape[1]), 1)
    return value, entity
