"""Facts from files, folders, frames and tuples; rows that cannot be read are reported, never lost.

The way of a file: ``inputs`` finds it, ``formats`` opens it by its suffix and gives its rows piece
by piece (``layout`` finds out its columns, ``lines`` and ``cells`` cut text), ``checks`` says which
rows are bad, ``times`` and ``intervals`` make steps of its dates, ``vocabularies`` numbers its
names, ``reading`` puts it all together. ``tables`` does the same for frames and tuples.
"""

from metatkgr.data.readers.bad_rows import BadRow, BadRows, BadRowsError
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.reading import (
    RawFacts,
    read_facts,
    read_facts_with_report,
    read_raw_facts,
    to_table,
)

__all__ = [
    "BadRow",
    "BadRows",
    "BadRowsError",
    "RawFacts",
    "ReadOptions",
    "read_facts",
    "read_facts_with_report",
    "read_raw_facts",
    "to_table",
]
