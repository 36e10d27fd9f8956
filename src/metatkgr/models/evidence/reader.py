r"""Evidence for the answers of questions, as numbers: what is visible of e, r and each candidate x.

For a question (e, r, ?, t) the reader picks candidates that something speaks for, and gives each a
row of numbers, :data:`~metatkgr.models.evidence.features.FEATURES`. All of it is read from facts
strictly before t, and from e's own support.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.history import History
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.pagerank import PageRank
from metatkgr.graph.ragged import blocks_by_size, expand_ranges, pack
from metatkgr.models.evidence.features import DECAYS, FEATURES, OF_KIND
from metatkgr.models.evidence.settings import EvidenceSettings

__all__ = ["Candidates", "Reader"]

_TINY = 1e-6
_NOT_THERE = math.log(1e-7)
"""Below every share of walks."""
_LEAST_TRANSFER = 1e-3
_LARGEST_EXPANSION = 1 << 22
_NEVER = 1 << 62
"""A step after all others."""
_TABLES = 256
"""Tables per moment that are kept."""


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


@dataclass(frozen=True, eq=False)
class _Past:
    """What e did: the visible facts of each question's entity."""

    row: Tensor
    """(L,) question."""
    relation: Tensor
    target: Tensor
    time: Tensor


class Reader:
    """Reads the evidence of many questions at once.

    Args:
        visible: the public facts.
        supports: the first facts of the new entities.
        transfer: (2R, 2R) share of the links by one relation that were also links by another.
        settings: how many candidates.
        device: where it is computed.
    """

    def __init__(
        self,
        visible: VisibleFacts,
        supports: Supports,
        transfer: Tensor,
        settings: EvidenceSettings,
        device: torch.device,
    ) -> None:
        self.settings, self.device = settings, device
        self.entities, self.relations = len(visible.entities), 2 * len(visible.relations)
        self.transfer = transfer.clamp(min=_LEAST_TRANSFER).log()
        self.index = GraphIndex.of(visible, device=device)
        self.own = GraphIndex.of_supports(
            supports, entities=self.entities, relations=self.relations, device=device
        )
        self.history = History(visible, supports, device)
        self.pagerank = PageRank(visible, supports, device)
        relation, target, time = (
            torch.from_numpy(np.ascontiguousarray(column)).to(device)
            for column in (visible.relation, visible.target, visible.time)
        )
        self.steps = (int(time.max()) if len(time) else 0) + 2
        key = pack((relation, self.relations), (time, self.steps))
        self.place_key, order = torch.sort(key, stable=True)
        self.place_target = target[order]
        self.seen_first = torch.full((self.entities,), _NEVER, device=device)
        self.seen_first.scatter_reduce_(0, target, time, "amin")
        self._moments: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()

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
        places, row = self._places(relation, time)
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
        first, last, degree = self._entities_at(time, chosen)
        linked, contacted, place = at(link) >= 0, at(contact) >= 0, at(stood)
        root = self.seen_first[entity].unsqueeze(1)
        facts = torch.bincount(past.row, minlength=len(queries)).unsqueeze(1)
        last_link = link.amax(1, keepdim=True)
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
            "similar": at(similar),
            "knows": facts.log1p().expand_as(chosen),
            "linked": (last_link >= 0).expand_as(chosen),
            "linked_age": ((last_link >= 0) * _age(now - last_link)).expand_as(chosen),
        }
        features = torch.stack([columns[name].float() for name in FEATURES], -1)
        for kind in self.settings.left_out:
            features[..., [FEATURES.index(name) for name in OF_KIND[kind]]] = 0.0
        return Candidates(chosen, features, mask, link, far * stood)

    def _past(self, entity: Tensor, time: Tensor) -> _Past:
        """The visible facts of each entity: public ones before its time, and its own support."""
        parts = []
        for index, ranges in (
            (self.index, self.index.before(entity, time)),
            (self.own, self.own.since(entity, time)),
        ):
            row, position = expand_ranges(*ranges)
            when = index.key[position] - entity[row] * index.steps
            parts.append((row, index.relation[position], index.target[position], when))
        return _Past(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def _places(self, relation: Tensor, time: Tensor) -> tuple[list[Tensor], Tensor]:
        """Of each distinct (relation, time): count, decayed counts and last step of every entity.

        Returns:
            tables: five of (G, E).
            row: (Q,) which of the G is a question's.
        """
        moment, row = torch.unique(torch.stack([relation, time], 1), dim=0, return_inverse=True)
        asked, now = moment[:, 0].contiguous(), moment[:, 1].contiguous()
        start = torch.searchsorted(self.place_key, asked * self.steps)
        # A time after the last fact has all facts before it, but its ages are its own.
        stop = torch.searchsorted(self.place_key, asked * self.steps + now.clamp(0, self.steps - 1))
        shape = (len(moment), self.entities)
        tables = [torch.zeros(shape, device=self.device) for _ in range(1 + len(DECAYS))]
        last = torch.full(shape, -1, device=self.device)
        for rows in blocks_by_size(stop - start, _LARGEST_EXPANSION):
            group, position = expand_ranges(start[rows], stop[rows])
            group = group + rows.start
            when = self.place_key[position] % self.steps
            age = (now[group] - when).float()
            cell = group * self.entities + self.place_target[position]
            tables[0].view(-1).scatter_add_(0, cell, torch.ones_like(age))
            for table, decay in zip(tables[1:], DECAYS, strict=True):
                table.view(-1).scatter_add_(0, cell, (-age / decay).exp())
            last.view(-1).scatter_reduce_(0, cell, when, "amax")
        return [*tables, last], row

    def _entities_at(self, time: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(Q, C) first and last step at which candidates were seen before t, and their degree.

        Who was not seen yet counts as seen first and last at t itself.
        """
        last = torch.empty_like(chosen)
        degree = torch.empty_like(chosen, dtype=torch.float32)
        for moment in torch.unique(time).tolist():
            rows = torch.nonzero(time == moment).squeeze(1)
            seen, links = self._moment(int(moment))
            last[rows], degree[rows] = seen[chosen[rows]], links[chosen[rows]]
        now = time.unsqueeze(1)
        return torch.minimum(self.seen_first[chosen], now), torch.minimum(last, now), degree

    def _moment(self, moment: int) -> tuple[Tensor, Tensor]:
        """(E,) last step before ``moment`` and (E,) number of neighbours, of all entities."""
        if moment not in self._moments:
            everyone = torch.arange(self.entities, device=self.device)
            low, high = self.index.before(everyone, torch.full_like(everyone, moment))
            seen = high > low
            position = (high - 1).clamp(min=0)
            key = self.index.key[position] if len(self.index) else position
            last = torch.where(seen, key - everyone * self.index.steps, moment)
            self._moments[moment] = (last, self.pagerank.degrees(moment))
            while len(self._moments) > _TABLES:
                self._moments.popitem(last=False)
        return self._moments[moment]

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
        recent = torch.where(link >= 0, link + self.steps, contact).float()
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
