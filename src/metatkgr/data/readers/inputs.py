"""What a reader may be pointed at: a file, a folder, a frame, tuples; and how to open it."""

from __future__ import annotations

import gzip
import os
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metatkgr.data.readers.fast_rows import split_fast
from metatkgr.data.readers.layout import find_layout, has_header, pick_delimiter
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.rows import Rows, TextFile, sample_cells, sample_lines, split_lines
from metatkgr.data.readers.tables import is_frame, rows_of_frame, rows_of_parquet, rows_of_tuples
from metatkgr.data.readers.vocabularies import ENTITY_FILE, RELATION_FILE
from metatkgr.errors import DataError

__all__ = ["Opened", "files_of", "kind_of_file", "open_input", "rows_of_text"]

_TEXT = (".csv", ".tsv", ".txt")
_COMPRESSED = (".gz", ".zst")
_SUFFIXES = f"{', '.join(_TEXT)} (also with {' or '.join(_COMPRESSED)}) and .parquet"
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
    name = options.name or ""
    if is_frame(source):
        return Opened(name or "table", name, [rows_of_frame(source, options)], None)
    if isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray, dict)):
        return Opened(name or "tuples", name, [rows_of_tuples(source, options)], None)
    raise DataError(
        f"cannot read facts from a {type(source).__name__}: "
        "give a file, a folder, a pandas or polars frame, a pyarrow table or tuples"
    )


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
    parts = [_rows_of_file(file, options) for file in files]
    plain = path.resolve().name if is_folder else kind_of_file(path)[0]
    folder = path if is_folder else path.parent
    return Opened(str(path), options.name or plain, parts, folder)


def kind_of_file(path: Path) -> tuple[str, str, str]:
    """Plain name, suffix and compression of a file; the suffix is empty if it isn't supported."""
    name = path.name
    compression = next((end for end in _COMPRESSED if name.lower().endswith(end)), "")
    name = name[: len(name) - len(compression)]
    known = _TEXT if compression else (*_TEXT, ".parquet")
    suffix = next((end for end in known if name.lower().endswith(end)), "")
    return name[: len(name) - len(suffix)], suffix, compression


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
        raise DataError(f"{folder} holds no data: files may be {_SUFFIXES}")
    shown = ", ".join(path.name for path in files[:5]) + (", …" if len(files) > 5 else "")
    raise DataError(
        f"{folder} holds {len(files)} data files ({shown}) and none is called train, valid or test:"
        " name one of them"
    )


def _rows_of_file(path: Path, options: ReadOptions) -> Rows:
    _, suffix, compression = kind_of_file(path)
    if not suffix:
        raise DataError(f"cannot tell what {path} is by its name: files may be {_SUFFIXES}")
    if not path.is_file():
        raise DataError(f"{path} is a folder, not a file")
    try:
        if suffix == ".parquet":
            if path.stat().st_size == 0:
                raise DataError(f"{path} is empty")
            return rows_of_parquet(path, options)
        data = _decompressed(path.read_bytes(), path, compression)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    return rows_of_text(data, str(path), suffix, options)


def _decompressed(data: bytes, path: Path, compression: str) -> bytes:
    if not compression or not data:
        return data
    try:
        if compression == ".gz":
            return gzip.decompress(data)
        import pyarrow as pa

        return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
    except ImportError:
        raise DataError(f"to read {path}, install pyarrow (pip install pyarrow)") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        kind = {".gz": "gzip", ".zst": "zstd"}[compression]
        raise DataError(f"{path} is not a complete {kind} file: {error}") from None


def rows_of_text(
    data: bytes, source: str, suffix: str, options: ReadOptions, *, fast: bool = True
) -> Rows:
    """Split the text of a file into rows.

    Args:
        data: the uncompressed bytes.
        source: what to call the file.
        suffix: .csv, .tsv or .txt.
        options: how to read it.
        fast: try pyarrow first; the result is the same without.
    """
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) and b"\0" in data[:100]:
        raise DataError(f"{source} is UTF-16 text: save it as UTF-8")
    data = data.removeprefix(BOM_UTF8)
    lines = sample_lines(data)
    if not lines:
        raise DataError(f"{source} is empty")
    delimiter = options.delimiter or pick_delimiter(lines[0][1], suffix)
    rows = [sample_cells(line, delimiter) for _, line in lines]
    header = has_header(rows, options)
    names = rows[0] if header else None
    layout = find_layout(names, rows[1:] if header else rows, options, source=source)
    file = TextFile(source, data, delimiter, lines[0][0] if header else 0, layout)
    found = split_fast(file) if fast else None
    result = split_lines(file) if found is None else found
    if len(result) + result.bad_total == 0:
        raise DataError(f"{source} has a header and no rows")
    return result
