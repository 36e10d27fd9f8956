"""The stages of training: the encoder on old entities, then meta-training from near to far."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Supports
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.negatives import Negatives
from metatkgr.graph.sampler import Sampler, create_sampler
from metatkgr.models.common.few_shot import PaddedFacts, SupportTable
from metatkgr.models.common.neighbourhood import Tree, grow
from metatkgr.models.common.prefetch import Prefetcher, dropout_seed
from metatkgr.models.common.scores import relation_vectors, translation_score
from metatkgr.models.metatkgr.adaptation import adapt, query_loss
from metatkgr.models.metatkgr.encoder import encode
from metatkgr.models.metatkgr.pac_bayes import bound, complexity, freeze, gaussian_kl
from metatkgr.models.metatkgr.queries import MetaSource
from metatkgr.models.metatkgr.settings import MetaTKGRSettings
from metatkgr.models.metatkgr.task_batch import TaskBatch
from metatkgr.models.trainable import WHOLE, Loss, Part

__all__ = ["BackgroundPhase", "MetaPhase", "sampler_for"]

_NEIGHBOURS_TOGETHER = 1 << 20
"""Slots for neighbours that are filled for several batches at once."""


def batches_together(settings: MetaTKGRSettings, roots: int) -> int:
    """How many batches of so many roots are sampled together; bounds memory."""
    neighbours: int = roots * settings.budget**settings.layers
    return _NEIGHBOURS_TOGETHER // neighbours


def sampler_for(index: GraphIndex, supports: Supports, settings: MetaTKGRSettings) -> Sampler:
    """The neighbour sampler that the settings ask for."""
    return create_sampler(
        settings.sampler,
        index,
        supports,
        budget=settings.budget,
        window=settings.time_window,
        generator=torch.Generator(index.device).manual_seed(0),
    )


def follow(sampler: Sampler, generator: torch.Generator) -> None:
    """What a sampler draws in an epoch follows from where the epoch began, also after a stop."""
    if sampler.generator is not None:
        state = generator.get_state().numpy().tobytes()
        sampler.generator.manual_seed(zlib.crc32(state))


class BackgroundPhase:
    """Fit the encoder to the facts of entities that are not new (line 2 of Algorithm 2)."""

    name = "background"
    patience = 0
    validate_every = 1

    def __init__(
        self,
        weights: dict[str, nn.Parameter],
        tasks: Tasks,
        settings: MetaTKGRSettings,
        device: torch.device,
    ) -> None:
        self.weights, self.settings, self.device = weights, settings, device
        self.epochs, self.learning_rate = settings.background_epochs, settings.background_rate
        visible = tasks.visible
        columns = (visible.source, visible.relation, visible.target, visible.time)
        self.facts = torch.from_numpy(np.stack(columns, axis=1))
        index = GraphIndex.of(tasks.visible, device=device)
        self.sampler = sampler_for(index, tasks.supports, settings)
        self.negatives = Negatives(visible, settings.negative_kind)
        roots = settings.background_batch * (2 + settings.negatives)
        self.prefetcher = Prefetcher(self._made_ready, batches_together(settings, roots))

    def parameters(self) -> list[nn.Parameter]:
        """All weights."""
        return list(self.weights.values())

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B, 4) facts in random order."""
        follow(self.sampler, generator)
        order = torch.randperm(len(self.facts), generator=generator)
        size = self.settings.background_batch
        some = self.facts[order[: size * self.settings.background_steps]]
        yield from self.prefetcher.grouped(torch.split(some, size))

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """The ranking loss of facts whose ends are encoded just before the fact."""
        roots, tree, seed = self.prefetcher.ready(batch, generator, part)
        dropout = torch.Generator(self.device).manual_seed(seed)
        vectors = encode(self.weights, self.settings.encoder, tree, generator=dropout)
        vectors = vectors.view(*roots.shape, -1)  # (B, 2 + n, d)
        relation = batch[part.of(len(batch)), 1].to(self.device)
        translation = relation_vectors(self.weights["relation"], relation)
        score = translation_score(vectors[:, :1], translation.unsqueeze(1), vectors[:, 1:])
        wrong = roots[:, 2:] != roots[:, 1:2]
        everything = torch.ones_like(score[:, 0], dtype=torch.bool)
        value = self.settings.ranking(score[:, 0], score[:, 1:], everything, wrong)
        return Loss(value, {}, part.share(len(batch)))

    def _made_ready(
        self, batches: Sequence[Tensor], generator: torch.Generator, part: Part
    ) -> list[tuple[Tensor, Tree, int]]:
        """For each batch: (B, 2 + n) ends and negatives, their tree, and the dropout's seed."""
        roots, moments, seeds = [], [], []
        for batch in batches:
            drawn = self.negatives.draw(batch[:, 1], self.settings.negatives, generator)
            mine = part.of(len(batch))
            roots.append(torch.cat([batch[mine][:, [0, 2]], drawn[mine]], 1))
            moments.append(batch[mine, 3].unsqueeze(1).expand_as(roots[-1]))
            seeds.append(dropout_seed(generator))
        who, when = (torch.cat(some).to(self.device) for some in (roots, moments))
        tree = grow(
            self.sampler.sample, who.reshape(-1), when.reshape(-1), layers=self.settings.layers
        )
        sizes = [len(some) for some in roots]
        trees = tree.split([size * who.shape[1] for size in sizes])
        return list(zip(torch.split(who, sizes), trees, seeds, strict=True))


@dataclass(frozen=True, eq=False)
class MetaBatch:
    """Some tasks of one interval."""

    interval: int
    queries_in_interval: int
    """|D|."""
    entity: Tensor
    """(T,) the tasks."""


class MetaPhase:
    """Meta-training (Algorithm 2): adapt to each support, be judged on queries, near to far.

    Args:
        weights: of the model; tables that are not learned need no gradient.
        source: the tasks, or all that is read of them.
        settings: of the model.
        device: where to compute; the index of ``source`` is there.
        most: how many tasks an epoch draws from each interval at most; 0: all.
    """

    name = "meta"

    def __init__(
        self,
        weights: dict[str, nn.Parameter],
        source: Tasks | MetaSource,
        settings: MetaTKGRSettings,
        device: torch.device,
        *,
        most: int = 0,
    ) -> None:
        self.weights, self.settings, self.device, self.most = weights, settings, device, most
        self.epochs, self.learning_rate = settings.epochs, settings.outer_rate
        self.patience, self.validate_every = settings.patience, settings.validate_every
        if isinstance(source, Tasks):
            source = MetaSource.of(source, settings, device)
        self.entities, self.relations = source.entities, source.relations
        self.supports = SupportTable(
            source.supports, entities=self.entities, negatives=settings.support_negatives
        )
        self.sampler = sampler_for(source.index, source.supports, settings)
        self.negatives, self.queries = source.negatives, source.queries
        self.intervals = self.queries.intervals
        queries = settings.queries_per_task * (2 + settings.negatives)
        self.prefetcher = Prefetcher(
            self._made_ready, batches_together(settings, settings.batch_size * queries)
        )
        self.prior: Mapping[str, Tensor] = {}

    @property
    def regularised(self) -> bool:
        """Whether the PAC-Bayes term is part of the loss."""
        return self.settings.variant == "full"

    @property
    def learned(self) -> dict[str, nn.Parameter]:
        """φ: the weights that meta-training moves."""
        if self.settings.learn_tables:
            return self.weights
        return {key: w for key, w in self.weights.items() if key.startswith("encoder.")}

    def parameters(self) -> list[nn.Parameter]:
        """φ."""
        return list(self.learned.values())

    def batches(self, generator: torch.Generator) -> Iterator[MetaBatch]:
        """All tasks, interval by interval; each interval starts from where the last one ended."""
        follow(self.sampler, generator)
        for number in range(self.intervals):
            entities = self.queries.entities(number)
            if len(entities) == 0:
                continue
            # φ^(m): what the last interval learned is where this one may not stray far from.
            self.prior = freeze(self.learned)
            shuffled = entities[torch.randperm(len(entities), generator=generator)]
            shuffled = shuffled[: self.most or len(shuffled)]
            size = self.queries.size(number)
            split = torch.split(shuffled, self.settings.batch_size)
            yield from self.prefetcher.grouped([MetaBatch(number, size, some) for some in split])

    def loss(self, batch: MetaBatch, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """The loss of adapted parameters on the interval's queries, regularised."""
        settings = self.settings
        tasks, seed = self.prefetcher.ready(batch, generator, part)
        dropout = torch.Generator(self.device).manual_seed(seed)
        adapted = adapt(
            self.weights,
            tasks.rows(self.weights),
            tasks.support,
            settings.encoder,
            settings.ranking,
            learning_rate=settings.inner_rate,
            steps=settings.inner_steps,
            second_order=settings.second_order,
            support_rows=tasks.support_rows,
            generator=dropout,
        )
        losses = query_loss(
            adapted, tasks.query, settings.encoder, settings.ranking, generator=dropout
        )
        empirical = losses.sum() / max(len(losses), 1)
        kl = gaussian_kl(self.learned, self.prior, settings.sigma)
        count = batch.queries_in_interval
        value = empirical + complexity(kl, count, settings.delta) if self.regularised else empirical
        known = empirical.detach()
        return Loss(
            value,
            {
                "empirical": known,
                "kl": kl.detach(),
                "bound": bound(known, kl.detach(), count, settings.delta),
            },
            part.share(len(batch.entity)),
        )

    def _made_ready(
        self, batches: Sequence[MetaBatch], generator: torch.Generator, part: Part
    ) -> list[tuple[TaskBatch, int]]:
        """For each batch its tasks, with queries drawn and neighbours sampled, and a seed."""
        drawn, entities, seeds = [], [], []
        for batch in batches:
            mine = part.of(len(batch.entity))
            queries = self._draw_queries(batch, generator)
            drawn.append(PaddedFacts(*(column[mine] for column in queries)))
            entities.append(batch.entity[mine])
            seeds.append(dropout_seed(generator))
        settings = self.settings
        tasks = TaskBatch.build(
            self.supports.pick(torch.cat(entities)).to(self.device),
            PaddedFacts.cat(drawn).to(self.device),
            self.sampler.sample,
            entities=self.entities,
            relations=self.relations,
            layers=settings.layers,
            own_in_support=settings.own_in_support,
        )
        split = tasks.split([len(some) for some in entities])
        return list(zip(split, seeds, strict=True))

    def _draw_queries(self, batch: MetaBatch, generator: torch.Generator) -> PaddedFacts:
        """Up to F of each task's queries in the interval, each at most once."""
        count = self.queries.counts(batch.interval, batch.entity)
        width = min(self.settings.queries_per_task, int(count.max()))
        # The first of a random order: as many random keys as the longest list, the rest at the end.
        keys = torch.rand(len(batch.entity), int(count.max()), generator=generator)
        keys[torch.arange(keys.shape[1]) >= count.unsqueeze(1)] = 2.0
        place = keys.argsort(1)[:, :width]
        mask = torch.arange(width) < count.unsqueeze(1)
        picked = self.queries.pick(batch.interval, batch.entity, place, mask)
        entity, relation, answer, time = picked
        wrong = self.negatives.draw(relation, self.settings.negatives, generator)
        usable = (wrong != answer.unsqueeze(-1)) & mask.unsqueeze(-1)
        return PaddedFacts(entity, relation, answer, wrong, usable, time, mask)
