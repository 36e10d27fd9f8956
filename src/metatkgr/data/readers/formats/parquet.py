"""Parquet: a row group at a time, and only the columns that are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr.data.readers.bad_rows import shorten
from metatkgr.data.readers.formats import register
from metatkgr.data.readers.layout import ROLES, SAMPLE
from metatkgr.data.readers.options import Budget, ReadOptions
from metatkgr.data.readers.tables import Rows, rows_of_frame
from metatkgr.errors import DataError, need

_ROWS = 1 << 20


@register(".parquet")
def read(file: Path, options: ReadOptions, rows: int | None, *, times_only: bool) -> Iterator[Rows]:
    """The rows of a Parquet file; see :class:`FileFormat`."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    try:
        opened = parquet.ParquetFile(file)
        # No part of a fact is a list or a table, and how long they are the file need not tell.
        flat = [field for field in opened.schema_arrow if not pa.types.is_nested(field.type)]
        names = [field.name for field in flat]
        twice = len(set(names)) < len(names)
        lists = len(flat) < len(opened.schema_arrow)
        if lists and (twice or not flat):
            raise DataError(f"{file} has columns of lists or tables: keep those with single values")
        # A run of equal cells is a few bytes in the file. Texts stay numbers into a dictionary.
        texts = [field.name for field in flat if _is_text(field.type)]
        opened = parquet.ParquetFile(file, read_dictionary=texts)
        about = opened.metadata
        if rows is None:
            # The first rows are read with all their columns.
            first_rows = _unpacked(about, min(1, about.num_row_groups))
            Budget(str(file), options).take("its first rows", size=first_rows)
            Budget(str(file), options).take("its rows", cells=about.num_rows * len(ROLES))
        some = names if lists else None
        first = next(opened.iter_batches(batch_size=SAMPLE, columns=some), None)
        if first is None:
            raise DataError(f"{file} holds no rows")
        named = ReadOptions.of(options, {"name": str(file)})  # what errors call it
        layout = rows_of_frame(pa.Table.from_batches([first]), named).layout
        roles = list(layout.positions)
        changes = {"columns": tuple(roles), "header": None, "interval": layout.interval}
        by_role = ReadOptions.of(named, changes)
        needed = [role for role in roles if not times_only or role in ("time", "end")]
        wanted = [names[layout.positions[role]] for role in needed]
        if rows is None:
            size = _unpacked(about, about.num_row_groups)
            Budget(str(file), options).take("its columns", size=size)
        number = 0
        for batch in opened.iter_batches(
            # By position where names are there twice.
            batch_size=rows or _ROWS,
            columns=None if twice else wanted,
        ):
            size = batch.num_rows
            columns = {
                role: batch.column(layout.positions[role] if twice else name)
                for role, name in zip(needed, wanted, strict=True)
            }
            blank = pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), ["-"])
            table = pa.table({role: columns.get(role, blank) for role in roles})
            found = rows_of_frame(table, by_role)
            yield replace(found, layout=layout, numbers=found.numbers + number)
            number += size
    except DataError:
        raise
    except Exception as error:
        # Bytes from anywhere make pyarrow raise errors of a dozen types.
        reason = shorten(" ".join(str(error).split()), 200)
        raise DataError(f"{file} is not a readable Parquet file: {reason}") from None


def _unpacked(about: Any, groups: int) -> int:
    """Bytes of all columns in the first so many row groups, when they are uncompressed.

    As the groups say: pyarrow ends the process when it is asked about a column whose description is
    damaged.
    """
    return sum(about.row_group(group).total_byte_size for group in range(groups))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_binary(kind))
