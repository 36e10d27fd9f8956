"""Build a :class:`GraphIndex` on disk, in memory that does not grow with the number of facts.

Facts come in time order, so ordering their links by (source, time) is a matter of putting each
behind those of its source that came before: no comparisons, three passes, linear time.

1. count the links of each entity;
2. hand each link to a bucket, a range of entities with few enough links to sort in memory;
3. order each bucket by its entities (radix sort on 16 bits) and write it where it belongs.

Memory: a block of facts, a bucket of links, and three numbers per entity.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.data.large.columns import TableWriter
from metatkgr.errors import DataError
from metatkgr.files import atomic_path
from metatkgr.graph.mapped import GraphIndex, index_header

__all__ = ["Block", "build_index"]

Block = tuple[IntArray, IntArray, IntArray, IntArray]
"""Subjects, relations, objects and steps of some facts, (N,) each."""

_LINKS_AT_ONCE = 1 << 22
_ENTITIES_AT_ONCE = 1 << 16
"""As many as 16 bits tell apart: numpy orders such small numbers without comparing them."""


def build_index(
    path: str | Path,
    blocks: Callable[[int], Iterable[Block]],
    *,
    entities: int,
    relations: int,
    steps: int,
    at_once: int = _LINKS_AT_ONCE,
) -> GraphIndex:
    """Index facts on disk; the arrays are those of ``GraphIndex.of(VisibleFacts.of(facts))``.

    Args:
        path: where the index goes; during the build twice its size is needed there.
        blocks: gives all facts in time order, at most so many at a time; called twice.
        entities: E.
        relations: R, not counting inverse ones.
        steps: one more than the last step of a fact.
        at_once: how many links may be in memory at a time (a few copies of them are).

    Returns:
        The index, mapped from ``path``.
    """
    path = Path(path)
    steps += 1  # the index keeps one step free after the last link
    if entities * steps >= 2**63 or entities * relations * 2 >= 2**63:
        raise DataError(
            f"a key over {entities:,} entities and {steps:,} steps does not fit into 63 bits: "
            "choose a coarser time unit"
        )
    rows = max(at_once // 2, 1)
    start = _starts(blocks(rows), entities)
    bounds = _buckets(start, at_once)
    header = index_header(entities, 2 * relations, steps)
    lengths = {name: int(start[-1]) for name in ("key", "relation", "target")}
    lengths["start"] = entities + 1
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryFile(dir=path.parent, buffering=0) as links,
        atomic_path(path) as temporary,
        TableWriter(temporary, lengths, header) as table,
    ):
        _distribute(blocks(rows), links.fileno(), start, bounds, relations, steps)
        table.write("start", 0, start)
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            for position, key, value in _ordered(links.fileno(), start, low, high, steps, at_once):
                table.write("key", position, key)
                table.write("relation", position, value % (2 * relations))
                table.write("target", position, value // (2 * relations))
    return GraphIndex.open(path)


def _starts(blocks: Iterable[Block], entities: int) -> IntArray:
    """(E + 1,) where the links of each entity begin."""
    start = np.zeros(entities + 1, np.int64)
    for subject, _, other, _ in blocks:
        # A fact of an entity with itself is one link.
        for ends in (subject, other[other != subject]):
            low = int(ends.min()) if len(ends) else 0
            count = np.bincount(ends - low)
            start[low + 1 : low + 1 + len(count)] += count
    return np.cumsum(start)


def _buckets(start: IntArray, links: int) -> IntArray:
    """Bounds of ranges of entities that hold at most ``links`` links, or are one entity."""
    entities = len(start) - 1
    bounds = [0]
    while bounds[-1] < entities:
        low = bounds[-1]
        high = int(np.searchsorted(start, start[low] + links, side="right")) - 1
        bounds.append(min(max(high, low + 1), low + _ENTITIES_AT_ONCE, entities))
    return np.asarray(bounds, np.int64)


def _distribute(
    blocks: Iterable[Block],
    file: int,
    start: IntArray,
    bounds: IntArray,
    relations: int,
    steps: int,
) -> None:
    """Write every link, as (key, target and relation), behind the others of its bucket."""
    buckets = len(bounds) - 1
    narrow = np.uint16 if buckets < 2**16 else np.uint32
    bucket_of = np.repeat(np.arange(buckets, dtype=narrow), np.diff(bounds))  # (E,)
    filled = start[bounds[:-1]].copy()
    for subject, relation, other, time in blocks:
        source = np.stack([subject, other], axis=1).reshape(-1)
        target = np.stack([other, subject], axis=1).reshape(-1)
        pair = np.empty((len(source), 2), np.int64)
        pair[:, 0] = source * steps + np.repeat(time, 2)
        directed = np.stack([relation, relation + relations], axis=1).reshape(-1)
        pair[:, 1] = target * (2 * relations) + directed
        own = subject == other
        if own.any():
            keep = np.ones(len(source), bool)
            keep[1::2] = ~own
            source, pair = source[keep], pair[keep]
        bucket = bucket_of[source]
        pair = pair[np.argsort(bucket, kind="stable")]
        count = np.bincount(bucket, minlength=buckets)
        end = np.cumsum(count)
        for number in np.flatnonzero(count).tolist():
            part = pair[end[number] - count[number] : end[number]]
            _write_at(file, part, 16 * int(filled[number]))
            filled[number] += len(part)


def _write_at(file: int, values: IntArray, offset: int) -> None:
    data = values.data.cast("B")
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def _ordered(
    file: int, start: IntArray, low: int, high: int, steps: int, at_once: int
) -> Iterator[tuple[int, IntArray, IntArray]]:
    """The links of the entities ``low`` to ``high`` in order: position, keys, values."""
    begin, end = int(start[low]), int(start[high])
    # The links of one entity came in time order: they need no sorting and may be any number.
    whole = high - low > 1
    for position in range(begin, end, max(end - begin, 1) if whole else at_once):
        count = end - position if whole else min(at_once, end - position)
        pair = np.frombuffer(_read_at(file, 16 * count, 16 * position), np.int64).reshape(-1, 2)
        key, value = np.ascontiguousarray(pair[:, 0]), np.ascontiguousarray(pair[:, 1])
        if whole:
            order = np.argsort((key // steps - low).astype(np.uint16), kind="stable")
            key, value = key[order], value[order]
        yield position, key, value


def _read_at(file: int, size: int, offset: int) -> bytes:
    parts = []
    while size:
        parts.append(os.pread(file, size, offset))
        if not parts[-1]:
            raise OSError("the temporary file ended early")
        size, offset = size - len(parts[-1]), offset + len(parts[-1])
    return parts[0] if len(parts) == 1 else b"".join(parts)
