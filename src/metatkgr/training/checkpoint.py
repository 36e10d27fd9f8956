"""Where a training stands, in one file: weights, best weights, optimiser, randomness.

Written to a temporary name and renamed: a crash leaves the old checkpoint or the new one.
Safetensors only; nothing in the file can run code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metatkgr.errors import DataError
from metatkgr.training.tensors import read_tensors, write_tensors

__all__ = ["Position", "check_optimiser", "load_checkpoint", "save_checkpoint"]

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

    def check(self) -> None:
        """Raise a ValueError unless every number is one that a training can have."""
        for name in ("phase", "epoch", "step", "best_epoch", "trace_lines"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
                raise ValueError(f"{name} is {value!r}")
        for name in ("seconds", "phase_seconds", "best_mrr"):
            value = getattr(self, name)
            if value is None and name == "best_mrr":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name} is {value!r}")
            if not 0 <= value < 1e12:
                raise ValueError(f"{name} is {value!r}")


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
    metadata = {"format": _FORMAT, "position": json.dumps(asdict(position))}
    write_tensors(path, tensors, metadata)


def load_checkpoint(
    path: Path,
) -> tuple[Position, dict[str, Tensor], dict[str, Tensor], dict[int, dict[str, Any]], Tensor]:
    """What :func:`save_checkpoint` wrote.

    Returns:
        position, weights, best weights, the optimiser's state by parameter number, the state of the
        generator.
    """
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != _FORMAT:
        raise DataError(f"{path} is not a checkpoint of this version; start without --resume")
    optimiser: dict[int, dict[str, Any]] = {}
    try:
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                _, number, key = name.split(".", 2)
                optimiser.setdefault(int(number), {})[key] = value
        position = Position(**json.loads(metadata["position"]))
        position.check()
        generator = tensors["generator"]
        torch.Generator().set_state(generator)
    except (ValueError, KeyError, TypeError, RuntimeError, RecursionError) as error:
        raise DataError(f"{path} cannot be gone on with ({error}); begin anew") from None
    return position, _part(tensors, "weights."), _part(tensors, "best."), optimiser, generator


def check_optimiser(
    state: dict[int, dict[str, Any]], parameters: Sequence[torch.nn.Parameter]
) -> None:
    """Refuse the state of an optimiser that was made for other parameters.

    Raises:
        DataError: it does not fit.
    """
    for number, values in state.items():
        fits = 0 <= number < len(parameters) and {"step", "exp_avg", "exp_avg_sq"} <= values.keys()
        if fits:
            shape = parameters[number].shape
            fits = values["exp_avg"].shape == values["exp_avg_sq"].shape == shape
        if not fits:
            raise DataError("the checkpoint is of another training; begin anew")


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
