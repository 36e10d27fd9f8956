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
from metatkgr.graph.index import GraphIndex
from metatkgr.models.base import Clue, Explains, register
from metatkgr.models.common.few_shot import PaddedFacts, SupportTable
from metatkgr.models.common.neighbourhood import Tree, grow
from metatkgr.models.common.scores import mask_query_entity, relation_vectors, score_all
from metatkgr.models.common.translation import random_tables, translation_start
from metatkgr.models.metatkgr.adaptation import adapt, encode_tasks, encoder_part
from metatkgr.models.metatkgr.curriculum import BackgroundPhase, MetaPhase, sampler_for
from metatkgr.models.metatkgr.encoder import encode, initial_encoder
from metatkgr.models.metatkgr.reasons import LeaveOneOut
from metatkgr.models.metatkgr.settings import PRESETS, MetaTKGRSettings
from metatkgr.models.metatkgr.task_batch import TaskBatch
from metatkgr.models.trainable import Phase, TrainableModel

__all__ = ["MetaTKGR"]

_CACHE_BYTES = 1 << 30
"""Candidates' encodings that are kept, for as many moments as fit."""


@register
class MetaTKGR(TrainableModel[MetaTKGRSettings], Explains):
    r"""Learns how to sample and aggregate temporal neighbours, and adapts it to each new entity.

    .. math:: s(e, r, x, t) = -\lVert h_e(t; \phi_e) + h_r - h_x(t) \rVert^2,
              \qquad \phi_e = \phi - \eta \nabla_\phi L(\phi, S_e)
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

    _trained: int | None = None
    """Entities that have a row from training; None: all."""

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Random tables (the translation stage fills them) and a random encoder."""
        d = self.settings.dimension
        tables = random_tables(entities, relations, d, generator)
        self.set_weights(tables | initial_encoder(self.settings.encoder, generator))

    def phases(self, problem: Problem) -> list[Phase]:
        """Translation, background, meta; the last is left out for the variant 'fine-tuning'."""
        settings, weights = self.settings, self.weights
        known = problem.one_shot if settings.one_shot else problem.few_shot
        stages: list[Phase] = [*translation_start(weights, known, settings)]
        if settings.background_epochs:
            stages.append(BackgroundPhase(weights, problem.train, settings, self.device))
        if settings.variant != "fine-tuning":
            stages.append(MetaPhase(weights, problem.train, settings, self.device))
        return stages

    def extend(self, entities: int, *, known: int, supports: Supports) -> None:
        """See :meth:`TrainableModel.extend`."""
        super().extend(entities, known=known, supports=supports)
        self._trained = known

    def prepare(self, visible: VisibleFacts) -> Self:
        """Index the public facts."""
        return self.read(GraphIndex.of(visible, device=self.device))

    def read(self, index: GraphIndex) -> Self:
        """Take the public facts as an index that is there already, perhaps a mapped one."""
        self.index_ = index
        self._candidates: dict[int, Tensor] = {}
        return self

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports; parameters are adapted to them when an entity is asked about."""
        self._given = supports
        self.sampler_ = sampler_for(self.index_, supports, self.settings)
        self.supports_ = SupportTable(
            supports,
            entities=len(self.weights["entity"]),
            negatives=self.settings.support_negatives,
        )
        self._candidates = {}
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) scores of all candidates, each entity adapted to its own support."""
        entities = len(self.weights["entity"])
        scores = torch.empty(len(queries), entities, device=self.device)
        if len(queries) == 0:
            return scores
        asked, batch, adapted, task = self._asked(queries)
        for moment in np.unique(queries.time):
            rows = torch.from_numpy(np.flatnonzero(queries.time == moment)).to(self.device)
            if self.settings.candidates == "shared":
                scores[rows] = score_all(asked[rows], self._encoded(int(moment)))
            else:
                for row in rows.tolist():
                    own = {key: value[task[row]] for key, value in adapted.items()}
                    mine = self._own_parameters(own, batch, int(task[row]))
                    exact = encode(mine, self.settings.encoder, self._tree(int(moment)))
                    scores[row] = score_all(asked[row : row + 1], exact)[0]
        if not self.settings.answers_itself:
            mask_query_entity(scores, torch.from_numpy(queries.entity).to(self.device))
        return scores

    def _asked(self, queries: Queries) -> tuple[Tensor, TaskBatch, dict[str, Tensor], Tensor]:
        """(Q, d) where the answers should be; the tasks, adapted, and (Q,) each question's task."""
        entity, column = np.unique(queries.entity, return_inverse=True)
        batch, place = self._batch(queries, entity, column)
        adapted = self._adapted(batch)
        vectors = encode_tasks(adapted, self.settings.encoder, batch.query.roots)[..., 0, :]
        task = torch.from_numpy(column).to(self.device)
        translations = relation_vectors(adapted["relation"], batch.query.relation)
        return (vectors + translations)[task, place], batch, adapted, task

    @torch.no_grad()
    def points(self, queries: Queries) -> Tensor:
        """(Q, d) h_e(t; φ_e) + h_r of questions: where their answers should be."""
        return self._asked(queries)[0]

    @torch.no_grad()
    def reasons(self, queries: Queries, candidate: Tensor) -> list[list[Clue]]:
        """The links without which each candidate would be less likely; see ``reasons.py``."""
        if len(queries) == 0:
            return []
        entity, column = np.unique(queries.entity, return_inverse=True)
        batch, _ = self._batch(queries, entity, column)
        adapted = self._adapted(batch)
        trained = len(self.weights["entity"]) if self._trained is None else self._trained
        explainer = LeaveOneOut(self.settings, self.index_, self._given, self.sampler_, trained)
        result: list[list[Clue]] = [[] for _ in range(len(queries))]
        relation, answer = queries.relation.tolist(), candidate.tolist()
        for task, who in enumerate(entity.tolist()):
            own = self._own_parameters({k: v[task] for k, v in adapted.items()}, batch, task)
            exact = self.settings.candidates == "exact"
            for moment in np.unique(queries.time[column == task]).tolist():
                rows = np.flatnonzero((column == task) & (queries.time == moment)).tolist()
                if exact:
                    everyone = encode(own, self.settings.encoder, self._tree(moment))
                else:
                    everyone = self._encoded(moment)
                found = explainer.clues(
                    who,
                    moment,
                    [(relation[row], answer[row]) for row in rows],
                    own,
                    own if exact else self.weights,
                    everyone,
                )
                for row, clues in zip(rows, found, strict=True):
                    result[row] = clues
        return result

    def adapted(self, queries: Queries) -> dict[str, Tensor]:
        """The parameters of each asking entity, in ascending order, after adaptation."""
        entity, column = np.unique(queries.entity, return_inverse=True)
        return self._adapted(self._batch(queries, entity, column)[0])

    def _adapted(self, batch: TaskBatch) -> dict[str, Tensor]:
        """The parameters of each task, after the gradient steps on its support."""
        return adapt(
            self.weights,
            batch.rows(self.weights),
            batch.support,
            self.settings.encoder,
            self.settings.ranking,
            learning_rate=self.settings.inner_rate,
            steps=self.settings.inner_steps,
            second_order=False,
            support_rows=batch.support_rows,
        )

    def _batch(
        self, queries: Queries, entity: np.ndarray, column: np.ndarray
    ) -> tuple[TaskBatch, Tensor]:
        """The supports of T entities and their questions, padded; and each question's place."""
        order = np.argsort(column, kind="stable")
        start = np.searchsorted(column[order], np.arange(len(entity)))
        place = np.empty(len(column), np.int64)
        place[order] = np.arange(len(column)) - start[column[order]]
        shape = (len(entity), int(place.max()) + 1)
        padded = [np.zeros(shape, np.int64) for _ in range(3)]
        for target, values in zip(
            padded, (queries.entity, queries.relation, queries.time), strict=True
        ):
            target[column, place] = values
        mask = np.zeros(shape, bool)
        mask[column, place] = True
        who, relation, time = (torch.from_numpy(p).to(self.device) for p in padded)
        there = torch.from_numpy(mask).to(self.device)
        nothing = torch.zeros(*shape, 0, dtype=torch.int64, device=self.device)
        # The asking entity stands in for the answer, which nobody knows here.
        query = PaddedFacts(who, relation, who, nothing, nothing.bool(), time, there)
        support = self.supports_.pick(torch.from_numpy(entity))
        batch = TaskBatch.build(
            support.to(self.device),
            query,
            self.sampler_.sample,
            entities=len(self.weights["entity"]),
            relations=len(self.weights["relation"]),
            layers=self.settings.layers,
            own_in_support=self.settings.own_in_support,
        )
        return batch, torch.from_numpy(place).to(self.device)

    def _encoded(self, moment: int) -> Tensor:
        """(E, d) all entities at a moment, with the parameters that all tasks share."""
        if moment not in self._candidates:
            size = self.weights["entity"].numel() * self.weights["entity"].element_size()
            while self._candidates and (len(self._candidates) + 1) * size > _CACHE_BYTES:
                del self._candidates[next(iter(self._candidates))]
            tree = self._tree(moment)
            self._candidates[moment] = encode(self.weights, self.settings.encoder, tree)
        return self._candidates[moment]

    def _own_parameters(
        self, own: dict[str, Tensor], batch: TaskBatch, task: int
    ) -> dict[str, Tensor]:
        """One task's own parameters, its rows written into the whole tables."""
        tables = {name: self.weights[name].clone() for name in ("entity", "relation")}
        for name, ids, mask in (
            ("entity", batch.entity_ids, batch.entity_mask),
            ("relation", batch.relation_ids, batch.relation_mask),
        ):
            used = mask[task]
            tables[name][ids[task][used]] = own[name][used]
        return encoder_part(own) | tables

    def _tree(self, moment: int) -> Tree:
        """All entities as roots at a moment; nobody sees a support before its time."""
        everyone = torch.arange(len(self.weights["entity"]), device=self.device)
        time = torch.full_like(everyone, moment)
        return grow(self.sampler_.sample, everyone, time, layers=self.settings.layers)
