"""Inner loop: fit the encoder and a task's rows to its support, for all tasks at once.

    φ_e = φ - η ∂L(f_φ, S_e)/∂φ     for every task e, one or several such steps

φ are the ``encoder.*`` parameters and the embedding rows the task touches, in one dictionary by the
names that they are saved under. What comes out is differentiable in turn: the loss of the adapted
parameters on the queries has a gradient with respect to the parameters before adaptation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call

from metatkgr.models.common.few_shot import RankingLoss, inner_step, ranking_loss
from metatkgr.models.common.neighbourhood import Tree
from metatkgr.models.common.scores import relation_vectors, translation_score
from metatkgr.models.metatkgr.encoder import TemporalEncoder
from metatkgr.models.metatkgr.settings import MetaTKGRSettings
from metatkgr.models.metatkgr.task_batch import TaskBatch, TaskFacts

__all__ = ["ENCODER", "adapt", "encode", "encoder_part", "loss_of", "task_loss"]

ENCODER = "encoder."
"""How the names of the encoder's parameters begin, among those of the model."""


def encoder_part(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``encoder.*`` entries."""
    return {key: value for key, value in parameters.items() if key.startswith(ENCODER)}


def loss_of(settings: MetaTKGRSettings) -> RankingLoss:
    """The loss that the settings ask for."""
    return partial(
        ranking_loss,
        loss=settings.loss,
        margin=settings.margin,
        reduction=settings.reduction,
    )


def encode(
    encoder: TemporalEncoder,
    parameters: Mapping[str, Tensor],
    tree: Tree,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """h^L_e(t) of every root under given parameters, which need not be the encoder's own.

    Args:
        encoder: the layers.
        parameters: ``encoder.*``, ``entity`` (E, d) and ``relation`` (R, d); or those of T tasks,
            ``entity`` (T, U, d) and ``relation`` (T, V, d), where ``encoder.*`` may be shared or
            have a task axis too.
        tree: the roots and their neighbours; of T tasks, with a leading task axis.
        generator: draws the dropout; None switches it off.

    Returns:
        (..., d) vectors; of T tasks, (T, ..., d).
    """
    layers = {key.removeprefix(ENCODER): x for key, x in encoder_part(parameters).items()}
    inputs = (parameters["entity"], parameters["relation"], tree)
    # No two of its parameters are one, so none has to be looked for.
    vectors: Tensor = functional_call(
        encoder, layers, inputs, {"generator": generator}, tie_weights=False
    )
    return vectors


def task_loss(
    encoder: TemporalEncoder,
    parameters: Mapping[str, Tensor],
    facts: TaskFacts,
    loss: RankingLoss,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The loss of each task's facts, or of one task's.

    Args:
        encoder: the layers.
        parameters: of T tasks, see :func:`encode`; of one task, without the task axis.
        facts: F facts of each of T tasks; of one task, without the task axis.
        loss: which loss.
        generator: draws the dropout; None switches it off.

    Returns:
        (T,) losses, or a number; zero for a task without facts.
    """
    vectors = encode(encoder, parameters, facts.roots, generator=generator)  # (T, F, 2 + n, d)
    entity, others = torch.split(vectors, [1, vectors.shape[-2] - 1], -2)
    relation = relation_vectors(parameters["relation"], facts.relation).unsqueeze(-2)
    score = translation_score(entity, relation, others)  # (T, F, 1 + n)
    positive, negative = torch.split(score, [1, score.shape[-1] - 1], -1)
    return loss(positive.squeeze(-1), negative, facts.mask, facts.negative_mask)


def adapt(
    encoder: TemporalEncoder,
    weights: Mapping[str, Tensor],
    batch: TaskBatch,
    loss: RankingLoss,
    *,
    learning_rate: float,
    steps: int = 1,
    second_order: bool = True,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Parameters of every task after gradient steps on its support.

    Args:
        encoder: the layers.
        weights: ``encoder.*`` and the tables, shared by the tasks.
        batch: T tasks; their supports are fitted to.
        loss: which loss.
        learning_rate: η.
        steps: how many gradient steps; 0 adapts nothing.
        second_order: whether the result keeps the gradients' own derivatives, see ``inner_step``.
        generator: draws the dropout; None switches it off.

    Returns:
        All parameters with a leading task axis: ``encoder.*`` (T, ...), ``entity`` (T, U, d),
        ``relation`` (T, V, d).
    """
    if steps < 0:
        raise ValueError(f"{steps} inner steps; give 0 or more")

    rows = batch.rows(weights)
    near, far = rows["entity"], None
    if batch.support_rows < near.shape[1]:
        # What no support reads has no gradient, and knowing so saves most of the work. Split, not
        # two slices: its backward is one concatenation, not two sums with zeros.
        near, far = torch.split(near, [batch.support_rows, near.shape[1] - batch.support_rows], 1)
    shared = encoder_part(weights)
    adapted = {key: value.expand(len(batch), *value.shape) for key, value in shared.items()}
    adapted |= {"entity": near, "relation": rows["relation"]}

    def support_loss(parameters: dict[str, Tensor]) -> Tensor:
        return task_loss(encoder, parameters, batch.support, loss, generator=generator)

    for _ in range(steps):
        adapted = inner_step(
            adapted, support_loss, learning_rate=learning_rate, second_order=second_order
        )
    if far is not None:
        adapted["entity"] = torch.cat([adapted["entity"], far], 1)
    return adapted
