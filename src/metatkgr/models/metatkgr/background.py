"""The stage before meta-training: the encoder on the facts of entities that are not new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from metatkgr.data.tasks import Tasks
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.negatives import Negatives
from metatkgr.models.metatkgr.ahead import Ahead
from metatkgr.models.metatkgr.drawing import batches_together, dropout_seed, follow, sampler_for
from metatkgr.models.metatkgr.encoder import Tree, encode
from metatkgr.models.metatkgr.losses import ranking_loss
from metatkgr.models.metatkgr.settings import MetaTKGRSettings
from metatkgr.models.metatkgr.trees import grow
from metatkgr.models.trainable import WHOLE, Loss, Part
from metatkgr.models.translation import relation_vectors, translation_score

__all__ = ["BackgroundPhase"]


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
        self.ahead = Ahead(self._made_ready, batches_together(settings, roots))

    def parameters(self) -> list[nn.Parameter]:
        """All weights."""
        return list(self.weights.values())

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B, 4) facts in random order."""
        follow(self.sampler, generator)
        order = torch.randperm(len(self.facts), generator=generator)
        size = self.settings.background_batch
        some = self.facts[order[: size * self.settings.background_steps]]
        yield from self.ahead.grouped(torch.split(some, size))

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """The ranking loss of facts whose ends are encoded just before the fact."""
        roots, tree, seed = self.ahead.ready(batch, generator, part)
        dropout = torch.Generator(self.device).manual_seed(seed)
        vectors = encode(self.weights, self.settings.encoder, tree, generator=dropout)
        vectors = vectors.view(*roots.shape, -1)  # (B, 2 + n, d)
        relation = batch[part.of(len(batch)), 1].to(self.device)
        translation = relation_vectors(self.weights["relation"], relation)
        score = translation_score(vectors[:, :1], translation.unsqueeze(1), vectors[:, 1:])
        wrong = roots[:, 2:] != roots[:, 1:2]
        everything = torch.ones_like(score[:, 0], dtype=torch.bool)
        value = ranking_loss(score[:, 0], score[:, 1:], everything, wrong, self.settings.ranking)
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
