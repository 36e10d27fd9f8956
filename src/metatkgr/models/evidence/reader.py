r"""Reads the evidence about queries: candidates that something speaks for, and their features.

For a query (e, r, ?, t) all of it is read from facts strictly before t, and from e's own support.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.history import History
from metatkgr.graph.index import EntityFacts, TemporalIndex
from metatkgr.graph.pagerank import PageRank, Transitions
from metatkgr.models.evidence.features import DECAYS, Reading, features_of
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.walks import latest_of_facts, peer_walks
from metatkgr.recent import Recent

__all__ = ["Candidates", "PublicFacts", "Reader"]

_LEAST_CO_OCCURRENCE = 1e-3
_MOMENTS = 256
"""Moments whose tables are kept."""
_CELLS = 1 << 22
"""Cells of a (Q, E) table: bounds memory, whatever the number of entities."""


class Candidates(NamedTuple):
    """C candidates of each of Q queries, and what speaks for them."""

    entity: Tensor
    """(Q, C) int64."""
    features: Tensor
    """(Q, C, F)."""
    mask: Tensor
    """(Q, C) candidate mask; False for one that is there already, and for e itself."""
    link: Tensor
    """(Q, E) last step at which e was linked to each entity by r; -1: never."""
    share: Tensor
    """(Q, E) share of PageRank, 0 for who never filled this slot."""


class PublicFacts:
    """What is read of the public facts, whatever the query entity.

    Args:
        visible: the facts.
        device: where they are indexed.
    """

    def __init__(self, visible: VisibleFacts, device: torch.device) -> None:
        self.index = TemporalIndex.of(visible, device=device)
        self.transitions = Transitions(self.index.neighbours)
        self._at = Recent(self._entities, _MOMENTS)

    def entities_at(self, time: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(Q, C) first and last step at which candidates were seen before t, and their degree.

        Who was not seen yet counts as seen first and last at t itself.

        Args:
            time: (Q,).
            chosen: (Q, C) candidates.
        """
        last = torch.empty_like(chosen)
        degree = torch.empty_like(chosen, dtype=torch.float32)
        for moment in torch.unique(time).tolist():
            rows = torch.nonzero(time == moment).squeeze(1)
            seen, links = self._at(int(moment))
            last[rows], degree[rows] = seen[chosen[rows]], links[chosen[rows]]
        now = time.unsqueeze(1)
        first = torch.minimum(self.index.first_seen[chosen], now)
        return first, torch.minimum(last, now), degree

    def _entities(self, moment: int) -> tuple[Tensor, Tensor]:
        """(E,) last step before a moment and (E,) number of neighbours, of all entities."""
        entity = torch.arange(self.index.entities, device=self.index.device)
        last = self.index.last_step_of(entity, torch.full_like(entity, moment))
        return torch.where(last >= 0, last, moment), self.transitions.degrees(moment)


class Reader:
    """Reads the evidence of many queries at once.

    Args:
        public: the public facts.
        supports: the first facts of the new entities.
        co_occurrence: (2R, 2R) share of the links by one relation that were also links by another.
        settings: how many candidates.
    """

    def __init__(
        self,
        public: PublicFacts,
        supports: Supports,
        co_occurrence: Tensor,
        settings: EvidenceSettings,
    ) -> None:
        self.public, self.settings, self.index = public, settings, public.index
        self.device = self.index.device
        self.entities, self.relations = self.index.entities, self.index.relations
        self.co_occurrence = co_occurrence.clamp(min=_LEAST_CO_OCCURRENCE).log()
        self.own = TemporalIndex.of_supports(
            supports, entities=self.entities, relations=self.relations, device=self.device
        )
        self.history = History(self.index, supports)
        self.pagerank = PageRank(public.transitions, supports)

    def batches(self, queries: Queries, most: int) -> Iterator[slice]:
        """Rows of the queries that are read at once: at most so many, in bounded memory."""
        size = max(min(most, _CELLS // max(self.entities, 1)), 1)
        for begin in range(0, len(queries), size):
            yield slice(begin, begin + size)

    def read(self, queries: Queries, similar: Tensor | None, answer: Tensor | None) -> Candidates:
        """Candidates and features.

        Args:
            queries: Q queries.
            similar: (Q, E) log-softmax of the translation scores, or None.
            answer: (Q,) put first among the candidates, for learning; or None.
        """
        entity, relation, time = (
            torch.from_numpy(column).to(self.device)
            for column in (queries.entity, queries.relation, queries.time)
        )
        shape = (len(queries), self.entities)
        past = self._past(entity, time)
        cell = past.row * self.entities + past.target
        same = past.relation == relation[past.row]

        def latest(rows: Tensor) -> Tensor:
            table = torch.full(shape, -1, device=self.device).view(-1)
            return table.scatter_reduce_(0, cell[rows], past.time[rows], "amax").view(shape)

        link, contact = latest(same), latest(torch.ones_like(same))
        count = torch.zeros(shape, device=self.device).view(-1)
        count = count.scatter_add_(0, cell[same], torch.ones_like(count[: int(same.sum())]))
        least = float(np.log(_LEAST_CO_OCCURRENCE))
        known = self.co_occurrence[past.relation, relation[past.row]]
        co_occurrence = torch.full(shape, least, device=self.device).view(-1)
        co_occurrence = co_occurrence.scatter_reduce_(0, cell, known, "amax")
        slots = self.index.slots.tables(relation, time, DECAYS)
        near, far = self.pagerank.shares_within(queries, (3, self.pagerank.steps))
        walks = torch.zeros(shape, device=self.device)
        ends = self.history.walks(queries)
        walks[ends.query, ends.entity] = ends.count.float()
        if similar is None:
            similar = torch.zeros(shape, device=self.device)
        seen_in_slot = slots.count[slots.row] > 0
        chosen, mask = self._choose(
            entity, link, contact, far, seen_in_slot, slots.decayed[1][slots.row], similar, answer
        )

        def at(table: Tensor) -> Tensor:
            return table.reshape(shape).gather(1, chosen)

        first, last, degree = self.public.entities_at(time, chosen)
        query = (entity, relation, time)
        peers, peers_timed = self._peers(past, query, chosen, partners=False)
        partners, partners_timed = self._peers(past.kept(same), query, chosen, partners=True)
        reading = Reading(
            now=time.unsqueeze(1),
            link=at(link),
            link_count=at(count),
            contact=at(contact),
            co_occurrence=at(co_occurrence),
            slot_count=at(slots.count[slots.row]),
            slot_decayed=tuple(at(table[slots.row]) for table in slots.decayed),
            slot_last=at(slots.last[slots.row]),
            first=first,
            last=last,
            degree=degree,
            entity_first=self.index.first_seen[entity].unsqueeze(1),
            walks=at(walks),
            near=at(near),
            far=at(far),
            peers=peers,
            peers_timed=peers_timed,
            partners=partners,
            partners_timed=partners_timed,
            similar=at(similar),
            facts=torch.bincount(past.row, minlength=len(queries)).unsqueeze(1),
            last_link=link.amax(1, keepdim=True),
        )
        features = features_of(reading, self.settings.left_out)
        return Candidates(chosen, features, mask, link, far * seen_in_slot)

    def _past(self, entity: Tensor, time: Tensor) -> EntityFacts:
        """The visible facts of each entity: public ones before its time, and its own support."""
        own = self.own.facts_since(entity, time)
        return EntityFacts.cat([self.index.facts_of(entity, time), own])

    def _peers(
        self,
        past: EntityFacts,
        query: tuple[Tensor, Tensor, Tensor],
        chosen: Tensor,
        *,
        partners: bool,
    ) -> tuple[Tensor, Tensor]:
        """(Q, C) shares and timed shares of walks that begin with some facts of e."""
        branches = self.settings.branches
        own = latest_of_facts(past, len(chosen), self.index, branches)
        return peer_walks(self.index, own, query, chosen, branches, partners=partners)

    def _choose(
        self,
        entity: Tensor,
        link: Tensor,
        contact: Tensor,
        far: Tensor,
        seen_in_slot: Tensor,
        season: Tensor,
        similar: Tensor,
        answer: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Candidate generation: (Q, C) entities and which of them count."""
        settings = self.settings
        recent = torch.where(link >= 0, link + self.index.steps, contact).float()
        wanted = [
            (recent, settings.recent),
            (far * seen_in_slot, settings.near),
            (far, settings.near // 2),
            (season, settings.frequent),
        ]
        if settings.dimension and settings.similar:
            # The best translations among those that filled this slot, then the best at all.
            wanted.append((similar - 1e3 * ~seen_in_slot, settings.similar))
        picked = [table.topk(min(size, self.entities), 1).indices for table, size in wanted if size]
        if answer is not None:
            picked.insert(0, answer.unsqueeze(1))
        chosen = torch.cat(picked, 1)
        order = torch.argsort(chosen, dim=1, stable=True)
        ordered = chosen.gather(1, order)
        again = torch.zeros_like(chosen, dtype=torch.bool)
        # Stable: the first of equal ones is kept.
        again.scatter_(1, order[:, 1:], ordered[:, 1:] == ordered[:, :-1])
        mask = ~again & (chosen != entity.unsqueeze(1))
        if answer is not None:
            mask[:, 0] = True
        return chosen, mask
