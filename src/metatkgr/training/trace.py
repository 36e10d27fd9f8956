"""``trace.jsonl``: one line for each epoch, so that a training can be looked at while it runs.

The same numbers can be drawn as curves by TensorBoard.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from metatkgr.errors import DataError, SettingsError
from metatkgr.files import write_text

__all__ = ["Trace", "Tracker"]

_NOT_CURVES = ("phase", "epoch", "epochs", "step")


class Trace:
    """Appends structured lines to a file, and keeps them.

    Args:
        path: the file; None keeps the lines in memory only.
        lines: with which it begins, whatever is in the file: those that a checkpoint holds. Lines
            behind them belong to epochs that are done again.
    """

    def __init__(self, path: Path | None = None, lines: Iterable[dict[str, Any]] = ()) -> None:
        self.path = path
        self.lines = list(lines)
        if path is not None:
            write_text(path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def write(self, line: dict[str, Any]) -> None:
        """Add one line; it is in the file when this returns."""
        self.lines.append(line)
        if self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            except OSError as error:
                raise DataError(f"cannot write {self.path}: {error.strerror or error}") from error


class Tracker:
    """Writes the lines of a trace as TensorBoard's scalars; a context manager.

    ``meta/loss``, ``meta/bound``, ``meta/kl``, ``meta/validation_mrr``, ``meta/seconds/forward``
    and so on: phase, then quantity. The axis is the number of optimiser steps since the training
    began, so that the phases follow each other.

    Args:
        folder: for TensorBoard's files; made when it is missing.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SettingsError(
                "TensorBoard is not installed: pip install 'metatkgr[track]', or train without "
                "--track"
            ) from None
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
