"""Text: CSV, TSV and the like, also compressed. ``readers.lines`` splits it into cells."""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast
from zipfile import BadZipFile, ZipFile

from metatkgr.data.readers.cells import sample_cells
from metatkgr.data.readers.formats import kind_of_file, register
from metatkgr.data.readers.layout import (
    ROLES,
    SAMPLE,
    Layout,
    find_layout,
    has_header,
    pick_delimiter,
)
from metatkgr.data.readers.lines import BLANK, TextFile, split
from metatkgr.data.readers.options import Budget, ReadOptions
from metatkgr.data.readers.tables import Rows
from metatkgr.errors import DataError, need

__all__ = ["blocks_of", "rows_of_text"]

_BYTES_PER_ROW = 48
_BYTES_PER_LETTER = 512
"""Of the first lines: each letter may be a cell, of which all that is guessed has copies."""
_LONGEST_LINE = 1 << 28
_BLOCK = 1 << 24


@register(".csv", ".tsv", ".txt", ".tab", compressed=True)
def read(file: Path, options: ReadOptions, rows: int | None, *, times_only: bool) -> Iterator[Rows]:
    """The rows of a text file; see :class:`FileFormat`."""
    _, suffix, compression = kind_of_file(file)
    budget = Budget(str(file), options) if rows is None else None
    blocks = blocks_of(file, compression, rows and rows * _BYTES_PER_ROW, budget)
    return rows_of_text(blocks, str(file), suffix, options)


def rows_of_text(
    blocks: Iterable[bytes], source: str, suffix: str, options: ReadOptions, *, fast: bool = True
) -> Iterator[Rows]:
    """Split a text into rows, block by block.

    What is found out from the first rows (delimiter, header, columns) is found out once, from the
    first block, and holds for all.

    Args:
        blocks: of whole lines, uncompressed.
        source: what to call the file.
        suffix: .csv, .tsv, .txt or .tab.
        options: how to read it.
        fast: use pyarrow where it can be; the result is the same without.
    """
    layout: Layout | None = None
    delimiter, skip, before, rows = "", 0, 0, 0
    for block in blocks:
        if before == 0:
            if block.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) and b"\0" in block[:100]:
                raise DataError(f"{source} is UTF-16 text: save it as UTF-8")
            block = block.removeprefix(BOM_UTF8)
        if layout is None and (lines := _sample(block)):
            longest = max(len(line) for _, line in lines)
            Budget(source, options).take("a line so long", size=_BYTES_PER_LETTER * longest)
            delimiter = options.delimiter or pick_delimiter([line for _, line in lines], suffix)
            cells = [sample_cells(line, delimiter) for _, line in lines]
            skip = lines[0][0] if has_header(cells, options) else 0
            names, others = (cells[0], cells[1:]) if skip else (None, cells)
            layout = find_layout(names, others, options, source=source)
        if layout is not None:
            found = split(TextFile(source, block, delimiter, layout), skip, before, fast=fast)
            rows += len(found) + found.bad_total
            skip = 0
            yield found
        before += block.count(b"\n")
    if layout is None:
        raise DataError(f"{source} is empty")
    if rows == 0:
        raise DataError(f"{source} has a header and no rows")


def _sample(data: bytes, limit: int = SAMPLE + 1) -> list[tuple[int, str]]:
    """The first lines that are not blank, with their numbers, decoded as well as possible."""
    found: list[tuple[int, str]] = []
    at, number = 0, 0
    while at < len(data) and len(found) < limit:
        stop = data.find(b"\n", at)
        stop = len(data) if stop < 0 else stop
        number += 1
        line = data[at:stop].decode("utf-8", "replace").strip("\r")
        if line.strip(BLANK):
            found.append((number, line))
        at = stop + 1
    return found


def blocks_of(
    file: Path, compression: str, size: int | None, budget: Budget | None
) -> Iterator[bytes]:
    """The uncompressed bytes of a file in blocks of whole lines.

    Args:
        file, compression: what to read.
        size: of a block; None: all in one.
        budget: what all blocks may take, where they are kept.
    """
    rest = b""
    try:
        with _opened(file, compression) as stream:
            if size is None:
                yield b"".join(iter(lambda: _next(stream, _BLOCK, budget), b""))
                return
            following = _next(stream, size, budget)
            while following:
                block, following = following, _next(stream, size, budget)
                # The last line goes with the others: a small file is one block, as if read whole.
                end = block.rfind(b"\n") + 1 if following else len(block)
                if end:
                    yield rest + block[:end]
                    rest = block[end:]
                else:
                    rest += block
                if len(rest) > max(_LONGEST_LINE, size):
                    raise DataError(
                        f"{file} has a line of more than {len(rest):,} bytes: is it text?"
                    )
    except (EOFError, zlib.error, OSError, ValueError, BadZipFile, NotImplementedError) as error:
        kind = {".gz": "gzip", ".zst": "zstd", ".zip": "zip"}.get(compression)
        if kind is None:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"cannot read {file}: {reason}") from None
        raise DataError(f"{file} is not a complete {kind} file: {error}") from None
    if rest:
        yield rest


def _next(stream: BinaryIO, size: int, budget: Budget | None) -> bytes:
    """What comes next, within the budget; how much that is shows when it is uncompressed."""
    block = stream.read(size)
    if budget is not None:
        budget.take("its text", size=len(block), cells=block.count(b"\n") * len(ROLES))
    return block


def _opened(file: Path, compression: str) -> BinaryIO:
    if compression == ".gz":
        return cast(BinaryIO, gzip.open(file, "rb"))
    if compression == ".zip":
        return _only_member(file)
    if compression == ".zst":
        return cast(BinaryIO, need("pyarrow").CompressedInputStream(str(file), "zstd"))
    return file.open("rb")


def _only_member(file: Path) -> BinaryIO:
    """The one file in a zip archive, which is how event data are handed out."""
    with ZipFile(file) as archive:  # a member that is open keeps the file open
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise DataError(f"{file} holds {len(members)} files: unpack it and name one of them")
        if members[0].flag_bits & 1:
            raise DataError(f"{file} is encrypted: unpack it")
        return cast(BinaryIO, archive.open(members[0]))
