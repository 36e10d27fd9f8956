"""Facts from files, folders, frames and tuples; rows that cannot be read are reported, never lost.

The way of a file: ``inputs`` finds it, ``formats`` opens it by its suffix and gives its rows piece
by piece (``layout`` and ``headers`` find out its columns, ``lines`` and ``cells`` cut text),
``checks`` says which rows are bad, ``times`` makes steps of its dates,
``vocabularies`` numbers its names, ``reading`` puts it all together. ``memory`` and ``tables`` do
the same for what Python holds.
"""

from metatkgr.data.readers.bad_rows import BadRow, BadRows, BadRowsError
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.reading import (
    RawFacts,
    read_facts,
    read_facts_with_report,
    read_raw_facts,
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
]
