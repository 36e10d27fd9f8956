"""MetaDyGNN: a temporal graph network adapted to each new entity, network first and node then."""

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
from metatkgr.graph.sampler import RecentSampler
from metatkgr.models.base import register
from metatkgr.models.baselines.metadygnn_adaptation import (
    SupportFacts,
    adapt,
    in_intervals,
    task_tree,
)
from metatkgr.models.baselines.metadygnn_training import MetaDyGNNPhase, MetaDyGNNSettings
from metatkgr.models.baselines.tgat import encode, initial_network, one_layer, shared
from metatkgr.models.common.few_shot import SupportTable
from metatkgr.models.common.neighbourhood import Hop, grow
from metatkgr.models.common.scores import mask_query_entity, relation_vectors, score_all
from metatkgr.models.common.translation import random_tables, translation_start
from metatkgr.models.trainable import Phase, TrainableModel

__all__ = ["MetaDyGNN", "SharedEncoder"]

_CACHE_BYTES = 1 << 30
"""Candidates' encodings that are kept, for as many moments as fit."""
_BLOCK = 1 << 13
"""Nodes that are encoded in one go with shared parameters."""
_QUESTIONS, _TASKS = 1024, 256
"""Questions and tasks in one go, each with parameters of its own."""


class SharedEncoder:
    """Any entity at any time, encoded with the parameters that all tasks share.

    The first layer of a neighbour depends on who it is and when the link was and on nothing else;
    it is computed once for all links.

    Args:
        weights: tables and ``encoder.*``.
        index: of all links.
        sampler: of neighbours, from that index.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], index: GraphIndex, sampler: RecentSampler
    ) -> None:
        self.weights, self.sampler, self.parameters = weights, sampler, shared(weights)
        self.steps, links = index.steps, index.by_time
        key = torch.unique(links.target.long() * links.steps + links.key % links.steps)
        # Never empty, so that there is something to look up where nothing was found.
        self.key = key if len(key) else key.new_zeros(1)
        self.first = torch.cat([self._first_layer(part) for part in self._blocks(self.key)])

    @staticmethod
    def _blocks(column: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.split(column, _BLOCK))

    def _first_layer(self, key: Tensor) -> Tensor:
        """The first layer of packed (entity, time) pairs."""
        # Always blocks of one size: the size of a matrix product may decide how it is rounded, and
        # no vector may depend on how many links there are elsewhere.
        padded = torch.cat([key, key.new_zeros(_BLOCK - len(key))])
        entity, time = padded // self.steps, padded % self.steps
        tree = grow(self.sampler.sample, entity, time)
        vectors = self._layer(1, self.weights["entity"][entity], tree.hops[0], tree.ages, None)
        return vectors[: len(key)]

    def _layer(
        self, number: int, node: Tensor, hop: Hop, ages: Tensor, neighbour: Tensor | None
    ) -> Tensor:
        if neighbour is None:
            neighbour = self.weights["entity"][hop.entity]
        alone = Hop(*(column.unsqueeze(0) for column in hop))
        vectors = one_layer(
            self.parameters,
            number,
            self.weights,
            node.unsqueeze(0),
            neighbour.unsqueeze(0),
            alone,
            ages,
        )
        return vectors.squeeze(0)

    def encode(self, entity: Tensor, time: Tensor) -> Tensor:
        """(n, d) vectors of (n,) entities at (n,) times; nobody sees a support before its time."""
        pairs = zip(self._blocks(entity), self._blocks(time), strict=True)
        return torch.cat([self._encode(*pair) for pair in pairs])

    def _encode(self, entity: Tensor, time: Tensor) -> Tensor:
        tree = grow(self.sampler.sample, entity, time)
        (hop,) = tree.hops
        node = self._layer(1, self.weights["entity"][entity], hop, tree.ages, None)
        then = time.unsqueeze(1) - tree.ages[hop.age].long()
        row = torch.searchsorted(self.key, hop.entity * self.steps + then)
        # Empty slots look for pairs that may not exist; what they find is masked.
        neighbour = self.first[row.clamp(max=len(self.key) - 1)]
        return self._layer(2, node, hop, tree.ages, neighbour)


@register
class MetaDyGNN(TrainableModel[MetaDyGNNSettings]):
    r"""MetaDyGNN: TGAT, adapted to the support of each new entity interval by interval.

    .. math:: s(e, r, x, t) = -\lVert f(e, t; \phi_e, h'_e) + h_r - f(x, t; \phi, h_x) \rVert^2

    with f the two layers of ``tgat`` over the 16 most recent neighbours, and the fast weights
    :math:`\phi_e, h'_e` of ``metadygnn_adaptation``. Where this differs from its authors' code:
    (1) theirs mixes the intervals' fast weights by the loss on the *queries*, whose answers nobody
    has when forecasting: a leak. Here it is the loss on the support; (2) edges have relations, and
    a translation scores instead of a network over two nodes; (3) the layers start as the identity
    and move a node only dimension by dimension, since full matrices learn meta-train by heart;
    (4) tables are initialised by TransE on old facts and supports and then stay; the node step
    moves the entity's own vector; (5) neighbours are the most recent ones, where theirs may draw;
    (6) intervals hold equally many support facts, since K facts of one day have no span to cut;
    (7) candidates are encoded with the shared parameters φ; (8) a softmax over the answers of a
    batch and a pool of wrong ones, where theirs decides about one wrong answer at a time.
    """

    name = "metadygnn"
    settings_type = MetaDyGNNSettings
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (1e-4, 3e-2, "log"),
        "inner_rate": (1e-3, 1e-1, "log"),
        "intervals": (1, 2, 3),
        "budget": (8, 16),
        "translation_epochs": (20, 40, 80),
    }

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Random tables (the translation stage fills them) and a network that moves nothing."""
        settings = self.settings
        d = settings.dimension
        tables = random_tables(entities, relations, d, generator)
        self.set_weights(
            tables | initial_network(d, settings.heads, settings.head_width, generator)
        )

    def phases(self, problem: Problem) -> list[Phase]:
        """TransE on what is known of new entities at first, then meta-training."""
        settings, weights = self.settings, self.weights
        known = problem.one_shot if settings.one_shot else problem.few_shot
        own = MetaDyGNNPhase(weights, problem.train, settings, self.device)
        return [*translation_start(weights, known, settings), own]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Index the public facts."""
        self.index_ = GraphIndex.of(visible, device=self.device)
        return self

    @torch.no_grad()
    def adapt(self, supports: Supports) -> Self:
        """Keep the supports; fast weights are made when an entity is first asked about."""
        entities = len(self.weights["entity"])
        self.sampler_ = RecentSampler(self.index_, supports, budget=self.settings.budget)
        self.shared_ = SharedEncoder(self.weights, self.index_, self.sampler_)
        self.supports_ = SupportTable(
            supports, entities=entities, negatives=self.settings.support_negatives
        )
        self._candidates: dict[int, Tensor] = {}
        new = np.unique(supports.entity)
        # Who is not new has nothing to adapt to, and shares the last row.
        self._row = np.full(entities, len(new))
        self._row[new] = np.arange(len(new))
        self._adapted = np.zeros(len(new) + 1, bool)
        self._adapted[-1] = True
        self._fast = {
            key: value.expand(len(new) + 1, *value.shape[1:]).clone()
            for key, value in shared(self.weights).items()
        }
        self._moved = self.weights["entity"].new_zeros(len(new) + 1, self.settings.dimension)
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) scores of all candidates, each asking entity with its own fast weights."""
        scores = torch.empty(len(queries), len(self.weights["entity"]), device=self.device)
        if len(queries) == 0:
            return scores
        points = self._points(queries)
        for moment in np.unique(queries.time):
            rows = torch.from_numpy(np.flatnonzero(queries.time == moment)).to(self.device)
            scores[rows] = score_all(points[rows], self._encoded(int(moment)))
        return mask_query_entity(scores, torch.from_numpy(queries.entity).to(self.device))

    def _points(self, queries: Queries) -> Tensor:
        """(Q, d) where each question's answer should be."""
        self._adapt_to(np.unique(queries.entity))
        points = []
        for begin in range(0, len(queries), _QUESTIONS):
            part = queries[begin : begin + _QUESTIONS]
            entity, relation, time = (
                torch.from_numpy(np.ascontiguousarray(column)).to(self.device)
                for column in (part.entity, part.relation, part.time)
            )
            row = torch.from_numpy(self._row[part.entity]).to(self.device)
            # Every question is a task with one root.
            fast = {key: value[row] for key, value in self._fast.items()}
            own = (self.weights["entity"][entity] + self._moved[row]).unsqueeze(1)
            tree = task_tree(self.sampler_.sample, entity.unsqueeze(1), time.unsqueeze(1), own=True)
            vector = encode(fast, self.weights, tree, own).squeeze(1)
            points.append(vector + relation_vectors(self.weights["relation"], relation))
        return torch.cat(points)

    def _adapt_to(self, entity: np.ndarray) -> None:
        """Make the fast weights of the entities that have none yet."""
        entity = entity[~self._adapted[self._row[entity]]]
        for begin in range(0, len(entity), _TASKS):
            part = entity[begin : begin + _TASKS]
            row = torch.from_numpy(self._row[part]).to(self.device)
            fast, moved = self._fast_weights(torch.from_numpy(part))
            for key, value in fast.items():
                self._fast[key][row] = value
            self._moved[row] = moved
        self._adapted[self._row[entity]] = True

    def _fast_weights(self, entity: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Fast weights of (T,) entities: the network's, and how far their own vectors moved."""
        support, intervals = in_intervals(self.supports_.pick(entity), self.settings.intervals)
        support = support.to(self.device)
        options = torch.cat([support.answer.unsqueeze(-1), support.negatives], -1)
        moments = support.time.unsqueeze(-1).expand_as(options)
        near = self.shared_.encode(options.reshape(-1), moments.reshape(-1))
        facts = SupportFacts(
            task_tree(self.sampler_.sample, support.entity, support.time, own=True),
            near.view(*options.shape, -1),
            relation_vectors(self.weights["relation"], support.relation),
            support.mask,
            support.negative_mask,
        )
        constant = {key: value.detach() for key, value in self.weights.items()}
        own = constant["entity"][entity.to(self.device)]
        fast, after = adapt(
            constant,
            own,
            facts,
            constant,
            intervals=intervals,
            learning_rate=self.settings.inner_rate,
            second_order=False,
        )
        return fast, after - own

    def _encoded(self, moment: int) -> Tensor:
        """(E, d) all entities at a moment, with the parameters that all tasks share."""
        if moment not in self._candidates:
            table = self.weights["entity"]
            size = table.numel() * table.element_size()
            while self._candidates and (len(self._candidates) + 1) * size > _CACHE_BYTES:
                del self._candidates[next(iter(self._candidates))]
            everyone = torch.arange(len(table), device=self.device)
            time = torch.full_like(everyone, moment)
            self._candidates[moment] = self.shared_.encode(everyone, time)
        return self._candidates[moment]
