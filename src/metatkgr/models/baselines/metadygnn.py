r"""MetaDyGNN: a temporal graph network adapted to each new entity, network first and node then.

The support of an entity e, in time order, is cut into M intervals of as many facts each. From what
is shared by all, the network φ and e's own vector :math:`h_e`, each interval m makes fast weights
in two steps, and these are mixed by how well they explain the whole support S:

.. math::
    \phi_m &= \phi - \eta \nabla_\phi L(S_m; \phi, h_e)            & \text{(network)} \\
    h_m    &= h_e - \eta \nabla_{h_e} L(S_m; \phi_m, h_e)          & \text{(node)} \\
    w      &= \mathrm{softmax}_m(-L(S; \phi_m, h_m)), \quad
    \phi_e = \sum_m w_m \phi_m, \quad h'_e = \sum_m w_m h_m

Fast weights encode e. Its answers and wrong answers are encoded with φ, in training as when they
are ranked: one encoding of a candidate then serves all queries of a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import RecentSampler
from metatkgr.models.base import WHOLE, Loss, ModelPhase, Part, Phase, TrainableModel
from metatkgr.models.common.few_shot import (
    FactTable,
    FewShotSettings,
    Negatives,
    SupportTable,
    inner_step,
)
from metatkgr.models.common.scores import (
    mask_query_entity,
    relation_vectors,
    score_all,
)
from metatkgr.models.common.tgat import (
    SharedEncoder,
    SupportFacts,
    encode,
    initial_network,
    shared,
    support_loss,
    task_tree,
)
from metatkgr.models.common.translation import random_tables, translation_start
from metatkgr.models.registry import register
from metatkgr.recent import Recent
from metatkgr.settings import Amount, Count, Range, Rate, Sample, Weight

__all__ = ["MetaDyGNN", "MetaDyGNNPhase", "MetaDyGNNSettings"]

_CACHE_BYTES = 1 << 30
"""Candidates' encodings that are kept, for as many times as fit."""
_QUERIES, _TASKS = 1024, 256
"""Queries and tasks in one go, each with parameters of its own."""


@dataclass(frozen=True)
class MetaDyGNNSettings(FewShotSettings):
    """Settings of MetaDyGNN."""

    heads: Count = 2
    """Attention heads."""
    head_width: Count = 16
    """Length of one head's queries and keys."""
    budget: Annotated[int, Range(1, 64)] = 16
    """Most recent neighbours that each layer reads."""
    intervals: Count = 3
    """M, the intervals of a support; no more than it has facts."""
    inner_rate: Weight = 0.025
    """η of both steps."""
    second_order: bool = True
    """Whether the outer gradient goes through the inner ones."""
    support_negatives: Sample = 4
    """Wrong answers for each support fact; any entity, drawn by a fixed rule."""
    negatives: Count = 512
    """Wrong answers that all queries of a batch share, besides each other's answers."""
    epochs: Count = 20
    """Epochs of meta-training."""
    batch_size: Count = 128
    """Tasks in a batch."""
    queries_per_task: Count = 4
    """Queries of a task in a batch, drawn anew each time."""
    learning_rate: Rate = 0.01
    """Of meta-training."""
    patience: Amount = 4
    """Validations without a better MRR before meta-training stops."""
    validate_every: Count = 1
    """Epochs between validations."""


def adapt(
    weights: Mapping[str, Tensor],
    own: Tensor,
    support: SupportFacts,
    *,
    intervals: int,
    learning_rate: float,
    second_order: bool = True,
) -> tuple[dict[str, Tensor], Tensor]:
    """Fast weights of T tasks.

    Args:
        weights: ``encoder.*``, shared; ``entity`` (E, d) and ``relation`` (R, d).
        own: (T, d) the entities' own vectors.
        support: their facts, (T, F).
        intervals: M; divides F.
        learning_rate: η.
        second_order: whether the result keeps the gradients' own derivatives.

    Returns:
        ``encoder.*`` with a task axis, and (T, d) own vectors.
    """
    tasks = len(support.mask)
    step = partial(inner_step, learning_rate=learning_rate, second_order=second_order)
    # Every interval of every task is a task of its own, T M of them.
    pieces = support.each(lambda x: x.reshape(tasks * intervals, -1, *x.shape[2:]))
    fast = {
        key: value.expand(tasks * intervals, *value.shape[1:])
        for key, value in shared(weights).items()
    }
    start = own.repeat_interleave(intervals, 0)
    fast = step(fast, lambda values: support_loss(values, start, pieces, weights))
    if not start.requires_grad:
        # What the node step takes from the network must be derived also where tables are fixed.
        start = start.detach().requires_grad_()
    node = step({"own": start}, lambda value: support_loss(fast, value["own"], pieces, weights))
    repeated = support.each(lambda x: x.repeat_interleave(intervals, 0))
    explained = support_loss(fast, node["own"], repeated, weights).view(tasks, intervals)
    there = pieces.mask.any(1).view(tasks, intervals)
    # Of a task without any fact all intervals count alike; nothing has moved in them.
    there = there | ~there.any(1, keepdim=True)
    lowest = torch.finfo(explained.dtype).min / 2
    share = torch.softmax((-explained).masked_fill(~there, lowest), 1)

    def mixed(value: Tensor) -> Tensor:
        each = value.view(tasks, intervals, -1)
        return (share.unsqueeze(1) @ each).reshape(tasks, *value.shape[1:])

    return {key: mixed(value) for key, value in fast.items()}, mixed(node["own"])


@register
class MetaDyGNN(TrainableModel[MetaDyGNNSettings]):
    r"""MetaDyGNN: TGAT, adapted to the support of each new entity interval by interval.

    .. math:: s(e, r, x, t) = -\lVert f(e, t; \phi_e, h'_e) + h_r - f(x, t; \phi, h_x) \rVert^2

    with f the two layers of ``common.tgat`` over the 16 most recent neighbours, and the fast
    weights :math:`\phi_e, h'_e` of above. Where this differs from its authors' code:
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

    entity: nn.Parameter
    """(E, d)."""
    relation: nn.Parameter
    """(R, d)."""

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Random tables (the translation stage fills them) and a network that moves nothing."""
        settings = self.settings
        d = settings.dimension
        tables = random_tables(entities, relations, d, generator)
        network = initial_network(d, settings.heads, settings.head_width, generator)
        self.set_weights(tables | network)

    def phases(self, problem: Problem) -> list[Phase]:
        """TransE on what is known of new entities at first, then meta-training."""
        settings, weights = self.settings, self.weights
        known = problem.one_shot if settings.one_shot else problem.few_shot
        return [*translation_start(weights, known, settings), MetaDyGNNPhase(self, problem.train)]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Index the public facts."""
        self.index_ = TemporalIndex.of(visible, device=self.device)
        return self

    @torch.no_grad()
    def adapt(self, supports: Supports) -> Self:
        """Keep the supports; fast weights are made at the first query about an entity."""
        entities, weights = len(self.entity), self.weights
        self.sampler_ = RecentSampler(self.index_, supports, budget=self.settings.budget)
        self.shared_ = SharedEncoder(weights, self.index_, self.sampler_)
        self.supports_ = SupportTable(
            supports, entities=entities, negatives=self.settings.support_negatives
        )
        size = self.entity.numel() * self.entity.element_size()
        self._encoded = Recent(self._encode_all, _CACHE_BYTES // max(size, 1))
        new = np.unique(supports.entity)
        # Who is not new has nothing to adapt to, and shares the last row.
        self._row = np.full(entities, len(new))
        self._row[new] = np.arange(len(new))
        self._adapted = np.zeros(len(new) + 1, bool)
        self._adapted[-1] = True
        self._fast = {
            key: value.expand(len(new) + 1, *value.shape[1:]).clone()
            for key, value in shared(weights).items()
        }
        self._moved = self.entity.new_zeros(len(new) + 1, self.settings.dimension)
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) scores of all candidates, each query entity with its own fast weights."""
        scores = torch.empty(len(queries), len(self.entity), device=self.device)
        if len(queries) == 0:
            return scores
        points = self._points(queries)
        for t in np.unique(queries.time):
            rows = torch.from_numpy(np.flatnonzero(queries.time == t)).to(self.device)
            scores[rows] = score_all(points[rows], self._encoded(int(t)))
        return mask_query_entity(scores, torch.from_numpy(queries.entity).to(self.device))

    def _points(self, queries: Queries) -> Tensor:
        """(Q, d) where each query's answer should be."""
        self._adapt_to(np.unique(queries.entity))
        points, weights = [], self.weights
        for begin in range(0, len(queries), _QUERIES):
            part = queries[begin : begin + _QUERIES]
            entity, relation, time = self.columns(part)
            row = torch.from_numpy(self._row[part.entity]).to(self.device)
            # Every query is a task with one root.
            fast = {key: value[row] for key, value in self._fast.items()}
            own = (self.entity[entity] + self._moved[row]).unsqueeze(1)
            tree = task_tree(self.sampler_.sample, entity.unsqueeze(1), time.unsqueeze(1), own=True)
            vector = encode(fast, weights, tree, own).squeeze(1)
            points.append(vector + relation_vectors(self.relation, relation))
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
        support, intervals = self.supports_.pick(entity).in_intervals(self.settings.intervals)
        support = support.to(self.device)
        tree = task_tree(self.sampler_.sample, support.entity, support.time, own=True)
        near = self.shared_.encode(*support.options())
        facts = SupportFacts.of(support, tree, near, self.relation)
        constant = {key: value.detach() for key, value in self.weights.items()}
        own = constant["entity"][entity.to(self.device)]
        rate = self.settings.inner_rate
        fast, after = adapt(
            constant, own, facts, intervals=intervals, learning_rate=rate, second_order=False
        )
        return fast, after - own

    def _encode_all(self, t: int) -> Tensor:
        """(E, d) all entities at a time, with the parameters that all tasks share."""
        everyone = torch.arange(len(self.entity), device=self.device)
        return self.shared_.encode(everyone, torch.full_like(everyone, t))


class MetaDyGNNPhase(ModelPhase[MetaDyGNN]):
    """Meta-training: adapt to each support, be judged on queries of the same entity.

    Args:
        model: whose network is learned.
        tasks: meta-train tasks.
    """

    name = "meta"

    def __init__(self, model: MetaDyGNN, tasks: Tasks) -> None:
        super().__init__(model)
        settings, entities = model.settings, len(tasks.facts.entities)
        self.supports = SupportTable(
            tasks.supports, entities=entities, negatives=settings.support_negatives
        )
        index = TemporalIndex.of(tasks.visible, device=model.device)
        self.sampler = RecentSampler(index, tasks.supports, budget=settings.budget)
        self.negatives = Negatives(tasks.visible, settings.negative_kind)
        queries = tasks.questions[tasks.answers.question]
        self.queries = FactTable(
            queries.entity, queries.relation, tasks.answers.answer, queries.time
        )

    def learns(self, name: str) -> bool:
        """The network; the tables too if they are to be learned."""
        return self.model.settings.learn_tables or name.startswith("encoder.")

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(T,) entities in random order."""
        entities = self.queries.entities()
        shuffled = entities[torch.randperm(len(entities), generator=generator)]
        yield from torch.split(shuffled, self.model.settings.batch_size)

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy of the answers among all answers and the pool of wrong ones."""
        settings, device = self.model.settings, self.model.device
        weights = self.weights()
        query, pool = self._draw(batch, generator)  # (T, F, 4), (P, 2)
        own_rows = part.of(len(batch))
        support, intervals = self.supports.pick(batch[own_rows]).in_intervals(settings.intervals)
        support, query, pool = support.to(device), query.to(device), pool.to(device)
        who, relation, _, time = query[own_rows].unbind(-1)

        # One look for all candidates, the supports' and the queries', with shared parameters.
        options, times = support.options()
        answers = torch.cat([query[..., 2:].reshape(-1, 2), pool])
        entity = torch.cat([options, answers[:, 0]]).unsqueeze(0)
        tree = task_tree(
            self.sampler.sample, entity, torch.cat([times, answers[:, 1]]).unsqueeze(0), own=False
        )
        vectors = encode(shared(weights), weights, tree, weights["entity"][tree.entity]).squeeze(0)
        near, candidates = torch.split(vectors, [len(options), len(answers)])

        roots = torch.cat([support.entity, who], 1), torch.cat([support.time, time], 1)
        tree = task_tree(self.sampler.sample, *roots, own=True)
        width = support.mask.shape[1]
        roots_of_support = tree.each(lambda column: column[:, :width])
        facts = SupportFacts.of(support, roots_of_support, near, weights["relation"])
        own, rate, exact = weights["entity"][who[:, 0]], settings.inner_rate, settings.second_order
        fast, own = adapt(
            weights, own, facts, intervals=intervals, learning_rate=rate, second_order=exact
        )
        start = own.unsqueeze(1).expand(-1, who.shape[1], -1)
        vector = encode(fast, weights, tree.each(lambda column: column[:, width:]), start)
        points = (vector + relation_vectors(weights["relation"], relation)).flatten(0, 1)
        scores = score_all(points, candidates)
        column = torch.arange(query.shape[0] * query.shape[1], device=device)
        column = column.view(query.shape[:2])[own_rows].reshape(-1)
        everyone = answers[:, 0]
        # The answer under another number, or at another time, is no wrong answer.
        again = everyone == everyone[column].unsqueeze(1)
        again = again.scatter(1, column.unsqueeze(1), False)
        scores = scores.masked_fill(again, torch.finfo(scores.dtype).min / 2)
        total = functional.cross_entropy(scores, column, reduction="sum")
        return Loss(total / max(len(column), 1), {}, part.share(len(batch)))

    def _draw(self, batch: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(T, F, 4) queries of each task, and (P, 2) entities with times at which some are."""
        settings = self.model.settings
        count = self.queries.counts(batch).unsqueeze(1)
        chance = torch.rand(len(batch), settings.queries_per_task, generator=generator)
        ordinal = (chance * count).long().clamp(max=count - 1)
        picked = self.queries.pick(batch, ordinal, torch.ones_like(ordinal, dtype=torch.bool))
        query = torch.stack(picked, -1)
        flat = query.reshape(-1, 4)
        like = flat[torch.randint(len(flat), (settings.negatives,), generator=generator)]
        wrong = self.negatives.draw(like[:, 1], 1, generator)
        return query, torch.stack([wrong.squeeze(1), like[:, 3]], 1)
