"""Settings of I-GEN and T-GEN, and how their graph network is meta-trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.tasks import Tasks
from metatkgr.errors import SettingsError
from metatkgr.graph.negatives import NegativeKind, Negatives
from metatkgr.models.baselines.gen_network import Links, Unseen, first_layer, second_layer
from metatkgr.models.common.few_shot import ranking_loss
from metatkgr.models.common.prefetch import dropout_generator
from metatkgr.models.common.scores import (
    l2_logits,
    mask_query_logits,
    relation_vectors,
    translation_score,
)
from metatkgr.models.trainable import WHOLE, Loss, Part
from metatkgr.settings import Amount, Count, Rate, Settings

__all__ = ["GENPhase", "IGENSettings", "TGENSettings", "Vectors", "askers_at", "strangers_at"]

_TABLES = ("entity", "relation")


@dataclass(frozen=True)
class IGENSettings(Settings):
    """Settings of I-GEN."""

    dimension: Count = 128
    """d, the length of every vector."""
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
    negative_kind: NegativeKind = "mixed"
    """Where they come from: 'uniform', 'place' (of the relation) or 'mixed'."""
    one_shot: bool = False
    """Whether TransE, which initialises the tables, sees one fact of each support or all K."""
    learn_tables: bool = False
    """Whether meta-training moves the tables too; they learn meta-train queries by heart."""
    translation_epochs: Amount = 40
    """Epochs of TransE."""
    translation_steps: Amount = 5000
    """Steps of that stage, after which the epoch is its last; 0: no bound. A large graph has
    settled after a few epochs, and the vectors of new entities fit their few facts too closely
    after more."""
    translation_rate: Rate = 0.005
    """Learning rate of that stage."""
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

    samples: Amount = 10
    """Draws that the scores are averaged over; 0: the expectation, in closed form."""
    log_variance: float = -6.0
    """b at the start of training."""


class Vectors(NamedTuple):
    """What the network says of n entities."""

    first: Tensor
    """(n, d) φ, the first layer."""
    mean: Tensor
    """(n, d) μ; φ for I-GEN."""
    log_variance: Tensor | None
    """(n, d) log σ²; None for I-GEN."""


def strangers_at(
    weights: Mapping[str, Tensor], settings: IGENSettings, unseen: Unseen, moment: int
) -> Vectors:
    """All N unseen entities as others see them: supports strictly before the moment."""
    earlier = unseen.links.mask & (unseen.links.time < moment)
    first = first_layer(weights, unseen.links, earlier, residual=settings.residual)
    return _with_second(weights, unseen, unseen.links._replace(mask=earlier), first, first)


def askers_at(
    weights: Mapping[str, Tensor],
    settings: IGENSettings,
    unseen: Unseen,
    strangers: Vectors,
    asked: Tensor,
) -> Vectors:
    """(n,) entities that questions are about: each sees all of its own support, at any time."""
    own = unseen.of(asked)
    first = first_layer(weights, own, own.mask, residual=settings.residual)
    return _with_second(weights, unseen, own, first, strangers.first)


def _with_second(
    weights: Mapping[str, Tensor], unseen: Unseen, links: Links, first: Tensor, strangers: Tensor
) -> Vectors:
    if "gate" not in weights or not len(strangers):
        return Vectors(first, first, None)
    mean, log_variance = second_layer(weights, links, links.mask, first, strangers, unseen.place)
    return Vectors(first, mean, log_variance)


class GENPhase:
    """Meta-training: meta-train entities are as new as later ones, and their queries judge.

    A batch holds queries of neighbouring moments. Strangers' supports from the earliest of these on
    are hidden, so that answers and wrong answers look as they will when they are ranked.

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
        settings: IGENSettings,
        device: torch.device,
    ) -> None:
        self.weights, self.settings, self.device = weights, settings, device
        self.epochs, self.learning_rate = settings.epochs, settings.learning_rate
        self.patience, self.validate_every = settings.patience, settings.validate_every
        self.unseen = Unseen(tasks.supports, entities=len(tasks.facts.entities), device=device)
        self.negatives = Negatives(tasks.visible, settings.negative_kind)
        asked, question = tasks.questions, tasks.answers.question
        columns = (asked.entity[question], asked.relation[question], tasks.answers.answer)
        rows = np.stack([*columns, asked.time[question]], axis=1)
        self.queries = torch.from_numpy(rows[np.argsort(rows[:, 3], kind="stable")])

    def parameters(self) -> list[nn.Parameter]:
        """The graph network; the tables too if they are to be learned."""
        learns = self.settings.learn_tables
        # By name: a checkpoint numbers them, and weights read from a file may come in any order.
        names = sorted(self.weights)
        return [self.weights[name] for name in names if learns or name not in _TABLES]

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B, 4) queries of neighbouring moments: entity, relation, answer, time."""
        shuffled = self.queries[torch.randperm(len(self.queries), generator=generator)]
        ordered = shuffled[shuffled[:, 3].argsort(stable=True)]
        parts = torch.split(ordered, self.settings.batch_size)
        for number in torch.randperm(len(parts), generator=generator).tolist():
            yield parts[number]

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """How far the answers are from the top, with the vectors that the network computes."""
        settings = self.settings
        # What is not learned needs no gradient, least of all one of the size of a table.
        weights = {
            name: value if settings.learn_tables or name not in _TABLES else value.detach()
            for name, value in self.weights.items()
        }
        mine = part.of(len(batch))
        wrong = self.negatives.draw(batch[:, 1], settings.negatives, generator)[mine]
        noise = dropout_generator(generator, self.device)
        entity, relation, answer, _ = batch[mine].to(self.device).unbind(1)
        strangers = strangers_at(weights, settings, self.unseen, int(batch[:, 3].min()))
        askers = askers_at(weights, settings, self.unseen, strangers, entity)
        vectors = _draw(strangers, noise, len(self.unseen.entity), slice(None))
        asking = _draw(askers, noise, len(batch), mine)
        everyone = weights["entity"].index_copy(0, self.unseen.entity, vectors)
        translation = relation_vectors(weights["relation"], relation)
        if settings.negatives:
            candidates = torch.cat([answer.unsqueeze(1), wrong.to(self.device)], 1)
            score = translation_score(
                asking.unsqueeze(1), translation.unsqueeze(1), everyone[candidates]
            )
            usable = candidates[:, 1:] != candidates[:, :1]
            there = torch.ones_like(answer, dtype=torch.bool)
            value = ranking_loss(
                score[:, 0],
                score[:, 1:],
                there,
                usable,
                loss=settings.loss,
                margin=settings.margin,
            )
        else:
            scores = mask_query_logits(l2_logits(asking + translation, everyone), entity, answer)
            total = functional.cross_entropy(scores, answer, reduction="sum")
            value = total / max(len(answer), 1)
        return Loss(value, {}, part.share(len(batch)))


def _draw(state: Vectors, generator: torch.Generator, size: int, rows: slice) -> Tensor:
    """A sample of the vectors; noise is drawn for ``size`` rows, of which these are some."""
    if state.log_variance is None:
        return state.mean
    shape = (size, state.mean.shape[1])
    noise = torch.randn(shape, generator=generator, device=state.mean.device)[rows]
    return state.mean + noise * (state.log_variance / 2).exp()
