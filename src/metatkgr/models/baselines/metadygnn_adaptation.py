r"""How MetaDyGNN adapts to a new entity: two steps per time interval of its support.

The support of an entity e, in time order, is cut into M intervals of as many facts each. From what
is shared by all, the network φ and e's own vector :math:`h_e`, each interval m makes fast weights
in two steps, and these are mixed by how well they explain the whole support S:

.. math::
    \phi_m &= \phi - \eta \nabla_\phi L(S_m; \phi, h_e)            & \text{(network)} \\
    h_m    &= h_e - \eta \nabla_{h_e} L(S_m; \phi_m, h_e)          & \text{(node)} \\
    w      &= \mathrm{softmax}_m(-L(S; \phi_m, h_m)), \quad
    \phi_e = \sum_m w_m \phi_m, \quad h'_e = \sum_m w_m h_m

Fast weights encode e. Its answers and wrong answers are encoded with φ, in training as when they
are ranked: one encoding of a candidate then serves all questions of a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from metatkgr.models.baselines.tgat import LAYERS, encode, shared
from metatkgr.models.common.few_shot import PaddedFacts, ranking_loss
from metatkgr.models.common.neighbourhood import SampleNeighbours, Tree, grow
from metatkgr.models.common.scores import translation_score

__all__ = ["SupportFacts", "adapt", "in_intervals", "part_of_tree", "support_loss", "task_tree"]


class SupportFacts(NamedTuple):
    """F support facts of each of T tasks, with encoded candidates; F is a multiple of M."""

    roots: Tree
    """(T, F) the entity at the fact's time, in global ids."""
    candidates: Tensor
    """(T, F, 1 + n, d) the answer and n wrong ones."""
    translation: Tensor
    """(T, F, d) relation vectors."""
    mask: Tensor
    """(T, F) bool, the facts that count."""
    negative_mask: Tensor
    """(T, F, n) bool, the wrong answers that count."""


def in_intervals(facts: PaddedFacts, intervals: int) -> tuple[PaddedFacts, int]:
    """Padded so that the facts fall into M intervals of F / M each; and M, at most the facts."""
    width = facts.mask.shape[1]
    count = min(intervals, width)
    return facts.widened(width + -width % count), count


def task_tree(sample: SampleNeighbours, entity: Tensor, time: Tensor, *, own: bool) -> Tree:
    """Two hops around (T, n) roots, in global ids."""
    tree = grow(sample, entity.reshape(-1), time.reshape(-1), layers=LAYERS, own=own)
    return tree.reshape(entity.shape)


def part_of_tree(tree: Tree, rows: slice) -> Tree:
    """Some of each task's roots."""
    return tree.each(lambda column: column[:, rows])


def _each(facts: SupportFacts, change: Callable[[Tensor], Tensor]) -> SupportFacts:
    """``change`` every column but the ages."""
    return SupportFacts(facts.roots.each(change), *(change(column) for column in facts[1:]))


def support_loss(
    parameters: Mapping[str, Tensor],
    own: Tensor,
    facts: SupportFacts,
    tables: Mapping[str, Tensor],
) -> Tensor:
    """(T,) the loss of each task's facts under its own network and its entity's own vector."""
    start = own.unsqueeze(1).expand(-1, facts.mask.shape[1], -1)
    vector = encode(parameters, tables, facts.roots, start)
    score = translation_score(
        vector.unsqueeze(-2), facts.translation.unsqueeze(-2), facts.candidates
    )
    return ranking_loss(score[..., 0], score[..., 1:], facts.mask, facts.negative_mask)


def adapt(
    network: Mapping[str, Tensor],
    own: Tensor,
    support: SupportFacts,
    tables: Mapping[str, Tensor],
    *,
    intervals: int,
    learning_rate: float,
    second_order: bool = True,
) -> tuple[dict[str, Tensor], Tensor]:
    """Fast weights of T tasks.

    Args:
        network: ``encoder.*``, shared; other keys are ignored.
        own: (T, d) the entities' own vectors.
        support: their facts, (T, F).
        tables: ``entity`` (E, d) and ``relation`` (R, d).
        intervals: M; divides F.
        learning_rate: η.
        second_order: whether the result keeps the gradients' own derivatives.

    Returns:
        ``encoder.*`` with a task axis, and (T, d) own vectors.
    """
    tasks = len(support.mask)
    tracked = second_order and torch.is_grad_enabled()
    # Every interval of every task is a task of its own, T M of them.
    pieces = _each(support, lambda x: x.reshape(tasks * intervals, -1, *x.shape[2:]))
    fast = {
        key: value.expand(tasks * intervals, *value.shape[1:])
        for key, value in shared(network).items()
    }
    start = own.repeat_interleave(intervals, 0)
    names = list(fast)

    with torch.enable_grad():

        def stepped(values: list[Tensor], loss: Callable[[list[Tensor]], Tensor]) -> list[Tensor]:
            inputs = [v if tracked and v.requires_grad else v.detach() for v in values]
            inputs = [v if v.requires_grad else v.requires_grad_() for v in inputs]
            # Each task has its own copy, so the gradient of the sum is each one's own.
            gradient = torch.autograd.grad(
                loss(inputs).sum(), inputs, create_graph=tracked, materialize_grads=True
            )
            return [
                torch.sub(v, g, alpha=learning_rate) for v, g in zip(values, gradient, strict=True)
            ]

        def of_network(values: list[Tensor]) -> Tensor:
            return support_loss(dict(zip(names, values, strict=True)), start, pieces, tables)

        moved = stepped(list(fast.values()), of_network)
        fast = dict(zip(names, moved, strict=True))
        (node,) = stepped([start], lambda v: support_loss(fast, v[0], pieces, tables))
        whole = _each(support, lambda x: x.repeat_interleave(intervals, 0))
        explained = support_loss(fast, node, whole, tables).view(tasks, intervals)
    there = pieces.mask.any(1).view(tasks, intervals)
    # Of a task without any fact all intervals count alike; nothing has moved in them.
    there = there | ~there.any(1, keepdim=True)
    lowest = torch.finfo(explained.dtype).min / 2
    share = torch.softmax((-explained).masked_fill(~there, lowest), 1)

    def mixed(value: Tensor) -> Tensor:
        each = value.view(tasks, intervals, -1)
        return (share.unsqueeze(1) @ each).reshape(tasks, *value.shape[1:])

    return {key: mixed(value) for key, value in fast.items()}, mixed(node)
