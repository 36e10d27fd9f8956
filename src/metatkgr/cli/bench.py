"""``metatkgr bench``: speed and memory, beside a reference in the same run."""

from __future__ import annotations

import os
import platform
from typing import Annotated

import typer

from metatkgr.cli import options
from metatkgr.cli.output import console_for, emit_json, plain_table

__all__ = ["bench"]


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which benchmarks; all when none is named.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="The best of so many runs counts.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: does it run?")] = False,
    json_out: options.JsonOut = None,
) -> None:
    """Measure speed and memory against a reference in the same run.

    Times on a shared machine are noisy: read the ratios.
    """
    import numpy
    import torch

    from metatkgr.benchmarks import Measurement, Workload, available
    from metatkgr.errors import UnknownNameError
    from metatkgr.version import __version__

    known = available()
    for name in names or []:
        if name not in known:
            raise UnknownNameError("benchmark", name, known)
    console = console_for(json_out)
    work = Workload(quick=quick, repeats=repeats)
    measured: list[Measurement] = []
    for name in names or list(known):
        with console.status(f"{name} …"):
            measured += known[name](work)
    rows = []
    for m in measured:
        compared = "-" if m.ratio is None else f"{m.ratio:.1f}x of {m.against}"
        rows.append([m.name, f"{m.ours:,.3f} {m.unit}", compared])
    console.print(plain_table("Benchmarks", ["what", "ours", "the reference needs"], rows))
    for note in dict.fromkeys(f"{m.name}: {m.note}" for m in measured):
        console.print(f"  {note}")
    emit_json(
        json_out,
        {
            "version": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "measurements": [m.to_json() for m in measured],
        },
    )
