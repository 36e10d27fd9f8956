"""Curves of a training for TensorBoard: the numbers that its trace has in lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from metatkgr.errors import need

__all__ = ["Tracker"]

_NOT_CURVES = ("phase", "epoch", "epochs", "step")


class Tracker:
    """Writes the lines of a trace as TensorBoard's scalars; a context manager.

    ``meta/loss``, ``meta/bound``, ``meta/kl``, ``meta/validation_mrr``, ``meta/seconds/forward``
    and so on: phase, then quantity. The axis is the number of optimiser steps since the training
    began, so that the phases follow each other.

    Args:
        folder: for TensorBoard's files; made when it is missing.
    """

    def __init__(self, folder: Path) -> None:
        need("tensorboard", "track")
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        self._new_writer: Any = SummaryWriter
        self._writer: Any = None

    def __call__(self, line: dict[str, Any]) -> None:
        """Add one line of the trace."""
        if self._writer is None:
            # A training that goes on repeats the epochs after its checkpoint; what an earlier file
            # says about them no longer counts.
            self._writer = self._new_writer(str(self.folder), purge_step=line["step"])
        for name, value in line.items():
            if name not in _NOT_CURVES and isinstance(value, int | float):
                quantity = name.replace("seconds_", "seconds/", 1)
                self._writer.add_scalar(f"{line['phase']}/{quantity}", value, line["step"])
        self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()
