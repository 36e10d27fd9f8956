"""A forecaster over an ingested folder: how long each thing takes, and in how much memory.

``python -m benchmarks.forecaster --facts 10000000 --json FILE`` simulates a world, ingests it,
learns the evidence model from some of its queries, forecasts, observes a newcomer and forecasts for
it. Memory is that of the process alone: pages of mapped files, which the system takes back when it
needs them, are not counted, neither is what importing the libraries takes.
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

import metatkgr as mt
from metatkgr.data.readers import ReadOptions
from metatkgr.data.world import WorldSettings
from metatkgr.data.world.simulation import write_world
from metatkgr.files import write_json
from metatkgr.forecasting.calibration import Calibration

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


def measure(data: Path | str, count: int, examples: int) -> list[dict[str, Any]]:
    """All steps over a folder of facts, or over a world by its name.

    Args:
        data: what is loaded.
        count: how many facts there are.
        examples: how many queries of each kind are learned from; a few go through every part.
    """
    meter = Meter()
    with meter("open", count):
        facts = mt.load(str(data))
    with meter("train", count):
        model = mt.Estimator(
            "evidence",
            device="cpu",
            train_queries=examples,
            earlier_queries=examples,
            support_queries=examples,
            epochs=2,
        )
        model.fit(facts)
    with meter("start", count):
        forecaster = mt.Forecaster(model.model_, facts, calibration=Calibration("softmax"))
    with meter("first forecast", count):
        forecaster.predict(facts.entities[0], facts.relations[0], top=5)
    with meter("forecast with reasons", count):
        forecaster.predict(facts.entities[1], facts.relations[0], top=5, explain=True)
    last = facts.calendar.label(facts.steps - 1)
    other = facts.entities[int(facts.object[-1])]
    with meter("observe a newcomer", count):
        forecaster.observe([("Ann Newcomer", facts.relations[0], other, last)])
    with meter("forecast for the newcomer", count):
        forecasts = forecaster.predict("Ann Newcomer", facts.relations[0], top=5)
    assert len(forecasts.forecasts) == 5
    return meter.rows


def main(words: list[str] | None = None) -> None:
    """As the module's text says."""
    parser = argparse.ArgumentParser(description="A forecaster over an ingested folder.")
    parser.add_argument("--facts", type=int, default=1_000_000)
    parser.add_argument("--examples", type=int, default=100, help="to learn from, of each kind")
    parser.add_argument("--folder", type=Path, help="an ingested folder, in place of a new world")
    parser.add_argument("--in-memory", action="store_true", help="a world that is not ingested")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    chosen = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "facts"
        if chosen.in_memory:
            rows = measure(f"world:{chosen.facts}", chosen.facts, chosen.examples)
        elif chosen.folder:
            rows = measure(chosen.folder, chosen.facts, chosen.examples)
        else:
            from metatkgr.data.ingest import ingest

            write_world(Path(work) / "world.parquet", WorldSettings(facts=chosen.facts))
            ingest([Path(work) / "world.parquet"], folder, ReadOptions(unit="day"))
            rows = measure(folder, chosen.facts, chosen.examples)
    if chosen.json:
        write_json(chosen.json, {"facts": chosen.facts, "model": "evidence", "steps": rows})


if __name__ == "__main__":
    main()
