"""How much faster two processes of one thread train than one, on two cores.

The processes are started as ``torchrun`` would, by environment variables. Where others use the same
cores, the seconds say little; the CPU time of the busier process still says how much work is left
for each, and how much of it is not shared out.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any, NamedTuple

from benchmarks.base import ROOT, Measurement, Workload, benchmark

__all__ = ["main", "two_processes"]

_META = {"model": "metatkgr", "facts": 20_000, "settings": {"translation_epochs": 1, "epochs": 3}}
_TRANSE = {
    "model": "transe",
    "facts": 50_000,
    "settings": {"epochs": 3, "batch_size": 2048, "validate_every": 3},
}
_QUICK = {"model": "transe", "facts": 1000, "settings": {"epochs": 3, "dimension": 8}}
_COMMAND = "from benchmarks.two_processes import main; main()"


class _Best(NamedTuple):
    """The fastest epoch."""

    seconds: float
    cpu: float
    """CPU seconds of the busiest process."""
    loss: float
    """Of the last epoch."""


@benchmark("two-processes")
def two_processes(work: Workload) -> list[Measurement]:
    """Epochs of training with their validation, one process against two, in turns."""
    result = []
    for plan in (_QUICK,) if work.quick else (_META, _TRANSE):
        runs: dict[int, list[_Best]] = {1: [], 2: []}
        for _ in range(work.repeats):
            for count in runs:
                runs[count].append(_train(plan, count))
        seconds, cpu = (
            {count: min(getattr(run, what) for run in timed) for count, timed in runs.items()}
            for what in ("seconds", "cpu")
        )
        one, two = runs[1][-1].loss, runs[2][-1].loss
        if abs(one - two) > 1e-4 * max(1.0, abs(one)):
            raise AssertionError(f"two processes learn something else: loss {two}, not {one}")
        name, against = f"epoch of {plan['model']}, two processes", "one process"
        note = f"world of {plan['facts']:,} facts, one thread each, {os.cpu_count()} cores; "
        note += f"best epoch of {work.repeats} runs each, in turns; losses equal"
        result.append(Measurement(name, "s", seconds[2], seconds[1], against, note))
        note = "of the busier process: what the time would be were both cores free for it"
        result.append(Measurement(f"{name}, CPU", "s", cpu[2], cpu[1], against, note))
    return result


def _train(plan: dict[str, Any], count: int) -> _Best:
    """Train with so many processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    crew = [
        subprocess.Popen(
            [sys.executable, "-c", _COMMAND, json.dumps(plan)],
            env=os.environ | shared | {"RANK": str(number), "LOCAL_RANK": str(number)},
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number in range(count)
    ]
    outputs = [process.communicate()[0] for process in crew]
    if any(process.returncode for process in crew):
        raise RuntimeError("a process of the benchmark failed; what went wrong is told above")
    epochs = [json.loads(text) for text in outputs]  # by process, then by epoch
    seconds = [
        max(values) for values in zip(*(process["seconds"] for process in epochs), strict=True)
    ]
    cpu = [max(values) for values in zip(*(process["cpu"] for process in epochs), strict=True)]
    return _Best(min(seconds), min(cpu), epochs[0]["loss"])


def _work(plan: dict[str, Any]) -> dict[str, Any]:
    """In one of the processes: the seconds of each epoch of the last phase."""
    import torch

    from metatkgr.data.world import simulate
    from metatkgr.models.registry import trainable
    from metatkgr.training.distributed import processes
    from metatkgr.training.estimator import configure, learn

    torch.set_num_threads(1)
    facts = simulate(facts=plan["facts"], seed=1)
    model = trainable(plan["model"], plan["settings"])
    config = configure(model, facts)
    moments: list[tuple[str, float, float]] = []

    def note(line: dict[str, Any]) -> None:
        moments.append((line["phase"], time.perf_counter(), time.process_time()))

    with processes(torch.device("cpu")):
        lines = learn(model, facts, config, progress=note)
    last = moments[-1][0]
    spans = [
        (now[1] - before[1], now[2] - before[2])
        for before, now in itertools.pairwise(moments)
        if now[0] == before[0] == last
    ]
    seconds, cpu = zip(*spans, strict=True)
    return {"seconds": seconds, "cpu": cpu, "loss": lines[-1]["loss"]}


def main() -> None:
    """The life of one of the processes; the plan is its argument."""
    sys.stdout.write(json.dumps(_work(json.loads(sys.argv[1]))))
