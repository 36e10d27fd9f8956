"""Several processes, one training: batches are shared out, gradients are added up.

Start them with ``torchrun``; it says through the environment how many there are. Every process
draws the same batches from the same seed and computes the loss of its own part of each; an
evaluation is shared out too, by queries (also among the workers of a cluster). Where ``torchrun``
starts them anew after a loss (``--max-restarts``), they go on from the last checkpoint.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from metatkgr.data.answers import FILTERS
from metatkgr.data.facts import IntArray
from metatkgr.data.tasks import Tasks
from metatkgr.evaluation.evaluator import Evaluation, evaluate
from metatkgr.files import check_file
from metatkgr.models.base import Loss, Model, Part, Phase

__all__ = [
    "SharedLoss",
    "answer_rows",
    "current_part",
    "evaluate_together",
    "file_of_the_first",
    "is_first",
    "join_shards",
    "processes",
    "shard_rows",
    "sum_over_processes",
    "was_restarted",
]


@contextmanager
def processes(device: torch.device) -> Iterator[Part]:
    """Join the processes that ``torchrun`` started, and leave them at the end.

    Yields:
        This process's part; all of it where there is one process only.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        yield Part()
        return
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    store, number, count = next(iter(rendezvous("env://")))
    # After a restart the store may still hold the addresses of those who are gone.
    attempt = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)} of {count}"
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore(attempt, store),
        rank=number,
        world_size=count,
    )
    try:
        yield current_part()
    finally:
        dist.destroy_process_group()


def current_part() -> Part:
    """Which part of a batch this process computes."""
    if dist.is_available() and dist.is_initialized():
        return Part(dist.get_rank(), dist.get_world_size())
    return Part()


class _PhaseLoss(nn.Module):
    """The loss of a phase as a module, whose parameters are what the phase learns."""

    def __init__(self, phase: Phase) -> None:
        super().__init__()
        self.learned = nn.ParameterList(phase.parameters())
        self._phase = phase

    def forward(self, batch: Any, generator: torch.Generator, part: Part) -> Tensor:
        """What is differentiated; all of the loss is kept as ``last``."""
        self.last = self._phase.loss(batch, generator, part)
        if part.count == 1:
            return self.last.value
        # Every weight takes part in every process, if by nothing: each waits for the gradients of
        # all, and rows of a part may not need them all.
        nothing = torch.stack([weight.flatten()[:1].sum() for weight in self.learned]).sum() * 0.0
        # The processes' gradients are averaged; of these values the mean is that of the batch.
        return self.last.value * (self.last.share * part.count) + nothing


class SharedLoss:
    """The loss of a phase, each process computing its part of every batch.

    After ``backward`` of the value, every process has the gradient of the whole batch: torch's
    ``DistributedDataParallel`` adds up what the parts have. With one process nothing of this
    happens.

    Args:
        phase: the same in every process, with equal weights.
    """

    def __init__(self, phase: Phase) -> None:
        self._loss = _PhaseLoss(phase)
        self._part = current_part()
        self._value: Callable[..., Tensor] = self._loss
        if self._part.count > 1:
            self._value = DistributedDataParallel(self._loss, gradient_as_bucket_view=True)

    def __call__(self, batch: Any, generator: torch.Generator) -> tuple[Tensor, Loss]:
        """What to differentiate, and the loss of this process's part."""
        value = self._value(batch, generator, self._part)
        return value, self._loss.last


def sum_over_processes(values: Tensor) -> Tensor:
    """The sum of each number over the processes."""
    if current_part().count > 1:
        values = values.clone()
        dist.all_reduce(values)
    return values


def evaluate_together(model: Model[Any], tasks: Tasks) -> Evaluation:
    """As ``evaluate``, each process with some of the queries; all of them get all ranks."""
    part = current_part()
    if part.count == 1:
        return evaluate(model, tasks)
    queries = shard_rows(tasks, part)
    rows = answer_rows(tasks, queries)
    table = torch.zeros(1 + len(FILTERS), len(tasks.answers), dtype=torch.float64)
    seconds: dict[str, float] = {}
    if len(rows):
        shard = evaluate(model, tasks.only(queries))
        seconds = shard.seconds
        columns = [shard.novel, *(shard.ranks[name] for name in FILTERS)]
        table[:, torch.from_numpy(rows)] = torch.from_numpy(np.stack(columns).astype(np.float64))
    # Every answer is some process's own, and zero for the others.
    table = sum_over_processes(table.to(_wire())).cpu()
    ranks = dict(zip(FILTERS, table[1:].numpy(), strict=True))
    return Evaluation(tasks, ranks, table[0].numpy() > 0, seconds)


def shard_rows(tasks: Tasks, part: Part) -> IntArray:
    """The queries of one part, as ascending rows of ``tasks.questions``; may be none.

    A model encodes its candidates once for each time step of the queries, so a part is a
    stretch of time. Its ranks do not depend on the other parts: scores do not depend on the batch.
    Every query weighs 1/Q, and every time step 1/M, shared by its queries: the parts are as equal
    as can be both in queries and in time steps.
    """
    time = tasks.questions.time
    order = np.argsort(time, kind="stable")
    _, moment, size = np.unique(time[order], return_inverse=True, return_counts=True)
    weight = 1.0 / max(len(time), 1) + 1.0 / (max(len(size), 1) * size[moment])
    before = np.cumsum(weight) - weight / 2  # adds up to 2
    part_of = np.minimum((before / 2 * part.count).astype(np.int64), part.count - 1)
    return np.sort(order[part_of == part.number])


def answer_rows(tasks: Tasks, queries: IntArray) -> IntArray:
    """The rows of ``tasks.answers`` that belong to some queries, in the order of a shard's."""
    return np.flatnonzero(np.isin(tasks.answers.question, queries))


def join_shards(tasks: Tasks, shards: Sequence[tuple[IntArray, Evaluation]]) -> Evaluation:
    """The evaluation of all queries from those of all parts.

    Args:
        tasks: all of them.
        shards: for each part its queries, from :func:`shard_rows`, and the evaluation of
            ``tasks.only`` of them.
    """
    ranks: dict[str, np.ndarray] = {}
    novel = np.zeros(len(tasks.answers), bool)
    seconds: dict[str, float] = {}
    for queries, shard in shards:
        rows = answer_rows(tasks, queries)
        novel[rows] = shard.novel
        for name, values in shard.ranks.items():
            ranks.setdefault(name, np.full(len(tasks.answers), np.nan))[rows] = values
        for name, spent in shard.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + spent
    return Evaluation(tasks, ranks, novel, seconds)


@contextmanager
def file_of_the_first(path: Path) -> Iterator[Path | None]:
    """A file of the first process, to be read by every process; None where it has none.

    All go on from the same checkpoint, also where a machine cannot see the first one's folder.
    """
    part = current_part()
    if part.count == 1:
        yield path if path.exists() else None
        return
    content = b""
    if part.number == 0 and path.exists():
        check_file(path)
        content = path.read_bytes()
    size = torch.tensor([len(content)], device=_wire())
    dist.broadcast(size, 0)
    if int(size) == 0:
        yield None
        return
    if part.number == 0:
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(_wire())
    else:
        sent = torch.empty(int(size), dtype=torch.uint8, device=_wire())
    dist.broadcast(sent, 0)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(sent.cpu().numpy().tobytes())
        yield copy


def is_first() -> bool:
    """Whether this process is the one that writes and prints; known before they have met."""
    return int(os.environ.get("RANK", "0")) == 0


def was_restarted() -> bool:
    """Whether ``torchrun`` has started this process anew, after one of the processes was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _wire() -> torch.device:
    """Where messages between processes must lie."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
