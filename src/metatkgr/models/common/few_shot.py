"""Few-shot tasks as padded tensors: supports, queries, wrong answers, the loss of them, a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.facts import IntArray
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import UnknownNameError
from metatkgr.graph.ragged import pack
from metatkgr.models.common.translation import StartSettings

__all__ = [
    "FactTable",
    "FewShotSettings",
    "LossKind",
    "NegativeKind",
    "Negatives",
    "PaddedFacts",
    "RankingLoss",
    "Reduction",
    "SupportTable",
    "fixed_negatives",
    "inner_step",
    "ranking_loss",
]

LossKind = Literal["hinge", "softmax"]
Reduction = Literal["sum", "mean"]
NegativeKind = Literal["uniform", "place", "mixed"]

RankingLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""What :func:`ranking_loss` is once its options are chosen."""


@dataclass(frozen=True)
class FewShotSettings(StartSettings):
    """Settings of a model that is meta-trained on tasks; its tables are filled by TransE before."""

    one_shot: bool = False
    """Whether TransE sees one fact of each support (as in the paper of MetaTKGR) or all K."""
    learn_tables: bool = False
    """Whether meta-training moves the tables too. A table can learn the queries of meta-train
    entities by heart, which helps no new entity; a network cannot."""
    negative_kind: NegativeKind = "mixed"
    """Source of wrong answers: 'uniform', 'place' (who filled the relation slot) or 'mixed'."""


class PaddedFacts(NamedTuple):
    """F facts of each of T tasks, with n negatives each, in global ids."""

    entity: Tensor
    """(T, F) int64 the query entity."""
    relation: Tensor
    """(T, F) int64 directed relation, 0..2R-1."""
    answer: Tensor
    """(T, F) int64 the other end."""
    negatives: Tensor
    """(T, F, n) int64 wrong answers."""
    negative_mask: Tensor
    """(T, F, n) bool, the negatives that count."""
    time: Tensor
    """(T, F) int64 step."""
    mask: Tensor
    """(T, F) bool, the facts that count; the ids of others are ignored."""

    @classmethod
    def cat(cls, parts: Sequence[PaddedFacts]) -> PaddedFacts:
        """The tasks of several, one after another; fewer facts are filled up with zeros."""
        widest = max(part.mask.shape[1] for part in parts)
        columns = zip(*(part.widened(widest) for part in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    def each(self, change: Callable[[Tensor], Tensor]) -> PaddedFacts:
        """Every column changed."""
        return PaddedFacts(*(change(column) for column in self))

    def to(self, device: torch.device) -> PaddedFacts:
        """The same facts on a device."""
        return self.each(lambda column: column.to(device))

    def options(self) -> tuple[Tensor, Tensor]:
        """(T F (1 + n),) the answer and the negatives of each fact; and the fact's times."""
        options = torch.cat([self.answer.unsqueeze(-1), self.negatives], -1)
        return options.reshape(-1), self.time.unsqueeze(-1).expand_as(options).reshape(-1)

    def widened(self, facts: int) -> PaddedFacts:
        """So many facts of each task, F or more; those that are added do not count."""
        missing = facts - self.mask.shape[1]
        if not missing:
            return self

        def filled(column: Tensor) -> Tensor:
            zeros = column.new_zeros(len(column), missing, *column.shape[2:])
            return torch.cat([column, zeros], 1)

        return self.each(filled)

    def in_intervals(self, intervals: int) -> tuple[PaddedFacts, int]:
        """Widened so that F falls into M equal intervals; and M: ``intervals``, or at most F."""
        width = self.mask.shape[1]
        count = min(intervals, width)
        return self.widened(width + -width % count), count


class FactTable:
    """Facts to be picked by their query entity; those of one entity keep their order.

    Args:
        entity: (N,) int64 the query entity of each fact.
        relation: (N,) int64 directed.
        answer: (N,) int64 the other end.
        time: (N,) int64 step.
    """

    def __init__(
        self, entity: IntArray, relation: IntArray, answer: IntArray, time: IntArray
    ) -> None:
        order = np.argsort(entity, kind="stable")
        # A row of zeros at the end, for slots that hold no fact.
        self._columns = [
            torch.from_numpy(np.append(column[order], 0).astype(np.int64))
            for column in (entity, relation, answer, time)
        ]
        self._owner = self._columns[0][:-1]

    def __len__(self) -> int:
        return len(self._owner)

    def entities(self) -> Tensor:
        """(n,) int64 who has a fact, ascending."""
        owners: Tensor = torch.unique(self._owner)
        return owners

    def counts(self, entity: Tensor) -> Tensor:
        """(T,) int64 how many facts each of (T,) entities has."""
        after = torch.searchsorted(self._owner, entity, right=True)
        return after - torch.searchsorted(self._owner, entity)

    def pick(self, entity: Tensor, ordinal: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Facts by their number among those of their entity.

        Args:
            entity: (T,) int64.
            ordinal: (T, F) int64, below the entity's count where ``mask`` is True.
            mask: (T, F) bool.

        Returns:
            Entity, relation, answer and time, (T, F) each; 0 where ``mask`` is False.
        """
        first = torch.searchsorted(self._owner, entity).unsqueeze(1)
        row = torch.where(mask, first + ordinal, len(self))
        return tuple(column[row] for column in self._columns)

    def padded(self, entity: Tensor) -> tuple[Tensor, ...]:
        """All facts of (T,) entities.

        Returns:
            Entity, relation, answer, time and mask, (T, F) each, where F is at least 1.
        """
        count = self.counts(entity)
        width = max(int(count.max()), 1) if len(entity) else 1
        ordinal = torch.arange(width).expand(len(entity), width)
        mask = ordinal < count.unsqueeze(1)
        return *self.pick(entity, ordinal, mask), mask


class SupportTable:
    """The supports as padded facts, ready to be picked by entity.

    Args:
        supports: the first facts of the new entities.
        entities: E.
        negatives: how many wrong answers each support fact gets.
    """

    def __init__(self, supports: Supports, *, entities: int, negatives: int) -> None:
        columns = (supports.entity, supports.relation, supports.other, supports.time)
        self.facts = FactTable(*columns)
        self.entities, self.negatives = entities, negatives

    def pick(self, entity: Tensor) -> PaddedFacts:
        """The supports of (T,) entities, on the CPU; an entity without one has no fact."""
        owner, relation, answer, time, mask = self.facts.padded(entity)
        ordinal = torch.arange(mask.shape[1]).expand(mask.shape)
        wrong = fixed_negatives(owner, ordinal, self.negatives, self.entities)
        usable = (wrong != answer.unsqueeze(-1)) & mask.unsqueeze(-1)
        return PaddedFacts(owner, relation, answer, wrong, usable, time, mask)


class Negatives:
    """Draws wrong answers for queries (e, r, ?, t).

    Args:
        visible: the facts to learn from.
        kind: 'uniform': any entity. 'place': entities that filled this slot of r in some fact,
            which are harder to tell from the answer. 'mixed': each with equal chance.
    """

    def __init__(self, visible: VisibleFacts, kind: str = "uniform") -> None:
        if kind not in get_args(NegativeKind):
            raise UnknownNameError("kind of negatives", kind, get_args(NegativeKind))
        self.kind = kind
        self.entities = len(visible.entities)
        relations = 2 * len(visible.relations)
        relation, target = torch.from_numpy(visible.relation), torch.from_numpy(visible.target)
        filler = torch.unique(pack((relation, relations), (target, self.entities)))
        self._target = filler % self.entities
        self._start = torch.searchsorted(filler, torch.arange(relations + 1) * self.entities)

    def draw(self, relation: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Wrong answers for each query; the right one may be among them by chance.

        Args:
            relation: (...) directed relations, on the CPU.
            count: n, how many for each.
            generator: the source of randomness, on the CPU.

        Returns:
            (..., n) entity ids.
        """
        shape = (*relation.shape, count)
        anyone = torch.randint(self.entities, shape, generator=generator)
        if self.kind == "uniform":
            return anyone
        low, high = self._start[relation], self._start[relation + 1]
        size = (high - low).unsqueeze(-1)
        position = (torch.rand(shape, generator=generator) * size).long().clamp(max=size - 1)
        known = (low.unsqueeze(-1) + position).clamp(0, max(len(self._target) - 1, 0))
        # A slot that nobody has filled yet leaves no choice but anyone.
        fitting = torch.where(size > 0, self._target[known], anyone)
        if self.kind == "place":
            return fitting
        return torch.where(torch.rand(shape, generator=generator) < 0.5, fitting, anyone)


def fixed_negatives(entity: Tensor, ordinal: Tensor, count: int, entities: int) -> Tensor:
    """Wrong answers that depend on nothing but the entity and the number of its fact.

    For adapting to a support at forecast time: what is drawn for one entity must not change with
    which other entities have queries, nor with anything that happens to others.

    Args:
        entity: (...) the entity that is adapted to.
        ordinal: (...) the position of the fact in its support.
        count: n, how many for each fact.
        entities: how many entities there are.

    Returns:
        (..., n) entity ids, spread like uniform draws.
    """
    draw = torch.arange(count, device=entity.device)
    seed = (entity * 1_000_003 + ordinal).unsqueeze(-1) * 1_000_033 + draw
    # The finisher of splitmix64; int64 products wrap around, shifts are made unsigned by a mask.
    seed = seed * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        seed = (seed ^ ((seed >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return ((seed ^ ((seed >> 31) & ((1 << 33) - 1))) & ((1 << 62) - 1)) % entities


def ranking_loss(
    positive: Tensor,
    negative: Tensor,
    mask: Tensor,
    negative_mask: Tensor,
    *,
    loss: LossKind = "softmax",
    margin: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """The loss of F facts with n negatives each: it lifts the answer's score above wrong answers'.

    Args:
        positive: (..., F) s⁺.
        negative: (..., F, n) s⁻.
        mask: (..., F) bool, the facts that count.
        negative_mask: (..., F, n) bool, the negatives that count.
        loss: 'hinge': Σ over negatives of max(γ - s⁺ + s⁻, 0), as the paper prints it. 'softmax':
            cross-entropy of the answer among itself and the negatives, by far the stronger teacher.
        margin: γ of the hinge, above 0.
        reduction: 'sum': over all facts and negatives, as printed. 'mean': over facts, and for the
            hinge over negatives too, so that a step does not grow with the number of either.

    Returns:
        (...) summed or averaged over the facts; zero where none counts.
    """
    if loss == "hinge":
        violation = torch.relu(margin - positive.unsqueeze(-1) + negative)
        each = (violation * negative_mask).sum(-1)
        if reduction == "mean":
            each = each / negative_mask.sum(-1).clamp(min=1)
    else:
        lowest = torch.finfo(negative.dtype).min / 2
        masked = negative.masked_fill(~negative_mask, lowest)
        every = torch.cat([positive.unsqueeze(-1), masked], -1)
        each = torch.logsumexp(every, -1) - positive
    total = (each * mask).sum(-1)
    return total / mask.sum(-1).clamp(min=1) if reduction == "mean" else total


def inner_step(
    parameters: Mapping[str, Tensor],
    loss: Callable[[dict[str, Tensor]], Tensor],
    *,
    learning_rate: float,
    second_order: bool = True,
) -> dict[str, Tensor]:
    """One step of the inner loop, φ_e - η ∂L_e/∂φ_e, of T tasks at once.

    Every task has its own copy of the parameters, so the gradient of the *sum* of their losses is
    each task's own gradient.

    Args:
        parameters: by name, (T, ...) each: those of every task.
        loss: of such parameters, the (T,) losses L_e.
        learning_rate: η.
        second_order: whether the result keeps the gradients' own derivatives. Without, they count
            as constants (first-order MAML): cheaper, and the outer gradient is approximate.

    Returns:
        The parameters after the step.
    """
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in parameters.values())
    tracked = second_order and wanted
    with torch.enable_grad():
        # Where no outer graph is wanted it is not even built: that is what first order saves.
        inputs = {
            key: value if tracked and value.requires_grad else value.detach().requires_grad_()
            for key, value in parameters.items()
        }
        gradients = torch.autograd.grad(
            loss(inputs).sum(), list(inputs.values()), create_graph=tracked, materialize_grads=True
        )
    return {
        key: torch.sub(value, gradient, alpha=learning_rate)
        for (key, value), gradient in zip(parameters.items(), gradients, strict=True)
    }
