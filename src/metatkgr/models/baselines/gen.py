r"""GEN (graph extrapolation networks): I-GEN and its stochastic extension T-GEN. Time is ignored.

A vector of an unseen entity is computed from its support facts by a graph network that was
meta-trained on entities which are new in the same way, and is then scored like any other:
:math:`s(e, r, x) = -\lVert z_e + h_r - z_x \rVert^2`.

A support fact of i leads by the directed relation r to j. With the bases :math:`B_b` and the
coefficients :math:`a_{rb}` of a layer,

.. math:: W_r = \sum_b a_{rb} B_b, \qquad
          f(i) = \frac{1}{|N_i|} \sum_{(r, j) \in N_i} W_r [x_j \Vert h_r]

is one layer. Being linear, it is computed as :math:`\sum_b (\frac{1}{|N_i|} \sum a_{rb} [x_j \Vert
h_r]) B_b`: facts are averaged before anything is multiplied, which costs K times less.

Everything is a function of padded facts, (n, K), so the view of the supports at a time is a mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import SettingsError
from metatkgr.models.base import (
    WHOLE,
    Loss,
    ModelPhase,
    Part,
    Phase,
    TrainableModel,
    dropout_generator,
)
from metatkgr.models.common.few_shot import FewShotSettings, Negatives, SupportTable, ranking_loss
from metatkgr.models.common.scores import (
    l2_logits,
    mask_query_entity,
    mask_query_logits,
    relation_vectors,
    score_all,
    translation_score,
)
from metatkgr.models.common.translation import random_tables, translation_start
from metatkgr.models.registry import register
from metatkgr.recent import Recent
from metatkgr.settings import Amount, Count, Range, Rate

__all__ = ["IGEN", "TGEN", "GENPhase", "IGENSettings", "TGENSettings"]

_CACHE_BYTES = 1 << 30
"""Vectors of unseen entities that are kept, for as many times as fit."""
_NOISE_SEED = 20
"""T-GEN's samples at evaluation: the same for everyone, always."""
_MOST_DRAWN = 1 << 30
"""Numbers that the samples of all entities have together, at most."""
_TABLES = ("entity", "relation")


@dataclass(frozen=True)
class IGENSettings(FewShotSettings):
    """Settings of I-GEN."""

    message: Literal["residual", "printed"] = "residual"
    """'residual': the network corrects the mean of x_j - h_r, starting from no correction.
    'printed': its authors' W_r [x_j ‖ h_r] alone."""
    bases: Count = 4
    """B, the matrices that the relations' matrices are mixed from."""
    loss: Literal["softmax", "hinge"] = "softmax"
    """'softmax' over the answer and the negatives, or 'hinge', its authors'."""
    margin: Rate = 1.0
    """Of the hinge."""
    negatives: Amount = 0
    """Wrong answers for each query; 0: all entities, for the softmax only."""
    epochs: Count = 30
    """Epochs of meta-training."""
    batch_size: Count = 512
    """Queries in a batch."""
    learning_rate: Rate = 0.0003
    """Of meta-training."""
    patience: Amount = 5
    """Validations without a better MRR before meta-training stops."""
    validate_every: Count = 1
    """Epochs between validations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "hinge" and self.negatives == 0:
            raise SettingsError("the hinge needs negatives: set negatives to 1 or more, such as 32")

    @property
    def residual(self) -> bool:
        """Whether the network corrects the translations."""
        return self.message == "residual"


@dataclass(frozen=True)
class TGENSettings(IGENSettings):
    """Settings of T-GEN."""

    samples: Annotated[int, Range(0, 100_000)] = 10
    """Draws that the scores are averaged over; 0: the expectation, in closed form."""
    log_variance: Annotated[float, Range(-50, 10)] = -6.0
    """b at the start of training."""


class Links(NamedTuple):
    """Up to K support facts of each of n entities."""

    entity: Tensor
    """(n,) int64 who owns them."""
    relation: Tensor
    """(n, K) int64 directed relation, from the owner's side."""
    other: Tensor
    """(n, K) int64 the other end."""
    time: Tensor
    """(n, K) int64 step."""
    mask: Tensor
    """(n, K) bool, False in padding."""

    def of(self, rows: Tensor) -> Links:
        """The facts of some of the entities."""
        return Links(*(column[rows] for column in self))


class Unseen:
    """The new entities of a split and their supports, on the device.

    Args:
        supports: the first facts of the new entities.
        entities: E.
        device: where they are kept.
    """

    def __init__(self, supports: Supports, *, entities: int, device: torch.device) -> None:
        new = torch.from_numpy(np.unique(supports.entity))
        facts = SupportTable(supports, entities=entities, negatives=0).pick(new)
        columns = (new, facts.relation, facts.answer, facts.time, facts.mask)
        self.links = Links(*(column.to(device) for column in columns))
        row = torch.full((entities,), -1).index_copy_(0, new, torch.arange(len(new)))
        self.row = row.to(device)
        """(E,) the row of each entity in ``links``; -1 for those that are not new."""

    @property
    def entity(self) -> Tensor:
        """(N,) the new entities, ascending."""
        return self.links.entity

    def before(self, t: int) -> Links:
        """The supports of all new entities, those at t or later hidden."""
        return self.links._replace(mask=self.links.mask & (self.links.time < t))

    def of(self, entity: Tensor) -> Links:
        """The supports of (n,) entities; of one that is not new, none."""
        row = self.row[entity]
        if not len(self.entity):
            nothing = row.new_zeros(len(row), 1)
            return Links(entity, nothing, nothing, nothing, nothing.bool())
        links = self.links.of(row.clamp(min=0))
        return links._replace(entity=entity, mask=links.mask & (row >= 0).unsqueeze(1))


class Vectors(NamedTuple):
    """What the network says of n entities."""

    first: Tensor
    """(n, d) φ, the first layer."""
    mean: Tensor
    """(n, d) μ; φ for I-GEN."""
    log_variance: Tensor | None
    """(n, d) log σ²; None for I-GEN."""

    def draw(self, generator: torch.Generator, size: int, rows: slice = slice(None)) -> Tensor:
        """(n, d) a sample; noise is drawn for ``size`` rows, of which these n are some."""
        if self.log_variance is None:
            return self.mean
        shape = (size, self.mean.shape[1])
        noise = torch.randn(shape, generator=generator, device=self.mean.device)[rows]
        return self.mean + noise * (self.log_variance / 2).exp()


def initial_layer(
    relations: int, bases: int, dimension: int, *, zero: bool, generator: torch.Generator
) -> dict[str, Tensor]:
    """Bases (B, 2d, d), zero or Glorot-uniform, and coefficients (2R, B) of about unit length."""
    reach = 0.0 if zero else math.sqrt(6 / (3 * dimension))
    shape = (bases, 2 * dimension, dimension)
    return {
        "bases": (torch.rand(shape, generator=generator) * 2 - 1) * reach,
        "coefficients": torch.randn(2 * relations, bases, generator=generator) / math.sqrt(bases),
    }


def _layer(
    weights: Mapping[str, Tensor], name: str, relation: Tensor, inputs: Tensor, share: Tensor
) -> Tensor:
    """Σ_k share_k W_{r_k} input_k: (n, K) relations, (n, K, 2d) inputs, (n, K) shares to (n, d)."""
    weight = weights[f"{name}.coefficients"][relation] * share.unsqueeze(-1)  # (n, K, B)
    pooled = weight.transpose(1, 2) @ inputs  # (n, B, 2d)
    return pooled.flatten(1) @ weights[f"{name}.bases"].flatten(0, 1)


def _shares(visible: Tensor) -> Tensor:
    """1 / |N_i| for every visible fact, 0 for the others."""
    return visible / visible.sum(1, keepdim=True).clamp(min=1)


def first_layer(
    weights: Mapping[str, Tensor], links: Links, visible: Tensor, *, residual: bool
) -> Tensor:
    r"""The inductive layer: φ_i from the other ends of its visible support facts.

    .. math:: \phi_i = \frac{1}{|N_i|} \sum_{(r, j)} (x_j - h_r) + W_r [x_j \Vert h_r]

    without the first term unless ``residual``.

    Args:
        weights: ``entity`` (E, d), ``relation`` (R, d), ``first.bases``, ``first.coefficients``.
        links: supports of n entities.
        visible: (n, K) bool, those that may be read.
        residual: whether W only corrects where the translations point to.

    Returns:
        (n, d) vectors; the entity's row of the table where nothing is visible.
    """
    other = weights["entity"][links.other]
    relation = relation_vectors(weights["relation"], links.relation)
    share = _shares(visible)
    inputs = torch.cat([other, relation], -1)
    vector = _layer(weights, "first", links.relation, inputs, share)
    if residual:
        vector = vector + (share.unsqueeze(1) @ (other - relation)).squeeze(1)
    return torch.where(visible.any(1, keepdim=True), vector, weights["entity"][links.entity])


def second_layer(
    weights: Mapping[str, Tensor],
    links: Links,
    visible: Tensor,
    vectors: Tensor,
    unseen: Tensor,
    row: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""The transductive layer: what unseen neighbours add, and how sure one can be.

    .. math::
        \mu_i &= \phi_i + \frac{1}{|U_i|} \sum_{(r, j) \in U_i}
                 \gamma (\phi_j - h_r - \phi_i) + W^\mu_r [\phi_j \Vert h_r] \\
        \log \sigma^2_i &= b + \frac{1}{|U_i|} \sum_{(r, j) \in U_i} W^\sigma_r [\phi_j \Vert h_r]

    with :math:`U_i` the links to unseen entities.

    Args:
        weights: ``relation`` (R, d), ``mean.*``, ``variance.*``, ``gate`` and ``bias`` (1,).
        links: supports of n entities.
        visible: (n, K) bool, those that may be read.
        vectors: (n, d) φ of these entities.
        unseen: (N, d) φ of all unseen entities, as candidates.
        row: (E,) row of each entity in ``unseen``; -1 for those that are not new.

    Returns:
        μ and log σ², (n, d) each.
    """
    met = row[links.other]
    share = _shares(visible & (met >= 0))
    other = unseen[met.clamp(min=0)]
    relation = relation_vectors(weights["relation"], links.relation)
    inputs = torch.cat([other, relation], -1)
    points = (share.unsqueeze(1) @ (other - relation)).squeeze(1)
    pull = points - share.sum(1, keepdim=True) * vectors  # nothing where no neighbour is unseen
    correction = _layer(weights, "mean", links.relation, inputs, share)
    spread = _layer(weights, "variance", links.relation, inputs, share)
    return vectors + weights["gate"] * pull + correction, weights["bias"] + spread


def support_vectors(
    weights: Mapping[str, Tensor],
    unseen: Unseen,
    links: Links,
    candidates: Tensor | None = None,
    *,
    residual: bool,
) -> Vectors:
    """The first layer and, where the weights have one, the second.

    Args:
        weights: of both layers.
        unseen: all unseen entities.
        links: the visible supports of n entities.
        candidates: (N, d) φ of all unseen entities; None: ``links`` are those of all.
        residual: as of :func:`first_layer`.
    """
    first = first_layer(weights, links, links.mask, residual=residual)
    candidates = first if candidates is None else candidates
    if "gate" not in weights or not len(candidates):
        return Vectors(first, first, None)
    second = second_layer(weights, links, links.mask, first, candidates, unseen.row)
    return Vectors(first, *second)


SettingsT = TypeVar("SettingsT", bound=IGENSettings)


class _GEN(TrainableModel[SettingsT]):
    """What I-GEN and T-GEN share."""

    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (1e-5, 1e-2, "log"),
        "bases": (1, 4, 16),
        "translation_epochs": (20, 40, 80),
        "translation_rate": (1e-3, 1e-2, "log"),
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "paper": {"message": "printed", "loss": "hinge", "negatives": 32, "learn_tables": True},
    }
    layers: ClassVar[tuple[str, ...]] = ("first",)
    """Names of the network's layers."""
    entity: nn.Parameter
    """(E, d)."""
    relation: nn.Parameter
    """(R, d)."""

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Random tables (the translation stage fills them) and a network that corrects nothing."""
        d = self.settings.dimension
        state = random_tables(entities, relations, d, generator)
        for layer in self.layers:
            zero = self.settings.residual or layer != "first"
            made = initial_layer(relations, self.settings.bases, d, zero=zero, generator=generator)
            state |= {f"{layer}.{name}": value for name, value in made.items()}
        self.set_weights(state)

    def phases(self, problem: Problem) -> list[Phase]:
        """TransE on what is known of new entities at first, then meta-training."""
        known = problem.one_shot if self.settings.one_shot else problem.few_shot
        start = translation_start(self.weights, known, self.settings)
        return [*start, GENPhase(self, problem.train)]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Nothing: what is known of old entities is in their vectors."""
        return self

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports; vectors are computed from those visible at the time of a query."""
        self.unseen_ = Unseen(supports, entities=len(self.entity), device=self.device)
        size = 12 * self.unseen_.entity.numel() * self.settings.dimension
        self._candidates = Recent(self._candidates_at, _CACHE_BYTES // max(size, 1))
        return self

    def _candidates_at(self, t: int) -> Vectors:
        return self.candidates(self.weights, self.unseen_, t)

    def candidates(self, weights: Mapping[str, Tensor], unseen: Unseen, t: int) -> Vectors:
        """All N unseen entities as candidates: supports strictly before t."""
        links = unseen.before(t)
        return support_vectors(weights, unseen, links, residual=self.settings.residual)

    def query_entities(
        self, weights: Mapping[str, Tensor], unseen: Unseen, candidates: Vectors, entity: Tensor
    ) -> Vectors:
        """(n,) query entities: each sees all of its own support, at any time."""
        own, residual = unseen.of(entity), self.settings.residual
        return support_vectors(weights, unseen, own, candidates.first, residual=residual)

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) scores; all unseen entities have their vectors at the time of the query."""
        weights, unseen = self.weights, self.unseen_
        entity, relation, _ = self.columns(queries)
        translation = relation_vectors(self.relation, relation)
        points = torch.empty(len(queries), self.entity.shape[1], device=self.device)
        # Old entities do not change: all their scores at once, those of new ones time by time.
        columns: list[tuple[Tensor, Tensor]] = []
        for t in np.unique(queries.time):
            rows = torch.from_numpy(np.flatnonzero(queries.time == t)).to(self.device)
            candidates = self._candidates(int(t))
            query = self.query_entities(weights, unseen, candidates, entity[rows])
            points[rows] = query.mean + translation[rows]
            scores = score_all(points[rows], candidates.mean)
            columns.append((rows, scores + self._spread(candidates, query, entity[rows])))
        scores = score_all(points, self.entity)
        for rows, values in columns:
            scores[rows.unsqueeze(1), unseen.entity] = values
        return mask_query_entity(scores, entity)

    def _spread(self, candidates: Vectors, query: Vectors, entity: Tensor) -> Tensor | float:
        """(n, N) what uncertainty adds to the scores of unseen candidates."""
        return 0.0


@register
class IGEN(_GEN[IGENSettings]):
    r"""I-GEN: an unseen entity is what its support facts say, computed by a relational network.

    .. math:: z_i = \frac{1}{|N_i|} \sum_{(r, j) \in N_i} (x_j - h_r) + W_r [x_j \Vert h_r],
              \qquad W_r = \sum_b a_{rb} B_b

    over the supports of i that are visible, without a weight for i itself. Where this differs from
    its authors' code: (1) :math:`W_r` starts at zero and corrects the mean of :math:`x_j - h_r`,
    since a full matrix learns the meta-train entities by heart (``message=printed`` is theirs);
    (2) a softmax over all entities instead of a hinge with 32 negatives, which teaches more
    (``loss=hinge negatives=32``); (3) tables initialised by TransE and scored as translations,
    with only the supports of new entities in them; an unseen neighbour counts with its row there,
    where theirs has nothing; (4) all unseen candidates have computed vectors, at a query's
    time from the supports before it, where theirs computes those of one task at a time.
    The preset ``paper`` undoes (1) and (2).
    """

    name = "igen"
    settings_type = IGENSettings


@register
class TGEN(_GEN[TGENSettings]):
    r"""T-GEN: I-GEN, then a stochastic layer over the links among unseen entities.

    .. math:: z_i \sim \mathcal{N}(\mu_i, \mathrm{diag}(\sigma_i^2)), \qquad
              s(e, r, x) = -\frac{1}{S} \sum_s \lVert z_e^s + h_r - z_x^s \rVert^2

    with μ and log σ² of :func:`second_layer`. Training draws once for each entity and
    batch. Evaluation averages S = 10 draws that belong to an entity and never change (separate ones
    as query entity and as candidate, as in training); centred, so that their mean is μ. What
    sampling adds is then :math:`-\overline{\lVert \epsilon_e - \epsilon_x \rVert^2}` with the
    deviations ε, and is computed for unseen candidates only: old ones have none, and a query's
    own part shifts all its scores alike. Differences from its authors' code are those of
    :class:`IGEN`, and: the second layer starts as the identity (γ and W zero), with its self-weight
    fixed at one.
    """

    name = "tgen"
    settings_type = TGENSettings
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **_GEN.tuning,
        "log_variance": (-8.0, -3.0, "linear"),
    }

    layers = ("first", "mean", "variance")

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Random tables, and two layers that change nothing."""
        super().build(entities, relations, generator)
        bias = torch.full((1,), self.settings.log_variance)
        self.set_weights({"gate": torch.zeros(1), "bias": bias})

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports, and draw each unseen entity's samples."""
        super().adapt(supports)
        shape = (self.settings.samples, *self.entity.shape)
        if math.prod(shape) > _MOST_DRAWN:
            raise SettingsError(
                f"samples times entities times dimension must be at most {_MOST_DRAWN:,}, not "
                f"{math.prod(shape):,}; set fewer samples, or 0 for the expectation"
            )
        generator = torch.Generator().manual_seed(_NOISE_SEED)
        new = self.unseen_.entity.cpu()

        def centred() -> Tensor:
            drawn = torch.randn(shape, generator=generator)[:, new]
            return (drawn - drawn.mean(0) if len(drawn) else drawn).to(self.device)

        self.noise_, self.own_noise_ = centred(), centred()
        return self

    def _spread(self, candidates: Vectors, query: Vectors, entity: Tensor) -> Tensor | float:
        """(n, N) mean over the samples of 2 ε_e · ε_x - ‖ε_x‖²."""
        count = self.settings.samples
        if candidates.log_variance is None or query.log_variance is None:
            return 0.0
        if not count:
            return -candidates.log_variance.exp().sum(1)
        # Scaled so that a product over samples and dimensions is the mean over samples.
        scale = 1 / math.sqrt(count)
        other = scale * self.noise_ * (candidates.log_variance / 2).exp()  # (S, N, d)
        row = self.unseen_.row[entity]
        new = (row >= 0).view(1, -1, 1)
        own = scale * self.own_noise_[:, row.clamp(min=0)] * new
        own = own * (query.log_variance / 2).exp()
        other, own = (side.transpose(0, 1).flatten(1) for side in (other, own))
        return 2 * (own @ other.T) - other.square().sum(1)


class GENPhase(ModelPhase[_GEN[Any]]):
    """Meta-training: meta-train entities are as new as later ones, and their queries judge.

    A batch holds queries of neighbouring times. Others' supports from the earliest of these on are
    hidden, so that answers and wrong answers look as they will when they are ranked.

    Args:
        model: whose network is learned.
        tasks: meta-train tasks.
    """

    name = "meta"

    def __init__(self, model: _GEN[Any], tasks: Tasks) -> None:
        super().__init__(model)
        entities = len(tasks.facts.entities)
        self.unseen = Unseen(tasks.supports, entities=entities, device=model.device)
        self.negatives = Negatives(tasks.visible, model.settings.negative_kind)
        queries = tasks.questions[tasks.answers.question]
        columns = (queries.entity, queries.relation, tasks.answers.answer, queries.time)
        rows = np.stack(columns, axis=1)
        self.queries = torch.from_numpy(rows[np.argsort(rows[:, 3], kind="stable")])

    def learns(self, name: str) -> bool:
        """The graph network; the tables too if they are to be learned."""
        return self.model.settings.learn_tables or name not in _TABLES

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B, 4) queries of neighbouring times: entity, relation, answer, time."""
        shuffled = self.queries[torch.randperm(len(self.queries), generator=generator)]
        ordered = shuffled[shuffled[:, 3].argsort(stable=True)]
        parts = torch.split(ordered, self.model.settings.batch_size)
        for number in torch.randperm(len(parts), generator=generator).tolist():
            yield parts[number]

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """How far the answers are from the top, with the vectors that the network computes."""
        model, settings, device = self.model, self.model.settings, self.model.device
        weights = self.weights()
        own_rows = part.of(len(batch))
        wrong = self.negatives.draw(batch[:, 1], settings.negatives, generator)[own_rows]
        noise = dropout_generator(generator, device)
        entity, relation, answer, _ = batch[own_rows].to(device).unbind(1)
        candidates = model.candidates(weights, self.unseen, int(batch[:, 3].min()))
        query = model.query_entities(weights, self.unseen, candidates, entity)
        vectors = candidates.draw(noise, len(self.unseen.entity))
        points = query.draw(noise, len(batch), own_rows)
        everyone = weights["entity"].index_copy(0, self.unseen.entity, vectors)
        translation = relation_vectors(weights["relation"], relation)
        if settings.negatives:
            options = torch.cat([answer.unsqueeze(1), wrong.to(device)], 1)
            score = translation_score(
                points.unsqueeze(1), translation.unsqueeze(1), everyone[options]
            )
            usable = options[:, 1:] != options[:, :1]
            there = torch.ones_like(answer, dtype=torch.bool)
            choice = {"loss": settings.loss, "margin": settings.margin}
            value = ranking_loss(score[:, 0], score[:, 1:], there, usable, **choice)
        else:
            logits = mask_query_logits(l2_logits(points + translation, everyone), entity, answer)
            total = functional.cross_entropy(logits, answer, reduction="sum")
            value = total / max(len(answer), 1)
        return Loss(value, {}, part.share(len(batch)))
