"""Settings of MetaDyGNN, and how it is meta-trained to adapt well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.tasks import Tasks
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.negatives import NegativeKind, Negatives
from metatkgr.graph.sampler import RecentSampler
from metatkgr.models.baselines.metadygnn_adaptation import (
    SupportFacts,
    adapt,
    in_intervals,
    part_of_tree,
    task_tree,
)
from metatkgr.models.baselines.tgat import encode, shared
from metatkgr.models.common.few_shot import SupportTable
from metatkgr.models.common.scores import relation_vectors, score_all
from metatkgr.models.trainable import WHOLE, Loss, Part
from metatkgr.settings import Amount, Count, Rate, Settings, Weight

__all__ = ["MetaDyGNNPhase", "MetaDyGNNSettings"]


@dataclass(frozen=True)
class MetaDyGNNSettings(Settings):
    """Settings of MetaDyGNN."""

    dimension: Count = 128
    """d, the length of every vector."""
    heads: Count = 2
    """Attention heads."""
    head_width: Count = 16
    """Length of one head's queries and keys."""
    budget: Count = 16
    """Most recent neighbours that each layer reads."""
    intervals: Count = 3
    """M, the intervals of a support; no more than it has facts."""
    inner_rate: Weight = 0.025
    """η of both steps."""
    second_order: bool = True
    """Whether the outer gradient goes through the inner ones."""
    support_negatives: Count = 4
    """Wrong answers for each support fact; any entity, drawn by a fixed rule."""
    negatives: Count = 512
    """Wrong answers that all queries of a batch share, besides each other's answers."""
    negative_kind: NegativeKind = "mixed"
    """Where they come from: 'uniform', 'place' (of the relation) or 'mixed'."""
    one_shot: bool = False
    """Whether TransE, which initialises the tables, sees one fact of each support or all K."""
    translation_epochs: Amount = 40
    """Epochs of TransE."""
    translation_steps: Amount = 5000
    """Steps of that stage, after which the epoch is its last; 0: no bound. A large graph has
    settled after a few epochs, and the vectors of new entities fit their few facts too closely
    after more."""
    translation_rate: Rate = 0.005
    """Learning rate of that stage."""
    learn_tables: bool = False
    """Whether meta-training moves the tables too; they learn meta-train queries by heart."""
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


class MetaDyGNNPhase:
    """Meta-training: adapt to each support, be judged on queries of the same entity.

    Args:
        weights: of the model.
        tasks: meta-train tasks.
        settings: of the model.
        device: where to compute.
    """

    name = "meta"

    def __init__(
        self,
        weights: dict[str, nn.Parameter],
        tasks: Tasks,
        settings: MetaDyGNNSettings,
        device: torch.device,
    ) -> None:
        self.weights, self.settings, self.device = weights, settings, device
        self.epochs, self.learning_rate = settings.epochs, settings.learning_rate
        self.patience, self.validate_every = settings.patience, settings.validate_every
        self.supports = SupportTable(
            tasks.supports,
            entities=len(tasks.facts.entities),
            negatives=settings.support_negatives,
        )
        index = GraphIndex.of(tasks.visible, device=device)
        self.sampler = RecentSampler(index, tasks.supports, budget=settings.budget)
        self.negatives = Negatives(tasks.visible, settings.negative_kind)
        asked, question = tasks.questions, tasks.answers.question
        columns = (asked.entity[question], asked.relation[question], tasks.answers.answer)
        rows = np.stack([*columns, asked.time[question]], axis=1)
        self.queries = torch.from_numpy(rows[np.argsort(rows[:, 0], kind="stable")])

    def parameters(self) -> list[nn.Parameter]:
        """The network; the tables too if they are to be learned."""
        learns = self.settings.learn_tables
        # By name: a checkpoint numbers them, and weights read from a file may come in any order.
        names = sorted(self.weights)
        return [self.weights[k] for k in names if learns or k.startswith("encoder.")]

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(T,) entities in random order."""
        entities = torch.unique(self.queries[:, 0])
        shuffled = entities[torch.randperm(len(entities), generator=generator)]
        yield from torch.split(shuffled, self.settings.batch_size)

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy of the answers among all answers and the pool of wrong ones."""
        settings = self.settings
        # What is not learned needs no gradient, least of all one of the size of a table.
        weights = {
            key: value if settings.learn_tables or key.startswith("encoder.") else value.detach()
            for key, value in self.weights.items()
        }
        query, pool = self._draw(batch, generator)  # (T, F, 4), (P, 2)
        mine = part.of(len(batch))
        support, intervals = in_intervals(self.supports.pick(batch[mine]), settings.intervals)
        support = support.to(self.device)
        query, pool = query.to(self.device), pool.to(self.device)
        who, relation, _, time = query[mine].unbind(-1)

        # One look for all candidates, the supports' and the queries', with shared parameters.
        options = torch.cat([support.answer.unsqueeze(-1), support.negatives], -1)
        moments = support.time.unsqueeze(-1).expand_as(options)
        answers = query[..., 2:].reshape(-1, 2)
        entity = torch.cat([options.reshape(-1), answers[:, 0], pool[:, 0]])
        moment = torch.cat([moments.reshape(-1), answers[:, 1], pool[:, 1]])
        tree = task_tree(self.sampler.sample, entity.unsqueeze(0), moment.unsqueeze(0), own=False)
        vectors = encode(shared(weights), weights, tree, weights["entity"][tree.entity]).squeeze(0)
        near, candidates = torch.split(vectors, [options.numel(), len(vectors) - options.numel()])

        roots = torch.cat([support.entity, who], 1), torch.cat([support.time, time], 1)
        tree = task_tree(self.sampler.sample, *roots, own=True)
        width = support.mask.shape[1]
        facts = SupportFacts(
            part_of_tree(tree, slice(0, width)),
            near.view(*options.shape, -1),
            relation_vectors(weights["relation"], support.relation),
            support.mask,
            support.negative_mask,
        )
        own = weights["entity"][who[:, 0]]
        fast, own = adapt(
            weights,
            own,
            facts,
            weights,
            intervals=intervals,
            learning_rate=settings.inner_rate,
            second_order=settings.second_order,
        )
        start = own.unsqueeze(1).expand(-1, who.shape[1], -1)
        vector = encode(fast, weights, part_of_tree(tree, slice(width, None)), start)
        points = (vector + relation_vectors(weights["relation"], relation)).flatten(0, 1)
        scores = score_all(points, candidates)
        column = torch.arange(query.shape[0] * query.shape[1], device=self.device)
        column = column.view(query.shape[:2])[mine].reshape(-1)
        everyone = entity[options.numel() :]
        # The answer under another number, or at another time, is no wrong answer.
        again = everyone == everyone[column].unsqueeze(1)
        again = again.scatter(1, column.unsqueeze(1), False)
        scores = scores.masked_fill(again, torch.finfo(scores.dtype).min / 2)
        total = functional.cross_entropy(scores, column, reduction="sum")
        return Loss(total / max(len(column), 1), {}, part.share(len(batch)))

    def _draw(self, batch: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(T, F, 4) queries of each task, and (P, 2) entities with times at which some are."""
        owner = self.queries[:, 0].contiguous()
        first = torch.searchsorted(owner, batch).unsqueeze(1)
        count = torch.searchsorted(owner, batch, right=True).unsqueeze(1) - first
        chance = torch.rand(len(batch), self.settings.queries_per_task, generator=generator)
        query = self.queries[first + (chance * count).long().clamp(max=count - 1)]
        flat = query.reshape(-1, 4)
        like = flat[torch.randint(len(flat), (self.settings.negatives,), generator=generator)]
        wrong = self.negatives.draw(like[:, 1], 1, generator)
        return query, torch.stack([wrong.squeeze(1), like[:, 3]], 1)
