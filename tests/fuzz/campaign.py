"""Many cases over several processes: ``make fuzz``, or ``python -m fuzz.campaign --cases N``.

Prints a table of what became of them, and exits with 1 where anything was found.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import platform
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from fuzz.fuzzing import Tally, load_fuzzers, run_cases, scratch
from metatkgr import __version__
from metatkgr.files import write_json

_CHUNK = 500


def _clean() -> None:
    shutil.rmtree(scratch(), ignore_errors=True)


def _begin() -> None:
    import logging
    from multiprocessing import util

    import torch

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    # A pool's processes end without the usual farewells.
    util.Finalize(None, _clean, exitpriority=0)


def _chunk(job: tuple[str, int, int, int]) -> tuple[str, Tally]:
    return job[0], run_cases(*job)


def plan(cases: int, only: list[str]) -> dict[str, int]:
    """How many cases of each fuzzer."""
    chosen = {name: f.share for name, f in load_fuzzers().items() if not only or name in only}
    whole = sum(chosen.values())
    return {name: math.ceil(cases * share / whole) for name, share in chosen.items()}


def table(tallies: dict[str, Tally]) -> str:
    """The counts as text."""
    lines = [f"{'fuzzer':20} {'cases':>10} {'refused':>10} {'accepted':>10} {'tracebacks':>10}"]
    whole = Tally()
    for tally in tallies.values():
        whole.add(tally)
    for name, tally in [*sorted(tallies.items()), ("all", whole)]:
        counts = (tally.cases, tally.refused, tally.accepted, tally.tracebacks)
        lines.append(f"{name:20} " + " ".join(f"{count:10,}" for count in counts))
    return "\n".join(lines)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--cases", type=int, default=20_000)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--workers", type=int, default=2)
    words.add_argument("--only", nargs="*", default=[])
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    wanted = plan(given.cases, given.only)
    tallies = {name: Tally() for name in wanted}
    jobs = [
        (name, given.seed, first, min(_CHUNK, count - first))
        for name, count in wanted.items()
        for first in range(0, count, _CHUNK)
    ]
    # Mixed, so that slow and cheap kinds end together.
    jobs.sort(key=lambda job: job[2] / wanted[job[0]])
    begin = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, context, initializer=_begin) as pool:
        waiting = [pool.submit(_chunk, job) for job in jobs]
        for number, done in enumerate(as_completed(waiting), 1):
            name, tally = done.result()
            tallies[name].add(tally)
            for finding in tally.findings:
                print(finding, file=sys.stderr, flush=True)
            if number % 50 == 0 or number == len(jobs):
                spent = time.perf_counter() - begin
                print(f"{number}/{len(jobs)} chunks, {spent:.0f} s", flush=True)
                if given.out:
                    # Now and then: what was done counts, also when the rest is interrupted.
                    write_json(given.out, _content(tallies, given, spent))
    print(table(tallies))
    print(f"{time.perf_counter() - begin:.0f} s, seed {given.seed}")
    sys.exit(1 if any(tally.tracebacks for tally in tallies.values()) else 0)


def _content(
    tallies: dict[str, Tally], given: argparse.Namespace, spent: float
) -> dict[str, object]:
    def counts(tally: Tally) -> dict[str, int]:
        return {key: getattr(tally, key) for key in ("cases", "refused", "accepted", "tracebacks")}

    whole = Tally()
    for tally in tallies.values():
        whole.add(tally)
    return {
        **counts(whole),
        "wanted": given.cases,
        "seed": given.seed,
        "seconds": round(spent),
        "workers": given.workers,
        "metatkgr": __version__,
        "python": platform.python_version(),
        "fuzzers": {name: counts(tally) for name, tally in sorted(tallies.items())},
    }


if __name__ == "__main__":
    main()
