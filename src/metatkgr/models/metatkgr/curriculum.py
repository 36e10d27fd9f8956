"""The stages of MetaTKGR's training after its tables: background, then meta, from near to far."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Supports
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.negatives import Negatives, fixed_negatives
from metatkgr.graph.sampler import Sampler, create_sampler
from metatkgr.models.metatkgr.adaptation import adapt, query_loss
from metatkgr.models.metatkgr.encoder import encode
from metatkgr.models.metatkgr.losses import ranking_loss
from metatkgr.models.metatkgr.pac_bayes import bound, complexity, freeze, gaussian_kl
from metatkgr.models.metatkgr.queries import MetaSource
from metatkgr.models.metatkgr.settings import MetaTKGRSettings
from metatkgr.models.metatkgr.task_batch import PaddedFacts, TaskBatch, grow
from metatkgr.models.trainable import WHOLE, Loss, Part
from metatkgr.models.translation import relation_vectors, translation_score

__all__ = ["BackgroundPhase", "MetaPhase", "SupportTable", "dropout_generator", "sampler_for"]


def dropout_generator(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator on ``device`` whose draws follow from the state of ``generator`` on the CPU."""
    seed = int(torch.randint(2**62, (1,), generator=generator))
    return torch.Generator(device).manual_seed(seed)


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

    def parameters(self) -> list[nn.Parameter]:
        """All weights."""
        return list(self.weights.values())

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B, 4) facts in random order."""
        follow(self.sampler, generator)
        order = torch.randperm(len(self.facts), generator=generator)
        size = self.settings.background_batch
        yield from torch.split(self.facts[order[: size * self.settings.background_steps]], size)

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """The ranking loss of facts whose ends are encoded just before the fact."""
        drawn = self.negatives.draw(batch[:, 1], self.settings.negatives, generator)
        mine = part.of(len(batch))
        drawn = drawn[mine]
        source, relation, target, time = batch[mine].unbind(1)
        roots = torch.cat([torch.stack([source, target], 1), drawn], 1).to(self.device)
        moments = time.to(self.device).unsqueeze(1).expand_as(roots)
        tree = grow(
            self.sampler.sample,
            roots.reshape(-1),
            moments.reshape(-1),
            layers=self.settings.layers,
        )
        dropout = dropout_generator(generator, self.device)
        vectors = encode(self.weights, self.settings.encoder, tree, generator=dropout)
        vectors = vectors.view(*roots.shape, -1)  # (B, 2 + n, d)
        translation = relation_vectors(self.weights["relation"], relation.to(self.device))
        score = translation_score(vectors[:, :1], translation.unsqueeze(1), vectors[:, 1:])
        wrong = roots[:, 2:] != roots[:, 1:2]
        everything = torch.ones_like(score[:, 0], dtype=torch.bool)
        value = ranking_loss(score[:, 0], score[:, 1:], everything, wrong, self.settings.ranking)
        return Loss(value, {}, part.share(len(batch)))


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


class SupportTable:
    """The supports as padded facts, ready to be picked by entity.

    Args:
        supports: the first facts of the new entities.
        entities: E.
        negatives: how many wrong answers each support fact gets.
    """

    def __init__(self, supports: Supports, *, entities: int, negatives: int) -> None:
        columns = (supports.entity, supports.relation, supports.other, supports.time)
        self.columns = [torch.from_numpy(column) for column in columns]
        self.start = torch.searchsorted(self.columns[0], torch.arange(entities + 1))
        self.entities, self.negatives = entities, negatives

    def pick(self, entity: Tensor) -> PaddedFacts:
        """The supports of (T,) entities, on the CPU; an entity without one has no fact."""
        low, high = self.start[entity], self.start[entity + 1]
        width = max(int((high - low).max()), 1) if len(entity) else 1
        ordinal = torch.arange(width).expand(len(entity), width)
        mask = ordinal < (high - low).unsqueeze(1)
        row = ((low.unsqueeze(1) + ordinal) * mask).clamp(max=max(len(self.columns[0]) - 1, 0))
        if len(self.columns[0]) == 0:
            zeros = torch.zeros_like(row)
            picked = [zeros, zeros, zeros, zeros]
        else:
            picked = [column[row] * mask for column in self.columns]
        wrong = fixed_negatives(picked[0], ordinal, self.negatives, self.entities)
        return PaddedFacts(
            picked[0],
            picked[1],
            picked[2],
            wrong,
            (wrong != picked[2].unsqueeze(-1)) & mask.unsqueeze(-1),
            picked[3],
            mask,
        )


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
            for part in torch.split(shuffled, self.settings.batch_size):
                yield MetaBatch(number, self.queries.size(number), part)

    def loss(self, batch: MetaBatch, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """The loss of adapted parameters on the interval's queries, regularised."""
        settings = self.settings
        mine = part.of(len(batch.entity))
        support = self.supports.pick(batch.entity[mine])
        query = PaddedFacts(*(column[mine] for column in self._draw_queries(batch, generator)))
        tasks = TaskBatch.build(
            _to(support, self.device),
            _to(query, self.device),
            self.sampler.sample,
            entities=self.entities,
            relations=self.relations,
            layers=settings.layers,
            own_in_support=settings.own_in_support,
        )
        dropout = dropout_generator(generator, self.device)
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


def _to(facts: PaddedFacts, device: torch.device) -> PaddedFacts:
    return PaddedFacts(*(tensor.to(device) for tensor in facts))
