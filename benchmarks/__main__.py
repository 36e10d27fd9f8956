"""``python -m benchmarks``: speed and memory, beside a reference in the same run."""

from __future__ import annotations

import os
import platform
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from metatkgr.cli import main as run_program
from metatkgr.cli import options
from metatkgr.cli.output import console_for, emit_json, plain_table
from metatkgr.errors import SettingsError

__all__ = ["bench", "main"]

_PROGRAM = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@_PROGRAM.command()
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which benchmarks; all when none is named.")
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="The best of so many runs counts; 3, or 1 with --quick."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: does it run?")] = False,
    scale: Annotated[
        bool,
        typer.Option("--scale", help="Growth curves instead: each part at 10^4, 10^5, … facts."),
    ] = False,
    largest: Annotated[
        int, typer.Option(help="With --scale: facts of the largest world; 10^8 take 20 GB of disk.")
    ] = 10_000_000,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="With --scale: where the worlds go and stay, so that a run can be gone on with."
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="With --scale: folder for the figure (SVG and PNG).")
    ] = None,
    json_out: options.JsonOut = None,
) -> None:
    """Measure speed and memory against a reference in the same run.

    Times on a shared machine are noisy: read the ratios.
    """
    if scale:
        if names or quick:
            raise SettingsError("--scale measures all parts: leave out the names and --quick")
        _scale(largest, folder, figures, json_out)
        return
    from benchmarks import Measurement, Workload, available
    from metatkgr.errors import UnknownNameError

    known = available()
    for name in names or []:
        if name not in known:
            raise UnknownNameError("benchmark", name, known)
    console = console_for(json_out)
    work = Workload(quick=quick, repeats=repeats or (1 if quick else 3))
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
    emit_json(json_out, {**_machine(), "measurements": [m.to_json() for m in measured]})


def _machine() -> dict[str, Any]:
    """What the numbers were measured with."""
    import numpy
    import torch

    from metatkgr import __version__

    return {
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _scale(largest: int, folder: Path | None, figures: Path | None, json_out: str | None) -> None:
    """Growth curves."""
    from benchmarks.scale import (
        draw,
        in_microseconds,
        measure,
        save_figure,
        sizes_up_to,
        summary,
    )

    console = console_for(json_out)
    sizes = sizes_up_to(largest)
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with console.status("…") as status:
            results = measure(sizes, folder, status.update)
    rows = summary(results)
    cells = []
    for row in rows:
        each = [in_microseconds(seconds) for seconds in row["cpu_seconds_per_unit"]]
        grows = "-" if row["exponent"] is None else f"{row['exponent']:.2f}"
        peak = f"{max(row['peak_megabytes']):.0f}"
        cells.append([row["part"], *each, grows, peak])
    columns = [""] + [f"10^{len(str(size)) - 1}" for size in sizes] + ["grows", "MB"]
    title = "Processor time of one unit in µs by facts, growth exponent, peak memory"
    console.print(plain_table(title, columns, cells))
    for row in rows:
        console.print(f"  {row['part']} ({row['unit']}): {row['growth']}; {row['why']}")
    if figures is not None:
        for file in save_figure(draw(rows), figures):
            console.print(str(file))
    emit_json(json_out, {**_machine(), "threads": 1, "growth": rows, "measurements": results})


def main() -> None:
    """Run the command line; what is wrong is told as ``metatkgr`` tells it."""
    run_program(_PROGRAM)


if __name__ == "__main__":
    main()
