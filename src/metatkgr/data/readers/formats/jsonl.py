"""JSON Lines: one object a line, its keys are the columns; also compressed."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from metatkgr.data.readers.bad_rows import FIRST, BadRow, shorten
from metatkgr.data.readers.formats import kind_of_file, register
from metatkgr.data.readers.formats.text import blocks_of
from metatkgr.data.readers.options import Budget, ReadOptions
from metatkgr.data.readers.tables import Rows, rows_of_mappings
from metatkgr.errors import DataError

_BYTES_PER_ROW = 96
_ROWS = 1 << 17
_LONGEST_LINE = 1 << 24
"""Bytes; what they say can take twenty times as much."""


@register(".jsonl", ".ndjson", compressed=True)
def read(file: Path, options: ReadOptions, rows: int | None, *, times_only: bool) -> Iterator[Rows]:
    """The rows of a file of JSON lines; see :class:`FileFormat`."""
    source, layout, before, count = str(file), None, 0, 0
    # In blocks also where all of it is kept: while they are read, objects take far more than their
    # text.
    size = (rows or _ROWS) * _BYTES_PER_ROW
    budget = Budget(source, options) if rows is None else None
    for block in blocks_of(file, kind_of_file(file)[2], size, budget):
        block = block if before else block.removeprefix(BOM_UTF8)
        found, numbers, bad, bad_total = _objects(block, source, before)
        before += block.count(b"\n")
        if not found and not bad_total:
            continue
        if layout is None and not found:
            raise DataError(f"{source} is no file of JSON objects, one a line: {bad[0].text()}")
        made = rows_of_mappings(found, options, source=source, layout=layout, numbers=numbers)
        layout, count = made.layout, count + len(found)
        column = layout.names["subject"]
        broken = tuple(replace(row, column=column) for row in bad)
        yield replace(made, place="line", bad=broken, bad_total=bad_total)
    if not count:
        raise DataError(f"{source} is empty")


def _objects(
    block: bytes, source: str, before: int
) -> tuple[list[Mapping[str, Any]], list[int], list[BadRow], int]:
    """The objects of some lines and their line numbers; the first lines that are none, how many."""
    found: list[Mapping[str, Any]] = []
    numbers: list[int] = []
    bad: list[BadRow] = []
    total = 0
    for number, line in enumerate(block.split(b"\n"), before + 1):
        if not line.strip():
            continue
        reason, value = "not a JSON object", None
        try:
            if len(line) > _LONGEST_LINE:
                raise ValueError
            value = json.loads(line)
        except UnicodeDecodeError:
            reason = "not valid UTF-8"
        except (ValueError, RecursionError) as error:
            reason = f"not JSON: {getattr(error, 'msg', 'too large or too deep')}"
        if isinstance(value, dict):
            found.append(value)
            numbers.append(number)
            continue
        total += 1
        if len(bad) < FIRST:
            text = shorten(line.decode("utf-8", "backslashreplace").strip())
            bad.append(BadRow(source, "line", number, "subject", text, reason))
    return found, numbers, bad, total
