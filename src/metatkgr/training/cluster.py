"""Work shared out: over processes of this machine, or over Ray, here or on a cluster.

A node of the cluster may die at any time. A part of an evaluation is small, and computed again.
Ray is imported only here, and only when it is asked for.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from metatkgr.data.tasks import Tasks
from metatkgr.errors import MetaTKGRError, SettingsError, need
from metatkgr.evaluation.evaluator import Evaluation, evaluate
from metatkgr.models import Model, available
from metatkgr.models.base import Part, TrainableModel
from metatkgr.training.distributed import join_shards, shard_rows

__all__ = ["LOCAL", "Connection", "connected", "crew", "evaluate_on"]

LOCAL = "local"
"""The address that means: start Ray on this machine, and stop it at the end."""
_AUTO = "auto"
_KNOCK_SECONDS = 10.0
_ATTEMPTS = 5
"""How often work is begun by processes that die before it is given up."""


@contextmanager
def crew(
    work: Callable[..., object], arguments: tuple[Any, ...], count: int, *, threads: int = 1
) -> Iterator[list[BaseProcess]]:
    """Some processes of this machine that do the same; whoever is left at the end is stopped.

    Args:
        work: a function of a module.
        arguments: of it; they travel.
        count: of the processes.
        threads: that each computes with. Together more than there are cores would wait for each
            other at every step.
    """
    spawn = multiprocessing.get_context("spawn")
    workers: list[BaseProcess] = [
        spawn.Process(target=_with_threads, args=(threads, work, *arguments), daemon=True)
        for _ in range(count)
    ]
    try:
        for worker in workers:
            worker.start()
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _with_threads(threads: int, work: Callable[..., object], *arguments: Any) -> None:
    torch.set_num_threads(threads)
    work(*arguments)


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

    def remote(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs on one CPU of the cluster, and returns a reference at once.

        Where its process dies, Ray begins it anew, in another one, a few times.
        """
        how = {"num_cpus": 1, "num_gpus": self.share, "max_retries": _ATTEMPTS - 1}
        return partial(self.ray.remote(**how)(_on_node).remote, function)

    def map(self, function: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterator[Any]:
        """What a function makes of pieces of work, in their order.

        A few pieces are under way or wait for their turn, so that memory stays bounded. The
        function travels once to each process, which keeps it and what it has found out.

        Raises:
            MetaTKGRError: as the function raised it; or the nodes were lost too often.
        """
        begin, shared = self.remote(_call), [self.ray.put(function)]
        waiting: deque[Any] = deque()
        for piece in pieces:
            waiting.append(begin(shared, piece))
            if len(waiting) >= 4 * self.slots:
                yield self._result(waiting.popleft())
        while waiting:
            yield self._result(waiting.popleft())

    def _result(self, reference: Any) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MetaTKGRError):
                raise error.cause from None
            raise
        except self.ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise MetaTKGRError(f"the cluster lost a piece of work too often: {reason}") from error


_KEPT: dict[str, Callable[[Any], Any]] = {}
"""In a process of the cluster: the function that it was sent last."""


def _call(shared: list[Any], piece: Any) -> Any:
    (reference,) = shared
    if reference.hex() not in _KEPT:
        _KEPT.clear()
        _KEPT[reference.hex()] = _load_ray().get(reference)
    return _KEPT[reference.hex()](piece)


def _load_ray() -> Any:
    """The module ``ray``."""
    # Only a convenience of Ray's for clusters in the cloud; here it would call home.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return need("ray", "cluster")


@contextmanager
def connected(address: str, *, workers: int = 1, device: str = "auto") -> Iterator[Connection]:
    """Start Ray, or join a cluster; leave it at the end.

    Args:
        address: 'local', HOST:PORT of a cluster's head, or 'auto': that of this machine.
        workers: locally, how many work at once; on a GPU, how many share it.
        device: 'cpu', 'cuda', or 'auto': a GPU where the cluster has one.
    """
    ray = _load_ray()
    here = {"num_cpus": workers, "include_dashboard": False} if address == LOCAL else {}
    try:
        if address not in (LOCAL, _AUTO):
            _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **here)
    except (OSError, RuntimeError, ValueError) as error:
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


def _knock(address: str) -> None:
    """Raise an OSError or a ValueError where nobody listens: Ray would try for minutes, and end
    the process."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS):
        pass


def _on_node(function: Callable[..., Any], *arguments: Any) -> Any:
    """Work in a process of the cluster: with one thread, as Ray gives it one CPU."""
    torch.set_num_threads(1)
    # Ray hands out arrays that nobody may write to; nobody does.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    return function(*arguments)


def evaluate_on(
    address: str,
    model: Model[Any],
    tasks: Tasks,
    *,
    workers: int = 1,
    device: str = "auto",
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """As ``evaluate``, with the queries shared out over a cluster.

    Args:
        address: as in :func:`connected`.
        model: with its weights, if it has any; it travels to the nodes.
        tasks: the tasks of one split; they travel too.
        workers: as in :func:`connected`.
        device: as in :func:`connected`.
        progress: called with the number of distinct queries done since the last call.
    """
    if model.needs_law:
        raise SettingsError(f"{model.name} knows the law of a world, which does not travel")
    with connected(address, workers=workers, device=device) as cluster:
        ray = cluster.ray
        weights = None
        if isinstance(model, TrainableModel):
            weights = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
        shared = ray.put((model.name, model.settings, weights)), ray.put(tasks)
        rank = cluster.remote(_rank_part)
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
        return join_shards(tasks, [(rows[part], shard) for part, shard in done.items()])


def _rank_part(model: tuple[str, Any, Any], tasks: Tasks, rows: Any, device: str) -> Any:
    """On a node: the ranks of some queries."""
    name, settings, weights = model
    here = available()[name](settings, device=device)
    if weights is not None and isinstance(here, TrainableModel):
        here.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    evaluation = evaluate(here, tasks.only(rows))
    return evaluation.ranks, evaluation.novel, evaluation.seconds
