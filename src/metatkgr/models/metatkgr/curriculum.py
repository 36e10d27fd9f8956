"""The stages of training: the encoder on old entities, then meta-training from near to far."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Supports
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import Sampler, create_sampler
from metatkgr.models.base import WHOLE, Loss, Part, dropout_seed
from metatkgr.models.common.few_shot import FactTable, Negatives, PaddedFacts, SupportTable
from metatkgr.models.common.neighbourhood import Tree, grow
from metatkgr.models.common.scores import relation_vectors, translation_score
from metatkgr.models.metatkgr.adaptation import TaskBatch, adapt, loss_of, task_loss
from metatkgr.models.metatkgr.encoder import TemporalEncoder, encoder_part
from metatkgr.models.metatkgr.pac_bayes import freeze, outer_loss
from metatkgr.models.metatkgr.settings import MetaTKGRSettings

__all__ = ["BackgroundPhase", "MetaPhase", "sampler_for"]

Batch = TypeVar("Batch")
Ready = TypeVar("Ready")
_NEIGHBOURS_TOGETHER = 1 << 20
"""Slots for neighbours that are filled for several batches at once; bounds memory."""


def sampler_for(index: TemporalIndex, supports: Supports, settings: MetaTKGRSettings) -> Sampler:
    """The neighbour sampler that the settings ask for."""
    return create_sampler(
        settings.sampler,
        index,
        supports,
        budget=settings.budget,
        window=settings.window or None,
        generator=torch.Generator(index.device).manual_seed(0),
    )


@dataclass(eq=False)
class _SamplingPhase(Generic[Batch, Ready]):
    """What both stages read: the encoder, the public facts around any root, wrong answers.

    What batches need besides the weights is made for a group of batches at once. Which neighbours a
    root has does not depend on what is learned, so the roots of many small batches can be sampled
    together. On a GPU that is most of a small step's time: breadth-first search takes up to b
    rounds, each of some fifty kernels, whether it serves twenty tasks or a thousand. A group is
    made ready when its first batch is read.

    What is drawn for a batch is drawn in the order of the batches, so that the outcome does not
    depend on the size of the groups.
    """

    encoder: TemporalEncoder
    """The layers."""
    weights: Mapping[str, nn.Parameter]
    """Of the model; tables that are not learned need no gradient."""
    tasks: Tasks
    """Those of meta-train."""
    settings: MetaTKGRSettings
    """Of the model."""
    device: torch.device
    """Where to compute."""

    def __post_init__(self) -> None:
        self.ranking_loss = loss_of(self.settings)
        index = TemporalIndex.of(self.tasks.visible, device=self.device)
        self.sampler = sampler_for(index, self.tasks.supports, self.settings)
        self.negatives = Negatives(self.tasks.visible, self.settings.negative_kind)
        neighbours: int = self._roots() * self.settings.budget**self.settings.layers
        self.together = max(_NEIGHBOURS_TOGETHER // neighbours, 1)
        self._group: list[Batch] = []
        self._made: dict[int, tuple[Part, Ready]] = {}

    @abstractmethod
    def _roots(self) -> int:
        """How many roots a batch has, at most."""

    @abstractmethod
    def _prepare(
        self, batches: Sequence[Batch], generator: torch.Generator, part: Part
    ) -> Sequence[Ready]:
        """What each of some batches needs, of the part of them that this process computes."""

    def begin_epoch(self, generator: torch.Generator) -> None:
        """What the sampler draws follows from where the epoch began, also after a stop."""
        if self.sampler.generator is not None:
            state = generator.get_state().numpy().tobytes()
            self.sampler.generator.manual_seed(zlib.crc32(state))

    def grouped(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """The batches, one after another; those of a group will be made ready together."""
        for start in range(0, len(batches), self.together):
            self._group, self._made = list(batches[start : start + self.together]), {}
            yield from self._group
        self._group, self._made = [], {}

    def ready(self, batch: Batch, generator: torch.Generator, part: Part) -> Ready:
        """What a batch needs; with it, that of those which follow in its group is made.

        A batch is made ready anew each time it is read, also one that is of no group.
        """
        # By identity: batches may be tensors, which compare element by element.
        matches = (number for number, other in enumerate(self._group) if other is batch)
        number = next(matches, None)
        if number is None:
            return self._prepare([batch], generator, part)[0]
        prepared = self._made.pop(number, None)
        if prepared is not None and prepared[0] == part:
            return prepared[1]
        made = self._prepare(self._group[number:], generator, part)
        self._made = {number + i: (part, later) for i, later in enumerate(made) if i}
        return made[0]


class BackgroundPhase(_SamplingPhase[Tensor, tuple[Tensor, Tree, int]]):
    """Fit the encoder to the facts of entities that are not new (line 2 of Algorithm 2)."""

    name = "background"
    patience = 0
    validate_every = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.epochs = self.settings.background_epochs
        self.learning_rate = self.settings.background_rate
        visible = self.tasks.visible
        columns = (visible.source, visible.relation, visible.target, visible.time)
        self.facts = torch.from_numpy(np.stack(columns, axis=1).astype(np.int64))

    def _roots(self) -> int:
        return self.settings.background_batch * (2 + self.settings.negatives)

    def parameters(self) -> list[nn.Parameter]:
        """All weights."""
        return list(self.weights.values())

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B, 4) facts in random order."""
        self.begin_epoch(generator)
        order = torch.randperm(len(self.facts), generator=generator)
        size = self.settings.background_batch
        drawn = self.facts[order[: size * self.settings.background_steps]]
        yield from self.grouped(torch.split(drawn, size))

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """The ranking loss of facts whose ends are encoded just before the fact."""
        roots, tree, seed = self.ready(batch, generator, part)
        dropout = torch.Generator(self.device).manual_seed(seed)
        entity, relation = self.weights["entity"], self.weights["relation"]
        vectors = self.encoder(entity, relation, tree, generator=dropout)
        vectors = vectors.view(*roots.shape, -1)  # (B, 2 + n, d)
        directed = batch[part.of(len(batch)), 1].to(self.device)
        translation = relation_vectors(relation, directed).unsqueeze(1)
        score = translation_score(vectors[:, :1], translation, vectors[:, 1:])
        wrong = roots[:, 2:] != roots[:, 1:2]
        everything = torch.ones_like(score[:, 0], dtype=torch.bool)
        value = self.ranking_loss(score[:, 0], score[:, 1:], everything, wrong)
        return Loss(value, {}, part.share(len(batch)))

    def _prepare(
        self, batches: Sequence[Tensor], generator: torch.Generator, part: Part
    ) -> list[tuple[Tensor, Tree, int]]:
        """For each batch: (B, 2 + n) ends and negatives, their tree, and the dropout's seed."""
        roots, times, seeds = [], [], []
        for batch in batches:
            drawn = self.negatives.draw(batch[:, 1], self.settings.negatives, generator)
            rows = part.of(len(batch))
            roots.append(torch.cat([batch[rows][:, [0, 2]], drawn[rows]], 1))
            times.append(batch[rows, 3].unsqueeze(1).expand_as(roots[-1]))
            seeds.append(dropout_seed(generator))
        root, time = (torch.cat(columns).to(self.device) for columns in (roots, times))
        tree = grow(
            self.sampler.sample, root.reshape(-1), time.reshape(-1), layers=self.settings.layers
        )
        sizes = [len(rows) for rows in roots]
        trees = tree.split([size * root.shape[1] for size in sizes])
        return list(zip(torch.split(root, sizes), trees, seeds, strict=True))


@dataclass(frozen=True, eq=False)
class MetaBatch:
    """Some tasks of one interval."""

    interval: int
    queries: FactTable
    """All queries of the interval, |D| of them."""
    entity: Tensor
    """(T,) the tasks."""


class MetaPhase(_SamplingPhase[MetaBatch, tuple[TaskBatch, int]]):
    """Meta-training (Algorithm 2): adapt to each support, be judged on queries, near to far.

    The outer loop takes, for tasks e with queries D_e in the m-th of M intervals of time, a step on

        mean_e L(f_{φ_e}, D_e) + sqrt((KL + log(|D| / δ)) / (2|D| - 1))

    with φ_e from the inner loop (``adaptation``), and the KL of ``pac_bayes`` between φ and what
    the interval before has learned.
    """

    name = "meta"

    def __post_init__(self) -> None:
        super().__post_init__()
        tasks, settings = self.tasks, self.settings
        self.epochs, self.learning_rate = settings.epochs, settings.outer_rate
        self.patience, self.validate_every = settings.patience, settings.validate_every
        self.entities, self.relations = len(tasks.facts.entities), len(tasks.facts.relations)
        self.supports = SupportTable(
            tasks.supports, entities=self.entities, negatives=settings.support_negatives
        )
        # The variant without a curriculum takes all queries at once.
        intervals = 1 if settings.variant == "static-maml" else settings.intervals
        self.queries = _by_interval(tasks, intervals)
        self.prior: Mapping[str, Tensor] = {}

    def _roots(self) -> int:
        queries = self.settings.batch_size * self.settings.queries_per_task
        return queries * (2 + self.settings.negatives)

    @property
    def learned(self) -> dict[str, Tensor]:
        """φ: the weights that meta-training moves."""
        return dict(self.weights) if self.settings.learn_tables else encoder_part(self.weights)

    def parameters(self) -> list[nn.Parameter]:
        """φ."""
        return [self.weights[name] for name in self.learned]

    def batches(self, generator: torch.Generator) -> Iterator[MetaBatch]:
        """All tasks, interval by interval; each interval starts from where the last one ended."""
        self.begin_epoch(generator)
        for number, queries in enumerate(self.queries):
            if len(queries) == 0:
                continue
            # φ^(m): what the last interval learned is where this one may not stray far from.
            self.prior = freeze(self.learned)
            entities = queries.entities()
            shuffled = entities[torch.randperm(len(entities), generator=generator)]
            split = torch.split(shuffled, self.settings.batch_size)
            batches = [MetaBatch(number, queries, entity) for entity in split]
            yield from self.grouped(batches)

    def loss(self, batch: MetaBatch, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """The loss of adapted parameters on the interval's queries, regularised."""
        settings = self.settings
        # What is not learned needs no gradient, least of all one of the size of a table.
        constant = {key: value.detach() for key, value in self.weights.items()}
        tasks, seed = self.ready(batch, generator, part)
        dropout = torch.Generator(self.device).manual_seed(seed)
        adapted = adapt(
            self.encoder,
            constant | self.learned,
            tasks,
            self.ranking_loss,
            learning_rate=settings.inner_rate,
            steps=settings.inner_steps,
            second_order=settings.second_order,
            generator=dropout,
        )
        losses = task_loss(self.encoder, adapted, tasks.query, self.ranking_loss, generator=dropout)
        empirical = losses.sum() / max(len(losses), 1)
        value, logged = outer_loss(
            empirical, self.learned, self.prior, len(batch.queries), settings
        )
        return Loss(value, logged, part.share(len(batch.entity)))

    def _prepare(
        self, batches: Sequence[MetaBatch], generator: torch.Generator, part: Part
    ) -> list[tuple[TaskBatch, int]]:
        """For each batch its tasks, with queries drawn and neighbours sampled, and a seed."""
        drawn, entities, seeds = [], [], []
        for batch in batches:
            rows = part.of(len(batch.entity))
            queries = self._draw_queries(batch, generator)
            drawn.append(queries.each(lambda column, rows=rows: column[rows]))  # type: ignore[misc]
            entities.append(batch.entity[rows])
            seeds.append(dropout_seed(generator))
        tasks = TaskBatch.build(
            self.supports.pick(torch.cat(entities)).to(self.device),
            PaddedFacts.cat(drawn).to(self.device),
            self.sampler.sample,
            entities=self.entities,
            relations=self.relations,
            layers=self.settings.layers,
            own_in_support=self.settings.own_in_support,
        )
        split = tasks.split([len(entity) for entity in entities])
        return list(zip(split, seeds, strict=True))

    def _draw_queries(self, batch: MetaBatch, generator: torch.Generator) -> PaddedFacts:
        """Up to F of each task's queries in the interval, each at most once."""
        count = batch.queries.counts(batch.entity)
        width = min(self.settings.queries_per_task, int(count.max()))
        # The first of a random order: as many random keys as the longest list, the rest at the end.
        keys = torch.rand(len(batch.entity), int(count.max()), generator=generator)
        keys[torch.arange(keys.shape[1]) >= count.unsqueeze(1)] = 2.0
        ordinal = keys.argsort(1)[:, :width]
        mask = torch.arange(width) < count.unsqueeze(1)
        entity, relation, answer, time = batch.queries.pick(batch.entity, ordinal, mask)
        wrong = self.negatives.draw(relation, self.settings.negatives, generator)
        usable = (wrong != answer.unsqueeze(-1)) & mask.unsqueeze(-1)
        return PaddedFacts(entity, relation, answer, wrong, usable, time, mask)


def _by_interval(tasks: Tasks, intervals: int) -> list[FactTable]:
    """The queries of the tasks, in M equal parts of their time span, near to far."""
    query = tasks.answers.question
    entity, relation, time = (
        column[query]
        for column in (tasks.questions.entity, tasks.questions.relation, tasks.questions.time)
    )
    begin, span = (int(time.min()), int(time.max() - time.min()) + 1) if len(time) else (0, 1)
    interval = (time - begin) * intervals // span
    columns = (entity, relation, tasks.answers.answer, time)
    return [
        FactTable(*(column[interval == number] for column in columns))
        for number in range(intervals)
    ]
