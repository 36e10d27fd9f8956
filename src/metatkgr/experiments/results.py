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

from metatkgr.data.sources import TEST_GRAPHS
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.experiments.cells import BASELINES, RULES, Cell, Row, row_order
from metatkgr.experiments.records import FloatArray, Record
from metatkgr.experiments.significance import Comparison, Draws, comparisons
from metatkgr.experiments.suite import DATASETS
from metatkgr.files import read_json

__all__ = [
    "EVIDENCE",
    "METATKGR",
    "WALKS",
    "Results",
    "best_baselines",
    "collected",
    "in_papers_order",
    "read_records",
    "read_statistics",
    "shared_counts",
    "tasks_of",
    "values_of",
]

METATKGR, WALKS, EVIDENCE = Row("metatkgr"), Row("metatkgr", "walks"), Row("evidence")


class Results:
    """Finished runs, and what else a report is made from.

    Args:
        records: of the runs, in any order; a seed counts once.
        statistics: of datasets, as ``metatkgr data stats --json`` writes them.
        folder: ``results/`` of the repository, with what else stands on its pages.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        statistics: Sequence[dict[str, Any]] = (),
        folder: Path | None = None,
    ) -> None:
        self.records, self.statistics, self.folder = list(records), statistics, folder
        self._runs: dict[tuple[Any, ...], dict[int, Record]] = defaultdict(dict)
        for record in self.records:
            self._runs[_conditions(record)][record.cell.seed] = record
        self.datasets = in_papers_order({record.dataset for record in self.records})
        self._ablated: dict[Row, list[Comparison]] = {}
        self.test_graphs: Results | None = None
        """Runs on graphs that no choice has seen."""

    @classmethod
    def read(cls, folder: Path) -> Results:
        """All that lies in the folder of a grid."""
        records = read_records(folder / "cells")
        if not records:
            raise DataError(f"there is no result in {folder}")
        return cls(records, statistics=read_statistics(folder))

    @classmethod
    def of_repository(cls, folder: Path) -> Results:
        """All that lies in ``results/``: files of many records each, and studies beside them.

        Runs on test graphs are kept apart, in ``test_graphs``.
        """
        paths = sorted((folder / "cells").rglob("*.json"))
        records = [record for path in paths for record in collected(path)]
        apart = [record for record in records if record.dataset in TEST_GRAPHS]
        results = cls(
            [record for record in records if record.dataset not in TEST_GRAPHS],
            statistics=read_statistics(folder),
            folder=folder,
        )
        results.test_graphs = cls(apart) if apart else None
        return results

    def kept(self, below: str, *keys: str) -> list[dict[str, Any]]:
        """The objects, with these keys at least, in the files of a folder of the repository."""
        paths = sorted((self.folder / below).glob("*.json")) if self.folder else []
        contents = {path: read_json(path) for path in paths}
        for path, content in contents.items():
            if not isinstance(content, dict) or not content.keys() >= set(keys):
                raise DataError(f"{path} is no object with {', '.join(keys)}")
        return list(contents.values())

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

    def mrr(self, dataset: str, shots: int) -> dict[Row, float]:
        """The mean MRR of every row with a run; no ablations."""
        return {
            row: float(values[:, 0].mean())
            for row in self.rows(shots)
            if (values := self.values(dataset, row, shots)) is not None
        }

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
    def draws(self) -> dict[tuple[str, int], Draws]:
        """Runs that are tested as they are trained, with entities drawn, by dataset and K."""
        groups: dict[tuple[str, int], list[Record]] = {}
        for dataset in self.datasets:
            for record in self.records:
                if record.dataset == dataset and record.cell.is_plain_test:
                    groups.setdefault((dataset, record.cell.shots), []).append(record)
        made = {key: Draws(groups[key]) for key in sorted(groups, key=self._column)}
        return {key: drawn for key, drawn in made.items() if drawn.rows}

    def _column(self, key: tuple[str, int]) -> tuple[int, int]:
        return self.datasets.index(key[0]), key[1]

    @cached_property
    def best(self) -> Row | None:
        """The row with the highest mean of all MRRs, of those that have all."""
        means = {
            row: np.mean([np.mean(list(drawn.mrr[row].values())) for drawn in self.draws.values()])
            for row in set.intersection(*(set(drawn.rows) for drawn in self.draws.values()))
            if not row.variant
        } if self.draws else {}  # fmt: skip
        return max(means, key=lambda row: means[row]) if means else None

    @cached_property
    def against_best(self) -> list[Comparison]:
        """The best row compared with every other; no ablations."""
        return self.against(self.best) if self.best else []

    def against(self, one: Row) -> list[Comparison]:
        """A row compared with every other; no ablations."""
        return comparisons(
            self.draws,
            lambda drawn: [
                (one, row)
                for row in drawn.rows
                if one in drawn.mrr and row != one and not row.variant
            ],
        )

    @cached_property
    def against_rules(self) -> list[Comparison]:
        """Every learned row compared with the rule that is best on this dataset and K."""

        def pairs(drawn: Draws) -> list[tuple[Row, Row]]:
            rules = [row for row in drawn.rows if row.model in RULES]
            if not rules:
                return []
            best = max(rules, key=lambda row: max(drawn.mrr[row].values()))
            return [(row, best) for row in drawn.rows if row.model not in RULES and not row.variant]

        return comparisons(self.draws, pairs)

    def against_ablations(self, full: Row) -> list[Comparison]:
        """A model compared with its own ablations."""
        if full not in self._ablated:
            self._ablated[full] = comparisons(
                self.draws,
                lambda drawn: [
                    (full, row)
                    for row in drawn.rows
                    if full in drawn.mrr
                    and (row.model, row.preset) == (full.model, full.preset)
                    and row.variant
                ],
            )
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


def collected(path: Path) -> list[Record]:
    """The records of a file that ``studies.collect`` wrote."""
    content = read_json(path)
    records = content.get("records") if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise DataError(f"{path} does not hold records: write it with python -m studies.collect")
    try:
        counts = shared_counts(content)
        return [Record.from_json(_with_counts(record, counts)) for record in records]
    except MetaTKGRError as error:
        raise DataError(f"{path} cannot be used: {error}") from None


def shared_counts(content: Any) -> dict[str, Any]:
    """The numbers of queries of entities, which a file of records holds once."""
    counts = content.get("queries", {}) if isinstance(content, dict) else {}
    return counts if isinstance(counts, dict) else {}


def _with_counts(record: Any, counts: dict[str, Any]) -> Any:
    """A record with the numbers of queries that it shares with others."""
    try:
        cell, result, packed = record["cell"], record["result"], record["result"]["per_entity"]
    except (KeyError, TypeError):
        return record  # it has none, or is no record: that is said where it is read
    if not isinstance(packed, dict) or not packed or "queries" in packed:
        return record
    known = counts.get(tasks_of(Cell.from_json(cell)))
    return record | {"result": result | {"per_entity": packed | {"queries": known}}}


def tasks_of(cell: Cell) -> str:
    """What an entity's number of queries depends on."""
    return f"{cell.visibility}/{cell.test_shots}"


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
