"""``trace.jsonl``: one line for each epoch, so that a training can be looked at while it runs.

The same numbers can be drawn as curves by TensorBoard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from metatkgr.errors import DataError, SettingsError
from metatkgr.files import check_file, write_text

__all__ = ["Trace", "Tracker", "read_trace"]

_NOT_CURVES = ("phase", "epoch", "epochs", "step")


class Trace:
    """Appends structured lines to a file, and keeps them.

    Args:
        path: the file; None keeps the lines in memory only.
        keep: number of lines of an existing file to keep (those a checkpoint knows of); the lines
            after them belong to epochs that are done again.
    """

    def __init__(self, path: Path | None = None, keep: int = 0) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        if path is not None:
            if path.exists():
                self.lines = list(read_trace(path))[:keep]
            # Atomically: what a checkpoint knows of must outlive a crash at this very moment.
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


def read_trace(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a trace; a last line that was cut off by a crash is left out."""
    check_file(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    lines = lines if lines[-1] else lines[:-1]
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError):
            if number == len(lines):
                return
            raise DataError(f"{path}, line {number} is no line of a trace: {line[:80]!r}") from None
        yield content


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()
