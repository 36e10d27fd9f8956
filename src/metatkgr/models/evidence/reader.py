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
from metatkgr.data.visibility import Supports
from metatkgr.graph.history import History
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.pagerank import PageRank
from metatkgr.models.evidence.features import FEATURES, OF_KIND
from metatkgr.models.evidence.peers import Steps, peer_walks
from metatkgr.models.evidence.public import Past, Public
from metatkgr.models.evidence.settings import EvidenceSettings

__all__ = ["Candidates", "Reader"]

_TINY = 1e-6
_NOT_THERE = math.log(1e-7)
"""Below every share of walks."""
_LEAST_TRANSFER = 1e-3


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


class Reader:
    """Reads the evidence of many questions at once.

    Args:
        public: the public facts.
        supports: the first facts of the new entities.
        transfer: (2R, 2R) share of the links by one relation that were also links by another.
        settings: how many candidates.
    """

    def __init__(
        self, public: Public, supports: Supports, transfer: Tensor, settings: EvidenceSettings
    ) -> None:
        self.public, self.settings, self.device = public, settings, public.device
        self.entities, self.relations = public.entities, public.relations
        self.transfer = transfer.clamp(min=_LEAST_TRANSFER).log()
        self.own = GraphIndex.of_supports(
            supports, entities=self.entities, relations=self.relations, device=self.device
        )
        self.history = History.of_layers(public.links, supports)
        self.pagerank = PageRank(public.distinct, supports)

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
        places, row = self.public.places(relation, time)
        near, far = self.pagerank.shares_within(queries, (3, self.pagerank.steps))
        walks = torch.zeros(shape, device=self.device)
        self._add_walks(walks, queries)
        if similar is None:
            similar = torch.zeros(shape, device=self.device)
        stood = places[0][row] > 0
        chosen, mask = self._choose(
            entity, link, contact, far, stood, places[2][row], similar, answer
        )

        def at(table: Tensor) -> Tensor:
            return table.reshape(shape).gather(1, chosen)

        now = time.unsqueeze(1)
        first, last, degree = self.public.entities_at(time, chosen)
        linked, contacted, place = at(link) >= 0, at(contact) >= 0, at(stood)
        root = self.public.first_seen[entity].unsqueeze(1)
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
            "place_count": at(places[0][row]).log1p(),
            "place_recent": at(places[1][row]).log1p(),
            "place_season": at(places[2][row]).log1p(),
            "place_era": at(places[3][row]).log1p(),
            "place_age": place * _age(now - at(places[4][row])),
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

    def _past(self, entity: Tensor, time: Tensor) -> Past:
        """The visible facts of each entity: public ones before its time, and its own support."""
        own = Past.read(self.own, entity, *self.own.since(entity, time))
        return Past.join([self.public.before(entity, time), own])

    def _peers(
        self,
        past: Past,
        rows: Tensor,
        questions: tuple[Tensor, Tensor, Tensor],
        chosen: Tensor,
        likes: bool,
    ) -> tuple[Tensor, Tensor]:
        """(Q, C) shares and timed shares of walks that begin with the facts ``rows`` of e."""
        branches = self.settings.branches
        own = Steps.latest(
            (past.row[rows], len(chosen)),
            (past.relation[rows], self.relations),
            (past.target[rows], self.entities),
            past.time[rows],
            branches,
        )
        return peer_walks(self.public.began, own, questions, chosen, branches, likes=likes)

    def _add_walks(self, walks: Tensor, queries: Queries) -> None:
        _, relation, time = self.history.columns(queries)
        inverse = (relation + self.relations // 2) % self.relations
        frontier = self.history.start(queries)
        for along in (relation, inverse, relation):
            frontier = self.history.hop(frontier, along, time)
        walks[frontier.question, frontier.entity] = frontier.count.float()

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
        recent = torch.where(link >= 0, link + self.public.steps, contact).float()
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
