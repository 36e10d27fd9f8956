"""Is one model better than another, or would other entities and seeds have said otherwise?

Paired: both models answer the same queries. Queries of one entity are not independent, so whole
entities are drawn, with replacement, and bring all their queries; seeds are drawn likewise. The
difference of the MRRs over these draws gives an interval and, by its standard deviation, a p-value;
p-values are corrected for the number of comparisons (Holm, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from metatkgr.experiments.cells import RULES, Row, row_order
from metatkgr.experiments.records import FloatArray, Record
from metatkgr.experiments.suite import DATASETS

__all__ = ["ALPHA", "Comparison", "compare", "comparisons", "holm"]

ALPHA = 0.05
"""A corrected p-value below this earns a star."""
RESAMPLES = 1000


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
    p: float
    """Two-sided, of this comparison alone."""
    corrected: float = 1.0
    """The p-value after the correction for all comparisons made."""

    @property
    def significant(self) -> bool:
        """Whether the difference earns a star."""
        return self.corrected < ALPHA


def compare(
    one: Mapping[int, FloatArray], other: Mapping[int, FloatArray], size: FloatArray
) -> tuple[float, float, float, float] | None:
    """The difference of two MRRs, its 95 % interval and its p-value.

    Args:
        one, other: (n,) sums of reciprocal ranks of the entities, by seed; only seeds that both
            have count.
        size: (n,) numbers of queries.

    Returns:
        difference, low, high, p; None where there is no common seed.
    """
    seeds = sorted(set(one) & set(other))
    if not seeds:
        return None
    gain = np.stack([one[seed] - other[seed] for seed in seeds])  # (S, n)
    difference = float(gain.sum(1).mean() / size.sum())
    drawn = _drawn(len(size))  # (B, n) how often each entity was drawn
    by_seed = (drawn @ gain.T) / (drawn @ size)[:, None]  # (B, S)
    which = np.random.default_rng(1).integers(0, len(seeds), by_seed.shape)
    means = np.take_along_axis(by_seed, which, 1).mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    spread = float(means.std(ddof=1))
    if spread == 0.0:
        return difference, float(low), float(high), 1.0 if difference == 0.0 else 0.0
    p = math.erfc(abs(difference) / spread / math.sqrt(2.0))
    return difference, float(low), float(high), p


@lru_cache(maxsize=2)
def _drawn(count: int) -> FloatArray:
    """(B, n) multiplicities of n entities in B draws of n; the same for all comparisons."""
    generator = np.random.default_rng(0)
    drawn = np.zeros((RESAMPLES, count))
    for row in drawn:
        row += np.bincount(generator.integers(0, count, count), minlength=count)
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
    records: Iterable[Record],
    one: Row,
    *,
    shots: Sequence[int],
    filter: str = "static",
    ablations: bool = False,
) -> list[Comparison]:
    """One row against every other on each dataset and number of shots, ``entity-split``.

    All of them are corrected together. Only runs that kept their sums of entities can take part.

    Args:
        records: all runs.
        one: the row that is compared.
        shots: numbers of shots.
        filter: of the ranks.
        ablations: compare with the ablations, and with nothing else.
    """
    groups: dict[tuple[str, int], dict[Row, list[Record]]] = {}
    for record in records:
        wanted = record.row == one or bool(record.row.variant) == ablations
        if wanted and record.cell.is_plain_test and record.cell.shots in shots:
            rows = groups.setdefault((record.dataset, record.cell.shots), {})
            if record.per_entity(filter) is not None:
                rows.setdefault(record.row, []).append(record)
    tested = []
    order = {name: column for column, name in enumerate(DATASETS)}
    for (dataset, k), rows in sorted(
        groups.items(), key=lambda item: (order.get(item[0][0], len(order)), item[0])
    ):
        if one not in rows:
            continue
        for other in sorted(set(rows) - {one}, key=row_order):
            every = {record.cell.seed for record in (*rows[one], *rows[other])}
            sums, size = _sums(rows[one], filter, every)
            other_sums, other_size = _sums(rows[other], filter, every)
            if np.array_equal(size, other_size) and (numbers := compare(sums, other_sums, size)):
                tested.append(Comparison(dataset, k, one, other, *numbers))
    corrected = holm([comparison.p for comparison in tested])
    return [replace(c, corrected=p) for c, p in zip(tested, corrected, strict=True)]


def _sums(
    records: list[Record], filter: str, seeds: set[int]
) -> tuple[dict[int, FloatArray], FloatArray]:
    """The sums by seed, and the sizes; a rule, which has no randomness, is the same for all."""
    sums, size = {}, np.zeros(0)
    for record in records:
        kept = record.per_entity(filter)
        if kept is not None:
            sums[record.cell.seed], size = kept
    if records[0].row.model in RULES:
        sums = dict.fromkeys(seeds, sums[records[0].cell.seed])
    return sums, size
