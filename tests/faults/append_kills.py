"""An append to a folder of facts that is killed at one of the places where it writes something."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

__all__ = ["append_to", "points_of"]


def append_to(folder: str, file: str, die_at: int = -1, count_into: str = "") -> None:
    """Append; be killed at the n-th thing that is written, sorted, synced, renamed or removed.

    Args:
        folder: of facts.
        file: what to append.
        die_at: n; a negative number: never.
        count_into: a file that gets the number of such things.
    """
    from metatkgr.data.columns import ColumnWriter, TableWriter
    from metatkgr.data.engine import Engine
    from metatkgr.data.ingest import append

    seen = 0

    def reached() -> bool:
        nonlocal seen
        seen += 1
        return seen - 1 == die_at

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fatal(what: Any) -> Any:
        def call(*words: Any, **options: Any) -> Any:
            if reached():
                die()
            return what(*words, **options)

        return call

    def half(what: Any) -> Any:
        """Writes half of what it is given before it dies."""

        def call(writer: Any, *words: Any) -> None:
            if reached():
                values = words[-1]
                what(writer, *words[:-1], values[: len(values) // 2])
                writer._file.flush()
                die()
            what(writer, *words)

        return call

    Engine._give, Engine._run = fatal(Engine._give), fatal(Engine._run)  # type: ignore[method-assign]
    ColumnWriter.append = half(ColumnWriter.append)  # type: ignore[method-assign]
    TableWriter.write = half(TableWriter.write)  # type: ignore[method-assign]
    os.fsync, os.replace, os.unlink = fatal(os.fsync), fatal(os.replace), fatal(os.unlink)
    shutil.rmtree = fatal(shutil.rmtree)
    append([file], folder, rows=200)
    if count_into:
        Path(count_into).write_text(str(seen))


def points_of(folder: Path, file: Path, work: Path) -> int:
    """How many such things there are; the folder is not changed."""
    from faults.training_kills import fresh_process

    shutil.copytree(folder, work / "counted")
    process = fresh_process(append_to, str(work / "counted"), str(file), -1, str(work / "count"))
    process.join(60)
    assert process.exitcode == 0
    shutil.rmtree(work / "counted")
    return int((work / "count").read_text())
