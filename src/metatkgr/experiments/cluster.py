"""Grids and evaluations on Ray: on this machine, or on a cluster by its address.

A node of the cluster may die at any time. A cell of a grid is claimed in the folder that all nodes
share (see ``claims``), so it is computed once, and what a dead node had begun is gone on with from
its checkpoint by another. A part of an evaluation is small, and computed again.

Ray is imported only here, and only when it is asked for.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from metatkgr.data.tasks import Tasks
from metatkgr.errors import SettingsError
from metatkgr.evaluation.evaluator import Evaluation, evaluate
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.workers import (
    Limits,
    failure_path,
    forget_failures,
    is_over,
    work_through,
)
from metatkgr.files import write_text
from metatkgr.models import Model, available
from metatkgr.models.trainable import Part, TrainableModel
from metatkgr.training.distributed import join_shards, shard_rows

__all__ = ["LOCAL", "Connection", "connected", "evaluate_on", "load_ray", "run_grid_on"]

LOCAL = "local"
"""The address that means: start Ray on this machine, and stop it at the end."""
LOG = "cluster.log"
"""In the folder of a grid: what each worker of a cluster has done."""
_ATTEMPTS = 5
"""How often a cell is begun by processes that die before it is given up."""
_PAUSES = (2.0, 30.0)
"""Seconds before a cell that another process has claimed is asked for again: at first, at most."""


@dataclass(frozen=True)
class Connection:
    """A cluster that is ready to compute."""

    ray: Any
    """The module."""
    device: str
    """Of the workers: 'cpu' or 'cuda'."""
    share: float
    """Of a GPU that one worker takes."""
    slots: int
    """Workers that find room at once."""

    def remote(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """A function that runs on one CPU of the cluster, and returns a reference at once."""
        wrapped = self.ray.remote(num_cpus=1, num_gpus=self.share, **options)(function)
        return wrapped.remote  # type: ignore[no-any-return]


def load_ray() -> Any:
    """The module ``ray``."""
    # Only a convenience of Ray's for clusters in the cloud; here it would call home.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise SettingsError("Ray is not installed: pip install 'metatkgr[cluster]'") from None
    return ray


@contextmanager
def connected(address: str, *, workers: int = 1, device: str = "auto") -> Iterator[Connection]:
    """Start Ray, or join a cluster; leave it at the end.

    Args:
        address: 'local', HOST:PORT of a cluster's head, or 'auto': that of this machine.
        workers: locally, how many work at once; on a GPU, how many share it.
        device: 'cpu', 'cuda', or 'auto': a GPU where the cluster has one.
    """
    ray = load_ray()
    here = {"num_cpus": workers, "include_dashboard": False} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **here)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise SettingsError(
            f"no Ray cluster answers at {address!r} ({error}); start one with `ray start --head`, "
            f"give its HOST:PORT, or use {LOCAL!r}"
        ) from None
    try:
        resources = ray.cluster_resources()
        gpus, cpus = resources.get("GPU", 0.0), resources.get("CPU", 0.0)
        if device.startswith("cuda") and not gpus:
            raise SettingsError(f"the cluster at {address!r} has no GPU; use --device cpu")
        on_gpu = bool(gpus) and device != "cpu"
        share = 1.0 / workers if on_gpu else 0.0
        slots = min(cpus, gpus * workers) if on_gpu else cpus
        yield Connection(ray, "cuda" if on_gpu else "cpu", share, max(1, int(slots)))
    finally:
        ray.shutdown()


def run_grid_on(
    address: str,
    out: Path,
    cells: Iterable[Cell],
    *,
    workers: int = 1,
    device: str = "auto",
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    say: Callable[[str], object] = print,
) -> None:
    """Work through the cells with all of a cluster.

    Args:
        address: as in :func:`connected`.
        out: a folder that every node sees under this path.
        cells: what to compute.
        workers: as in :func:`connected`.
        device: as in :func:`connected`.
        limits: when to stop.
        say: is told what was done.
    """
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    (out / LOG).touch()  # by it a node knows that it sees the folder
    cells = list(cells)
    forget_failures(out, cells)
    waiting = {cell: 0.0 for cell in cells if not is_over(out, cell)}  # when to begin
    if not waiting:
        return
    with connected(address, workers=workers, device=device) as cluster:
        # Ray itself must not repeat: which cell is begun again is decided here.
        begin = cluster.remote(_run_cell, max_retries=0)
        running: dict[Any, Cell] = {}
        lost: Counter[str] = Counter()
        begun: Counter[str] = Counter()
        while waiting or running:
            now = time.monotonic()
            for cell in [cell for cell, due in waiting.items() if due <= now]:
                del waiting[cell]
                if limits.may_begin:
                    begun[cell.name] += 1
                    plan = (str(out), cell.to_json(), cluster.device, asdict(limits))
                    running[begin(*plan)] = cell
            ready, _ = cluster.ray.wait(list(running), timeout=0.5) if running else ([], [])
            if not running:
                time.sleep(0.1)
            for reference in ready:
                cell = running.pop(reference)
                try:
                    for text in cluster.ray.get(reference):
                        say(text)
                except cluster.ray.exceptions.RayError as error:
                    lost[cell.name] += 1
                    reason = str(error).strip().splitlines()[-1]
                    say(f"lost    {cell.name}: {reason}")
                    if lost[cell.name] == _ATTEMPTS and not is_over(out, cell):
                        write_text(failure_path(out, cell), f"lost {_ATTEMPTS} times: {reason}\n")
                if not is_over(out, cell) and limits.may_begin:
                    # Its worker died, or it is claimed: by one that lives, or that just died.
                    pause = min(_PAUSES[0] * 2 ** (begun[cell.name] - 1), _PAUSES[1])
                    waiting[cell] = time.monotonic() + pause


@cache
def _loaded() -> Any:
    """Datasets that this worker keeps between its cells."""
    from metatkgr.experiments.cell_run import Loaded

    return Loaded()


def _run_cell(out: str, cell: dict[str, Any], device: str, limits: dict[str, Any]) -> list[str]:
    """On a node: run one cell, unless another is at it; what there is to say."""
    _begin()
    said: list[str] = []
    folder = Path(out)
    if not (folder / LOG).exists():
        raise FileNotFoundError(
            f"the node {socket.gethostname()} does not see {folder}: all nodes must share it"
        )
    work_through(
        folder,
        [Cell.from_json(cell)],
        device=device,
        limits=Limits(**limits),
        say=said.append,
        loaded=_loaded(),
    )
    if said:
        # Also for those who do not see the answer, because the one who asked is gone.
        who = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {socket.gethostname()} {os.getpid()}"
        with (folder / LOG).open("a", encoding="utf-8") as log:
            log.write("".join(f"{who} {text}\n" for text in said))
    return said


def _begin() -> None:
    """What each worker needs once: one thread, as Ray gives it one CPU."""
    torch.set_num_threads(1)
    # Ray hands out arrays that nobody may write to; nobody does.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def evaluate_on(
    address: str,
    model: Model[Any],
    tasks: Tasks,
    *,
    workers: int = 1,
    device: str = "auto",
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """As ``evaluate``, with the questions shared out over a cluster.

    Args:
        address: as in :func:`connected`.
        model: with its weights, if it has any; it travels to the nodes.
        tasks: the tasks of one split; they travel too.
        workers: as in :func:`connected`.
        device: as in :func:`connected`.
        progress: called with the number of questions done since the last call.
    """
    if model.needs_law:
        raise SettingsError(f"{model.name} knows the law of a world, which does not travel")
    with connected(address, workers=workers, device=device) as cluster:
        ray = cluster.ray
        weights = None
        if isinstance(model, TrainableModel):
            weights = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
        plain = replace(tasks, facts=replace(tasks.facts, law=None))
        shared = ray.put((model.name, model.settings, weights)), ray.put(plain)
        rank = cluster.remote(_rank_part, max_retries=_ATTEMPTS)
        parts = [Part(number, cluster.slots) for number in range(cluster.slots)]
        rows = {part: shard_rows(tasks, part) for part in parts}
        running = {
            rank(*shared, rows[part], cluster.device): part for part in parts if len(rows[part])
        }
        done: dict[Part, Evaluation] = {}
        while running:
            (reference,), _ = ray.wait(list(running))
            part = running.pop(reference)
            ranks, novel, seconds = ray.get(reference)
            done[part] = Evaluation(tasks.only(rows[part]), ranks, novel, seconds)
            if progress:
                progress(len(rows[part]))
        return join_shards(tasks, [(rows[part], found) for part, found in done.items()])


def _rank_part(model: tuple[str, Any, Any], tasks: Tasks, rows: Any, device: str) -> Any:
    """On a node: the ranks of some questions."""
    _begin()
    name, settings, weights = model
    here = available()[name](settings, device=device)
    if weights is not None and isinstance(here, TrainableModel):
        here.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    found = evaluate(here, tasks.only(rows))
    return found.ranks, found.novel, found.seconds
