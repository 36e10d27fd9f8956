"""Finished runs, whatever file they are in, in one form; and the small files of ``results/``.

``python -m metatkgr.experiments.outcomes OUT/cells results`` puts the records of a grid into
``results/cells/DATASET/MODEL.json``, one line for each; a cell that is there already is replaced.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.experiments.ablations import ablation_of
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.compact import SCALE, unpack
from metatkgr.experiments.published import METRICS
from metatkgr.experiments.record_checks import check_record, check_result
from metatkgr.experiments.suite import BASELINES, RULES
from metatkgr.files import read_json, write_text

__all__ = ["Outcome", "Row", "best_baselines", "collect", "read_outcomes", "row_order"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, order=True)
class Row:
    """A model as tables tell it apart from others: with its preset and changed settings."""

    model: str
    preset: str = "default"
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """As the first column of a table says it."""
        parts = [] if self.preset == "default" else [f"`{self.preset}`"]
        parts += [f"`{key}={value}`" for key, value in self.settings]
        return f"`{self.model}`" + (f", {', '.join(parts)}" if parts else "")

    @property
    def plain(self) -> str:
        """The same for a figure."""
        return self.label.replace("`", "")

    @property
    def variant(self) -> str | None:
        """The ablation, if it is one."""
        return ablation_of(self.model, self.settings)


@dataclass(frozen=True, eq=False)
class Outcome:
    """One evaluation on meta-test."""

    dataset: str
    row: Row
    train_shots: int
    test_shots: str
    visibility: str
    seed: int
    result: dict[str, Any]
    """The object of ``metatkgr evaluate --json``, and more."""
    record: dict[str, Any] = field(default_factory=dict)
    """The record of the cell; empty for a file of ``evaluate --json``."""

    @property
    def training(self) -> dict[str, Any]:
        """Seconds, epochs and curves; empty where nothing was trained, or it is not known."""
        return self.record.get("training") or {}

    def values(self, filter: str = "static", subset: str = "all") -> list[float] | None:
        """MRR and Hits@1, 3, 10; None where the subset is empty."""
        metrics = self.result["metrics"][filter][subset]
        return None if metrics["mrr"] is None else [float(metrics[key]) for key in METRICS]

    def per_entity(self, filter: str = "static") -> tuple[FloatArray, FloatArray] | None:
        """(n,) sums of reciprocal ranks and numbers of queries of the entities, if kept."""
        packed = self.result.get("per_entity")
        if not packed:
            return None
        size = unpack(packed["queries"]).astype(np.float64)
        return unpack(packed[filter]) / SCALE * size, size


def row_order(row: Row) -> tuple[Any, ...]:
    """Rules, MetaTKGR, the baselines in the paper's order, others."""
    order = [*RULES, "metatkgr", *BASELINES]
    place = order.index(row.model) if row.model in order else len(order)
    return place, row.model, row.preset != "default", row.preset, row.settings


def read_outcomes(folder: Path) -> list[Outcome]:
    """Every evaluation below a folder: records of cells, collected ones, results of ``evaluate``.

    Where cells of a model were run, older files of the same model under the same conditions are
    left out: they were made with other settings.
    """
    cells: list[Outcome] = []
    others: list[Outcome] = []
    for path in sorted(folder.rglob("*.json")):
        content = read_json(path)
        for item in _items(path, content):
            try:
                if "cell" in item:
                    cells.append(_from_record(item, _counts(content)))
                elif "metrics" in item:
                    others.append(_from_evaluation(item))
            except (MetaTKGRError, KeyError) as error:
                told = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
                raise DataError(f"{path} cannot be used: {told}") from None
    known = {_conditions(outcome) for outcome in cells}
    found = cells + [outcome for outcome in others if _conditions(outcome) not in known]
    if not found:
        raise DataError(f"there is no result in {folder}")
    return found


def _conditions(outcome: Outcome) -> tuple[Any, ...]:
    return (
        outcome.dataset,
        outcome.row,
        outcome.train_shots,
        outcome.test_shots,
        outcome.visibility,
    )


def _items(path: Path, content: Any) -> list[dict[str, Any]]:
    """The evaluations of a file: one, a list, or those that were collected."""
    if isinstance(content, dict) and "records" in content:
        items = content["records"]
    else:
        items = content if isinstance(content, list) else [content]
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise DataError(f"{path} holds something that is no result")
    return items


def _counts(content: Any) -> dict[str, Any]:
    counts = content.get("queries", {}) if isinstance(content, dict) else {}
    return counts if isinstance(counts, dict) else {}


def _from_record(record: dict[str, Any], counts: dict[str, Any]) -> Outcome:
    cell, result = Cell.from_json(record["cell"]), record.get("result")
    packed = result.get("per_entity") if isinstance(result, dict) else None
    if result is not None and isinstance(packed, dict) and packed and "queries" not in packed:
        result = result | {"per_entity": packed | {"queries": counts[_tasks_of(cell)]}}
    check_record(record | {"result": result})
    assert result is not None
    return Outcome(
        dataset=result["dataset"],
        row=Row(cell.model, cell.preset, cell.settings),
        train_shots=cell.shots,
        test_shots=cell.test_shots,
        visibility=cell.visibility,
        seed=cell.seed,
        result=result,
        record=record,
    )


def _from_evaluation(result: dict[str, Any]) -> Outcome:
    shots = result["shots"]
    try:
        trained = int(result.get("trained_shots", shots))
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{str(shots)[:80]!r} is no number of shots") from None
    # As a cell, so that its names and numbers are checked like those of a record.
    cell = Cell(
        dataset=result["dataset"],
        model=result["model"],
        preset=result.get("preset", "default"),
        shots=trained,
        test_shots=str(shots),
        visibility=result["visibility"],
        seed=result["seed"],
    )
    check_result(result)
    return Outcome(
        dataset=cell.dataset,
        row=Row(cell.model, cell.preset),
        train_shots=cell.shots,
        test_shots=cell.test_shots,
        visibility=cell.visibility,
        seed=cell.seed,
        result=result,
    )


def _tasks_of(cell: Cell) -> str:
    """What an entity's number of queries depends on."""
    return f"{cell.visibility}/{cell.test_shots}"


def collect(records: Iterable[dict[str, Any]], results: Path) -> list[Path]:
    """Merge records into the files of ``results``; tiny trainings are left out.

    Returns:
        The files written.
    """
    by_file: dict[Path, dict[str, dict[str, Any]]] = defaultdict(dict)
    for record in records:
        check_record(record)
        cell = Cell.from_json(record["cell"])
        if not cell.tiny:
            dataset, _, name = cell.name.partition("/")
            by_file[results / "cells" / dataset / f"{cell.model}.json"][name] = record
    for path, found in by_file.items():
        counts: dict[str, str] = {}
        if path.exists():
            content = read_json(path)
            counts = _counts(content)
            found |= {
                name: record for name, record in _by_name(content).items() if name not in found
            }
        lines = []
        for _, record in sorted(found.items()):
            cell, result = Cell.from_json(record["cell"]), _needed(record)
            if "queries" in (per_entity := dict(result.get("per_entity") or {})):
                counts[_tasks_of(cell)] = per_entity.pop("queries")
                result["per_entity"] = per_entity
            lines.append(_line(record | {"result": result}))
        queries = _line(dict(sorted(counts.items())))
        text = ",\n".join(lines)
        write_text(path, f'{{"queries": {queries},\n"records": [\n{text}\n]}}\n')
    return sorted(by_file)


def _needed(record: dict[str, Any]) -> dict[str, Any]:
    """A result without what no table, test or figure is made from."""
    cell, result = Cell.from_json(record["cell"]), dict(record["result"])
    usual = cell.visibility == "entity-split" and cell.test_shots == str(cell.shots)
    if not usual:
        result.pop("per_entity", None)
    if not usual or cell.shots != 3 or ablation_of(cell.model, cell.settings):
        result.pop("per_step", None)
    return result


def _by_name(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {Cell.from_json(r["cell"]).name.partition("/")[2]: r for r in content["records"]}


def _line(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise DataError("a record holds a number that is not finite") from None


def best_baselines(records: Iterable[dict[str, Any]], count: int = 3) -> tuple[str, ...]:
    """The baselines with the highest mean MRR over datasets on meta-validation, 3-shot.

    Empty until at least ``count`` of them have been trained on the same datasets.
    """
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        cell, training = Cell.from_json(record["cell"]), record["training"]
        plain = cell.preset == "default" and not cell.settings and not cell.tiny
        usual = plain and cell.visibility == "entity-split" and cell.shots == 3
        if usual and cell.model in BASELINES and training and training.get("validation_mrr"):
            scores[cell.model][cell.dataset].append(training["validation_mrr"])
    most = max((len(by_dataset) for by_dataset in scores.values()), default=0)
    means = {
        model: float(np.mean([np.mean(values) for values in by_dataset.values()]))
        for model, by_dataset in scores.items()
        if len(by_dataset) == most
    }
    if len(means) < count:
        return ()
    return tuple(sorted(means, key=lambda model: -means[model])[:count])


if __name__ == "__main__":
    made = collect(
        (
            record
            for path in sorted(Path(sys.argv[1]).rglob("*.json"))
            for record in [read_json(path)]
        ),
        Path(sys.argv[2]),
    )
    sys.stdout.write("".join(f"{path}\n" for path in made))
