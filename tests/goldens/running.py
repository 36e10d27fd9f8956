"""What recording and checking share: choosing cells, computing one, files of records."""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

# One thread: the order of sums, and with it every weight, depends on how many there are.
os.environ["OMP_NUM_THREADS"] = "1"

from goldens.cells import PARTS, Cell, all_cells

__all__ = ["add_choice", "chosen", "computed", "read_records", "write_records"]


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Options that say which cells."""
    parser.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help=f"cells whose name contains TEXT or fits it as a pattern; parts: {', '.join(PARTS)}",
    )
    parser.add_argument("--skip", action="append", metavar="TEXT", help="not these")
    parser.add_argument("--weights", type=Path, metavar="DIR", help="folder of kept weights")


def chosen(options: argparse.Namespace, *, everything: bool) -> list[Cell]:
    """The cells that were asked for; named ones also when they take long."""
    if options.weights is not None:
        os.environ["GOLDENS_WEIGHTS"] = str(options.weights.resolve())

    def fits(name: str, texts: list[str] | None) -> bool:
        return any(text in name or fnmatch(name, text) for text in texts or ())

    return [
        cell
        for cell in all_cells()
        if (everything or cell.quick)
        and (not options.only or fits(cell.name, options.only))
        and not fits(cell.name, options.skip)
    ]


def computed(cell: Cell) -> tuple[dict[str, Any] | None, float]:
    """A cell's value, None where it cannot be had, and the seconds of processor it took.

    A failure is a value too: what was recorded did not fail.
    """
    import torch

    torch.set_num_threads(1)
    if not _is_there(cell.needs) or not cell.possible():
        return None, 0.0
    begin = time.process_time()
    try:
        value = json.loads(json.dumps(cell.run()))
    except Exception as error:
        told = traceback.format_exc().splitlines()[-7:]
        value = {"failed": f"{type(error).__name__}: {error}"[:600], "trace": told}
    return value, time.process_time() - begin


def _is_there(dataset: str) -> bool:
    folder = os.environ.get("METATKGR_DATA")
    return not dataset or (bool(folder) and (Path(str(folder)) / dataset).is_dir())


def read_records(path: Path) -> dict[str, Any]:
    """Cells by name; none where there is no file yet."""
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def write_records(path: Path, records: dict[str, Any]) -> None:
    """One line for each cell, so that a difference is one line of a diff."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for name, value in records.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    unfinished.replace(path)
