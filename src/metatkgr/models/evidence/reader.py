r"""Reads the evidence about queries: candidates that something speaks for, and their features.

For a query (e, r, ?, t) all of it is read from facts strictly before t, and from e's own support.
Only the neighbourhood is looked at: e's own facts, walks from e, and the latest facts of the slot.
What is read of a candidate is looked up for it alone, so a query costs the same in a small graph
and in a large one. Candidates are kept as a list over all queries, ordered by (query, entity).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from metatkgr.data.orders import DECAYS
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports
from metatkgr.graph.history import History
from metatkgr.graph.index import EntityFacts, TemporalIndex
from metatkgr.graph.pagerank import PageRank, Walks
from metatkgr.graph.ragged import best_of_each, distinct, some_rows
from metatkgr.models.common.leave_one_out import Deletions
from metatkgr.models.common.scores import relation_vectors
from metatkgr.models.evidence.features import Reading, features_of
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.walks import peer_walks

__all__ = [
    "Candidates",
    "Reader",
    "reading_batches",
    "translated",
]

_LEAST_CO_OCCURRENCE = 1e-3
_LOWEST = math.log(_LEAST_CO_OCCURRENCE)
_REACHED = 512
"""Entities that walks reach most often, among which candidates are chosen."""
_UNKNOWN = 0.1
"""What part of the walkers whose end is not known is taken to end where the slot's facts are."""
_MOST_FACTS = 1 << 15
"""Facts of a query entity that are read, the latest: bounds what a hub costs."""
_MOST_AGAIN = 256
"""The same where they are read again without some of them, once for each reason."""
_AT_ONCE, _AT_ONCE_ON_GPU = 256, 4096
"""Queries read at once: bounds memory."""

Similar = Callable[[Tensor, Tensor], Tensor]
"""Translation scores of (query, candidate) pairs, (N,) each."""


def translated(vectors: tuple[Tensor, Tensor] | None, queries: Queries) -> Similar | None:
    """Log-softmax of translation scores over candidates.

    Args:
        vectors: of the entities and of the relations; None: there are none.
        queries: Q of them.
    """
    if vectors is None:
        return None
    entity, relation = vectors
    who, directed, _ = queries.columns(entity.device)
    moved = entity[who] + relation_vectors(relation, directed)

    def of_pairs(row: Tensor, candidate: Tensor) -> Tensor:
        scores = -(moved[row] - entity[candidate]).square().sum(-1)
        highest = scores.new_full((len(who),), -torch.inf)
        highest = highest.scatter_reduce(0, row, scores, "amax")[row]
        total = scores.new_zeros(len(who)).index_add_(0, row, (scores - highest).exp())
        return scores - highest - total[row].log()

    return of_pairs


def reading_batches(count: int, device: torch.device) -> list[slice]:
    """Rows of so many queries that are read at once, in bounded memory."""
    size = _AT_ONCE_ON_GPU if device.type == "cuda" else _AT_ONCE
    return [slice(begin, begin + size) for begin in range(0, count, size)]


class Listing(NamedTuple):
    """What is said of (query, entity) pairs, in the order of their cells."""

    cell: Tensor
    """(L,) ``query * E + entity``, ascending; each once."""
    values: tuple[Tensor, ...]
    """(L,) each."""

    def at(self, cell: Tensor, *missing: float) -> list[Tensor]:
        """(N,) each of the values of some cells, others where a cell is not there."""
        if not self.cell.numel():
            columns = zip(self.values, missing, strict=True)
            return [value.new_full(cell.shape, other) for value, other in columns]
        place = torch.searchsorted(self.cell, cell).clamp_(max=self.cell.numel() - 1)
        there = self.cell.index_select(0, place) == cell
        columns = zip(some_rows(place, *self.values), missing, strict=True)
        return [torch.where(there, value, other) for value, other in columns]


class Candidates(NamedTuple):
    """The candidates of Q queries, N in all, and what speaks for them."""

    query: Tensor
    """(N,) rows of the queries, ascending."""
    entity: Tensor
    """(N,) ascending within a query; never e itself."""
    features: Tensor
    """(N, F)."""
    link: Tensor
    """(N,) last step at which e was linked to the candidate by r; -1: never."""
    covered: Tensor
    """(N,) False for an answer that was put among them though nothing speaks for it."""
    repeats: Listing
    """Last step and share of PageRank of all that e was linked to by r, candidates or not."""


class Reader:
    """Reads the evidence of many queries at once.

    Args:
        index: the public facts.
        supports: the first facts of the new entities.
        settings: how many candidates.
    """

    def __init__(
        self,
        index: TemporalIndex,
        supports: Supports,
        settings: EvidenceSettings,
    ) -> None:
        self.index, self.settings, self.device = index, settings, index.device
        self.entities, self._half = index.entities, index.relations // 2
        self.history = History(index, supports)
        self.pagerank = PageRank(index.neighbours, supports, threshold=settings.threshold)

    def columns(self, queries: Queries) -> tuple[Tensor, Tensor, Tensor]:
        """Entity, relation and time of the queries, (Q,) each."""
        return queries.columns(self.device)

    def read(
        self,
        queries: Queries,
        similar: Similar | None = None,
        answer: Tensor | None = None,
        deletions: Deletions | None = None,
    ) -> Candidates:
        """Candidates and features.

        Args:
            queries: Q queries.
            similar: the translation scores of (query, entity) pairs, if there are any.
            answer: (Q,) put among the candidates, for learning; or None.
            deletions: Q of them: their candidates alone are read, as if what each leaves out were
                not there; or None.
        """
        query = entity, relation, time = self.columns(queries)
        if deletions is not None:
            # Rows that differ in their candidates alone share what begins with facts of e.
            some = distinct(deletions.first_alike)[0]
            past = self._past(entity[some], time[some], _MOST_AGAIN)
            past = replace(past, row=some.index_select(0, past.row))
            past = past.kept(~deletions.hides(past))
            known = self._known(past, relation, time)
            reached, walks = deletions.reached(self.pagerank, _REACHED), deletions.walks(past)
            cell = deletions.cells
            covered = torch.ones_like(cell, dtype=torch.bool)
        else:
            past = self._past(entity, time, _MOST_FACTS)
            known = self._known(past, relation, time)
            reached = self.pagerank.reached(entity, time, _REACHED)
            walks = self.history.walks(queries)
            wanted = [
                self._recent(known),
                *self._near(reached, relation, time),
                self._frequent(relation, time),
            ]
            cell, covered = self._choose(wanted, entity, answer)
        row = cell // self.entities
        who = cell - row * self.entities
        asked, now, lost = some_rows(row, relation, time, reached.lost)
        origin = row if deletions is None else deletions.first_alike
        begun = origin * self.entities + who
        link, contact, count, co_occurrence = known.at(begun, -1, -1, 0, _LOWEST)
        shares = Listing(reached.row * self.entities + reached.entity, (reached.far, reached.near))
        far, near = shares.at(cell, 0, 0)
        ends = Listing(walks.query * self.entities + walks.entity, (walks.count,))
        if deletions is not None:
            usage, (first, last, degree) = deletions.usage(), deletions.seen()
            entity_first = deletions.entity_first()
        else:
            usage = self.index.slots.usage(who, asked, now, DECAYS)
            first, last = self.index.first_step_of(who), self.index.last_step_of(who, now)
            degree = self.index.neighbours.degree(who, now)
            entity_first = self.index.first_step_of(entity)
        if deletions is not None:
            some, place = distinct(begun)
            walked = peer_walks(self.index, past, query, some, self.settings.branches)
            walked = walked.index_select(1, place)
            walked[:2] *= ~deletions.slot
        else:
            walked = peer_walks(self.index, past, query, begun, self.settings.branches)
        peers, peers_timed, partners, partners_timed = walked
        same = past.kept(past.relation == relation.index_select(0, past.row))
        last_link = torch.full_like(entity, -1)
        last_link.scatter_reduce_(0, same.row, same.time, "amax")
        facts = torch.bincount(past.row, minlength=len(queries))
        facts_of_slot = self.index.slots.facts_before(relation, time).clamp(min=1)
        reading = Reading(
            now=now,
            link=link,
            link_count=count,
            contact=contact,
            co_occurrence=co_occurrence,
            slot_count=usage.count,
            slot_decayed=usage.decayed,
            slot_last=usage.last,
            first=torch.minimum(first, now),
            last=torch.where(last >= 0, last, now),
            degree=degree,
            entity_first=entity_first.index_select(0, row),
            walks=ends.at(begun, 0)[0],
            near=near,
            far=far,
            far_slot=far + _UNKNOWN * lost * usage.count / facts_of_slot.index_select(0, row),
            peers=peers,
            peers_timed=peers_timed,
            partners=partners,
            partners_timed=partners_timed,
            similar=torch.zeros_like(far) if similar is None else similar(row, who),
            facts=facts.index_select(0, origin),
            last_link=last_link.index_select(0, origin),
        )
        features = features_of(reading, self.settings.left_out)
        # Of all that e was linked to; without some facts, of the candidates alone.
        partner, step = (known.cell, known.values[0]) if deletions is None else (cell, link)
        partner, step = some_rows(step >= 0, partner, step)
        repeats = self._repeats(partner, step, reached, query, facts_of_slot)
        return Candidates(row, who, features, link, covered, repeats)

    def _repeats(
        self,
        cell: Tensor,
        link: Tensor,
        reached: Walks,
        query: tuple[Tensor, Tensor, Tensor],
        facts: Tensor,
    ) -> Listing:
        """Last step and PageRank of all that e was linked to by r.

        Walkers whose end is not known are taken to end where the slot's (Q,) facts are.
        """
        if not cell.numel():
            return Listing(cell, (link, cell.float()))
        _, relation, time = query
        row = cell // self.entities
        shares = Listing(reached.row * self.entities + reached.entity, (reached.far,))
        (far,) = shares.at(cell, 0)
        relation, time, lost, facts = some_rows(row, relation, time, reached.lost, facts)
        count = self.index.slots.usage(cell - row * self.entities, relation, time).count
        return Listing(cell, (link, far + lost * count / facts))

    def _past(self, entity: Tensor, time: Tensor, most: int) -> EntityFacts:
        """The visible facts of each entity: public ones before its time, and its own support."""
        own = self.history.own_later(entity, time)
        # A fact of e with itself has two rows in a support, and is one.
        twice = (own.target == entity.index_select(0, own.row)) & (own.relation >= self._half)
        own = own.kept(~twice)
        return EntityFacts.cat([self.index.facts_of(entity, time, most), own])

    def _known(self, past: EntityFacts, relation: Tensor, time: Tensor) -> Listing:
        """Whom e was linked to: last step by r and by any relation, how often by r, and whether
        such links go with one by r."""
        asked, now = some_rows(past.row, relation, time)
        cell, member = distinct(past.row * self.entities + past.target)
        same = past.relation == asked
        never = torch.full_like(cell, -1)
        linked, when = some_rows(same, member, past.time)
        link = never.scatter_reduce(0, linked, when, "amax")
        contact = never.scatter_reduce(0, member, past.time, "amax")
        count = torch.zeros_like(cell).index_add_(0, member, same.long())
        share = self.index.co_occurrence.share(past.relation, asked, now)
        share = share.clamp(min=_LEAST_CO_OCCURRENCE).log()
        goes_with = share.new_full(cell.shape, _LOWEST).scatter_reduce_(0, member, share, "amax")
        return Listing(cell, (link, contact, count, goes_with))

    def _recent(self, known: Listing) -> Tensor:
        """Cells of those that e was linked to last: by r, then by any relation."""
        link, contact, _, _ = known.values
        last = torch.where(link >= 0, link + self.history.steps, contact)
        best = best_of_each(self.settings.recent, known.cell // self.entities, last)
        return known.cell.index_select(0, best)

    def _near(self, reached: Walks, relation: Tensor, time: Tensor) -> list[Tensor]:
        """Cells of the nearest by PageRank: of those that filled the slot, and of all."""
        row, near = reached.row, self.settings.near
        cell = row * self.entities + reached.entity
        relation, time = some_rows(row, relation, time)
        filled = self.index.slots.usage(reached.entity, relation, time).count > 0
        some, of, far = some_rows(filled, cell, row, reached.far)
        cells = [some.index_select(0, best_of_each(near, of, far))]
        if near > 1:
            cells.append(cell.index_select(0, best_of_each(near // 2, row, reached.far)))
        return cells

    def _frequent(self, relation: Tensor, time: Tensor) -> Tensor:
        """Cells of those that filled the slot most often of late."""
        name = f"frequent {self.settings.frequent}"
        slots, make = self.index.slots, self._frequent_of_slots
        query, filler = slots.remembered_of_each(name, relation, time, make)
        return query * self.entities + filler

    def _frequent_of_slots(self, relation: Tensor, time: Tensor) -> tuple[Tensor, ...]:
        """Rows of distinct slots, and who filled each most often of late."""
        row, filler, weight = self.index.slots.lately(relation, time)
        return some_rows(best_of_each(self.settings.frequent, row, weight), row, filler)

    def _choose(
        self, wanted: list[Tensor], entity: Tensor, answer: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(N,) cells of all candidates, and whether something speaks for each."""
        cell = distinct(torch.cat(wanted))[0]
        row = cell // self.entities
        (cell,) = some_rows(cell - row * self.entities != entity.index_select(0, row), cell)
        if answer is None:
            return cell, torch.ones_like(cell, dtype=torch.bool)
        rows = torch.arange(len(answer), device=self.device)
        every = distinct(torch.cat([cell, rows * self.entities + answer]))[0]
        return every, torch.isin(every, cell)
