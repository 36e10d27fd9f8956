"""The facts of many tasks as padded tensors, before and after they are renumbered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from metatkgr.models.metatkgr.encoder import Hop, Tree

__all__ = ["PaddedFacts", "TaskFacts"]


class PaddedFacts(NamedTuple):
    """F facts of each of T tasks, with n negatives each, in global ids."""

    entity: Tensor
    """(T, F) int64 the entity that is asked about."""
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
        return cls(
            *(
                torch.cat([_widened(column, widest) for column in columns])
                for columns in zip(*parts, strict=True)
            )
        )


def _widened(column: Tensor, facts: int) -> Tensor:
    """(T, F, ...) with zeros up to so many facts."""
    missing = facts - column.shape[1]
    if not missing:
        return column
    return torch.cat([column, column.new_zeros(len(column), missing, *column.shape[2:])], 1)


class TaskFacts(NamedTuple):
    """F facts of each of T tasks in local ids, ready to be encoded and scored."""

    roots: Tree
    """(T, F, 2 + n) roots at the fact's time: the entity, the answer, the negatives."""
    relation: Tensor
    """(T, F) int64 directed local relation, 0..2V-1."""
    mask: Tensor
    """(T, F) bool, the facts that count."""
    negative_mask: Tensor
    """(T, F, n) bool, the negatives that count."""

    def some(self, tasks: slice, facts: int) -> TaskFacts:
        """The first so many facts of some tasks."""
        tree = self.roots
        return TaskFacts(
            Tree(
                tree.entity[tasks, :facts],
                tree.ages[tasks],
                tuple(Hop(*(column[tasks, :facts] for column in hop)) for hop in tree.hops),
            ),
            *(column[tasks, :facts] for column in self[1:]),
        )
