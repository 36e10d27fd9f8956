"""Several processes, one training: batches are shared out, gradients are added up.

Start them with ``torchrun``; it says through the environment how many there are. Every process
draws the same batches from the same seed and computes the loss of its own part of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from metatkgr.models.trainable import Part

__all__ = ["add_gradients", "current_part", "mean_over_processes", "processes"]


@contextmanager
def processes(device: torch.device) -> Iterator[Part]:
    """Join the processes that ``torchrun`` started, and leave them at the end.

    Yields:
        This process's part; the whole where there is one process only.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        yield Part()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield current_part()
    finally:
        dist.destroy_process_group()


def current_part() -> Part:
    """Which part of a batch this process computes."""
    if dist.is_available() and dist.is_initialized():
        return Part(dist.get_rank(), dist.get_world_size())
    return Part()


def add_gradients(parameters: Iterable[nn.Parameter], weight: float) -> None:
    """Replace each gradient by the weighted sum over the processes.

    Args:
        parameters: the same, in the same order, in every process.
        weight: this process's share of the batch; the shares of all processes add up to 1.
    """
    if current_part().count == 1:
        return
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    # One message for all of them.
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) * weight
    dist.all_reduce(flat)
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def mean_over_processes(value: Tensor | float, weight: float) -> float:
    """The weighted sum of a number over the processes."""
    if current_part().count == 1:
        return float(value)
    total = torch.as_tensor(float(value) * weight, dtype=torch.float64)
    if dist.get_backend() == "nccl":
        total = total.cuda()
    dist.all_reduce(total)
    return float(total)
