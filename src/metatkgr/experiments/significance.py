"""Is one model better than another, or would other entities and seeds have said otherwise?

Paired: both models answer the same queries. Queries of one entity are not independent, so whole
entities are drawn, with replacement, and bring all their queries; seeds are drawn likewise. The
MRRs over these draws give an interval of each model, and their differences an interval and, by its
standard deviation, a p-value; p-values are corrected for the number of comparisons (Holm, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from metatkgr.experiments.cells import RULES, Row, row_order
from metatkgr.experiments.records import FloatArray, Record

__all__ = ["ALPHA", "RESAMPLES", "Comparison", "Draws", "comparisons", "holm"]

ALPHA = 0.05
"""A corrected p-value below this earns a star."""
RESAMPLES = 10_000
_AT_ONCE = 500
"""Draws that are multiplied at once."""
_ONE_SIDED, _TWO_SIDED, _POWER = 1.6449, 1.9600, 0.8416
"""Normal quantiles: of .95, of .975, of .8."""


@dataclass(frozen=True)
class Comparison:
    """How much higher the MRR of one row is than that of another."""

    dataset: str
    shots: int
    one: Row
    other: Row
    difference: float
    low: float
    high: float
    """The 95 % interval of the difference."""
    spread: float
    """The standard deviation of the difference over draws."""
    corrected: float = 1.0
    """The p-value after the correction for all comparisons made."""

    @property
    def p(self) -> float:
        """Two-sided, of this comparison alone."""
        return _p_value(self.difference, self.spread)

    @property
    def significant(self) -> bool:
        """Whether the difference earns a star."""
        return self.corrected < ALPHA

    @property
    def equivalence(self) -> float:
        """The least margin within which both are the same, by two one-sided tests at 5 %."""
        return abs(self.difference) + _ONE_SIDED * self.spread

    @property
    def detectable(self) -> float:
        """The least true difference that such a test, alone, finds four times out of five."""
        return (_TWO_SIDED + _POWER) * self.spread


def _p_value(difference: float, spread: float) -> float:
    if spread == 0.0:
        return 1.0 if difference == 0.0 else 0.0
    return math.erfc(abs(difference) / spread / math.sqrt(2.0))


class Draws:
    """The runs of one dataset and number of shots, with entities drawn alike for all of them.

    Args:
        records: of all rows and seeds; only those that kept their sums of entities count.
        filter: of the ranks.
    """

    def __init__(self, records: Iterable[Record], filter: str = "static") -> None:
        kept = [(r, sums) for r in records if (sums := r.per_entity(filter)) is not None]
        self.size = kept[0][1][1] if kept else np.zeros(0)
        kept = [(r, sums) for r, sums in kept if np.array_equal(sums[1], self.size)]
        means = resampled(np.stack([sums for _, (sums, _) in kept]), self.size) if kept else None
        self.mrr: dict[Row, dict[int, float]] = {}
        self._means: dict[Row, dict[int, FloatArray]] = {}
        for column, (record, (total, _)) in enumerate(kept):
            assert means is not None
            seed = record.cell.seed
            self.mrr.setdefault(record.row, {})[seed] = float(total.sum() / self.size.sum())
            self._means.setdefault(record.row, {})[seed] = means[:, column]

    @property
    def rows(self) -> list[Row]:
        """All rows with a run."""
        return sorted(self.mrr, key=row_order)

    def interval(self, row: Row) -> tuple[float, float]:
        """The 95 % interval of a row's MRR, over entities and seeds."""
        return _spread(np.stack(list(self._means[row].values()), 1))[:2]

    def compare(self, one: Row, other: Row) -> tuple[float, float, float, float] | None:
        """difference, low, high, spread, of the seeds that both have; None: there is none.

        A rule, which has no randomness, is the same for all seeds.
        """
        mine, theirs = (self._by_seed(row, self.mrr[one], self.mrr[other]) for row in (one, other))
        seeds = sorted(set(mine) & set(theirs))
        if not seeds:
            return None
        pairs = [(mine[seed], theirs[seed]) for seed in seeds]
        difference = np.mean([self.mrr[one][a] - self.mrr[other][b] for a, b in pairs])
        gain = [self._means[one][a] - self._means[other][b] for a, b in pairs]
        return float(difference), *_spread(np.stack(gain, 1))

    def _by_seed(self, row: Row, *seeds: Iterable[int]) -> dict[int, int]:
        """Which run of a row stands for each seed."""
        own = self.mrr[row]
        if row.model in RULES:
            return dict.fromkeys((seed for some in seeds for seed in some), next(iter(own)))
        return {seed: seed for seed in own}


def _spread(means: FloatArray) -> tuple[float, float, float]:
    """The 95 % interval and the standard deviation of a mean over seeds, which are drawn too.

    Args:
        means: (B, S) of each draw of entities, for each seed.
    """
    seeds = means.shape[1]
    drawn = means.mean(1)
    if seeds > 1:
        which = np.random.default_rng(1).integers(0, seeds, means.shape)
        away = np.take_along_axis(means, which, 1).mean(1) - drawn
        # Few seeds that are drawn with replacement vary too little.
        drawn = drawn + math.sqrt(seeds / (seeds - 1)) * away
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high), float(drawn.std(ddof=1))


def resampled(sums: FloatArray, size: FloatArray) -> FloatArray:
    """(B, C) means over queries in each draw of entities.

    Args:
        sums: (C, n) of a metric over the queries of each entity.
        size: (n,) numbers of queries.
    """
    drawn = _drawn(len(size))
    means = []
    for start in range(0, len(drawn), _AT_ONCE):
        part = drawn[start : start + _AT_ONCE].astype(np.float64)
        means.append((part @ sums.T) / (part @ size)[:, None])
    return np.concatenate(means)


@lru_cache(maxsize=2)
def _drawn(count: int) -> npt.NDArray[np.uint16]:
    """(B, n) multiplicities of n entities in B draws of n; the same for all models."""
    generator = np.random.default_rng(0)
    drawn = np.zeros((RESAMPLES, count), np.uint16)
    for row in drawn:
        row += np.bincount(generator.integers(0, count, count), minlength=count).astype(np.uint16)
    return drawn


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p-values: the i-th smallest of m times m - i + 1, made monotone, at most 1."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = highest
    return corrected


def comparisons(
    draws: Mapping[tuple[str, int], Draws], pairs: Callable[[Draws], Iterable[tuple[Row, Row]]]
) -> list[Comparison]:
    """Some pairs of rows on each dataset and number of shots; all corrected together.

    Args:
        draws: by dataset and number of shots.
        pairs: of rows to compare, both of which have runs.
    """
    tested = [
        Comparison(dataset, shots, one, other, *numbers)
        for (dataset, shots), drawn in draws.items()
        for one, other in pairs(drawn)
        if (numbers := drawn.compare(one, other))
    ]
    corrected = holm([comparison.p for comparison in tested])
    return [replace(c, corrected=p) for c, p in zip(tested, corrected, strict=True)]
