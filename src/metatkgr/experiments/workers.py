"""Any number of processes work through a grid in one folder, and any of them may be killed.

=======================  =====================================================================
``cells/D/NAME.json``    the record of a cell that is done
``claims/D/NAME/``       who is at it (see ``claims``)
``work/D/NAME/``         its training so far: checkpoint and trace; removed when it is done
``stages/``              first stages that several cells share, each trained once
``failed/D/NAME.txt``    why a cell failed; the next start tries it again
=======================  =====================================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.claims import STALE_SECONDS, Claim
from metatkgr.experiments.record_checks import check_record
from metatkgr.files import read_json, write_text

__all__ = [
    "Limits",
    "failure_path",
    "failures",
    "forget_failures",
    "is_over",
    "read_record",
    "record_path",
    "records",
    "run_grid",
    "work_through",
]

Record = dict[str, Any]


class _StoppedError(Exception):
    """The training in hand has to be left as it is: out of time, or taken over by another."""


@dataclass(frozen=True)
class Limits:
    """When to stop, in seconds since 1970; None: never."""

    no_new_cell_after: float | None = None
    stop_after: float | None = None
    """A training that is going on is left at its next epoch; it can be gone on with."""
    stale_seconds: float = STALE_SECONDS
    parent: int | None = None
    """A process without which this one stops too."""

    @classmethod
    def of(cls, no_new_cell: float | None, stop: float | None) -> Limits:
        """From seconds from now on."""
        now = time.time()
        return cls(
            None if no_new_cell is None else now + no_new_cell, None if stop is None else now + stop
        )

    @property
    def may_begin(self) -> bool:
        """Whether a cell may still be begun."""
        ends = [end for end in (self.no_new_cell_after, self.stop_after) if end is not None]
        return not self.must_stop and (not ends or time.time() < min(ends))

    @property
    def must_stop(self) -> bool:
        """Whether even a training that is going on must be left."""
        if self.parent is not None and os.getppid() != self.parent:
            return True
        return self.stop_after is not None and time.time() >= self.stop_after


def record_path(out: Path, cell: Cell) -> Path:
    """Where the record of a cell is, when it is done."""
    return out / "cells" / f"{cell.name}.json"


def failure_path(out: Path, cell: Cell) -> Path:
    """Where the reason is, when a cell failed."""
    return out / "failed" / f"{cell.name}.txt"


def read_record(path: Path) -> Record:
    """The record of a cell."""
    try:
        content = read_json(path)
        Cell.from_json(content["cell"])
        check_record(content)
    except (MetaTKGRError, KeyError, TypeError) as error:
        told = str(error) if isinstance(error, MetaTKGRError) else repr(error)
        raise DataError(f"{path} is not the record of a cell: {told}; remove it") from None
    return dict(content)


def records(out: Path) -> list[Record]:
    """The records of all cells that are done, in the order of their names."""
    paths = sorted((out / "cells").rglob("*.json"))
    return [read_record(path) for path in paths if not path.name.startswith(".")]


def failures(out: Path, cells: Iterable[Cell]) -> dict[str, str]:
    """The reasons of those of the cells that failed."""
    found = {cell.name: failure_path(out, cell) for cell in cells}
    return {name: path.read_text(encoding="utf-8") for name, path in found.items() if path.exists()}


def work_through(
    out: Path,
    cells: Iterable[Cell],
    *,
    device: str = "cpu",
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    say: Callable[[str], object] = print,
    loaded: Any = None,
) -> None:
    """Run the cells that are neither done nor claimed, one after the other, in this process.

    Returns when nothing is left that could be begun; cells of other processes may go on.
    ``loaded`` is a ``cell_run.Loaded`` of earlier cells.
    """
    from metatkgr.experiments.cell_run import Loaded

    loaded = loaded or Loaded()
    waiting = list(cells)
    while waiting and limits.may_begin:
        cell = waiting.pop(0)
        if is_over(out, cell):
            continue
        claim = Claim.take(out / "claims" / cell.name, limits.stale_seconds)
        if claim is None:
            continue
        with claim:
            # Another may have finished it between the first look and the claim.
            if not is_over(out, cell):
                _run_claimed(out, cell, claim, device, limits, say, loaded)


def is_over(out: Path, cell: Cell) -> bool:
    """Whether a cell is done, or has failed."""
    return record_path(out, cell).exists() or failure_path(out, cell).exists()


def _run_claimed(
    out: Path,
    cell: Cell,
    claim: Claim,
    device: str,
    limits: Limits,
    say: Callable[[str], object],
    loaded: Any,
) -> None:
    import torch

    from metatkgr.experiments.cell_run import run_cell

    def after_epoch(line: dict[str, Any]) -> None:
        if limits.must_stop or claim.lost:
            raise _StoppedError

    begin = time.perf_counter()
    try:
        record = run_cell(
            cell,
            work=out / "work" / cell.name,
            device=device,
            loaded=loaded,
            stages=out / "stages",
            progress=after_epoch,
        )
    except _StoppedError:
        say(f"left    {cell.name}")
        return
    except Exception as error:
        write_text(failure_path(out, cell), f"{error}\n\n{traceback.format_exc()}")
        say(f"FAILED  {cell.name}: {error}")
        return
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # others share the GPU
    if claim.lost:
        return
    write_text(record_path(out, cell), dump_record(record))
    metrics = record["result"]["metrics"]["static"]["all"]
    say(
        f"done    {cell.name}: MRR {metrics['mrr']:.4f}, H@10 {metrics['hits@10']:.4f} "
        f"({time.perf_counter() - begin:.0f} s)"
    )


def dump_record(record: Record) -> str:
    """JSON with one line for each part of the record and of its result: small, and fit for diff."""
    parts = [f' "{key}": {_line(value)}' for key, value in record.items() if key != "result"]
    inner = [f'  "{key}": {_line(value)}' for key, value in record["result"].items()]
    parts.append(' "result": {\n' + ",\n".join(inner) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def forget_failures(out: Path, cells: Iterable[Cell]) -> None:
    """What failed before is tried again; what is being tried elsewhere may fail anew."""
    for cell in cells:
        with contextlib.suppress(FileNotFoundError):
            failure_path(out, cell).unlink()


def run_grid(
    out: Path,
    cells: list[Cell],
    *,
    workers: int = 1,
    device: str = "cpu",
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    say: Callable[[str], object] = print,
) -> None:
    """Work through the cells with some processes; one works in this process.

    A worker that dies does not stop the others; its cell is gone on with by the next call.
    """
    forget_failures(out, cells)
    left = [cell for cell in cells if not record_path(out, cell).exists()]
    count = min(workers, len(left))
    if count <= 1:
        work_through(out, left, device=device, limits=limits, say=say)
        return
    plan = {
        "out": str(out),
        "cells": [cell.to_json() for cell in left],
        "device": device,
        "limits": asdict(limits),
    }
    processes = [_start_worker(plan) for _ in range(count)]
    try:
        for process in processes:
            if process.wait() != 0:
                say(f"a worker ended with code {process.returncode}; the others go on")
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait()


def _start_worker(plan: dict[str, Any]) -> subprocess.Popen[str]:
    # Many workers share the cores: more threads than cores wait for each other at every step.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "metatkgr.experiments.workers"],
        stdin=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(plan))
            process.stdin.close()
    return process


def _main() -> None:
    import torch

    plan = json.load(sys.stdin)
    torch.set_num_threads(1)

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    work_through(
        Path(plan["out"]),
        [Cell.from_json(cell) for cell in plan["cells"]],
        device=plan["device"],
        limits=Limits(**plan["limits"] | {"parent": os.getppid()}),
        say=say,
    )


if __name__ == "__main__":
    _main()
