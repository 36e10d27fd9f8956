"""What a generalisation bound speaks of: the loss on tasks that were not trained on.

Where a phase logs a ``bound``, the same loss is measured on the meta-validation tasks after each
epoch: entities that emerge later than those it learns from. For a figure only; nothing is selected
by it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from metatkgr.data.problem import Problem
from metatkgr.models.trainable import WHOLE, TrainableModel

__all__ = ["TrueLoss"]


class TrueLoss:
    """Called after each epoch; keeps what it measured in a file, for a training that is resumed.

    Args:
        model: in training.
        problem: that it is trained on.
        path: of the file.
    """

    def __init__(self, model: TrainableModel[Any], problem: Problem, path: Path) -> None:
        self.model, self.path = model, path
        self.later = dataclasses.replace(problem, train=problem.validation)

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
        found = {}
        for text in self.path.read_text(encoding="utf-8").splitlines():
            measured = json.loads(text)
            found[measured["step"]] = measured["true_loss"]
        for line in lines:
            if line["step"] in found and "bound" in line:
                line["true_loss"] = found[line["step"]]

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
