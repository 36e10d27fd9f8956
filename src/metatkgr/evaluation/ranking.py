"""The definition of a rank.

rank = 1 + #better + #equal / 2, over all candidates except other true answers: the mean of the
best and the worst rank an answer could take among its ties. A non-finite score is an error.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import IntArray
from metatkgr.errors import MetaTKGRError
from metatkgr.evaluation.filters import TrueAnswers
from metatkgr.graph.ragged import expand_ranges
from metatkgr.models.common.listed import ListedScores, Scores

__all__ = ["NonFiniteScoreError", "check_finite", "filtered_ranks", "unfiltered_counts"]

_CPU_BLOCK_BYTES = 1 << 22
"""Scores compared in one go on a CPU: small enough to stay in its cache."""
_GPU_BLOCK_BYTES = 1 << 28


class NonFiniteScoreError(MetaTKGRError):
    """A model gave NaN or infinity; such a score has no rank."""


def check_finite(scores: Scores) -> None:
    """Raise unless every score is a finite number.

    Args:
        scores: (Q, E), or some.
    """
    if isinstance(scores, ListedScores):
        scores = scores.score.unsqueeze(0)
    if not scores.dtype.is_floating_point:
        return
    bad = ~torch.isfinite(scores)
    if bool(bad.any()):
        query, candidate = (int(i) for i in torch.nonzero(bad)[0])
        raise NonFiniteScoreError(
            f"{int(bad.sum())} scores are not finite; the first is {scores[query, candidate]} "
            f"for question {query}, candidate {candidate}: a non-finite score has no rank"
        )


def unfiltered_counts(scores: Scores, query: Tensor, answer: Tensor) -> tuple[Tensor, Tensor]:
    """How many candidates score above an answer, and how many others exactly the same.

    Args:
        scores: of Q queries.
        query: (A,) row of each answer's query.
        answer: (A,) entity id of each answer.

    Returns:
        better, equal: (A,) int64; the answer itself is not among its equals.
    """
    if isinstance(scores, ListedScores):
        return scores.counts(query, answer)
    if not scores.is_cuda:
        if scores.dtype in (torch.float16, torch.bfloat16):
            scores = scores.float()  # numpy has no bfloat16; the order stays
        columns = (tensor.detach().numpy() for tensor in (scores, query, answer))
        better, equal = map(torch.from_numpy, _counts_on_cpu(*columns))
    else:
        better, equal = _counts_on_gpu(scores, query, answer)
    return better, equal - 1


def _counts_on_gpu(scores: Tensor, query: Tensor, answer: Tensor) -> tuple[Tensor, Tensor]:
    value = scores[query, answer].unsqueeze(1)
    block = max(1, _GPU_BLOCK_BYTES // (scores.shape[1] * scores.element_size()))
    better = torch.empty(len(answer), dtype=torch.int64, device=scores.device)
    equal = torch.empty_like(better)
    for begin in range(0, len(answer), block):
        part = slice(begin, begin + block)
        rows = scores.index_select(0, query[part])
        better[part] = (rows > value[part]).sum(1)
        equal[part] = (rows == value[part]).sum(1)
    return better, equal


def _counts_on_cpu(
    scores: npt.NDArray[Any], query: IntArray, answer: IntArray
) -> tuple[IntArray, IntArray]:
    """The same in numpy, a few threads on blocks of their own.

    Torch would split each small operation over all threads and wait for the slowest, thousands of
    times; on a machine that does anything else besides, that takes ten times as long.
    """
    candidates = scores.shape[1]
    value = scores[query, answer][:, None]
    better = np.empty(len(answer), np.int64)
    equal = np.empty_like(better)
    block = max(1, _CPU_BLOCK_BYTES // max(1, candidates * scores.itemsize))
    workers = min(torch.get_num_threads(), -(-len(answer) // block))
    narrow = np.uint16 if candidates < 2**16 else np.uint32

    def work(number: int) -> None:
        rows = np.empty((block, candidates), scores.dtype)
        mask = np.empty((block, candidates), bool)
        for begin in range(number * block, len(answer), workers * block):
            part = slice(begin, min(begin + block, len(answer)))
            some, hit = rows[: part.stop - begin], mask[: part.stop - begin]
            np.take(scores, query[part], axis=0, out=some, mode="clip")
            np.greater(some, value[part], out=hit)
            better[part] = np.add.reduce(hit.view(np.uint8), axis=1, dtype=narrow)
            np.equal(some, value[part], out=hit)
            equal[part] = np.add.reduce(hit.view(np.uint8), axis=1, dtype=narrow)

    if workers == 1:
        work(0)
    elif workers > 1:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))
    return better, equal


def _scores_of(scores: Scores, query: Tensor, entity: Tensor) -> Tensor:
    """(A,) scores of single candidates."""
    if isinstance(scores, ListedScores):
        return scores.of(query, entity)
    return scores[query, entity]


def filtered_ranks(
    scores: Scores, query: Tensor, answer: Tensor, filters: list[TrueAnswers]
) -> list[Tensor]:
    """Ranks of answers, one list of ranks for each filter.

    All candidates are counted once; what a filter drops (a short list per query) is then
    taken off, so a second filter costs next to nothing.

    Args:
        scores: of Q queries, any real dtype, on any device.
        query: (A,) row of each answer's query.
        answer: (A,) entity ids.
        filters: what each filter drops, for the same Q queries.

    Returns:
        One (A,) float64 tensor of ranks for each filter.
    """
    check_finite(scores)
    better, equal = unfiltered_counts(scores, query, answer)
    value = _scores_of(scores, query, answer)
    ranks = []
    for true in filters:
        row, position = expand_ranges(true.start[query], true.stop[query])
        dropped = true.entity[position]
        score = _scores_of(scores, query[row], dropped)
        other = dropped != answer[row]
        above = torch.zeros_like(better).index_add_(0, row, (other & (score > value[row])).long())
        level = torch.zeros_like(equal).index_add_(0, row, (other & (score == value[row])).long())
        ranks.append(1 + (better - above).double() + (equal - level).double() / 2)
    return ranks
