"""Entities without a row, in training and in use: episodes, scores and reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.answers import novel_answers
from metatkgr.data.facts import IntArray
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.base import WHOLE, Explanation, Link, Loss, Part
from metatkgr.models.common.scores import mask_query_entity, mask_query_logits
from metatkgr.models.metatkgr.links import Around, Links, Moment, Walks, explore
from metatkgr.models.metatkgr.newcomers import (
    STEPWISE,
    Vectors,
    adapt_everyone,
    adapt_own,
    query_scores,
    unit_vectors,
)
from metatkgr.models.metatkgr.pac_bayes import freeze, outer_loss
from metatkgr.models.metatkgr.settings import MetaTKGRSettings
from metatkgr.recent import Recent

__all__ = ["INNER", "Adapter", "Episode", "EpisodePhase"]

INNER = "inner."
"""How the names of what the outer loop learns begin, among those of the model."""
_CACHE_BYTES = 1 << 30
"""Times of which everybody's vectors are kept."""
_FOLLOWED = 1 << 23
"""How many links the walks of some queries follow in one go; bounds memory."""
_LINK_BYTES = 24
"""What is kept of a time, at most, for each fact that is ever visible."""
_SHOWN, _LEAST = 3, 0.01
"""So many reasons at most, each with a loss of probability of at least so much."""


class Adapter:
    """Adapts to what is visible, and scores.

    Args:
        weights: ``entity`` (E, d), ``relation`` (R, d) and ``inner.*``.
        has_row: (E,) bool, who has a vector from training.
        index: the public facts.
        supports: the first facts of the new entities.
        settings: of the model.
        before: an adapter whose entities are the first of these; its fixed vectors are not drawn
            again.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        has_row: Tensor,
        index: TemporalIndex,
        supports: Supports,
        settings: MetaTKGRSettings,
        before: Adapter | None = None,
    ) -> None:
        self.entity, self.relation = weights["entity"].detach(), weights["relation"].detach()
        self.learned = _with_steps(weights, settings.inner_steps)
        self.has_row, self.settings = has_row, settings
        count, dimension = self.entity.shape
        known = self.entity[:0] if before is None else before.unit[:count].to(self.entity.device)
        later = torch.arange(len(known), count, device=self.entity.device)
        self.unit: Tensor = torch.cat([known, unit_vectors(later, dimension)])
        self.around = Around(
            index,
            supports,
            has_row,
            budget=settings.budget,
            contrast=settings.support_negatives,
        )
        links = max(len(index), 1)
        self.moments = Recent(self.around.at, _CACHE_BYTES // (_LINK_BYTES * links))
        size = self.entity.numel() * self.entity.element_size()
        self._everyone = Recent(self._adapted_at, _CACHE_BYTES // max(2 * size, 1))

    def everyone(self, moment: Moment) -> Vectors:
        """All entities and relations, adapted to what everybody sees."""
        return adapt_everyone(
            self.learned,
            self.entity,
            self.relation,
            self.has_row,
            self.unit,
            moment,
            rounds=self.settings.rounds,
            leave_out=not self.settings.own_in_support,
        )

    def logits(
        self,
        moment: Moment,
        everyone: Vectors,
        entity: Tensor,
        relation: Tensor,
    ) -> Tensor:
        """(Q, E) scores of all candidates of queries at one time."""
        asked, row = torch.unique(entity, return_inverse=True)
        links = self.around.own(asked, moment.time)
        vectors = self._own(moment, everyone, links, asked)[row]
        return self._scores(moment, everyone, vectors, entity, relation, links.of(row))

    def _scores(
        self,
        moment: Moment,
        everyone: Vectors,
        vectors: Tensor,
        entity: Tensor,
        relation: Tensor,
        links: Links,
    ) -> Tensor:
        """(Q, E) scores, with a row of links for each query."""
        walks = self._walks(entity, relation, torch.full_like(entity, moment.time), links)
        return query_scores(self.learned, everyone, moment, vectors, relation, links, walks)

    def _walks(
        self,
        entity: Tensor,
        relation: Tensor,
        time: Tensor,
        links: Links,
    ) -> Walks | None:
        if not self.settings.hops:
            return None
        return explore(
            self.learned,
            self.around.index,
            entity,
            relation,
            time,
            links,
            pool=self.settings.pool,
            budget=self.settings.walkers,
        )

    def _own(self, moment: Moment, everyone: Vectors, links: Links, entity: Tensor) -> Tensor:
        leave_out = not self.settings.own_in_support
        return adapt_own(
            self.learned, everyone, self.has_row, moment, links, entity, leave_out=leave_out
        )

    @torch.no_grad()
    def _adapted_at(self, time: int) -> tuple[Moment, Vectors]:
        moment = self.moments(time)
        return moment, self.everyone(moment)

    @torch.no_grad()
    def score(self, entity: Tensor, relation: Tensor, time: Tensor) -> Tensor:
        """(Q, E) scores of all candidates."""
        scores = torch.empty(len(entity), len(self.entity), device=entity.device)
        together = max(_FOLLOWED // (self.settings.pool * self.settings.walkers), 1)
        for when in torch.unique(time).tolist():
            for rows in (time == when).nonzero().squeeze(1).split(together):
                scores[rows] = self.logits(*self._everyone(when), entity[rows], relation[rows])
        return scores if self.settings.answers_itself else mask_query_entity(scores, entity)

    @torch.no_grad()
    def reasons(self, entity: int, relation: int, time: int, candidate: int) -> list[Explanation]:
        """The links of a query entity without which a candidate would be less likely."""
        device = self.entity.device
        moment, everyone = self._everyone(time)
        links = self.around.own(torch.tensor([entity], device=device), time)
        # One world as it is, and one without each link.
        count = len(links.row)
        world = torch.arange(count + 1, device=device)
        kept = world[1:, None] != world[1:]
        there = torch.cat([kept.new_ones(1, count), kept]).nonzero()
        worlds = Links(there[:, 0], *(column[there[:, 1]] for column in links[1:]))
        vectors = self._own(moment, everyone, worlds, torch.full_like(world, entity))
        asked, directed = (torch.full_like(world, value) for value in (entity, relation))
        scores = self._scores(moment, everyone, vectors, asked, directed, worlds)
        if not self.settings.answers_itself:
            mask_query_entity(scores, torch.full_like(world, entity))
        chance = functional.log_softmax(scores.double(), 1)[:, candidate]
        lost = -torch.expm1(chance[1:] - chance[0])
        best = torch.argsort(lost, descending=True, stable=True)[:_SHOWN]
        shown = [
            (float(lost[row]), self._facts(entity, links, row, time))
            for row in best[lost[best] >= _LEAST].tolist()
        ]
        found = [Explanation("fact", weight, facts, len(facts)) for weight, facts in shown]
        return found or [Explanation("vectors", 1.0, (), 0)]

    def _facts(self, entity: int, links: Links, row: int, time: int) -> tuple[Link, ...]:
        """The visible facts of a link, the latest first."""
        relation, target = int(links.relation[row]), int(links.target[row])
        steps = self.around.steps(entity, relation, target, time)
        half = len(self.relation)
        ends = (entity, relation, target)
        if relation >= half:
            ends = (target, relation - half, entity)
        return tuple(Link(*ends, step) for step in steps)


@dataclass(frozen=True, eq=False)
class Episode:
    """Queries of one time in one interval, about entities that are taken as new."""

    interval: int
    count: int
    """|D|, all queries of the interval."""
    time: int
    entity: Tensor
    """(Q,)."""
    relation: Tensor
    """(Q,) directed."""
    answer: Tensor
    """(Q,)."""
    weight: Tensor
    """(Q,) of each query in the loss; 1 in the mean."""


class EpisodePhase:
    """Learns how to adapt, from the queries of meta-train entities, near to far.

    An episode is a time: everybody without a row is adapted to what is visible then, the query
    entities to their own supports as well, and judged on their queries of that time. The outer
    gradient goes through all steps of both.

    Args:
        weights: of the model.
        has_row: (E,) bool.
        tasks: those of meta-train.
        settings: of the model.
    """

    name = "episodes"

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        has_row: Tensor,
        tasks: Tasks,
        settings: MetaTKGRSettings,
    ) -> None:
        self.settings, self.weights = settings, weights
        self.epochs, self.learning_rate = settings.epochs, settings.outer_rate
        self.patience, self.validate_every = settings.patience, settings.validate_every
        questions, answers = tasks.questions, tasks.answers
        row = answers.question
        columns = (questions.entity[row], questions.relation[row], answers.answer)
        self.columns = [torch.from_numpy(np.ascontiguousarray(c)).long() for c in columns]
        self.time = questions.time[row]
        self.interval = _intervals(tasks, settings)
        self.adapters: list[Adapter] = []
        for visible in _visible(tasks, self.time, self.interval, settings):
            index = TemporalIndex.of(visible, device=has_row.device)
            before = self.adapters[-1] if self.adapters else None
            adapter = Adapter(weights, has_row, index, tasks.supports, settings, before)
            self.adapters.append(adapter)
        weight = np.where(novel_answers(tasks), settings.novel_weight, 1.0)
        self.weight = torch.from_numpy(weight).float()
        self.prior: Mapping[str, Tensor] = {}

    @property
    def learned(self) -> dict[str, Tensor]:
        """φ: what the outer loop moves."""
        return {key: value for key, value in self.weights.items() if key.startswith(INNER)}

    def parameters(self) -> list[nn.Parameter]:
        """φ."""
        return [self.weights[name] for name in self.learned]

    def batches(self, generator: torch.Generator) -> Iterator[Episode]:
        """The times of each interval in random order, interval by interval."""
        for number in range(int(self.interval.max()) + 1 if len(self.interval) else 0):
            inside = np.flatnonzero(self.interval == number)
            times = np.unique(self.time[inside])
            # φ^(m): what the last interval learned is where this one may not stray far from.
            self.prior = freeze(self.learned)
            for position in torch.randperm(len(times), generator=generator).tolist():
                rows = torch.from_numpy(inside[self.time[inside] == times[position]])
                drawn = rows[torch.randperm(len(rows), generator=generator)]
                drawn = drawn[: self.settings.batch_size]
                entity, relation, answer = (column[drawn] for column in self.columns)
                weight = self.weight[drawn] / self.weight[drawn].mean()
                time = int(times[position])
                yield Episode(number, len(inside), time, entity, relation, answer, weight)

    def loss(self, batch: Episode, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """The cross-entropy of the answers among all entities, regularised."""
        settings = self.settings
        adapter = self.adapters[min(batch.interval, len(self.adapters) - 1)]
        rows = part.of(len(batch.entity))
        entity, relation, answer, weight = (
            column[rows].to(adapter.entity.device)
            for column in (batch.entity, batch.relation, batch.answer, batch.weight)
        )
        moment = adapter.moments(batch.time)
        with torch.set_grad_enabled(settings.second_order and torch.is_grad_enabled()):
            everyone = adapter.everyone(moment)
        logits = adapter.logits(moment, everyone, entity, relation)
        if not settings.answers_itself:
            logits = mask_query_logits(logits, entity, answer)
        each = functional.cross_entropy(logits, answer, reduction="none")
        # A sum and not a mean, which of no rows would not be a number.
        empirical = (each * weight).sum() / max(len(answer), 1)
        value, logged = outer_loss(empirical, self.learned, self.prior, batch.count, settings)
        return Loss(value, logged, part.share(len(batch.entity)))


def _with_steps(weights: Mapping[str, Tensor], steps: int) -> dict[str, Tensor]:
    """What was learned, for so many inner steps: the first, or the last again and again."""
    learned = {
        name.removeprefix(INNER): value for name, value in weights.items() if name.startswith(INNER)
    }
    known = len(learned["step"])
    if known and known != steps:
        number = torch.arange(steps, device=learned["step"].device).clamp(max=known - 1)
        learned |= {name: learned[name][number] for name in STEPWISE}
    return learned


def _intervals(tasks: Tasks, settings: MetaTKGRSettings) -> IntArray:
    """(A,) the interval of each query: M equal parts of the calendar, or of the entity's age."""
    row = tasks.answers.question
    time = tasks.questions.time[row].astype(np.int64)
    if settings.near == "age":
        last = np.zeros(len(tasks.facts.entities), np.int64)
        np.maximum.at(last, tasks.supports.entity, tasks.supports.time)
        time = np.maximum(time - last[tasks.questions.entity[row]], 0)
    intervals = 1 if settings.variant == "static-maml" else settings.intervals
    begin, span = (int(time.min()), int(time.max() - time.min()) + 1) if len(time) else (0, 1)
    return np.asarray((time - begin) * intervals // span)


def _visible(
    tasks: Tasks, time: IntArray, interval: IntArray, settings: MetaTKGRSettings
) -> list[VisibleFacts]:
    """What is visible in each interval; one for all, unless what came before is seen in the next.

    'autoregressive': in an interval also the meta-train entities' own facts until it begins, so
    that what they are adapted to goes on from what the last interval asked about.
    """
    if settings.near != "autoregressive" or tasks.visible.public is None or not len(interval):
        return [tasks.visible]
    own = tasks.periods.of_fact == tasks.split
    begins = [int(time[interval >= number].min()) for number in range(int(interval.max()) + 1)]
    return [
        VisibleFacts.of(tasks.facts, tasks.visible.public | (own & (tasks.facts.time < begin)))
        for begin in begins
    ]
