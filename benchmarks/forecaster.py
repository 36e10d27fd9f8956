"""A forecaster over an ingested folder: how long each thing takes, and in how much memory.

``python -m benchmarks.forecaster --facts 10000000 --json FILE`` simulates a world, ingests it,
perhaps learns the evidence model from some of its queries, forecasts, observes newcomers and
forecasts for them. Memory is that of the process alone: pages of mapped files, which the system
takes back when it needs them, are not counted, neither is what importing the libraries takes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import metatkgr as mt
from metatkgr.data.readers import ReadOptions
from metatkgr.data.world import WorldSettings
from metatkgr.data.world.simulation import write_world
from metatkgr.files import write_json
from metatkgr.forecasting.calibration import Calibration
from metatkgr.models.base import Model
from metatkgr.models.evidence.model import EvidenceModel

__all__ = ["main", "measure"]


def _anonymous() -> int:
    """Bytes of memory of this process that no file stands for."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell a process how much memory it has")


def _trim() -> None:
    """Give memory back that was freed: what is left is held by somebody."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class Meter:
    """Times and memory above what the process had at first: at its peak, afterwards, and then
    without what is free but not given back."""

    def __init__(self) -> None:
        self._first = _anonymous()
        self.rows: list[dict[str, Any]] = []

    @contextmanager
    def __call__(self, what: str, facts: int) -> Iterator[None]:
        peak, done = _anonymous(), threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.02):
                peak = max(peak, _anonymous())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            spent, used = time.perf_counter() - begin, time.process_time() - cpu
            done.set()
            watcher.join()
            after = _anonymous()
            _trim()
            row = {
                "what": what,
                "seconds": round(spent, 3),
                "cpu_seconds": round(used, 3),
                "peak_bytes_per_fact": round((max(peak, after) - self._first) / facts, 1),
                "bytes_per_fact": round((after - self._first) / facts, 1),
                "held_bytes_per_fact": round((_anonymous() - self._first) / facts, 1),
            }
            self.rows.append(row)
            print(row, flush=True)


def measure(data: Path | str, count: int, examples: int, forecasts: int) -> list[dict[str, Any]]:
    """All steps over a folder of facts, or over a world by its name.

    Args:
        data: what is loaded.
        count: how many facts there are.
        examples: how many queries of each kind are learned from; 0: the weights are those that a
            training starts from, which cost a forecast as much as learned ones.
        forecasts: how many are timed one by one.
    """
    meter = Meter()
    with meter("open", count):
        facts = mt.load(str(data))
    model: Model[Any]
    if examples:
        with meter("train", count):
            fitted = mt.Estimator(
                "evidence",
                device="cpu",
                train_queries=examples,
                earlier_queries=examples,
                support_queries=examples,
                epochs=2,
            )
            model = fitted.fit(facts).model_
    else:
        model = untrained = EvidenceModel()
        untrained.build(len(facts.entities), len(facts.relations), torch.Generator())
    with meter("start", count):
        forecaster = mt.Forecaster(model, facts, calibration=Calibration())
    # Entities that facts were told of lately, each with a relation.
    late = facts.subject[-(1 << 16) :]
    late = np.unique(late)[:: max(len(np.unique(late)) // (forecasts + 1), 1)]
    asked = [
        (facts.entities[int(entity)], facts.relations[number % len(facts.relations)])
        for number, entity in enumerate(late[: forecasts + 1])
    ]
    with meter("first forecast", count):
        forecaster.predict(*asked[0], explain=True)
    last = facts.calendar.label(facts.steps - 1)

    def told(number: int) -> None:
        other, relation = asked[number]
        forecaster.observe([(f"Newcomer {number}", relation, other, last)])
        forecaster.predict(f"Newcomer {number}", relation, explain=True)

    for what, work in (
        ("forecast", lambda number: forecaster.predict(*asked[number])),
        ("forecast with reasons", lambda number: forecaster.predict(*asked[number], explain=True)),
        ("observe and forecast with reasons", told),
    ):
        seconds = []
        with meter(what, count):
            for number in range(1, len(asked)):
                begin = time.perf_counter()
                work(number)
                seconds.append(time.perf_counter() - begin)
        median, late_one = np.quantile(seconds, [0.5, 0.99]) * 1e3
        meter.rows[-1] |= {"median_ms": round(median, 2), "p99_ms": round(late_one, 2)}
        print(what, meter.rows[-1]["median_ms"], meter.rows[-1]["p99_ms"], flush=True)
    return meter.rows


def _largest() -> float:
    """Gigabytes this process has had in memory at most, pages of mapped files among them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return round(int(line.split()[1]) / 1e6, 2)
    raise RuntimeError("this system does not tell a process how much memory it has")


def main(words: list[str] | None = None) -> None:
    """As the module's text says."""
    parser = argparse.ArgumentParser(description="A forecaster over an ingested folder.")
    parser.add_argument("--facts", type=int, default=1_000_000)
    parser.add_argument("--examples", type=int, default=0, help="to learn from, of each kind")
    parser.add_argument("--forecasts", type=int, default=200, help="so many are timed")
    parser.add_argument("--folder", type=Path, help="an ingested folder, in place of a new world")
    parser.add_argument("--in-memory", action="store_true", help="a world that is not ingested")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    chosen = parser.parse_args(words)
    sizes = chosen.facts, chosen.examples, chosen.forecasts
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "facts"
        if chosen.in_memory:
            rows = measure(f"world:{chosen.facts}", *sizes)
        elif chosen.folder:
            rows = measure(chosen.folder, *sizes)
        else:
            from metatkgr.data.ingest import ingest

            write_world(Path(work) / "world.parquet", WorldSettings(facts=chosen.facts))
            ingest([Path(work) / "world.parquet"], folder, ReadOptions(unit="day"))
            rows = measure(folder, *sizes)
    if chosen.json:
        about = {"facts": chosen.facts, "model": "evidence", "peak_gigabytes": _largest()}
        write_json(chosen.json, {**about, "threads": torch.get_num_threads(), "steps": rows})


if __name__ == "__main__":
    main()
