"""The definition of a rank.

rank = 1 + #better + #equal / 2, over all candidates except other true answers: the mean of the
best and the worst place an answer could take among its ties. A non-finite score is an error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metatkgr.errors import MetaTKGRError
from metatkgr.evaluation.filters import TrueAnswers
from metatkgr.graph.ragged import expand_ranges

__all__ = ["NonFiniteScoreError", "check_finite", "filtered_ranks", "unfiltered_counts"]

_CPU_BLOCK_BYTES = 1 << 22
"""Rows compared in one go on a CPU: small enough to stay in its cache."""
_GPU_BLOCK_BYTES = 1 << 28


class NonFiniteScoreError(MetaTKGRError):
    """A model gave NaN or infinity; such a score has no rank."""


def check_finite(scores: Tensor) -> None:
    """Raise unless every score is a finite number.

    Args:
        scores: (Q, E).
    """
    if not scores.dtype.is_floating_point:
        return
    bad = ~torch.isfinite(scores)
    if bool(bad.any()):
        question, candidate = (int(i) for i in torch.nonzero(bad)[0])
        raise NonFiniteScoreError(
            f"{int(bad.sum())} scores are not finite; the first is {scores[question, candidate]} "
            f"for question {question}, candidate {candidate}: a non-finite score has no rank"
        )


def unfiltered_counts(scores: Tensor, question: Tensor, answer: Tensor) -> tuple[Tensor, Tensor]:
    """How many candidates score above an answer, and how many others exactly the same.

    Args:
        scores: (Q, E).
        question: (A,) row of each answer's question.
        answer: (A,) entity id of each answer.

    Returns:
        better, equal: (A,) int64; the answer itself is not among its equals.
    """
    value = scores[question, answer].unsqueeze(1)
    row_bytes = scores.shape[1] * scores.element_size()
    block = (_GPU_BLOCK_BYTES if scores.is_cuda else _CPU_BLOCK_BYTES) // row_bytes
    better = torch.empty(len(answer), dtype=torch.int64, device=scores.device)
    equal = torch.empty_like(better)
    for begin in range(0, len(answer), max(block, 1)):
        part = slice(begin, begin + max(block, 1))
        rows = scores.index_select(0, question[part])
        better[part] = _count(rows > value[part])
        equal[part] = _count(rows == value[part])
    return better, equal - 1


def _count(mask: Tensor) -> Tensor:
    """(n,) number of true cells per row; torch adds bytes several times faster than booleans."""
    return mask.view(torch.uint8).sum(1, dtype=torch.int32)


def filtered_ranks(
    scores: Tensor, question: Tensor, answer: Tensor, filters: list[TrueAnswers]
) -> list[Tensor]:
    """Ranks of answers, one list of ranks for each filter.

    All candidates are counted once; what a filter drops (a short list per question) is then
    taken off, so a second filter costs next to nothing.

    Args:
        scores: (Q, E), any real dtype, on any device.
        question: (A,) row of each answer's question.
        answer: (A,) entity ids.
        filters: what each filter drops, for the same Q questions.

    Returns:
        One (A,) float64 tensor of ranks for each filter.
    """
    check_finite(scores)
    better, equal = unfiltered_counts(scores, question, answer)
    value = scores[question, answer]
    ranks = []
    for true in filters:
        row, position = expand_ranges(true.start[question], true.stop[question])
        dropped = true.entity[position]
        score = scores[question[row], dropped]
        other = dropped != answer[row]
        above = torch.zeros_like(better).index_add_(0, row, (other & (score > value[row])).long())
        level = torch.zeros_like(equal).index_add_(0, row, (other & (score == value[row])).long())
        ranks.append(1 + (better - above).double() + (equal - level).double() / 2)
    return ranks
