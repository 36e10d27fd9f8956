"""Facts from files, folders, frames and tuples; rows that cannot be read are reported, never lost.

The way of a file: ``inputs`` finds and decompresses it, ``layout`` finds out its columns, ``rows``
(or ``fast_rows``) cuts it into cells, ``checks`` says which rows are bad, ``times`` and
``intervals`` make steps of its dates, ``vocabularies`` numbers its names, ``reading`` puts it all
together. ``tables`` does the same for frames, Parquet and tuples.
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
