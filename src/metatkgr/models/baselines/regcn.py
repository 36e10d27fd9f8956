"""RE-GCN: entity and relation vectors that evolve from snapshot to snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import SettingsError
from metatkgr.graph.snapshots import DisjointGraph, Snapshots
from metatkgr.models.base import WHOLE, Loss, ModelPhase, Part, Phase, TrainableModel
from metatkgr.models.common.recurrent import (
    Noise,
    StepBatch,
    glorot,
    gru_step,
    step_batches,
    sum_rows,
)
from metatkgr.models.registry import register
from metatkgr.recent import Recent
from metatkgr.settings import Amount, Count, Dropout, Rate, Sample, Settings, Share

__all__ = ["REGCN", "EvolutionPhase", "REGCNSettings"]

_CACHE_BYTES = 1 << 30
"""Evolved tables that are kept, for as many times as fit."""


@dataclass(frozen=True)
class REGCNSettings(Settings):
    """Settings of RE-GCN."""

    dimension: Count = 128
    """Length of the vectors."""
    history: Sample = 1
    """Snapshots before a query that the vectors evolve over; on meta-validation of a simulated
    world 1 learned fastest (5 epochs, one seed)."""
    layers: Count = 2
    """Graph convolutions in a snapshot."""
    channels: Count = 50
    """Feature maps of the decoders."""
    kernel: Count = 3
    """Width of the decoders' convolution; odd."""
    dropout: Dropout = 0.2
    """Share of the numbers that are set to zero in training, in convolutions and decoders."""
    entity_weight: Share = 0.7
    """Weight of the entity loss; the relation loss has the rest."""
    epochs: Count = 30
    """Passes over the known facts."""
    batch_size: Count = 2048
    """Directed facts in a batch, at most."""
    steps_at_once: Count = 4
    """Time steps in a batch, at most; memory grows with it."""
    learning_rate: Rate = 0.003
    """Of Adam; the authors' is 0.001 (preset 'paper'), which starts more slowly."""
    patience: Amount = 4
    """Validations without a better MRR before training stops; 0: train all epochs."""
    validate_every: Count = 2
    """Epochs between validations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise SettingsError(f"kernel must be odd, such as 3, not {self.kernel}")


def evolve(
    weights: Mapping[str, Tensor], snapshots: Snapshots, window: Tensor, layers: int, noise: Noise
) -> tuple[Tensor, Tensor]:
    """The vectors after each of B windows of snapshots; the equations are at :class:`REGCN`.

    All windows move together, as one graph of B copies.

    Args:
        weights: of the model.
        snapshots: the facts by step.
        window: (B, m) numbers of snapshots on the CPU, oldest first; -1 for none.
        layers: graph convolutions in a snapshot.
        noise: dropout and random slopes.

    Returns:
        entity: (B, E, d) and relation: (B, 2R, d), rows of length 1.
    """
    copies, length = window.shape
    first = weights["relation"]
    entity = functional.normalize(weights["entity"]).repeat(copies, 1)
    relation = functional.normalize(first).repeat(copies, 1, 1)
    fixed = first @ weights["gru.own"] + weights["gru.input_bias"]
    for k in range(length):
        graph = snapshots.graph(window[:, k])
        ends = sum_rows(
            copies * snapshots.relations,
            graph.member_relation,
            entity.index_select(0, graph.member_entity) * graph.member_share,
        ).view(copies, snapshots.relations, -1)
        inputs = fixed + (ends @ weights["gru.ends"]).repeat(1, 2, 1)
        moved = gru_step(inputs, relation, weights["gru.hidden"], weights["gru.hidden_bias"])
        moved = functional.normalize(moved, dim=-1)
        current = _convolve(weights, graph, entity, moved.flatten(0, 1), layers, noise)
        gate = torch.sigmoid(entity @ weights["gate"] + weights["gate_bias"])
        current = entity + gate * (current - entity)
        if int(window[:, k].min()) < 0:
            there = (window[:, k] >= 0).to(entity.device).view(-1, 1, 1)
            shape = (copies, snapshots.entities, -1)
            current = torch.where(there, current.view(shape), entity.view(shape)).flatten(0, 1)
            moved = torch.where(there, moved, relation)
        entity, relation = current, moved
    return entity.view(copies, snapshots.entities, -1), relation


def _convolve(
    weights: Mapping[str, Tensor],
    graph: DisjointGraph,
    entity: Tensor,
    relation: Tensor,
    layers: int,
    noise: Noise,
) -> Tensor:
    """(N, d) the entities of N = B·E nodes after the convolutions, rows of length 1."""
    active = torch.zeros(len(entity), 1, dtype=torch.bool, device=entity.device)
    active.index_fill_(0, graph.target, True)
    link = relation.index_select(0, graph.relation)
    for layer in range(layers):
        # The map W is linear: applied to the mean message instead of to every message.
        message = (entity.index_select(0, graph.source) + link) * graph.share
        mean = sum_rows(len(entity), graph.target, message)
        loop, alone = (entity @ weights[f"layer{layer}.loops"]).chunk(2, -1)
        entity = mean @ weights[f"layer{layer}.message"] + torch.where(active, loop, alone)
        entity = noise.drop(noise.rrelu(entity))
    return functional.normalize(entity)


def decode(
    weights: Mapping[str, Tensor], name: str, first: Tensor, second: Tensor, noise: Noise
) -> Tensor:
    """ConvTransE: what two vectors together ask for.

    Args:
        weights: of the model.
        name: 'entities' (of a source and a relation) or 'relations' (of two entities).
        first, second: (Q, d).
        noise: dropout.

    Returns:
        (Q, d) to be compared with the candidates.
    """
    kernel = weights[f"{name}.kernel"]
    d = first.shape[-1]
    pair = functional.layer_norm(torch.stack([first, second], 1), (d,))
    maps = functional.conv1d(
        noise.drop(pair), kernel, weights[f"{name}.kernel_bias"], padding=kernel.shape[-1] // 2
    )
    maps = functional.layer_norm(maps, maps.shape[1:])
    maps = maps * weights[f"{name}.map_scale"] + weights[f"{name}.map_shift"]
    flat = noise.drop(maps.relu()).flatten(1)
    decoded = noise.drop(flat @ weights[f"{name}.linear"] + weights[f"{name}.linear_bias"])
    scale, shift = weights[f"{name}.scale"], weights[f"{name}.shift"]
    return functional.layer_norm(decoded, (d,), scale, shift).relu()


@register
class REGCN(TrainableModel[REGCNSettings]):
    r"""Vectors that evolve over the last m snapshots before a query; scored by ConvTransE.

    For snapshots k = 1..m, the oldest first, with h^0, r^0 the learned tables (rows of length 1):

    .. math::
        r^k &= \mathrm{GRU}([r^0 ; \text{mean of the } h^{k-1} \text{ at either end of } r],
               r^{k-1}) \\
        x^{l+1}_o &= \mathrm{RReLU}\Big(\tfrac{1}{d_o} \sum_{(s, r, o)} W_1^l (x^l_s + r^k)
               + W_2^l x^l_o\Big), \qquad x^0 = h^{k-1} \\
        h^k &= u\, x^L + (1 - u)\, h^{k-1}, \qquad u = \sigma(W_u h^{k-1} + b_u) \\
        s(e, r, x, t) &= \mathrm{ConvTransE}(h^m_e, r^m) \cdot \tanh h^m_x

    An entity without links in a snapshot has another self-loop weight, W_3 for W_2. The loss is
    0.7 times the cross-entropy of the entity among all entities and 0.3 times that of the relation
    (a second ConvTransE, of the two entities), in both directions.

    Where this is not what the authors' program does, and why:

    * A history ends strictly before the query's own time, whatever the data's split; theirs is
      chosen by position in the file, and at test it stops at the last training snapshot. Which
      facts are in the snapshots is up to the visibility here; ties are ranked by the evaluation.
    * An entity's own support facts that are later than its query are in no history: the tables
      depend on the time alone and serve all queries of it. They are among the training facts, and
      so in the entity's learned vector.
    * Layer instead of batch normalisation, so that a score depends on its own query only;
      several steps (or parts of a large one) in a batch instead of exactly one step.
    * Self-loops start near the identity, where theirs are random.
    * No static graph of names: not every dataset has such names.
    """

    name = "regcn"
    settings_type = REGCNSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "paper": {
            **{"learning_rate": 0.001, "history": 3, "steps_at_once": 1, "batch_size": 8192},
            "epochs": 60,
        },
    }
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (3e-4, 1e-2, "log"),
        "history": (1, 3, 5, 10),
        "layers": (1, 2),
        "dropout": (0.0, 0.5, "linear"),
        "batch_size": (512, 1024, 2048, 4096),
    }

    translations = ""
    entity: nn.Parameter
    """(E, d) h^0."""

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Random weights."""
        d, channels = self.settings.dimension, self.settings.channels
        width, draw = self.settings.kernel, partial(glorot, generator)
        state = {
            "entity": torch.randn(entities, d, generator=generator) * d**-0.5,
            "relation": torch.randn(2 * relations, d, generator=generator) * d**-0.5,
            "gru.own": draw(d, 3 * d),
            "gru.ends": draw(d, 3 * d),
            "gru.input_bias": torch.zeros(3 * d),
            "gru.hidden": draw(d, 3 * d),
            "gru.hidden_bias": torch.zeros(3 * d),
            "gate": draw(d, d),
            "gate_bias": torch.zeros(d),
        }
        for layer in range(self.settings.layers):
            state[f"layer{layer}.message"] = draw(d, d)
            # Near the identity: an entity is known by its vector from the start, not only after it
            # has been learned how to carry it through a dozen random maps.
            state[f"layer{layer}.loops"] = torch.eye(d).repeat(1, 2) + 0.1 * draw(d, 2 * d)
        for name in ("entities", "relations"):
            state |= {
                f"{name}.kernel": draw(channels, 2 * width).view(channels, 2, width),
                f"{name}.kernel_bias": torch.zeros(channels),
                f"{name}.map_scale": torch.ones(channels, 1),
                f"{name}.map_shift": torch.zeros(channels, 1),
                f"{name}.linear": draw(channels * d, d),
                f"{name}.linear_bias": torch.zeros(d),
                f"{name}.scale": torch.ones(d),
                f"{name}.shift": torch.zeros(d),
            }
        self.set_weights(state)

    def phases(self, problem: Problem) -> list[Phase]:
        """One: predict the known facts of each step from the steps before it."""
        return [EvolutionPhase(self, problem.known)]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Group the public facts by step."""
        self.snapshots_ = Snapshots(visible, self.device)
        size = self.entity.numel() * self.entity.element_size()
        self._evolved = Recent(self._evolve, _CACHE_BYTES // max(size, 1))
        return self

    def adapt(self, supports: Supports) -> Self:
        """Nothing: supports were among the known facts, and they are public in their time."""
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) scores of all candidates."""
        scores = torch.empty(len(queries), len(self.entity), device=self.device)
        weights = self.weights
        silent = Noise(None, self.device, 0.0)
        past = np.searchsorted(self.snapshots_.steps.numpy(), queries.time)
        for number in np.unique(past).tolist():
            rows = np.flatnonzero(past == number)
            who = torch.from_numpy(queries.entity[rows]).to(self.device)
            directed = torch.from_numpy(queries.relation[rows]).to(self.device)
            entity, relation = self._evolved(number)
            query = decode(weights, "entities", entity[who], relation[directed], silent)
            scores[torch.from_numpy(rows).to(self.device)] = query @ entity.tanh().T
        return scores

    def _evolve(self, past: int) -> tuple[Tensor, Tensor]:
        """(E, d) and (2R, d) after the last of the first ``past`` snapshots."""
        length = self.settings.history
        window = (past - length + torch.arange(length)).clamp(min=-1).unsqueeze(0)
        silent = Noise(None, self.device, 0.0)
        tables = evolve(self.weights, self.snapshots_, window, self.settings.layers, silent)
        return tables[0][0], tables[1][0]


class EvolutionPhase(ModelPhase[REGCN]):
    """Predicts the facts of every known step from the steps before it."""

    name = "evolution"

    def __init__(self, model: REGCN, known: VisibleFacts) -> None:
        super().__init__(model)
        self.snapshots = Snapshots(known, model.device)

    def batches(self, generator: torch.Generator) -> Iterator[StepBatch]:
        """All facts once: steps in random order, a large step in several batches."""
        settings = self.model.settings
        limits = settings.batch_size, settings.steps_at_once
        yield from step_batches(self.snapshots, *limits, generator)

    def loss(self, batch: StepBatch, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy of the entity and of the relation, among all of them."""
        settings, weights, device = self.model.settings, self.model.weights, self.model.device
        noise = Noise(generator, device, settings.dropout)
        window = self.snapshots.window(batch.time, settings.history)
        tables = evolve(weights, self.snapshots, window, settings.layers, noise)
        own_rows = part.of(len(batch.fact))
        fact = batch.fact[own_rows]
        sizes = torch.bincount(batch.step[own_rows], minlength=len(batch.time)).tolist()
        step = batch.step[own_rows].to(device)
        source, relation, target = (
            column[fact]
            for column in (self.snapshots.source, self.snapshots.relation, self.snapshots.target)
        )
        entities, relations = (table.flatten(0, 1) for table in tables)
        base = step * self.snapshots.entities
        one = entities.index_select(0, base + source)
        by = relations.index_select(0, step * (2 * self.snapshots.relations) + relation)
        other = entities.index_select(0, base + target)
        right = decode(weights, "entities", one, by, noise)
        total = _cross_entropy(right, tables[0].tanh(), target, sizes)
        link = decode(weights, "relations", one, other, noise)
        wrong = _cross_entropy(link, tables[1], relation, sizes)
        share = settings.entity_weight
        count = max(len(fact), 1)
        value = (share * total + (1 - share) * wrong) / count
        logged: dict[str, float | Tensor] = {
            "entity_loss": total.detach() / count,
            "relation_loss": wrong.detach() / count,
        }
        return Loss(value, logged, part.share(len(batch.fact)))


def _cross_entropy(query: Tensor, table: Tensor, answer: Tensor, sizes: list[int]) -> Tensor:
    """Sum of the cross-entropies of (Q, d) queries, ``sizes[b]`` of them with ``table[b]``."""
    scores = [
        rows @ of.T for rows, of in zip(torch.split(query, sizes), table.unbind(), strict=True)
    ]
    return functional.cross_entropy(torch.cat(scores), answer, reduction="sum")
