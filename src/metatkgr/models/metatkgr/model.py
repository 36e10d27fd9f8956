"""MetaTKGR as a model: tables and encoder, three stages of training, adaptation at meta-test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.base import Explains, Explanation, Phase, TrainableModel
from metatkgr.models.common.few_shot import FactTable, PaddedFacts, SupportTable
from metatkgr.models.common.neighbourhood import Tree, grow
from metatkgr.models.common.scores import mask_query_entity, relation_vectors, score_all
from metatkgr.models.common.translation import random_tables, translation_start
from metatkgr.models.metatkgr.adaptation import TaskBatch, adapt, loss_of
from metatkgr.models.metatkgr.curriculum import BackgroundPhase, MetaPhase, sampler_for
from metatkgr.models.metatkgr.encoder import ENCODER, TemporalEncoder, encode
from metatkgr.models.metatkgr.episodes import INNER, Adapter, EpisodePhase
from metatkgr.models.metatkgr.explain import LeaveOneOut
from metatkgr.models.metatkgr.links import initial_walk
from metatkgr.models.metatkgr.newcomers import initial
from metatkgr.models.metatkgr.settings import PRESETS, MetaTKGRSettings
from metatkgr.models.registry import register
from metatkgr.recent import Recent

__all__ = ["MetaTKGR"]

_CACHE_BYTES = 1 << 30
"""Candidates' encodings that are kept, for as many times as fit."""


@register
class MetaTKGR(TrainableModel[MetaTKGRSettings], Explains):
    r"""Learns how to sample and aggregate temporal neighbours, and adapts it to each new entity.

    .. math:: s(e, r, x, t) = -\lVert h_e(t; \phi_e) + h_r - h_x(t) \rVert^2,
              \qquad \phi_e = \phi - \eta \nabla_\phi L(\phi, S_e)

    With ``newcomers="adapted"``, who is not of the background has no vector of its own: what is
    adapted is made of its links (``newcomers.py``), and the encoder below is not used.
    """

    name = "metatkgr"
    settings_type = MetaTKGRSettings
    presets = PRESETS
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "outer_rate": (1e-3, 5e-2, "log"),
        "inner_rate": (1e-3, 0.3, "log"),
        "inner_steps": (1, 2, 3),
        "translation_rate": (1e-3, 2e-2, "log"),
        "translation_epochs": (10, 100, "log"),
        "batch_size": (64, 128, 256, 512),
        "negatives": (16, 32, 64, 128),
        "budget": (8, 16, 32),
        "sampler": ("bfs", "recent"),
        "message": ("residual", "gate"),
        "dropout": (0.0, 0.1, 0.3),
        "intervals": (1, 3, 5),
    }

    counted = frozenset({"has_row"})

    entity: Tensor
    """(E, d) table."""
    relation: Tensor
    """(R, d) table."""
    has_row: Tensor
    """(E,) bool, who has a row of the table; only where newcomers have none."""
    _trained: int | None = None
    """Entities that have a row from training; None: all."""

    def __init__(
        self, settings: MetaTKGRSettings | None = None, *, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(settings, device=device)
        self.encoder = TemporalEncoder(
            dimension=self.settings.dimension,
            layers=self.settings.layers,
            attention=self.settings.attention,
            message=self.settings.message,
            self_term=self.settings.self_term,
            dropout=self.settings.dropout,
        )

    @property
    def _adapts(self) -> bool:
        """Whether newcomers have no row."""
        return self.settings.newcomers == "adapted"

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Random tables (the translation stage fills them) and a random encoder."""
        tables = random_tables(entities, relations, self.settings.dimension, generator)
        if self._adapts:
            learned = initial(self.settings.inner_steps)
            if self.settings.hops:
                learned |= initial_walk(self.settings.hops)
            # A relation that the background does not know begins without a direction.
            tables["relation"].zero_()
            tables["has_row"] = torch.zeros(entities, dtype=torch.bool)
            self.set_weights(tables | {INNER + name: value for name, value in learned.items()})
            return
        layers = self.encoder.initial(generator)
        self.set_weights(tables | {ENCODER + name: value for name, value in layers.items()})

    def phases(self, problem: Problem) -> list[Phase]:
        """Translation, background, meta; the last is left out for the variant 'fine-tuning'."""
        settings, weights = self.settings, self.weights
        if self._adapts:
            self.has_row.zero_()
            self.has_row[torch.from_numpy(np.unique(problem.background.source))] = True
            start = translation_start(weights, problem.background, settings)
            episodes = EpisodePhase(weights, self.has_row, problem.train, settings)
            return [*start, *([] if settings.variant == "fine-tuning" else [episodes])]
        if settings.meta_train_known:
            known = problem.one_shot_later if settings.one_shot else problem.known
        else:
            known = problem.one_shot if settings.one_shot else problem.few_shot
        shared = (self.encoder, weights, problem.train, settings, self.device)
        stages: list[Phase] = [*translation_start(weights, known, settings)]
        if settings.background_epochs:
            stages.append(BackgroundPhase(*shared))
        if settings.variant != "fine-tuning":
            stages.append(MetaPhase(*shared))
        return stages

    def extend(self, entities: int, *, known: int, supports: Supports) -> None:
        """See :meth:`TrainableModel.extend`."""
        super().extend(entities, known=known, supports=supports)
        self._trained = known
        if self._adapts:
            later = self.has_row.new_zeros(entities - known)
            self.set_weights({"has_row": torch.cat([self.has_row[:known], later])})

    def prepare(self, visible: VisibleFacts) -> Self:
        """Index the public facts."""
        self.index_ = TemporalIndex.of(visible, device=self.device)
        return self

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports; parameters are adapted to them when queries are scored."""
        self.supports_ = supports
        if self._adapts:
            before = vars(self).get("adapter_")
            self.adapter_ = Adapter(
                self.weights, self.has_row, self.index_, supports, self.settings, before
            )
            return self
        self.sampler_ = sampler_for(self.index_, supports, self.settings)
        self.support_table_ = SupportTable(
            supports, entities=len(self.entity), negatives=self.settings.support_negatives
        )
        size = self.entity.numel() * self.entity.element_size()
        self._shared_candidates = Recent(self._encode_everyone, _CACHE_BYTES // size)
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) scores of all candidates, each query entity adapted to its own support."""
        scores = torch.empty(len(queries), len(self.entity), device=self.device)
        if len(queries) == 0:
            return scores
        if self._adapts:
            return self.adapter_.score(*self.columns(queries))
        batch, adapted = self._adapt_to(queries)
        vectors = encode(self.encoder, adapted, batch.query.roots)[..., 0, :]
        translations = relation_vectors(adapted["relation"], batch.query.relation)
        # The tasks come in the order of the entities, the queries of each in their own.
        translated = torch.empty(len(queries), vectors.shape[-1], device=self.device)
        order = np.argsort(queries.entity, kind="stable")
        translated[order] = (vectors + translations)[batch.query.mask]
        task = np.unique(queries.entity, return_inverse=True)[1]
        for time in np.unique(queries.time).tolist():
            rows = np.flatnonzero(queries.time == time)
            if self.settings.candidates == "shared":
                scores[rows] = score_all(translated[rows], self._shared_candidates(time))
                continue
            for row in rows.tolist():
                parameters = batch.write_back(self.weights, adapted, int(task[row]))
                exact = encode(self.encoder, parameters, self._everyone(time))
                scores[row] = score_all(translated[row : row + 1], exact)[0]
        if not self.settings.answers_itself:
            mask_query_entity(scores, torch.from_numpy(queries.entity).to(self.device))
        return scores

    @torch.no_grad()
    def reasons(self, queries: Queries, candidate: Tensor) -> list[list[Explanation]]:
        """The links without which each candidate would be less likely; see ``explain.py``."""
        result: list[list[Explanation]] = [[] for _ in range(len(queries))]
        if len(queries) == 0:
            return result
        if self._adapts:
            asked = zip(
                *(c.tolist() for c in self.columns(queries)), candidate.tolist(), strict=True
            )
            return [self.adapter_.reasons(*query) for query in asked]
        batch, adapted = self._adapt_to(queries)
        weights, exact = self.weights, self.settings.candidates == "exact"
        trained = len(self.entity) if self._trained is None else self._trained
        explainer = LeaveOneOut(
            self.encoder, self.settings, self.index_, self.supports_, self.sampler_, trained
        )
        entities, task = np.unique(queries.entity, return_inverse=True)
        for number, entity in enumerate(entities.tolist()):
            parameters = batch.write_back(weights, adapted, number)
            for time in np.unique(queries.time[task == number]).tolist():
                rows = np.flatnonzero((task == number) & (queries.time == time)).tolist()
                explanations = explainer.explanations(
                    entity,
                    time,
                    [(int(queries.relation[row]), int(candidate[row])) for row in rows],
                    parameters,
                    parameters if exact else weights,
                    encode(self.encoder, parameters, self._everyone(time))
                    if exact
                    else self._shared_candidates(time),
                )
                for row, about in zip(rows, explanations, strict=True):
                    result[row] = about
        return result

    def adapted(self, queries: Queries) -> dict[str, Tensor]:
        """The parameters of each query entity, in ascending order, after adaptation."""
        return self._adapt_to(queries)[1]

    def _adapt_to(self, queries: Queries) -> tuple[TaskBatch, dict[str, Tensor]]:
        """The T tasks of the query entities, ascending, and their parameters after adaptation."""
        # The query entity stands in for the answer, which nobody knows here.
        table = FactTable(queries.entity, queries.relation, queries.entity, queries.time)
        entity = table.entities()
        query_entity, relation, answer, time, mask = table.padded(entity)
        nothing = torch.zeros(*mask.shape, 0, dtype=torch.int64)
        query = PaddedFacts(query_entity, relation, answer, nothing, nothing.bool(), time, mask)
        batch = TaskBatch.build(
            self.support_table_.pick(entity).to(self.device),
            query.to(self.device),
            self.sampler_.sample,
            entities=len(self.entity),
            relations=len(self.relation),
            layers=self.settings.layers,
            own_in_support=self.settings.own_in_support,
        )
        adapted = adapt(
            self.encoder,
            self.weights,
            batch,
            loss_of(self.settings),
            learning_rate=self.settings.inner_rate,
            steps=self.settings.inner_steps,
            second_order=False,
        )
        return batch, adapted

    def _encode_everyone(self, time: int) -> Tensor:
        """(E, d) all entities at a time, with the parameters that all tasks share."""
        vectors: Tensor = self.encoder(self.entity, self.relation, self._everyone(time))
        return vectors

    def _everyone(self, time: int) -> Tree:
        """All entities as roots at a time; nobody sees a support before its time."""
        everyone = torch.arange(len(self.entity), device=self.device)
        times = torch.full_like(everyone, time)
        return grow(self.sampler_.sample, everyone, times, layers=self.settings.layers)
