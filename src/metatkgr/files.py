"""Writing files so that a crash leaves the old one or the new one, never half of one."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError

__all__ = ["atomic_path", "write_json", "write_text"]


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its name when the block ends well.

    Missing folders are made. The temporary keeps the suffix, for writers that choose a format by
    it; it is removed when the block fails.

    Raises:
        DataError: the file cannot be written there.
    """
    target = Path(path)
    temporary = target.with_name(f".{secrets.token_hex(6)}-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON atomically; NaN and infinity are refused, they are no JSON."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
