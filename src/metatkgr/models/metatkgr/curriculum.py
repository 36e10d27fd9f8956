"""Meta-training: from near to far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Supports
from metatkgr.graph.negatives import fixed_negatives
from metatkgr.models.metatkgr.adaptation import adapt, query_loss
from metatkgr.models.metatkgr.ahead import Ahead
from metatkgr.models.metatkgr.drawing import batches_together, dropout_seed, follow, sampler_for
from metatkgr.models.metatkgr.pac_bayes import bound, complexity, freeze, gaussian_kl
from metatkgr.models.metatkgr.queries import MetaSource
from metatkgr.models.metatkgr.settings import MetaTKGRSettings
from metatkgr.models.metatkgr.task_batch import TaskBatch
from metatkgr.models.metatkgr.task_facts import PaddedFacts
from metatkgr.models.trainable import WHOLE, Loss, Part

__all__ = ["MetaPhase", "SupportTable"]


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
        queries = settings.queries_per_task * (2 + settings.negatives)
        self.ahead = Ahead(
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
            yield from self.ahead.grouped([MetaBatch(number, size, some) for some in split])

    def loss(self, batch: MetaBatch, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """The loss of adapted parameters on the interval's queries, regularised."""
        settings = self.settings
        tasks, seed = self.ahead.ready(batch, generator, part)
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
            _to(self.supports.pick(torch.cat(entities)), self.device),
            _to(PaddedFacts.cat(drawn), self.device),
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


def _to(facts: PaddedFacts, device: torch.device) -> PaddedFacts:
    return PaddedFacts(*(tensor.to(device) for tensor in facts))
