"""The definition of a rank, which other answers do not count against it, and what ranks amount to.

rank = 1 + #better + #equal / 2, over all candidates except other true answers: the mean of the
best and the worst rank an answer could take among its ties. A non-finite score is an error.

The filter ``static`` drops other x with (e, r, x) true at any time, ``time`` those true at the very
same time (``data.answers``).

From ranks follow the mean reciprocal rank and Hits@k, with an interval over entities.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.answers import TrueAnswers
from metatkgr.data.facts import IntArray
from metatkgr.errors import MetaTKGRError
from metatkgr.graph.ragged import expand_ranges
from metatkgr.models.common.listed import ListedScores, Scores

__all__ = [
    "HITS",
    "FloatArray",
    "NonFiniteScoreError",
    "Summary",
    "bootstrap_interval",
    "check_finite",
    "filtered_ranks",
    "summarise",
    "unfiltered_counts",
]

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


HITS = (1, 3, 10)
"""The k of Hits@k."""
_CELLS = 1 << 22
"""Resampling weights held at once; bounds the bootstrap's memory."""
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Metrics of a set of ranks; every mean is None where the set is empty."""

    queries: int
    entities: int
    mrr: float | None
    """Mean reciprocal rank over queries (micro)."""
    hits: dict[int, float | None]
    """Hits@k over queries."""
    mrr_macro: float | None
    """Mean over entities of each entity's own MRR."""
    hits_macro: dict[int, float | None]
    mrr_ci95: tuple[float, float] | None
    """95 % interval of the MRR by bootstrap over entities."""

    def to_json(self) -> dict[str, object]:
        """The form of the command line's JSON."""
        return {
            "mrr": self.mrr,
            **{f"hits@{k}": value for k, value in self.hits.items()},
            "mrr_macro": self.mrr_macro,
            **{f"hits@{k}_macro": value for k, value in self.hits_macro.items()},
            "mrr_ci95": None if self.mrr_ci95 is None else list(self.mrr_ci95),
            "queries": self.queries,
            "entities": self.entities,
        }


def summarise(
    ranks: FloatArray, entity: IntArray, *, resamples: int = 1000, seed: int = 0
) -> Summary:
    """Micro and macro metrics of some queries.

    Args:
        ranks: (A,) rank of each answer, at least 1.
        entity: (A,) whose query it is.
        resamples: bootstrap resamples; 0 leaves the interval out.
        seed: of the bootstrap.
    """
    if len(ranks) == 0:
        nothing: dict[int, float | None] = dict.fromkeys(HITS)
        return Summary(0, 0, None, nothing, None, nothing, None)
    _, group = np.unique(entity, return_inverse=True)
    size = np.bincount(group).astype(np.float64)
    reciprocal = 1.0 / ranks
    per_entity: FloatArray = np.bincount(group, weights=reciprocal).astype(np.float64)
    hits = {k: (ranks <= k).astype(np.float64) for k in HITS}
    interval = None
    if resamples:
        interval = bootstrap_interval(per_entity, size, resamples=resamples, seed=seed)
    return Summary(
        queries=len(ranks),
        entities=len(size),
        mrr=float(reciprocal.mean()),
        hits={k: float(hit.mean()) for k, hit in hits.items()},
        mrr_macro=float((per_entity / size).mean()),
        hits_macro={
            k: float((np.bincount(group, weights=hit) / size).mean()) for k, hit in hits.items()
        },
        mrr_ci95=interval,
    )


def bootstrap_interval(
    total: FloatArray, size: FloatArray, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of a mean over queries when whole entities are resampled.

    Queries of one entity are not independent, so entities are drawn, with replacement, and bring
    all their queries: mean = Σ total / Σ size over the drawn entities.

    Args:
        total: (n,) sum of a metric over each entity's queries.
        size: (n,) number of each entity's queries.
        resamples: how often to draw.
        seed: of the draws.

    Returns:
        The 2.5 and 97.5 percentiles of the resampled means.
    """
    generator = np.random.default_rng(seed)
    count = len(total)
    means = np.empty(resamples)
    rows = max(1, min(resamples, _CELLS // count))
    for begin in range(0, resamples, rows):
        drawn = generator.integers(0, count, size=(min(rows, resamples - begin), count))
        means[begin : begin + rows] = total[drawn].sum(1) / size[drawn].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
