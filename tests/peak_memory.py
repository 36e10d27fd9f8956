"""How much memory a program takes at most, in a process of its own.

Not by ``tracemalloc``, which sees neither what pyarrow and torch allocate nor survives it that
their threads allocate while it is being stopped (CPython before 3.12.9: a crash now and then).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

reads_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

_PEAK = """
def peak_megabytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))
"""


def peak_megabytes(imports: str, program: str, *words: Path) -> tuple[float, float]:
    """The largest memory after the imports and after the program, whose ``sys.argv`` has words."""
    whole = f"import sys\n{imports}\n{_PEAK}\nbefore = peak_megabytes()\n{program}\n"
    whole += "print(before, peak_megabytes())\n"
    done = subprocess.run(
        [sys.executable, "-c", whole, *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split()
    return float(before), float(after)
