r"""Evidence for the answers of questions, as numbers: what is visible of e, r and each candidate x.

For a question (e, r, ?, t) the reader picks candidates that something speaks for, and gives each a
row of numbers, :data:`~metatkgr.models.evidence.features.FEATURES`. All of it is read from facts
strictly before t, and from e's own support.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.history import History
from metatkgr.graph.index import EntityFacts, TemporalIndex
from metatkgr.graph.pagerank import PageRank, Transitions
from metatkgr.models.evidence.features import DECAYS, FEATURES, OF_KIND
from metatkgr.models.evidence.peers import latest_steps, peer_walks
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.recent import Recent

__all__ = ["Candidates", "PublicFacts", "Reader"]

_TINY = 1e-6
_NOT_THERE = math.log(1e-7)
"""Below every share of walks."""
_LEAST_TRANSFER = 1e-3
_MOMENTS = 256
"""Moments whose tables are kept."""


class Candidates(NamedTuple):
    """C candidates of each of Q questions, and what speaks for them."""

    entity: Tensor
    """(Q, C) int64."""
    features: Tensor
    """(Q, C, F)."""
    mask: Tensor
    """(Q, C) bool; False for a candidate that stands there already, or is none."""
    link: Tensor
    """(Q, E) last step at which e was linked to each entity by r; -1: never."""
    share: Tensor
    """(Q, E) share of PageRank, 0 for who never stood in this place."""


class PublicFacts:
    """What is read of the public facts, whoever asks.

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
        last = self.index.last_seen(moment)
        return torch.where(last >= 0, last, moment), self.transitions.degrees(moment)


class Reader:
    """Reads the evidence of many questions at once.

    Args:
        public: the public facts.
        supports: the first facts of the new entities.
        transfer: (2R, 2R) share of the links by one relation that were also links by another.
        settings: how many candidates.
    """

    def __init__(
        self, public: PublicFacts, supports: Supports, transfer: Tensor, settings: EvidenceSettings
    ) -> None:
        self.public, self.settings, self.index = public, settings, public.index
        self.device = self.index.device
        self.entities, self.relations = self.index.entities, self.index.relations
        self.transfer = transfer.clamp(min=_LEAST_TRANSFER).log()
        self.own = TemporalIndex.of_supports(
            supports, entities=self.entities, relations=self.relations, device=self.device
        )
        self.history = History(self.index, supports)
        self.pagerank = PageRank(public.transitions, supports)

    def read(self, queries: Queries, similar: Tensor | None, answer: Tensor | None) -> Candidates:
        """Candidates and features.

        Args:
            queries: Q questions.
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

        everything = torch.ones_like(same)
        link, contact = latest(same), latest(everything)
        count = torch.zeros(shape, device=self.device).view(-1)
        count = count.scatter_add_(0, cell[same], torch.ones_like(count[: int(same.sum())]))
        known = self.transfer[past.relation, relation[past.row]]
        transfer = torch.full(shape, float(np.log(_LEAST_TRANSFER)), device=self.device).view(-1)
        transfer = transfer.scatter_reduce_(0, cell, known, "amax")
        slots = self.index.slot_tables(relation, time, DECAYS)
        row = slots.row
        near, far = self.pagerank.shares_within(queries, (3, self.pagerank.steps))
        walks = torch.zeros(shape, device=self.device)
        ends = self.history.walks(queries)
        walks[ends.question, ends.entity] = ends.count.float()
        if similar is None:
            similar = torch.zeros(shape, device=self.device)
        stood = slots.count[row] > 0
        chosen, mask = self._choose(
            entity, link, contact, far, stood, slots.decayed[1][row], similar, answer
        )

        def at(table: Tensor) -> Tensor:
            return table.reshape(shape).gather(1, chosen)

        now = time.unsqueeze(1)
        first, last, degree = self.public.entities_at(time, chosen)
        linked, contacted, place = at(link) >= 0, at(contact) >= 0, at(stood)
        root = self.index.first_seen[entity].unsqueeze(1)
        facts = torch.bincount(past.row, minlength=len(queries)).unsqueeze(1)
        last_link = link.amax(1, keepdim=True)
        questions = (entity, relation, time)
        (peers, peers_timed), (likes, likes_timed) = (
            self._peers(past, rows, questions, chosen, likes)
            for rows, likes in ((everything, False), (same, True))
        )
        columns = {
            "link": linked,
            "link_age": linked * _age(now - at(link)),
            "link_count": at(count).log1p(),
            "contact": contacted,
            "contact_age": contacted * _age(now - at(contact)),
            "transfer": at(transfer),
            "place_count": at(slots.count[row]).log1p(),
            "place_recent": at(slots.decayed[0][row]).log1p(),
            "place_season": at(slots.decayed[1][row]).log1p(),
            "place_era": at(slots.decayed[2][row]).log1p(),
            "place_age": place * _age(now - at(slots.last[row])),
            "place": place,
            "age": _age(now - first),
            "idle": _age(now - last),
            "degree": degree.log1p(),
            "cohort": (first - torch.minimum(root, now)).abs().log1p(),
            "walks": at(walks).log1p(),
            "near": (at(near) + _TINY).log(),
            "far": (at(far) + _TINY).log(),
            "far_place": torch.where(place | contacted, (at(far) + _TINY).log(), _NOT_THERE),
            "peers": (peers + _TINY).log(),
            "peers_timed": (peers_timed + _TINY).log(),
            "likes": (likes + _TINY).log(),
            "likes_timed": (likes_timed + _TINY).log(),
            "similar": at(similar),
            "knows": facts.log1p().expand_as(chosen),
            "linked": (last_link >= 0).expand_as(chosen),
            "linked_age": ((last_link >= 0) * _age(now - last_link)).expand_as(chosen),
        }
        features = torch.stack([columns[name].float() for name in FEATURES], -1)
        for kind in self.settings.left_out:
            features[..., [FEATURES.index(name) for name in OF_KIND[kind]]] = 0.0
        return Candidates(chosen, features, mask, link, far * stood)

    def _past(self, entity: Tensor, time: Tensor) -> EntityFacts:
        """The visible facts of each entity: public ones before its time, and its own support."""
        own = self.own.facts_since(entity, time)
        return EntityFacts.cat([self.index.facts_of(entity, time), own])

    def _peers(
        self,
        past: EntityFacts,
        rows: Tensor,
        questions: tuple[Tensor, Tensor, Tensor],
        chosen: Tensor,
        likes: bool,
    ) -> tuple[Tensor, Tensor]:
        """(Q, C) shares and timed shares of walks that begin with the facts ``rows`` of e."""
        branches = self.settings.branches
        own = latest_steps(past.kept(rows), len(chosen), self.index, branches)
        return peer_walks(self.index, own, questions, chosen, branches, likes=likes)

    def _choose(
        self,
        entity: Tensor,
        link: Tensor,
        contact: Tensor,
        far: Tensor,
        stood: Tensor,
        season: Tensor,
        similar: Tensor,
        answer: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """(Q, C) candidates and which of them count."""
        settings = self.settings
        recent = torch.where(link >= 0, link + self.index.steps, contact).float()
        wanted = [
            (recent, settings.recent),
            (far * stood, settings.near),
            (far, settings.near // 2),
            (season, settings.frequent),
        ]
        if settings.dimension and settings.similar:
            # The best translations among those that stood in this place, then the best at all.
            wanted.append((similar - 1e3 * ~stood, settings.similar))
        picked = [table.topk(min(size, self.entities), 1).indices for table, size in wanted if size]
        if answer is not None:
            picked.insert(0, answer.unsqueeze(1))
        chosen = torch.cat(picked, 1)
        order = torch.argsort(chosen, dim=1, stable=True)
        ordered = chosen.gather(1, order)
        again = torch.zeros_like(chosen, dtype=torch.bool)
        again.scatter_(
            1, order[:, 1:], ordered[:, 1:] == ordered[:, :-1]
        )  # stable: the first of equal ones is kept
        mask = ~again & (chosen != entity.unsqueeze(1))
        if answer is not None:
            mask[:, 0] = True
        return chosen, mask


def _age(steps: Tensor) -> Tensor:
    return steps.clamp(min=0).float().log1p()
