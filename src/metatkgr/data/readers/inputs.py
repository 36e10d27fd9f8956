"""What a reader may be pointed at: a file, a folder, something in memory; and how to open it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metatkgr.data.readers.formats import kind_of_file, pieces, suffixes_told
from metatkgr.data.readers.memory import rows_in_memory
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.tables import Rows
from metatkgr.data.readers.vocabularies import ENTITY_FILE, RELATION_FILE
from metatkgr.errors import DataError

__all__ = ["Opened", "files_of", "input_files", "open_input"]

_SPLITS = (("train",), ("valid", "val", "validation", "dev"), ("test",))


@dataclass(frozen=True, eq=False)
class Opened:
    """An input, opened and split into rows."""

    label: str
    """What reports call it."""
    name: str
    """What to call the graph."""
    parts: list[Rows]
    folder: Path | None
    """Where vocabulary files may be; None for what does not come from files."""


def open_input(source: Any, options: ReadOptions) -> Opened:
    """Open whatever ``source`` is and split it into rows."""
    if isinstance(source, (str, os.PathLike)):
        return _open_path(Path(os.fspath(source)), options)
    rows = rows_in_memory(source, options)
    return Opened(rows.source, options.name or "", [rows], None)


def _open_path(path: Path, options: ReadOptions) -> Opened:
    try:
        path = path.expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
        exists = is_folder or is_file or path.exists()
        files = files_of(path) if is_folder else [path]
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"cannot open {str(path)!r}: {error}") from None
    if not exists:
        raise DataError(f"there is no file or folder {str(path)!r}")
    if not is_folder and not is_file:
        raise DataError(f"{path} is neither a file nor a folder")
    parts = [part for file in files for part in pieces(file, options)]
    plain = path.resolve().name if is_folder else kind_of_file(path)[0]
    folder = path if is_folder else path.parent
    return Opened(str(path), options.name or plain, parts, folder)


def files_of(folder: Path) -> list[Path]:
    """The data files of a folder: train, valid and test, or else the only one."""
    candidates = [
        path
        for path in sorted(folder.iterdir())
        if kind_of_file(path)[1]
        and path.name.lower() not in (ENTITY_FILE, RELATION_FILE)
        and not path.name.startswith(".")
    ]
    splits = []
    for names in _SPLITS:
        same = [path for path in candidates if kind_of_file(path)[0].lower() in names]
        if len(same) > 1:
            shown = " and ".join(path.name for path in same)
            raise DataError(f"{folder} has both {shown}: keep one of them")
        splits += same
    if splits:
        return splits
    files = [path for path in candidates if path.is_file()]
    if len(files) == 1:
        return files
    if not files:
        raise DataError(f"{folder} holds no data: files may be {suffixes_told()}")
    shown = ", ".join(path.name for path in files[:5]) + (", …" if len(files) > 5 else "")
    raise DataError(
        f"{folder} holds {len(files)} data files ({shown}) and none is called train, valid or test:"
        " name one of them"
    )


def input_files(sources: list[Path]) -> list[Path]:
    """The data files of files and folders, in order; of a folder without splits, all of its files.

    Raises:
        DataError: one of them is not there, or holds nothing that can be read.
    """
    files: list[Path] = []
    for source in sources:
        path = source.expanduser()
        if path.is_dir():
            parts = [file for file in sorted(path.iterdir()) if kind_of_file(file)[1]]
            numbered = [file for file in parts if file.name.lower().startswith("part")]
            files += numbered or files_of(path)
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"there is no file or folder {str(path)!r}")
    for file in files:
        if not kind_of_file(file)[1]:
            raise DataError(
                f"cannot tell what {file} is by its name: files may be {suffixes_told()}"
            )
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty")
    return files
