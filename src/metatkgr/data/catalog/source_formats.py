"""From the files that the datasets' public homes offer to the files of the catalogue.

Every function takes the bytes of source files and gives the bytes of one catalogue file, so that
the result can be checked against the catalogue's checksum before anything is written. Only numpy
and the standard library are needed.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.errors import DataError

__all__ = [
    "as_published",
    "entity_labels",
    "parse_integers",
    "quadruples",
    "relation_labels",
    "rows_of",
    "wiki_training_rows",
    "zipped_quadruples",
]

_OPEN = 99999
"""Stands for an open end while years are parsed; no published year comes near it."""
WIKI_YEARS = (1786, 2017)
"""First and last year of WIKI; open starts and ends are taken to be these."""
WIKI_TRAINING_STEPS = 211
"""How many of its years, from the first, make WIKI's train file."""


def parse_integers(text: bytes, columns: int, what: str) -> IntArray:
    """Integers separated by white space, ``columns`` on each line.

    Returns:
        (N, columns) int64. Padding around the numbers is allowed (ICEWS18 is published so).
    """
    strange = text.translate(None, b"0123456789 \t\r\n")
    if strange:
        raise DataError(f"{what}: expected only integers, found {strange[:20]!r}")
    lines = text.count(b"\n") + (not text.endswith(b"\n"))
    # numpy reads one value from text that is all white space, so that case is kept from it.
    values = np.fromstring(text, np.int64, sep=" ") if text.strip() else np.zeros(0, np.int64)
    if len(values) != lines * columns:
        raise DataError(
            f"{what}: {lines:,} lines of {columns} integers should hold {lines * columns:,},"
            f" found {len(values):,}; the file is cut short or of another format"
        )
    return values.reshape(lines, columns)


def rows_of(table: IntArray) -> bytes:
    """A (N, C) table as tab-separated lines."""
    line = "\t".join(["%d"] * table.shape[1]) + "\n"
    # One format operation for the whole table is several times faster than one per row.
    return ((line * len(table)) % tuple(table.ravel().tolist())).encode()


def as_published(sources: Sequence[bytes]) -> bytes:
    """The source file itself."""
    (text,) = sources
    return text


def quadruples(sources: Sequence[bytes]) -> bytes:
    """Lines 's r o t 0', or with -1, without their constant fifth column and without padding."""
    (text,) = sources
    text = text.replace(b"\t-1", b"\t0")
    return rows_of(parse_integers(text, 5, "a source file of quadruples")[:, :4])


def zipped_quadruples(sources: Sequence[bytes]) -> bytes:
    """The same for the member train.txt of a zip archive."""
    (archive,) = sources
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            members = [
                info
                for info in opened.infolist()
                if info.filename.rpartition("/")[2] == "train.txt"
                and not info.filename.startswith("__MACOSX")
            ]
            if len(members) != 1:
                raise DataError(f"the archive holds {len(members)} files called train.txt, not one")
            if members[0].file_size > 2**27:
                raise DataError(
                    f"train.txt in the archive is too large: {members[0].file_size:,} B"
                )
            return quadruples([opened.read(members[0])])
    except zipfile.BadZipFile as error:
        raise DataError(f"not a zip archive: {error}") from error


def wiki_training_rows(sources: Sequence[bytes]) -> bytes:
    """WIKI's train file, rebuilt from the interval facts of Wikidata12k (train, valid, test).

    Each interval gives one row per year within ``WIKI_YEARS``; rows are grouped by year and keep
    the order of the interval files within a year.
    """
    first, last = WIKI_YEARS
    # A final line without its newline would otherwise run into the next file's first one.
    text = b"".join(part if part.endswith(b"\n") else part + b"\n" for part in sources)
    text = text.replace(b"-##-##", b"").replace(b"####", str(_OPEN).encode())
    table = parse_integers(text, 5, "an interval file")
    start = np.where(table[:, 3] == _OPEN, first, np.maximum(table[:, 3], first))
    end = np.where(table[:, 4] == _OPEN, last, np.minimum(table[:, 4], last))
    years = np.maximum(end - start + 1, 0)
    interval = np.repeat(np.arange(len(table)), years)
    offset = np.arange(len(interval)) - np.repeat(np.cumsum(years) - years, years)
    step = start[interval] + offset - first
    order = np.argsort(step, kind="stable")
    order = order[step[order] < WIKI_TRAINING_STEPS]
    return rows_of(np.column_stack([table[interval[order], :3], step[order]]))


def relation_labels(sources: Sequence[bytes]) -> bytes:
    """Lines 'id P-id label' in order of id, from lines 'P-id id label'."""
    (text,) = sources
    rows = [line.split("\t") for line in text.decode().split("\n") if line]
    if any(len(row) != 3 or not row[1].isdigit() for row in rows):
        raise DataError("a relation label file should hold lines 'P-id id label'")
    rows.sort(key=lambda row: int(row[1]))
    return "".join(f"{number}\t{code}\t{label}\n" for code, number, label in rows).encode()


def entity_labels(sources: Sequence[bytes]) -> bytes:
    """Lines 'id Q-id label' for the entities that have a label, in the vocabulary's order.

    Args:
        sources: the vocabulary (lines 'Q-id id') and a file of lines 'Q-id label'.
    """
    vocabulary, labels = (source.decode() for source in sources)
    label_of = dict(line.split("\t", 1) for line in labels.split("\n") if "\t" in line)
    rows = (line.split("\t")[:2] for line in vocabulary.split("\n") if "\t" in line)
    return "".join(
        f"{number}\t{code}\t{label_of[code]}\n" for code, number in rows if code in label_of
    ).encode()
