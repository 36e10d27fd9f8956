"""What a fuzzer is: a function that makes one case from a source of randomness, and its register.

A case either returns (the input was accepted) or raises one of metatkgr's own errors (it was
refused, with a sentence). Anything else is a finding: another exception, or an assertion that
something was lost without a word. Case ``n`` of a fuzzer follows from the seed, its name and ``n``
alone, so that any finding can be repeated.
"""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from metatkgr.errors import MetaTKGRError

__all__ = ["FUZZERS", "Tally", "fuzzer", "load_fuzzers", "run_cases", "scratch"]

Case = Callable[[random.Random], None]


@dataclass(frozen=True)
class Fuzzer:
    """A kind of case."""

    name: str
    case: Case
    share: float
    """Of all cases; cheap fuzzers have more."""


FUZZERS: dict[str, Fuzzer] = {}
_KEPT = 20


def fuzzer(share: float) -> Callable[[Case], Case]:
    """Decorator: put a case into the register under its function's name."""

    def register(case: Case) -> Case:
        FUZZERS[case.__name__] = Fuzzer(case.__name__, case, share)
        return case

    return register


def load_fuzzers() -> dict[str, Fuzzer]:
    """All fuzzers there are."""
    from fuzz import (  # noqa: F401
        appends,
        configs,
        ingested,
        readers,
        records,
        runs,
        service,
        store,
    )

    return FUZZERS


@dataclass
class Tally:
    """What became of the cases of one fuzzer."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    tracebacks: int = 0
    findings: list[str] = field(default_factory=list)
    """The first few, with the number of the case."""

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.accepted += other.accepted
        self.refused += other.refused
        self.tracebacks += other.tracebacks
        self.findings = (self.findings + other.findings)[:_KEPT]


def run_cases(name: str, seed: int, first: int, count: int) -> Tally:
    """Run the cases ``first`` to ``first + count - 1``."""
    case = load_fuzzers()[name].case
    tally = Tally()
    for number in range(first, first + count):
        tally.cases += 1
        try:
            case(random.Random(f"{seed}/{name}/{number}"))
            tally.accepted += 1
        except MetaTKGRError as error:
            tally.refused += 1
            if not str(error).strip():
                raise AssertionError(f"{name} {number}: an error without a word") from error
        except Exception:
            tally.tracebacks += 1
            if len(tally.findings) < _KEPT:
                tally.findings.append(f"{name} {number}: {traceback.format_exc()}")
    return tally


@cache
def scratch() -> Path:
    """A folder in memory, where the system has one."""
    memory = Path("/dev/shm")
    place = tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(place)
