"""The one runner: processes here, or on Ray, work through a grid in one folder.

Any of them may be killed at any time, and any number of commands may share the folder. A cell is
leased to one process (see ``leases``), so it is computed once, and what a dead one had begun is
gone on with from its checkpoint by another.

=======================  =====================================================================
``cells/D/NAME.json``    the record of a cell that is done
``leases/D/NAME/``       who is at it
``work/D/NAME/``         its training so far: checkpoint and trace; removed when it is done
``stages/``              first stages that several cells share, each trained once
``failed/D/NAME.txt``    why a cell failed; the next start tries it again
``rounds/``              what was registered before it was run (see ``rounds``)
``looks.jsonl``          which cells were shown meta-test, when, by which commit
``cluster.log``          what each worker of a cluster has done
=======================  =====================================================================
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from metatkgr.experiments.cell_run import Loaded, run_cell
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.leases import STALE_SECONDS, Lease
from metatkgr.experiments.rounds import log_look, refuse_unregistered
from metatkgr.files import write_text
from metatkgr.training.cluster import connected, crew

__all__ = [
    "LOG",
    "Limits",
    "failures",
    "is_over",
    "record_path",
    "run_grid",
    "work_through",
]

LOG = "cluster.log"
_PAUSE = 2.0
"""Seconds that a worker of a cluster rests where another process has the lease of its cell."""
Say = Callable[[str], object]


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


def failures(out: Path, cells: Iterable[Cell]) -> dict[str, str]:
    """The reasons of those of the cells that failed."""
    paths = {cell.name: _failure_path(out, cell) for cell in cells}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.exists()}


def _failure_path(out: Path, cell: Cell) -> Path:
    return out / "failed" / f"{cell.name}.txt"


def is_over(out: Path, cell: Cell) -> bool:
    """Whether a cell is done, or has failed."""
    return record_path(out, cell).exists() or _failure_path(out, cell).exists()


def run_grid(
    out: Path,
    cells: Iterable[Cell],
    *,
    workers: int = 1,
    cluster: str | None = None,
    device: str = "cpu",
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    say: Say = print,
) -> None:
    """Work through the cells with some processes, of this machine or of a cluster.

    What failed before is tried again; what is being tried by others may fail anew. Meta-test of the
    published datasets is shown to registered cells only (see ``rounds``).

    Args:
        out: the folder; every node of a cluster sees it under this path.
        cells: what to compute.
        workers: processes; a single one works in this process. On a cluster of GPUs, how many
            share one.
        cluster: address of a Ray cluster, as in ``cluster.connected``; None: this machine.
        device: where to compute.
        limits: when to stop.
        say: gets what was done as text.
    """
    out, cells = out.absolute(), list(cells)
    refuse_unregistered(out, [cell for cell in cells if not record_path(out, cell).exists()])
    for cell in cells:
        _failure_path(out, cell).unlink(missing_ok=True)
    left = [cell for cell in cells if not is_over(out, cell)]
    if cluster is not None:
        _on_cluster(cluster, out, left, workers, device, limits, say)
    elif min(workers, len(left)) <= 1:
        work_through(out, left, device=device, limits=limits, say=say)
    else:
        _in_processes(out, left, min(workers, len(left)), device, limits, say)


def work_through(
    out: Path,
    cells: Iterable[Cell],
    *,
    device: str = "cpu",
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    say: Say = print,
    loaded: Loaded | None = None,
) -> None:
    """Run the cells that are neither done nor leased, one after the other, in this process.

    Returns when nothing is left that could be begun; cells of other processes may go on.
    ``loaded`` is what earlier cells have read already.
    """
    loaded = loaded or Loaded()
    for cell in cells:
        if not limits.may_begin:
            break
        if is_over(out, cell):
            continue
        lease = Lease.take(out / "leases" / cell.name, limits.stale_seconds)
        if lease is None:
            continue
        with lease:
            # Another may have finished it between the first look and the lease.
            if not is_over(out, cell):
                if lease.generation:
                    say(f"lost    {cell.name}: who worked on it is gone; begun again")
                _run_leased(out, cell, lease, device, limits, say, loaded)


def _run_leased(
    out: Path, cell: Cell, lease: Lease, device: str, limits: Limits, say: Say, loaded: Loaded
) -> None:
    def after_epoch(line: dict[str, Any]) -> None:
        if limits.must_stop or lease.lost:
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
        write_text(_failure_path(out, cell), f"{error}\n\n{traceback.format_exc()}")
        say(f"FAILED  {cell.name}: {error}")
        return
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # others share the GPU
    if lease.lost:
        return
    record.write(record_path(out, cell))
    log_look(out, record)
    metrics = record.result["metrics"]["static"]["all"]
    say(
        f"done    {cell.name}: MRR {metrics['mrr']:.4f}, H@10 {metrics['hits@10']:.4f} "
        f"({time.perf_counter() - begin:.0f} s)"
    )


def _in_processes(
    out: Path, cells: list[Cell], count: int, device: str, limits: Limits, say: Say
) -> None:
    """Processes of this machine, each through all cells.

    One that dies does not stop the others; its cell is gone on with by the next call.
    """
    plan = (out, cells, device, replace(limits, parent=os.getpid()))
    with crew(_work, plan, count) as processes:
        for process in processes:
            process.join()
            if process.exitcode:
                say(f"a worker ended with code {process.exitcode}; the others go on")


def _work(out: Path, cells: list[Cell], device: str, limits: Limits) -> None:
    """The life of a worker in a process of its own."""
    say = partial(print, flush=True)
    work_through(out, cells, device=device, limits=limits, say=say)


def _on_cluster(
    address: str, out: Path, cells: list[Cell], workers: int, device: str, limits: Limits, say: Say
) -> None:
    """Ray's own queue holds the cells, and Ray begins a cell anew whose process dies."""
    if not cells:
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / LOG).touch()  # by it a node knows that it sees the folder
    with connected(address, workers=workers, device=device) as cluster:
        begin = cluster.remote(_run_cell)
        plan = (out, cluster.device, limits)
        running = {begin(cell, *plan): cell for cell in cells}
        while running:
            (reference,), _ = cluster.ray.wait(list(running))
            cell = running.pop(reference)
            try:
                for text in cluster.ray.get(reference):
                    say(text)
            except cluster.ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1]
                say(f"FAILED  {cell.name}: {reason}")
                if not is_over(out, cell):
                    write_text(_failure_path(out, cell), f"{reason}\n")
            if not is_over(out, cell) and limits.may_begin:
                # It is leased: to one that lives, or that just died.
                running[begin(cell, *plan)] = cell


@cache
def _loaded() -> Loaded:
    """Datasets that a worker of a cluster keeps between its cells."""
    return Loaded()


def _run_cell(cell: Cell, out: Path, device: str, limits: Limits) -> list[str]:
    """On a node: run one cell, unless another is at it; what there is to say."""
    said: list[str] = []
    if not (out / LOG).exists():
        raise FileNotFoundError(
            f"the node {socket.gethostname()} does not see {out}: all nodes must share it"
        )

    def say(text: str) -> None:
        said.append(text)
        # Also for those who do not see the answer, because the one who asked is gone.
        who = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {socket.gethostname()} {os.getpid()}"
        with (out / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{who} {text}\n")

    work_through(out, [cell], device=device, limits=limits, say=say, loaded=_loaded())
    if not is_over(out, cell) and limits.may_begin:
        time.sleep(_PAUSE)
    return said
