"""Do the parts of ``python -m benchmarks --scale`` at one size, each in a process of its own.

``python -m benchmarks.scale_process FOLDER FACTS`` does all parts that have not left their
numbers in FOLDER yet, as ``PART.json``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.scale_parts import PARTS, WORLD, Clock
from metatkgr.data.world import WorldSettings
from metatkgr.data.world.simulation import write_world
from metatkgr.files import write_json

__all__ = ["PartResult", "main", "run_part"]


@dataclass(frozen=True)
class PartResult:
    """The numbers of one part at one size."""

    part: str
    facts: int
    units: int
    """How many facts, neighbours, questions, … were dealt with."""
    unit: str
    seconds: float
    """By the clock on the wall."""
    cpu_seconds: float
    """Of this process, its own and the system's for it: what is left of the noise of others."""
    peak_megabytes: float
    """Most memory that the process had, pages of mapped files included."""


def _peak_megabytes() -> float:
    try:
        # Not ru_maxrss, in which Linux counts the process that started this one.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main(words: list[str]) -> None:
    """Do the parts of one size, as the module's text says; their names go to standard output."""
    folder, facts = Path(words[0]), int(words[1])
    torch.set_num_threads(1)

    def simulate() -> None:
        write_world(folder / WORLD, WorldSettings(facts=facts))

    _in_a_process("simulate", folder / WORLD, simulate)
    for name in PARTS:
        done = folder / f"{name}.json"

        def part(name: str = name, done: Path = done) -> None:
            write_json(done, asdict(run_part(name, folder, facts)))

        _in_a_process(name, done, part)


def _in_a_process(name: str, made: Path, work: Callable[[], None]) -> None:
    """Do the work that makes a file, unless the file is there.

    In a process of its own, because the peak of a process never falls; forked, so that it need not
    import everything again.
    """
    if made.is_file():
        return
    sys.stdout.write(f"{name}\n")
    sys.stdout.flush()
    if not hasattr(os, "fork"):
        work()
        return
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            sys.exit(1)
        return
    try:
        work()
    except Exception:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def run_part(name: str, folder: Path, facts: int) -> PartResult:
    """Do one part in this process."""
    clock = Clock()
    units, unit = PARTS[name](folder, facts, clock)
    return PartResult(name, facts, units, unit, clock.seconds, clock.cpu, _peak_megabytes())


if __name__ == "__main__":
    main(sys.argv[1:])
