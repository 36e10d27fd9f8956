"""File formats: each is a module of this package that registers itself by the suffix of its files.

A format is a function that gives the rows of a file piece by piece. Reading in memory and ``data
ingest`` both go through :func:`pieces`, so a new format is one new file here (or any module that
calls :func:`register`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Protocol

from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.tables import Rows
from metatkgr.errors import DataError

__all__ = ["COMPRESSED", "FileFormat", "kind_of_file", "pieces", "register", "suffixes_told"]

COMPRESSED = (".gz", ".zst", ".zip")


class FileFormat(Protocol):
    """Gives the rows of a file, numbered from its beginning."""

    def __call__(
        self, file: Path, options: ReadOptions, rows: int | None, *, times_only: bool
    ) -> Iterator[Rows]:
        """The rows, some at a time.

        Args:
            file: what to read.
            options: how to read it.
            rows: about how many rows a piece has; None: all that fit into memory.
            times_only: only the times will be looked at; names need not be read where that is
                quicker.
        """


@dataclass(frozen=True)
class _Known:
    read: FileFormat
    compressed: bool


_KNOWN: dict[str, _Known] = {}


def register(*suffixes: str, compressed: bool = False) -> Callable[[FileFormat], FileFormat]:
    """Decorator: the function reads files whose names end so.

    Args:
        suffixes: such as ``.csv``, in lower case.
        compressed: whether they may also be compressed, with ``.gz``, ``.zst`` or ``.zip`` behind.
    """

    def keep(read: FileFormat) -> FileFormat:
        _KNOWN.update(dict.fromkeys(suffixes, _Known(read, compressed)))
        return read

    return keep


@cache
def _find_own() -> None:
    """Import the formats that lie here; each registers itself."""
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
        import_module(f"{__name__}.{module}")


def kind_of_file(path: Path) -> tuple[str, str, str]:
    """Plain name, suffix and compression of a file; the suffix is empty if it isn't supported."""
    _find_own()
    name = path.name
    compression = next((end for end in COMPRESSED if name.lower().endswith(end)), "")
    name = name[: len(name) - len(compression)]
    known = (end for end, kind in _KNOWN.items() if kind.compressed or not compression)
    suffix = next((end for end in known if name.lower().endswith(end)), "")
    return name[: len(name) - len(suffix)], suffix, compression


def suffixes_told() -> str:
    """The suffixes of files that can be read, for a person."""
    _find_own()
    plain = [end for end, kind in _KNOWN.items() if not kind.compressed]
    text = ", ".join(end for end, kind in _KNOWN.items() if kind.compressed)
    return f"{text} (also with {', '.join(COMPRESSED)}) and {', '.join(plain)}"


def pieces(
    file: Path, options: ReadOptions, rows: int | None = None, *, times_only: bool = False
) -> Iterator[Rows]:
    """The rows of one file, as its format gives them.

    Raises:
        DataError: its name says no format, or it cannot be read as that.
    """
    suffix = kind_of_file(file)[1]
    if not suffix:
        raise DataError(f"cannot tell what {file} is by its name: files may be {suffixes_told()}")
    if not file.is_file():
        raise DataError(f"{file} is a folder, not a file")
    try:
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty")
        yield from _KNOWN[suffix].read(file, options, rows, times_only=times_only)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror or error}") from None
