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

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.orders import DECAYS
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports
from metatkgr.graph.history import History
from metatkgr.graph.index import EntityFacts, TemporalIndex
from metatkgr.graph.pagerank import PageRank, Walks
from metatkgr.graph.ragged import best_of_each, expand_ranges, some_rows
from metatkgr.models.common.leave_one_out import Deletions
from metatkgr.models.common.scores import relation_vectors
from metatkgr.models.evidence.features import Reading, features_of
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.walks import latest_of_facts, peer_walks

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
    who, directed = (
        torch.from_numpy(column).to(entity.device) for column in (queries.entity, queries.relation)
    )
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
        self.entities, self.relations = index.entities, index.relations
        self.own = TemporalIndex.of_supports(
            supports, entities=self.entities, relations=self.relations, device=self.device
        )
        self.history = History(index, supports)
        self.pagerank = PageRank(index.neighbours, supports, threshold=settings.threshold)

    def columns(self, queries: Queries) -> tuple[Tensor, Tensor, Tensor]:
        """Entity, relation and time of the queries, (Q,) each."""
        entity, relation, time = (
            torch.from_numpy(np.ascontiguousarray(column)).to(self.device)
            for column in (queries.entity, queries.relation, queries.time)
        )
        return entity, relation, time

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
            some = torch.unique(deletions.first_alike)
            past = self._past(entity[some], time[some], _MOST_AGAIN)
            past = replace(past, row=some[past.row])
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
        row, who = cell // self.entities, cell % self.entities
        now = time[row]
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
            usage = self.index.slots.usage(who, relation[row], now, DECAYS)
            first, last = self.index.first_step_of(who), self.index.last_step_of(who, now)
            degree = self.index.neighbours.degree(who, now)
            entity_first = self.index.first_step_of(entity)
        peers, peers_timed = self._peers(past, query, begun, partners=False)
        if deletions is not None:
            peers, peers_timed = peers * ~deletions.slot, peers_timed * ~deletions.slot
        same = past.relation == relation[past.row]
        partners, partners_timed = self._peers(past.kept(same), query, begun, partners=True)
        last_link = torch.full_like(entity, -1)
        last_link.scatter_reduce_(0, past.row[same], past.time[same], "amax")
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
            entity_first=entity_first[row],
            walks=ends.at(begun, 0)[0],
            near=near,
            far=far,
            far_slot=far + _UNKNOWN * reached.lost[row] * usage.count / facts_of_slot[row],
            peers=peers,
            peers_timed=peers_timed,
            partners=partners,
            partners_timed=partners_timed,
            similar=torch.zeros_like(far) if similar is None else similar(row, who),
            facts=facts[origin],
            last_link=last_link[origin],
        )
        features = features_of(reading, self.settings.left_out)
        # Of all that e was linked to; without some facts, of the candidates alone.
        partner, step = (known.cell, known.values[0]) if deletions is None else (cell, link)
        partner, step = some_rows(step >= 0, partner, step)
        repeats = self._repeats(partner, step, reached, query)
        return Candidates(row, who, features, link, covered, repeats)

    def _repeats(
        self, cell: Tensor, link: Tensor, reached: Walks, query: tuple[Tensor, Tensor, Tensor]
    ) -> Listing:
        """Last step and PageRank of all that e was linked to by r.

        Walkers whose end is not known are taken to end where the slot's facts are.
        """
        if not cell.numel():
            return Listing(cell, (link, cell.float()))
        _, relation, time = query
        row = cell // self.entities
        shares = Listing(reached.row * self.entities + reached.entity, (reached.far,))
        (far,) = shares.at(cell, 0)
        slot = relation[row], time[row]
        count = self.index.slots.usage(cell % self.entities, *slot).count
        facts = self.index.slots.facts_before(relation, time).clamp(min=1)
        return Listing(cell, (link, far + reached.lost[row] * count / facts[row]))

    def _past(self, entity: Tensor, time: Tensor, most: int) -> EntityFacts:
        """The visible facts of each entity: public ones before its time, and its own support."""
        own = self.own.facts_since(entity, time)
        return EntityFacts.cat([self.index.facts_of(entity, time, most), own])

    def _known(self, past: EntityFacts, relation: Tensor, time: Tensor) -> Listing:
        """Whom e was linked to: last step by r and by any relation, how often by r, and whether
        such links go with one by r."""
        asked = relation[past.row]
        cell, member = torch.unique(past.row * self.entities + past.target, return_inverse=True)
        same = past.relation == asked
        never = torch.full_like(cell, -1)
        link = never.scatter_reduce(0, member[same], past.time[same], "amax")
        contact = never.scatter_reduce(0, member, past.time, "amax")
        count = torch.zeros_like(cell).index_add_(0, member, same.long())
        share = self.index.co_occurrence.share(past.relation, asked, time[past.row])
        share = share.clamp(min=_LEAST_CO_OCCURRENCE).log()
        goes_with = share.new_full(cell.shape, _LOWEST).scatter_reduce_(0, member, share, "amax")
        return Listing(cell, (link, contact, count, goes_with))

    def _recent(self, known: Listing) -> Tensor:
        """Cells of those that e was linked to last: by r, then by any relation."""
        link, contact, _, _ = known.values
        last = torch.where(link >= 0, link + self.history.steps, contact)
        return known.cell[best_of_each(self.settings.recent, known.cell // self.entities, last)]

    def _near(self, reached: Walks, relation: Tensor, time: Tensor) -> list[Tensor]:
        """Cells of the nearest by PageRank: of those that filled the slot, and of all."""
        row, near = reached.row, self.settings.near
        cell = row * self.entities + reached.entity
        filled = self.index.slots.usage(reached.entity, relation[row], time[row]).count > 0
        some, of, far = some_rows(filled, cell, row, reached.far)
        cells = [some[best_of_each(near, of, far)]]
        if near > 1:
            cells.append(cell[best_of_each(near // 2, row, reached.far)])
        return cells

    def _frequent(self, relation: Tensor, time: Tensor) -> Tensor:
        """Cells of those that filled the slot most often of late."""
        room = int(time.max()) + 1 if len(time) else 1
        slot, member = torch.unique(relation * room + time, return_inverse=True)
        name = f"frequent {self.settings.frequent}"
        slots = slot // room, slot % room
        row, filler = self.index.slots.remembered(name, *slots, self._frequent_of_slots)
        if len(member) == 1:
            return filler
        query, position = expand_ranges(
            torch.searchsorted(row, member), torch.searchsorted(row, member, right=True)
        )
        return query * self.entities + filler.index_select(0, position)

    def _frequent_of_slots(self, relation: Tensor, time: Tensor) -> tuple[Tensor, ...]:
        """Rows of distinct slots, and who filled each most often of late."""
        row, filler, weight = self.index.slots.lately(relation, time)
        return some_rows(best_of_each(self.settings.frequent, row, weight), row, filler)

    def _choose(
        self, wanted: list[Tensor], entity: Tensor, answer: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(N,) cells of all candidates, and whether something speaks for each."""
        cell = torch.unique(torch.cat(wanted))
        cell = cell[cell % self.entities != entity[cell // self.entities]]
        if answer is None:
            return cell, torch.ones_like(cell, dtype=torch.bool)
        rows = torch.arange(len(answer), device=self.device)
        every = torch.unique(torch.cat([cell, rows * self.entities + answer]))
        return every, torch.isin(every, cell)

    def _peers(
        self,
        past: EntityFacts,
        query: tuple[Tensor, Tensor, Tensor],
        cell: Tensor,
        *,
        partners: bool,
    ) -> tuple[Tensor, Tensor]:
        """(N,) shares and timed shares of walks that begin with some facts of e."""
        branches = self.settings.branches
        own = latest_of_facts(past, len(query[0]), self.index, branches)
        wanted, place = torch.unique(cell, return_inverse=True)
        walks = peer_walks(self.index, own, query, wanted, branches, partners=partners)
        return walks[0][place], walks[1][place]
