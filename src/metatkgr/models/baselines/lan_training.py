"""How LAN is learned: its settings and its one phase."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.visibility import VisibleFacts
from metatkgr.graph.index import GraphIndex
from metatkgr.models.baselines.lan_attention import first_links
from metatkgr.models.common.scores import (
    l2_logits,
    mask_query_logits,
    relation_vectors,
    translation_score,
)
from metatkgr.models.trainable import WHOLE, Loss, Part
from metatkgr.settings import Amount, Count, Rate, Settings, Share

if TYPE_CHECKING:
    from metatkgr.models.baselines.lan import LAN

__all__ = ["LANSettings", "LogicAttentionPhase", "Questions"]


@dataclass(frozen=True)
class LANSettings(Settings):
    """Settings of LAN."""

    dimension: Count = 128
    """Length of the vectors."""
    neighbours: Count = 64
    """Links of an entity that are read, the newest first."""
    candidates: Literal["input", "aggregated"] = "input"
    """How an answer is represented: 'input', its own h, or 'aggregated' from its neighbours too."""
    normalise: bool = True
    """Whether the weights of the neighbours are divided by their sum."""
    epochs: Count = 30
    """Passes over the known triples, or over as many as ``steps`` batches hold."""
    steps: Count = 200
    """At most so many batches in an epoch."""
    batch_size: Count = 512
    """Triples in a batch."""
    learning_rate: Rate = 0.002
    """Of Adam."""
    loss: Literal["softmax", "margin"] = "softmax"
    """'softmax' cross-entropy, or the authors' 'margin'."""
    margin: Rate = 1.0
    """How much better the right answer has to be, with the margin loss."""
    negatives: Count = 32
    """Wrong answers of each question; the softmax over 'input' candidates takes all entities."""
    seen_share: Share = 0.5
    """Share of the training questions whose own fact is among the visible links, as a support is:
    they teach to repeat; the others, asked before their fact, teach to infer."""
    patience: Amount = 4
    """Validations without a better MRR before training stops; 0: train all epochs."""
    validate_every: Count = 3
    """Epochs between validations."""


class Questions(NamedTuple):
    """A batch of training questions with their answers, on the model's device."""

    source: Tensor
    """(B,) the entity that is asked about."""
    relation: Tensor
    """(B,) directed."""
    target: Tensor
    """(B,) the answer."""
    time: Tensor
    """(B,) before which the neighbours are seen."""
    wrong: Tensor
    """(B, n) other entities; the answer may be among them by chance."""


class LogicAttentionPhase:
    """Learns all tables from known facts, each seen from what was visible before it (or with it).

    Args:
        model: whose weights are learned.
        known: the facts.
    """

    name = "logic-attention"

    def __init__(self, model: LAN, known: VisibleFacts) -> None:
        self.model, self.settings = model, model.settings
        self.epochs, self.learning_rate = self.settings.epochs, self.settings.learning_rate
        self.patience = self.settings.patience
        self.validate_every = self.settings.validate_every
        links = np.stack([known.source, known.relation, known.target], axis=1)
        triples, member = np.unique(links, axis=0, return_inverse=True)
        self.triples = torch.from_numpy(triples)
        # The occurrences of each triple lie side by side, so that one can be drawn.
        member = member.reshape(-1)
        order = np.argsort(member, kind="stable")
        self.time = torch.from_numpy(known.time[order])
        self.start = torch.from_numpy(np.searchsorted(member[order], np.arange(len(triples) + 1)))
        self.entities = len(known.entities)
        self.sampler = model.sampler(GraphIndex.of(first_links(known), device=model.device))

    def parameters(self) -> list[nn.Parameter]:
        """All weights but the rules, which are counted."""
        return list(self.model.weights.values())

    def batches(self, generator: torch.Generator) -> Iterator[Questions]:
        """Distinct triples, each at a time drawn from those at which it happened."""
        count, size = len(self.triples), self.settings.batch_size
        order = torch.randperm(count, generator=generator)[: self.settings.steps * size]
        many = self.start[1:] - self.start[:-1]
        place = (torch.rand(count, generator=generator) * many).long().clamp(max=many - 1)
        seen = torch.rand(count, generator=generator) < self.settings.seen_share
        time = self.time[self.start[:-1] + place] + seen.long()
        columns = (*self.triples[order].unbind(1), time[order])
        device = self.model.device
        source, relation, target, time = (column.to(device) for column in columns)
        for begin in range(0, len(order), size):
            rows = slice(begin, begin + size)
            shape = (len(source[rows]), self.settings.negatives)
            wrong = torch.randint(self.entities, shape, generator=generator).to(device)
            yield Questions(source[rows], relation[rows], target[rows], time[rows], wrong)

    def loss(self, batch: Questions, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """The loss of aggregated vectors and, as its authors have it, of the vectors themselves."""
        size = len(batch.source)
        batch = Questions(*(column[part.of(size)] for column in batch))
        weights, model = self.model.weights, self.model
        vector = relation_vectors(weights["relation"], batch.relation)
        asked = model.encode(self.sampler, batch.source, batch.relation, batch.time) + vector
        plain = weights["entity"][batch.source] + vector
        if self.settings.candidates == "input" and self.settings.loss == "softmax":
            table = weights["entity"]
            total = functional.cross_entropy(
                mask_query_logits(
                    l2_logits(torch.cat([asked, plain]), table),
                    batch.source.repeat(2),
                    batch.target.repeat(2),
                ),
                batch.target.repeat(2),
                reduction="sum",
            )
            return Loss(total / max(len(batch.source), 1), {}, part.share(size))
        options = torch.cat([batch.target.unsqueeze(1), batch.wrong], dim=1)
        rows = weights["entity"][options]
        usable = options[:, 1:] != batch.target.unsqueeze(1)
        total = self._ranking(plain, rows, usable)
        if self.settings.candidates == "aggregated":
            shape = options.shape
            rows = model.encode(
                self.sampler,
                options.flatten(),
                model.inverse(batch.relation).unsqueeze(1).expand(shape).flatten(),
                batch.time.unsqueeze(1).expand(shape).flatten(),
            ).view(*shape, -1)
        total = total + self._ranking(asked, rows, usable)
        return Loss(total / max(len(batch.source), 1), {}, part.share(size))

    def _ranking(self, points: Tensor, rows: Tensor, usable: Tensor) -> Tensor:
        """Loss of (B, d) points and (B, 1 + n, d) answers, the right one first; a sum."""
        scores = translation_score(points.unsqueeze(1), torch.zeros_like(points[:1]), rows)
        if self.settings.loss == "margin":
            short = functional.relu(self.settings.margin - scores[:, :1] + scores[:, 1:])
            return (short * usable).sum() / max(usable.shape[1], 1)
        wrong = scores[:, 1:].masked_fill(~usable, -math.inf)
        return -torch.log_softmax(torch.cat([scores[:, :1], wrong], 1), 1)[:, 0].sum()
