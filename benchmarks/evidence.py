"""How long ``evidence`` learns and ranks: ``python -m benchmarks.evidence --device cuda``.

Trains on each dataset and ranks all queries of meta-test, alone on the device; says how long each
took and nothing of how well it did.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from metatkgr.data.problem import Problem
from metatkgr.data.sources import load
from metatkgr.data.tasks import Tasks
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.files import write_json
from metatkgr.models import create
from metatkgr.models.base import TrainableModel
from metatkgr.training.loop import train

__all__ = ["main", "measure"]


def measure(data: str, device: str, shots: int = 3) -> dict[str, Any]:
    """Seconds of a training and of ranking, the second time when all is in place."""
    facts = load(data)
    model = create("evidence", device=device)
    assert isinstance(model, TrainableModel)
    begin = _now(device)
    train(model, Problem.of(facts, shots=shots), seed=0)
    trained = _now(device) - begin
    tasks, seconds = Tasks.build(facts, shots=shots), []
    for _ in range(2):
        begin = _now(device)
        evaluate(model, tasks)
        seconds.append(round(_now(device) - begin, 2))
    return {
        "train_seconds": round(trained, 2),
        "questions": len(tasks.questions),
        "queries": len(tasks.answers),
        "evaluate_seconds": seconds,
    }


def _now(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def main(words: list[str] | None = None) -> None:
    """As the module's text says."""
    parser = argparse.ArgumentParser(description="How long evidence learns and ranks.")
    parser.add_argument("--data", nargs="+", default=["WIKI", "YAGO", "ICEWS18"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    chosen = parser.parse_args(words)
    rows = {}
    for data in chosen.data:
        rows[data] = measure(data, chosen.device)
        print(data, rows[data], flush=True)
    if chosen.json:
        write_json(chosen.json, {"device": chosen.device, "shots": 3, "datasets": rows})


if __name__ == "__main__":
    main()
