"""``trace.jsonl``: one line for each epoch, so that a training can be looked at while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError
from metatkgr.files import check_file, write_text

__all__ = ["Trace", "read_trace"]


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
