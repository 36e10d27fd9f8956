"""From ranks to numbers with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import IntArray

__all__ = [
    "HITS",
    "Summary",
    "bootstrap_interval",
    "paired_difference",
    "paired_p_value",
    "summarise",
]

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


def paired_difference(
    one: FloatArray, other: FloatArray, entity: IntArray, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """How much higher the MRR of one ranking of the same queries is than that of another.

    Args:
        one, other: (A,) ranks of the same queries.
        entity: (A,) whose query each is.
        resamples: of the bootstrap over entities.
        seed: of the bootstrap.

    Returns:
        The difference, and its 95 % interval.
    """
    gain = 1.0 / one - 1.0 / other
    _, group = np.unique(entity, return_inverse=True)
    total: FloatArray = np.bincount(group, weights=gain).astype(np.float64)
    size: FloatArray = np.bincount(group).astype(np.float64)
    low, high = bootstrap_interval(total, size, resamples=resamples, seed=seed)
    return float(gain.mean()), low, high


def paired_p_value(
    one: FloatArray, other: FloatArray, entity: IntArray, *, draws: int = 10_000, seed: int = 0
) -> float:
    """How likely a difference in MRR at least as large is if the two rankings are equally good.

    Under that, the gain of each entity could as well have the other sign: signs are drawn anew, for
    all queries of an entity together, and the share of draws that reach the difference is counted
    (with the difference itself, so that it is never 0).

    Args:
        one, other, entity: as in :func:`paired_difference`.
        draws: of the signs.
        seed: of the draws.
    """
    _, group = np.unique(entity, return_inverse=True)
    total = np.bincount(group, weights=1.0 / one - 1.0 / other)
    rng = np.random.default_rng(seed)
    reached = 0
    size = max(1, (1 << 22) // max(1, len(total)))
    for begin in range(0, draws, size):
        signs = rng.integers(0, 2, (min(size, draws - begin), len(total)), np.int8) * 2.0 - 1.0
        reached += int((np.abs(signs @ total) >= abs(total.sum()) - 1e-12).sum())
    return (reached + 1) / (draws + 1)
