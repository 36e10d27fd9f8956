"""Where a training stands, in one file: weights, best weights, optimiser, randomness.

Written to a temporary name and renamed: a crash leaves the old checkpoint or the new one.
Safetensors only; nothing in the file can run code.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from metatkgr.errors import DataError
from metatkgr.files import atomic_path

__all__ = ["Position", "load_checkpoint", "save_checkpoint"]

_FORMAT = "metatkgr-checkpoint-1"


@dataclass
class Position:
    """How far a training has come."""

    phase: int = 0
    epoch: int = 0
    """Epochs of this phase that are done."""
    step: int = 0
    """Optimiser steps in all."""
    best_mrr: float | None = None
    """Best validation MRR of this phase."""
    best_epoch: int = 0
    trace_lines: int = 0
    seconds: float = 0.0
    phase_seconds: float = 0.0
    """Of this phase."""


def save_checkpoint(
    path: Path,
    position: Position,
    weights: dict[str, Tensor],
    best: dict[str, Tensor],
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
) -> None:
    """Write everything that is needed to go on exactly."""
    tensors = {f"weights.{name}": value for name, value in weights.items()}
    tensors |= {f"best.{name}": value for name, value in best.items()}
    for number, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{key}": value for key, value in state.items()}
    tensors["generator"] = generator.get_state()
    # save_file refuses tensors that share memory
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    metadata = {"format": _FORMAT, "position": json.dumps(asdict(position))}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def load_checkpoint(
    path: Path,
) -> tuple[Position, dict[str, Tensor], dict[str, Tensor], dict[int, dict[str, Any]], Tensor]:
    """What :func:`save_checkpoint` wrote.

    Returns:
        position, weights, best weights, the optimiser's state by parameter number, the state of the
        generator.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read as a checkpoint: {error}") from None
    if metadata.get("format") != _FORMAT:
        raise DataError(f"{path} is not a checkpoint of this version; start without --resume")
    optimiser: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, number, key = name.split(".", 2)
            optimiser.setdefault(int(number), {})[key] = value
    return (
        Position(**json.loads(metadata["position"])),
        _part(tensors, "weights."),
        _part(tensors, "best."),
        optimiser,
        tensors["generator"],
    )


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
