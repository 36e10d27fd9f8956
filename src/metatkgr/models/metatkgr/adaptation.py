"""Inner optimisation: fit the encoder and a task's rows to its support, for all tasks at once.

    φ_e = φ - η ∂L(f_φ, S_e)/∂φ     for every task e, one or several such steps

φ are the ``encoder.*`` parameters and the embedding rows the task touches. Every task has its own
copy of φ, so the gradient of the *sum* of their losses is each task's own gradient. What comes out
is differentiable in turn: the loss of the adapted parameters on the queries has a gradient with
respect to the parameters before adaptation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from metatkgr.models.common.few_shot import RankingLoss
from metatkgr.models.common.neighbourhood import Tree
from metatkgr.models.common.scores import relation_vectors, translation_score
from metatkgr.models.metatkgr.encoder import EncoderSettings, encode
from metatkgr.models.metatkgr.task_batch import TaskFacts

__all__ = ["adapt", "encode_tasks", "encoder_part", "query_loss", "task_loss"]


def encoder_part(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``encoder.*`` entries."""
    return {key: value for key, value in parameters.items() if key.startswith("encoder.")}


def task_loss(
    parameters: Mapping[str, Tensor],
    facts: TaskFacts,
    encoder: EncoderSettings,
    loss: RankingLoss,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The loss of each task's facts, or of one task's.

    Args:
        parameters: ``encoder.*``, ``entity`` (T, U, d) and ``relation`` (T, V, d), where
            ``encoder.*`` may be shared or have a task axis too; of one task, none has.
        facts: F facts of each of T tasks; of one task, without the task axis.
        encoder: settings of the encoder.
        loss: which loss.
        generator: draws the dropout; None switches it off.

    Returns:
        (T,) losses, or a number; zero for a task without facts.
    """
    vectors = encode(parameters, encoder, facts.roots, generator=generator)  # (T, F, 2 + n, d)
    entity, others = torch.split(vectors, [1, vectors.shape[-2] - 1], -2)
    relation = relation_vectors(parameters["relation"], facts.relation).unsqueeze(-2)
    score = translation_score(entity, relation, others)  # (T, F, 1 + n)
    positive, negative = torch.split(score, [1, score.shape[-1] - 1], -1)
    return loss(positive.squeeze(-1), negative, facts.mask, facts.negative_mask)


def adapt(
    encoder_parameters: Mapping[str, Tensor],
    rows: Mapping[str, Tensor],
    support: TaskFacts,
    encoder: EncoderSettings,
    loss: RankingLoss,
    *,
    learning_rate: float,
    steps: int = 1,
    second_order: bool = True,
    support_rows: int | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Parameters of every task after gradient steps on its support.

    Args:
        encoder_parameters: ``encoder.*``, shared by the tasks; other keys are ignored.
        rows: ``entity`` (T, U, d) and ``relation`` (T, V, d), from ``TaskBatch.rows``.
        support: the supports of T tasks.
        encoder: settings of the encoder.
        loss: which loss.
        learning_rate: η.
        steps: how many gradient steps; 0 adapts nothing.
        second_order: whether the result keeps the gradients' own derivatives. Without, they count
            as constants (first-order MAML): cheaper, and the outer gradient is approximate.
        support_rows: how many of the entity rows, the first ones, the supports may read; from
            ``TaskBatch``. The rest has no gradient, and knowing so saves most of the work.
        generator: draws the dropout; None switches it off.

    Returns:
        All parameters with a leading task axis: ``encoder.*`` (T, ...), ``entity``, ``relation``.
    """
    if steps < 0:
        raise ValueError(f"{steps} inner steps; give 0 or more")

    tasks = len(support.mask)
    shared = encoder_part(encoder_parameters)
    near, far = rows["entity"], None
    if support_rows is not None and support_rows < near.shape[1]:
        # Split, not two slices: its backward is one concatenation, not two sums with zeros.
        near, far = torch.split(near, [support_rows, near.shape[1] - support_rows], 1)
    adapted = {key: value.expand(tasks, *value.shape) for key, value in shared.items()}
    adapted |= {"entity": near, "relation": rows["relation"]}
    for _ in range(steps):
        gradient = _gradient(adapted, support, encoder, loss, second_order, generator)
        adapted = {
            key: torch.sub(value, gradient[key], alpha=learning_rate)
            for key, value in adapted.items()
        }
    if far is not None:
        adapted["entity"] = torch.cat([adapted["entity"], far], 1)
    return adapted


def _gradient(
    parameters: dict[str, Tensor],
    facts: TaskFacts,
    encoder: EncoderSettings,
    loss: RankingLoss,
    second_order: bool,
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """Each task's gradient; a constant unless ``second_order`` and someone will ask for more."""
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in parameters.values())
    tracked = second_order and wanted
    with torch.enable_grad():
        # Where no outer graph is wanted it is not even built: that is what first order saves.
        inputs = {
            key: value if tracked and value.requires_grad else value.detach().requires_grad_()
            for key, value in parameters.items()
        }
        total = task_loss(inputs, facts, encoder, loss, generator=generator).sum()
        gradients = torch.autograd.grad(
            total, list(inputs.values()), create_graph=tracked, materialize_grads=True
        )
    return dict(zip(parameters, gradients, strict=True))


def query_loss(
    adapted: dict[str, Tensor],
    query: TaskFacts,
    encoder: EncoderSettings,
    loss: RankingLoss,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The loss of every task's queries under its own adapted parameters.

    Args:
        adapted: from :func:`adapt`.
        query: the queries of T tasks.
        encoder: settings of the encoder.
        loss: which loss.
        generator: draws the dropout; None switches it off.

    Returns:
        (T,) losses; zero for a task without queries.
    """

    return task_loss(adapted, query, encoder, loss, generator=generator)


def encode_tasks(adapted: dict[str, Tensor], encoder: EncoderSettings, roots: Tree) -> Tensor:
    """Roots of every task under its own adapted parameters, without dropout.

    Args:
        adapted: from :func:`adapt`.
        encoder: settings of the encoder.
        roots: (T, ...) roots; every tensor of the tree with a leading task axis.

    Returns:
        (T, ..., d) vectors.
    """
    return encode(adapted, encoder, roots)
