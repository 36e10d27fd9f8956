"""Run one cell: train (or go on training), evaluate on meta-test, and say it in a small record."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metatkgr import __version__
from metatkgr.data.problem import Problem
from metatkgr.data.sources import load
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.evaluation.evaluator import Evaluation, evaluate
from metatkgr.experiments.cells import RULES, Cell
from metatkgr.experiments.records import PARTS, Record, pack
from metatkgr.experiments.rounds import model_of
from metatkgr.files import write_json
from metatkgr.forecasting.calibrating import calibration_report
from metatkgr.models.base import WHOLE, TrainableModel
from metatkgr.training.loop import choose_precision, train

__all__ = ["Loaded", "commit", "hardware", "run_cell", "versions"]

CURVE_POINTS = 60
"""Epochs of a phase that a record keeps, evenly spread; those with a validation come first."""
_IN_CURVE = ("loss", "validation_mrr", "seconds", "empirical", "kl", "bound", "true_loss")


class Loaded:
    """Datasets, problems and tasks that a worker keeps between its cells."""

    def __init__(self) -> None:
        self.facts = lru_cache(4)(load)
        self.problem = lru_cache(4)(self._problem)
        self.tasks = lru_cache(6)(self._tasks)

    def _problem(self, dataset: str, shots: int, test_shots: str, visibility: str) -> Problem:
        # Where K is drawn, it is the same for all models and seeds: they are compared alike.
        return Problem.of(
            self.facts(dataset), shots=shots, test_shots=test_shots, visibility=visibility, seed=0
        )

    def _tasks(self, dataset: str, shots: str, visibility: str) -> Tasks:
        return Tasks.build(
            self.facts(dataset), shots=shots, visibility=visibility, split="meta-test", seed=0
        )


def run_cell(
    cell: Cell,
    *,
    work: Path,
    device: str = "cpu",
    loaded: Loaded | None = None,
    stages: Path | None = None,
    progress: Callable[[dict[str, Any]], object] | None = None,
) -> Record:
    """Train the cell's model if it has weights, and evaluate the best ones.

    Args:
        cell: what to run.
        work: folder for checkpoints; an interrupted training goes on from there. Removed at the
            end.
        device: where to compute.
        loaded: what earlier cells have read already.
        stages: folder of first stages that cells share (see ``training.checkpoint``).
        progress: called after each epoch, once its checkpoint is written; may raise to stop.
    """
    loaded = loaded or Loaded()
    model = model_of(cell, loaded.facts(cell.dataset).name, device)
    training: dict[str, Any] = {}
    if isinstance(model, TrainableModel):
        training = _trained(model, cell, loaded, work, stages, progress)
    tasks = loaded.tasks(cell.dataset, cell.test_shots, cell.visibility)
    result = _result(cell, evaluate(model, tasks))
    if _is_calibrated(cell):
        visible = VisibleFacts.of(loaded.facts(cell.dataset))
        report = calibration_report(model, visible, cell.test_shots)
        result["calibration"] = _rounded(report)
    shutil.rmtree(work, ignore_errors=True)
    return Record(
        cell,
        result,
        training,
        dataclasses.asdict(model.settings),
        versions(),
        hardware(device),
        commit(),
    )


def _trained(
    model: TrainableModel[Any],
    cell: Cell,
    loaded: Loaded,
    work: Path,
    stages: Path | None,
    progress: Callable[[dict[str, Any]], object] | None,
) -> dict[str, Any]:
    problem = loaded.problem(cell.dataset, cell.shots, cell.test_shots, cell.visibility)
    begun = {"begun": cell.name, "settings": dataclasses.asdict(model.settings)}
    if _read(work / "begun.json") != begun:  # nothing, or of other settings: begin anew
        shutil.rmtree(work, ignore_errors=True)
        write_json(work / "begun.json", begun)

    def validate(candidate: TrainableModel[Any]) -> float:
        return evaluate(candidate, problem.validation).summary(resamples=0).mrr or 0.0

    true_loss = _TrueLoss(model, problem, work / "true-loss.jsonl") if _follows(cell) else None

    def after_epoch(line: dict[str, Any]) -> None:
        if true_loss is not None:
            true_loss(line)
        if progress:
            progress(line)

    precision = choose_precision("auto", model.device)
    lines = train(
        model,
        problem,
        seed=cell.seed,
        validate=validate,
        folder=work,
        resume=True,
        progress=after_epoch,
        precision=precision,
        stages=stages,
    )
    if true_loss is not None:
        true_loss.add_to(lines)
    validated = [line["validation_mrr"] for line in lines if "validation_mrr" in line]
    last_phase = [line for line in lines if line["phase"] == lines[-1]["phase"]]
    selected = [line["validation_mrr"] for line in last_phase if "validation_mrr" in line]
    return {
        "epochs": len(lines),
        "precision": precision,
        "seconds": round(lines[-1]["seconds"], 2) if lines else 0.0,
        "validation_mrr": _rounded(max(selected or validated, default=None)),
        "curve": _curves(lines),
    }


class _TrueLoss:
    """What a generalisation bound speaks of: the loss on tasks that were not trained on.

    Where a phase logs a ``bound``, the same loss is measured on the meta-validation tasks after
    each epoch: entities that emerge later than those it learns from. For a figure only; nothing is
    selected by it. Kept in a file, for a training that is resumed.

    Args:
        model: in training.
        problem: that it is trained on.
        path: of the file.
    """

    def __init__(self, model: TrainableModel[Any], problem: Problem, path: Path) -> None:
        self.model, self.path = model, path
        self.later = problem.with_train(problem.validation)

    def __call__(self, line: dict[str, Any]) -> None:
        """Measure, if the phase of this line of the trace has a bound."""
        if "bound" not in line:
            return
        measured = {"step": line["step"], "true_loss": self._measure(line["phase"])}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(measured) + "\n")

    def add_to(self, lines: list[dict[str, Any]]) -> None:
        """Put what was measured into the lines of the trace."""
        if not self.path.exists():
            return
        loss_at = {}
        for text in self.path.read_text(encoding="utf-8").splitlines():
            measured = json.loads(text)
            loss_at[measured["step"]] = measured["true_loss"]
        for line in lines:
            if line["step"] in loss_at and "bound" in line:
                line["true_loss"] = loss_at[line["step"]]

    def _measure(self, name: str) -> float:
        phase = next(p for p in self.model.phases(self.later) if p.name == name)
        generator = torch.Generator().manual_seed(0)
        total, rows = 0.0, 0
        with torch.no_grad():
            for batch in phase.batches(generator):
                size = len(batch.entity)
                total += size * float(phase.loss(batch, generator, WHOLE).logged["empirical"])
                rows += size
        return total / max(rows, 1)


def _follows(cell: Cell) -> bool:
    """Whether the loss on tasks to come is measured after each epoch: costly, for one figure."""
    plain = cell.seed == 0 and cell.shots == 3 and cell.is_plain_test
    return plain and not dict(cell.settings).get("variant")


def _is_calibrated(cell: Cell) -> bool:
    """Whether probabilities are fitted and judged too: for what a forecaster would use."""
    served = cell.model in (*RULES, "metatkgr", "evidence") and (cell.seed == 0 or not cell.tiny)
    return served and cell.shots == 3 and cell.is_plain_test and not cell.row.variant


def _curves(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each phase the numbers of its epochs as columns, thinned to a bounded length."""
    curves = []
    for name in dict.fromkeys(line["phase"] for line in lines):
        epochs = [line for line in lines if line["phase"] == name]
        validated = [line for line in epochs if "validation_mrr" in line]
        kept = _spread(validated if len(validated) > 1 else epochs, CURVE_POINTS)
        columns = {
            key: [_rounded(line.get(key)) for line in kept]
            for key in _IN_CURVE
            if any(key in line for line in kept)
        }
        curves.append({"phase": name, "epoch": [line["epoch"] for line in kept], **columns})
    return curves


def _spread(items: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most so many, evenly, with the first and the last."""
    rows = np.unique(np.linspace(0, len(items) - 1, min(len(items), most)).round().astype(int))
    return [items[row] for row in rows]


def _result(cell: Cell, evaluation: Evaluation) -> dict[str, Any]:
    """The object of ``metatkgr evaluate --json``, rounded, with what tests and figures need."""
    measured = evaluation.to_json()
    for subsets in measured["metrics"].values():
        for metrics in subsets.values():
            metrics |= {key: _rounded(value) for key, value in metrics.items()}
    return {
        "dataset": evaluation.tasks.facts.name,
        "model": cell.model,
        "seed": cell.seed,
        "train_shots": cell.shots,
        **measured,
        "per_entity": _per_entity(evaluation),
        "per_step": _per_step(evaluation),
    }


def _per_entity(evaluation: Evaluation) -> dict[str, Any]:
    """For each entity, in the order of their ids: queries, and MRR under each filter; packed."""
    _, group = np.unique(evaluation.entity, return_inverse=True)
    size = np.bincount(group)
    return {"parts": PARTS, "queries": pack(size)} | {
        name: pack(np.rint(PARTS * np.bincount(group, weights=1.0 / ranks) / size))
        for name, ranks in evaluation.ranks.items()
    }


def _per_step(evaluation: Evaluation) -> dict[str, list[Any]]:
    """For each step with a query: its date, the queries, and how many had a rank up to 10."""
    steps, group = np.unique(evaluation.time, return_inverse=True)
    calendar = evaluation.tasks.facts.calendar
    return {
        "step": [calendar.label(int(step)) for step in steps],
        "queries": np.bincount(group).tolist(),
    } | {
        f"hits@10_{name}": np.bincount(group, weights=ranks <= 10).astype(int).tolist()
        for name, ranks in evaluation.ranks.items()
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def versions() -> dict[str, str]:
    """What computed: this package and those it stands on."""
    return {
        "metatkgr": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


@cache
def commit() -> str:
    """The commit of this code, a plus sign behind it where it was changed since; '' if unknown."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return ""  # installed, not a checkout

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src", "constraints.txt")
        return git("rev-parse", "--short=12", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return ""


@cache
def hardware(device: str) -> str:
    """The name of the device."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(torch.device(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line for line in lines if line.startswith("model name")).partition(":")[2]
    except (OSError, StopIteration):
        name = platform.machine() or sys.platform
    return f"{name.strip()}, {os.cpu_count()} cores"
