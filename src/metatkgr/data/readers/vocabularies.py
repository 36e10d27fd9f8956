"""Vocabularies: from files that number the names, or by the order in which names appear."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from metatkgr.data.facts import IntArray, Vocabulary
from metatkgr.errors import DataError
from metatkgr.files import read_bytes

__all__ = [
    "ENTITY_FILE",
    "MAX_ID",
    "RELATION_FILE",
    "by_first_appearance",
    "mostly_ids",
    "numbered_up_to",
    "parse_id",
    "read_vocabulary",
    "vocabularies_beside",
]

ENTITY_FILE, RELATION_FILE = "entity2id.txt", "relation2id.txt"

MAX_ID = 10**8
"""Largest id: every id up to it gets a name, so one absurd id would fill the memory."""

_PLENTY = 10**6
_MOST_BYTES = 1 << 31
_ID = re.compile(r"[+-]?[0-9]+")


def parse_id(text: str | None) -> int | None:
    """The integer that ``text`` is, or None; anything too long to be an id is still an integer."""
    if text is None or not _ID.fullmatch(text):
        return None
    return int(text) if len(text) <= 18 else (-1 if text[0] == "-" else 10**18)


def mostly_ids(texts: Iterable[str | None]) -> bool:
    """Whether most distinct names are integers."""
    distinct = {text.strip() for text in texts if text}
    return 2 * sum(parse_id(text) is not None for text in distinct) > len(distinct)


def numbered_up_to(largest: int, rows: int) -> Vocabulary:
    """The vocabulary of ids that no file gives names to.

    Args:
        largest: the largest id.
        rows: number of rows; far fewer of them than ids means that the ids are something else.
    """
    if largest > MAX_ID or (largest > _PLENTY and largest > 1000 * rows):
        raise DataError(
            f"the largest id is {largest:,} in {rows:,} rows, which is no numbering from 0: "
            "read the numbers as names (ids=False) or number them first"
        )
    return Vocabulary.numbered(largest + 1)


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a file of ``name<TAB>id`` lines (further columns are ignored, order does not matter).

    Ids without a line are named by their number. Of names that occur twice, the later ones get
    their id appended. A first line that only holds a count is skipped.
    """
    try:
        lines = read_bytes(path, _MOST_BYTES).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text") from None
    names: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, *rest = (cell.strip() for cell in line.split("\t"))
        if number == 1 and not rest and parse_id(name) is not None:
            continue
        at = parse_id(rest[0]) if rest else None
        if at is None or not name:
            raise DataError(
                f"{path}, line {number}: {line[:80]!r} is not a name, a tab and an integer id"
            )
        if not 0 <= at <= MAX_ID:
            raise DataError(f"{path}, line {number}: the id {at} is not between 0 and {MAX_ID:,}")
        if names.setdefault(at, name) != name:
            raise DataError(f"{path}, line {number}: {name!r} and {names[at]!r} share the id {at}")
    if not names:
        raise DataError(f"{path} holds no names")
    size = max(names) + 1
    if size > _PLENTY and size > 1000 * len(names):
        raise DataError(f"{path}: the largest id is {size - 1:,}, with only {len(names):,} names")
    return Vocabulary(_all_different([names.get(at, str(at)) for at in range(size)]))


def _all_different(names: Sequence[str]) -> list[str]:
    """``names`` with their position behind the repeated ones."""
    taken = set(names)
    if len(taken) == len(names):
        return list(names)
    seen: set[str] = set()
    result = []
    for at, name in enumerate(names):
        if name in seen:
            name = f"{name} (id {at})"
            while name in taken:
                name += "'"
            taken.add(name)
        seen.add(name)
        result.append(name)
    return result


def by_first_appearance(
    columns: Sequence[IntArray], texts: Sequence[str | None], rows: IntArray
) -> tuple[list[IntArray], Vocabulary]:
    """Number names in the order in which they appear, row by row and in a row from left to right.

    Args:
        columns: (N,) positions in ``texts``, one column for each place a name can stand.
        texts: all names, distinct.
        rows: positions of the rows that count, ascending.

    Returns:
        The columns renumbered (-1 for names that appear in none of ``rows``), and the names.
    """
    in_order = np.stack([column[rows] for column in columns], axis=1).reshape(-1)
    first_at = np.full(len(texts), len(in_order), np.int64)
    # Where positions repeat, the last assignment stands: backwards, that is the first appearance.
    first_at[in_order[::-1]] = np.arange(len(in_order) - 1, -1, -1)
    appears = np.flatnonzero(first_at < len(in_order))
    order = appears[np.argsort(first_at[appears])]
    renumbered = np.full(len(texts), -1, np.int64)
    renumbered[order] = np.arange(len(order))
    return [renumbered[column] for column in columns], Vocabulary(str(texts[at]) for at in order)


def vocabularies_beside(
    folder: Path | None, ids: bool | None
) -> tuple[Vocabulary | None, Vocabulary | None]:
    """The vocabularies in the folder of the data, where there are such files and they are wanted.

    Args:
        folder: None: the data are in no folder.
        ids: whether names are ids; None: if both files are there, they may be.
    """
    if folder is None or ids is False:
        return None, None
    paths = folder / ENTITY_FILE, folder / RELATION_FILE
    there = [path.is_file() for path in paths]
    if ids is None and not all(there):
        return None, None
    entities, relations = (
        read_vocabulary(path) if is_there else None
        for path, is_there in zip(paths, there, strict=True)
    )
    return entities, relations
