"""``trace.jsonl``: one line for each epoch, so that a training can be looked at while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError

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
            path.parent.mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(line) + "\n" for line in self.lines)
            path.write_text(text, encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Add one line; it is in the file when this returns."""
        self.lines.append(line)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def read_trace(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a trace; a last line that was cut off by a crash is left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except ValueError:
            if number == len(lines):
                return
            raise DataError(f"{path}, line {number} is not JSON: {line[:80]!r}") from None
