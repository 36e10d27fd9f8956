"""The frame of results: every finished run, selected by what it is a run of.

Tables and figures are pivots over it: rows are models (:class:`Row`), columns are datasets and K,
and what stands in between are the runs of all seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr.errors import DataError
from metatkgr.experiments.cells import BASELINES, Row, row_order
from metatkgr.experiments.records import FloatArray, Record
from metatkgr.experiments.significance import Comparison, comparisons
from metatkgr.experiments.suite import DATASETS
from metatkgr.files import read_json

__all__ = [
    "EVIDENCE",
    "METATKGR",
    "Results",
    "best_baselines",
    "in_papers_order",
    "read_records",
    "read_statistics",
    "values_of",
]

METATKGR, EVIDENCE = Row("metatkgr"), Row("evidence")


class Results:
    """Finished runs, and what else a report is made from.

    Args:
        records: of the runs, in any order; a seed counts once.
        statistics: of datasets, as ``metatkgr data stats --json`` writes them.
    """

    def __init__(
        self, records: Iterable[Record], *, statistics: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.records, self.statistics = list(records), statistics
        self._runs: dict[tuple[Any, ...], dict[int, Record]] = defaultdict(dict)
        for record in self.records:
            self._runs[_conditions(record)][record.cell.seed] = record
        self.datasets = in_papers_order({record.dataset for record in self.records})
        self._ablated: dict[Row, list[Comparison]] = {}

    @classmethod
    def read(cls, folder: Path) -> Results:
        """All that lies in the folder of a grid."""
        records = read_records(folder / "cells")
        if not records:
            raise DataError(f"there is no result in {folder}")
        return cls(records, statistics=read_statistics(folder))

    @cached_property
    def shots(self) -> list[int]:
        """Every K that was trained and tested."""
        cells = (record.cell for record in self.records)
        return sorted({cell.shots for cell in cells if cell.test_shots == str(cell.shots)})

    def of(
        self,
        dataset: str,
        row: Row,
        shots: int,
        visibility: str = "entity-split",
        test_shots: str | None = None,
    ) -> list[Record]:
        """The runs of all seeds, in their order."""
        by_seed = self._runs.get((dataset, row, shots, test_shots or str(shots), visibility), {})
        return [by_seed[seed] for seed in sorted(by_seed)]

    def values(
        self, dataset: str, row: Row, shots: int, seeds: Iterable[int] | None = None
    ) -> FloatArray | None:
        """(seeds, 4) MRR and Hits@1, 3, 10, filter ``static``; None where there is nothing."""
        runs = self.of(dataset, row, shots)
        return values_of(runs if seeds is None else [r for r in runs if r.cell.seed in seeds])

    def common(
        self, dataset: str, one: Row, other: Row, shots: int
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """The values of two rows for the seeds that both have."""
        seeds = self.seeds(dataset, one, shots) & self.seeds(dataset, other, shots)
        return self.values(dataset, one, shots, seeds), self.values(dataset, other, shots, seeds)

    def seeds(self, dataset: str, row: Row, shots: int) -> set[int]:
        """The seeds of a row's runs."""
        return {record.cell.seed for record in self.of(dataset, row, shots)}

    def rows(self, shots: int, visibility: str = "entity-split") -> list[Row]:
        """The rows with a run; no ablations."""
        wanted = {
            record.row
            for record in self.records
            if record.cell.shots == shots
            and record.cell.test_shots == str(shots)
            and record.cell.visibility == visibility
            and not record.row.variant
        }
        return sorted(wanted, key=row_order)

    @cached_property
    def against_others(self) -> list[Comparison]:
        """MetaTKGR compared with every other model."""
        return comparisons(self.records, METATKGR, shots=self.shots)

    def against_ablations(self, full: Row) -> list[Comparison]:
        """A model compared with its own ablations."""
        if full not in self._ablated:
            own = [record for record in self.records if record.row.model == full.model]
            self._ablated[full] = comparisons(own, full, shots=self.shots, ablations=True)
        return self._ablated[full]


def values_of(
    runs: Sequence[Record], filter: str = "static", subset: str = "all"
) -> FloatArray | None:
    """(seeds, 4) MRR and Hits@1, 3, 10 of some runs; None where there is nothing."""
    metrics = [values for run in runs if (values := run.values(filter, subset)) is not None]
    return np.array(metrics) if metrics else None


def in_papers_order(datasets: Iterable[str]) -> list[str]:
    """Names of datasets: the paper's in its order, then others."""
    present = set(datasets)
    return [name for name in DATASETS if name in present] + sorted(present - set(DATASETS))


def read_records(folder: Path) -> list[Record]:
    """Every record below a folder of cells, in the order of names."""
    paths = [path for path in sorted(folder.rglob("*.json")) if not path.name.startswith(".")]
    return [Record.read(path) for path in paths]


def read_statistics(folder: Path) -> list[dict[str, Any]]:
    """The statistics of datasets below a folder, in the order of the paper."""
    by_name = {}
    for path in sorted((folder / "datasets").glob("*.json")):
        content = read_json(path)
        if not isinstance(content, dict) or not isinstance(content.get("name"), str):
            raise DataError(f"{path} does not hold the statistics of a dataset")
        by_name[content["name"]] = content
    return [by_name[name] for name in in_papers_order(by_name)]


def _conditions(record: Record) -> tuple[Any, ...]:
    cell = record.cell
    return record.dataset, record.row, cell.shots, cell.test_shots, cell.visibility


def best_baselines(records: Iterable[Record], count: int = 3) -> tuple[str, ...]:
    """The baselines with the highest mean MRR over datasets on meta-validation, 3-shot.

    Empty until at least ``count`` of them have been trained on the same datasets.
    """
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        cell, mrr = record.cell, record.training.get("validation_mrr")
        usual = record.row == Row(cell.model) and not cell.tiny and cell.shots == 3
        if usual and cell.visibility == "entity-split" and cell.model in BASELINES and mrr:
            scores[cell.model][cell.dataset].append(mrr)
    most = max((len(by_dataset) for by_dataset in scores.values()), default=0)
    means = {
        model: float(np.mean([np.mean(values) for values in by_dataset.values()]))
        for model, by_dataset in scores.items()
        if len(by_dataset) == most
    }
    if len(means) < count:
        return ()
    return tuple(sorted(means, key=lambda model: -means[model])[:count])
