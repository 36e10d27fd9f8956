"""Growth curves: time and memory of each part from ten thousand facts to a hundred million.

The worlds, stores and indexes of each size stay in a folder between runs, with the numbers of the
parts that are done: a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.base import ROOT
from metatkgr.errors import MetaTKGRError, SettingsError
from metatkgr.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "EXPLAINED",
    "draw",
    "growth",
    "in_microseconds",
    "markdown",
    "measure",
    "save_figure",
    "sizes_up_to",
    "summary",
]

PARTS = (
    "ingest",
    "index",
    "sample",
    "step, MetaTKGR",
    "evaluate",
    "predict",
)
EXPLAINED = {
    "ingest": "every row is read, checked and written a fixed number of times, and sorting on disk "
    "is one pass of merging; what grows beyond that is the number of different names in a million "
    "rows, each looked at once there",
    "index": "counted into buckets and each bucket radix-sorted: no comparisons, three passes",
    "sample": "a binary search among all links and reads of a few cache lines; beyond the caches "
    "each read is a miss",
    "step, MetaTKGR": "only the neighbours and rows of the batch's tasks are touched",
    "evaluate": "every question scores every entity, and entities are about 4 in 100 facts",
    "predict": "one question scores every entity; appending the newcomer's facts costs nothing",
}
"""Why each part grows as it does."""

_SMALLEST = 10_000
_FROM = 1_000_000
"""Growth is read off from this size on; below it fixed costs are most of the time."""


def sizes_up_to(largest: int) -> list[int]:
    """10^4, 10^5, … up to ``largest``."""
    if largest < _SMALLEST:
        raise SettingsError(f"the largest size is {largest:,} facts; give at least {_SMALLEST:,}")
    return [10**power for power in range(4, int(math.log10(largest) + 1e-9) + 1)]


def measure(
    sizes: Sequence[int], folder: Path, progress: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Do every part at every size that has no numbers in ``folder`` yet.

    Returns:
        The numbers of ``scale_process.PartResult``, part by part and size by size.
    """
    results = []
    for size in sizes:
        subfolder = folder / f"world-{size}"
        subfolder.mkdir(parents=True, exist_ok=True)
        files = [subfolder / f"{part}.json" for part in PARTS]
        if not all(file.is_file() for file in files):
            _in_a_process(subfolder, size, progress)
        results += [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return results


def _in_a_process(subfolder: Path, size: int, progress: Callable[[str], None] | None) -> None:
    words = [sys.executable, "-m", "benchmarks.scale_process", str(subfolder.absolute()), str(size)]
    # One thread: on a machine that does anything else besides, threads wait for each other.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=said, text=True, env=environment, cwd=ROOT
        ) as child,
    ):
        for part in child.stdout or ():
            if progress:
                progress(f"{size:,} facts: {part.strip()}")
        if child.wait():
            said.seek(0)
            raise MetaTKGRError(f"at {size:,} facts:\n{said.read().strip()[-2000:]}")


def growth(sizes: Sequence[int], costs: Sequence[float]) -> float | None:
    """The exponent p of costs that grow like sizes^p: the slope of a line through the logarithms.

    Only sizes from 10^6 on count where there are two or more of them; None where there is one size.
    """
    if len(sizes) < 2:
        return None
    kept = [row for row in zip(sizes, costs, strict=True) if row[0] >= _FROM]
    if len(kept) < 2:
        kept = list(zip(sizes, costs, strict=True))
    logarithms = ((math.log(size), math.log(cost)) for size, cost in kept)
    # Rounded: the last digits of logarithms differ from machine to machine.
    return round(linear_regression(*zip(*logarithms, strict=True)).slope, 6)


def _named(exponent: float | None) -> str:
    if exponent is None:
        return "unknown (one size)"
    for limit, name in ((0.2, "constant or logarithmic"), (0.85, "less than linear")):
        if exponent < limit:
            return name
    return "linear" if exponent <= 1.15 else "worse than linear"


def summary(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each part how it grows, and why.

    The exponent is of the processor time of the whole graph where a part deals with every fact
    (ingest, index), and of one neighbour, fact, task, query or newcomer where it does not.
    """
    rows = []
    for part in dict.fromkeys(row["part"] for row in results):
        measured = sorted(
            (row for row in results if row["part"] == part), key=lambda row: row["facts"]
        )
        sizes = [row["facts"] for row in measured]
        each = [row["cpu_seconds"] / row["units"] for row in measured]
        of_graph = all(row["units"] == row["facts"] for row in measured)
        exponent = growth(sizes, [row["cpu_seconds"] for row in measured] if of_graph else each)
        rows.append(
            {
                "part": part,
                "unit": measured[0]["unit"],
                "of": "the whole graph" if of_graph else f"one {measured[0]['unit']}",
                "exponent": exponent,
                "growth": _named(exponent),
                "why": EXPLAINED[part],
                "facts": sizes,
                "cpu_seconds_per_unit": each,
                "peak_megabytes": [row["peak_megabytes"] for row in measured],
            }
        )
    return rows


def in_microseconds(seconds: float) -> str:
    """Three digits of it, written out."""
    value = float(f"{1e6 * seconds:.3g}")
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table of ``docs/scale.md``."""
    sizes = rows[0]["facts"]
    head = [f"10^{len(str(size)) - 1}" for size in sizes]
    lines = [
        f"| µs of processor per | {' | '.join(head)} | exponent | growth | peak MB |",
        f"|---|{'---|' * (len(head) + 3)}",
    ]
    for row in rows:
        each = " | ".join(in_microseconds(seconds) for seconds in row["cpu_seconds_per_unit"])
        exponent = "-" if row["exponent"] is None else f"{row['exponent']:.2f}"
        lines.append(
            f"| {row['part']}: {row['unit']} | {each} | {exponent} | {row['growth']} "
            f"| {max(row['peak_megabytes']):,.0f} |"
        )
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """Time per unit and peak memory of each part, over the number of facts."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MetaTKGRError("to draw, install matplotlib (pip install 'metatkgr[plots]')") from None
    style: dict[Any, Any] = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "metatkgr"}
    with rc_context({**style, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9.5, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        markers = "osD^v<>P"
        for number, row in enumerate(rows):
            shade = str(0.75 * number / max(len(rows) - 1, 1))
            exponent = "" if row["exponent"] is None else f", {row['exponent']:.2f}"
            line: dict[str, Any] = {
                "color": shade,
                "marker": markers[number % len(markers)],
                "ms": 4,
                "lw": 1.1,
            }
            label = f"{row['part']} ({row['of'].removeprefix('one ')}{exponent})"
            if row["of"] == "the whole graph":
                label = f"{row['part']} (fact{exponent})"
            microseconds = 1e6 * np.asarray(row["cpu_seconds_per_unit"])
            left.loglog(row["facts"], microseconds, label=label, **line)
            right.loglog(row["facts"], row["peak_megabytes"], **line)
        left.set_xlabel("facts")
        left.set_ylabel("processor time per unit (µs)")
        right.set_xlabel("facts")
        right.set_ylabel("peak memory (MB)")
        figure.legend(loc="outside right upper", fontsize=8, title="part (unit, growth exponent)")
    return figure


def save_figure(figure: Figure, folder: Path, name: str = "scale") -> list[Path]:
    """Write the figure as SVG and PNG; the files written."""
    files = []
    for kind in ("svg", "png"):
        path = folder / f"{name}.{kind}"
        with atomic_path(path) as temporary:
            about = {"Date": None} if kind == "svg" else None
            figure.savefig(temporary, dpi=150, metadata=about)
        files.append(path)
    return files
