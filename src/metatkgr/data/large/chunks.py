"""Read a file of facts piece by piece, under the same rules as ``readers`` reads it whole.

What is found out from the first rows (delimiter, header, columns) is found out once, from the first
piece, and holds for all.
"""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from metatkgr.data.readers.bad_rows import shorten
from metatkgr.data.readers.fast_rows import split_fast
from metatkgr.data.readers.inputs import files_of, kind_of_file
from metatkgr.data.readers.layout import SAMPLE, Layout, find_layout, has_header, pick_delimiter
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.rows import Rows, TextFile, sample_cells, sample_lines, split_lines
from metatkgr.data.readers.tables import rows_of_frame
from metatkgr.errors import DataError

__all__ = ["input_files", "pieces"]

_BYTES_PER_ROW = 48
_LONGEST_LINE = 1 << 28


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
            raise DataError(f"cannot tell what {file} is by its name: use .parquet, .csv or .tsv")
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty")
    return files


def pieces(
    file: Path, options: ReadOptions, rows: int, *, times_only: bool = False
) -> Iterator[Rows]:
    """The rows of one file, about ``rows`` at a time, numbered from the file's beginning.

    Args:
        file: what to read.
        options: how to read it.
        rows: how many rows a piece has.
        times_only: only the times will be looked at; names need not be read where that is quicker.
    """
    _, suffix, compression = kind_of_file(file)
    if suffix == ".parquet":
        return _parquet_pieces(file, options, rows, times_only)
    return _text_pieces(file, suffix, compression, options, rows * _BYTES_PER_ROW)


def _parquet_pieces(
    file: Path, options: ReadOptions, rows: int, times_only: bool
) -> Iterator[Rows]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"to read {file}, install pyarrow (pip install pyarrow)") from None
    try:
        opened = parquet.ParquetFile(file)
        names = list(opened.schema_arrow.names)
        first = next(opened.iter_batches(batch_size=SAMPLE), None)
        if first is None:
            raise DataError(f"{file} holds no rows")
        layout = rows_of_frame(pa.Table.from_batches([first]), options).layout
        roles = list(layout.positions)
        changes = {"columns": tuple(roles), "header": None, "interval": layout.interval}
        by_role = ReadOptions.of(options, changes)
        read = [role for role in roles if not times_only or role in ("time", "end")]
        wanted = [names[layout.positions[role]] for role in read]
        twice = len(set(names)) < len(names)
        number = 0
        for batch in opened.iter_batches(batch_size=rows, columns=None if twice else wanted):
            size = batch.num_rows
            columns = {
                role: batch.column(layout.positions[role] if twice else name)
                for role, name in zip(read, wanted, strict=True)
            }
            blank = pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), ["-"])
            table = pa.table({role: columns.get(role, blank) for role in roles})
            yield _placed(rows_of_frame(table, by_role), file, layout, number)
            number += size
    except DataError:
        raise
    except Exception as error:
        # Bytes from anywhere make pyarrow raise errors of a dozen types.
        reason = shorten(" ".join(str(error).split()), 200)
        raise DataError(f"{file} is not a readable Parquet file: {reason}") from None


def _placed(rows: Rows, file: Path, layout: Layout, before: int) -> Rows:
    """The rows of a piece with the file's name, its columns' names, and numbers of the file."""
    bad = tuple(replace(row, source=str(file), number=row.number + before) for row in rows.bad)
    numbers = rows.numbers + before
    return replace(rows, source=str(file), layout=layout, numbers=numbers, bad=bad)


def _text_pieces(
    file: Path, suffix: str, compression: str, options: ReadOptions, size: int
) -> Iterator[Rows]:
    layout: Layout | None = None
    delimiter, skip, before, rows = "", 0, 0, 0
    for data in _blocks(file, compression, size):
        if layout is None:
            if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) and b"\0" in data[:100]:
                raise DataError(f"{file} is UTF-16 text: save it as UTF-8")
            data = data.removeprefix(BOM_UTF8)
            lines = sample_lines(data)
            if not lines:
                before += data.count(b"\n")
                continue
            delimiter = options.delimiter or pick_delimiter(lines[0][1], suffix)
            cells = [sample_cells(line, delimiter) for _, line in lines]
            header = has_header(cells, options)
            skip = lines[0][0] if header else 0
            names = cells[0] if header else None
            layout = find_layout(names, cells[1:] if header else cells, options, source=str(file))
        text = TextFile(str(file), data, delimiter, skip, layout)
        found = split_fast(text) or split_lines(text)
        rows += len(found) + found.bad_total
        yield _placed(found, file, layout, before)
        before, skip = before + data.count(b"\n"), 0
    if layout is None:
        raise DataError(f"{file} is empty")
    if rows == 0:
        raise DataError(f"{file} has a header and no rows")


def _blocks(file: Path, compression: str, size: int) -> Iterator[bytes]:
    """The uncompressed bytes of a file in blocks of whole lines."""
    rest = b""
    try:
        with _opened(file, compression) as stream:
            while block := stream.read(size):
                end = block.rfind(b"\n") + 1
                if end:
                    yield rest + block[:end]
                    rest = block[end:]
                else:
                    rest += block
                if len(rest) > max(_LONGEST_LINE, size):
                    raise DataError(
                        f"{file} has a line of more than {len(rest):,} bytes: is it text?"
                    )
    except (EOFError, zlib.error, OSError, ValueError) as error:
        kind = {".gz": "gzip", ".zst": "zstd"}.get(compression)
        if kind is None:
            raise DataError(f"cannot read {file}: {error}") from None
        raise DataError(f"{file} is not a complete {kind} file: {error}") from None
    if rest:
        yield rest


def _opened(file: Path, compression: str) -> BinaryIO:
    if compression == ".gz":
        return cast(BinaryIO, gzip.open(file, "rb"))
    if compression == ".zst":
        import pyarrow as pa

        stream: Any = pa.CompressedInputStream(str(file), "zstd")
        return cast(BinaryIO, stream)
    return file.open("rb")
