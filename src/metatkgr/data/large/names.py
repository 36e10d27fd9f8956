"""Number names by first appearance, in memory that does not grow with how many there are.

Pieces of a file come with the distinct names of each piece. A name is known by a 128-bit digest
(that two of 10^10 names share one is less likely than 10^-18). Four sorts on disk then find out
which is which:

1. by digest: all appearances of a name are side by side; the first of them stands for it;
2. by first appearance: the names are in the order of their ids, so the ids are counted off;
3. by appearance: the ids of the names of each piece, in the order in which the piece has them;
4. the names by digest, to look ids up by name later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.data.large.columns import Column, ColumnWriter
from metatkgr.data.large.external_sort import ExternalSort

__all__ = ["NameTable", "digests"]


def digests(texts: Sequence[bytes]) -> IntArray:
    """(N, 2) the 128-bit digest of each text as two numbers."""
    joined = b"".join([blake2b(text, digest_size=16).digest() for text in texts])
    return np.frombuffer(joined, np.dtype("<i8")).reshape(-1, 2).astype(np.int64)


class NameTable:
    """The names of entities or of relations.

    Args:
        folder: for what does not fit into memory; it must exist.
        out: where the vocabulary goes: ``out-text``, ``out-end``, ``out-digest`` and ``out-id``.
        rows: how many appearances may be in memory at a time.
    """

    def __init__(self, folder: Path, out: Path, rows: int) -> None:
        self._folder, self._out, self._rows = folder, out, rows
        self._by_digest = ExternalSort(folder, 3, rows)
        self._text = ColumnWriter(folder / f"{out.name}-text", np.uint8)
        self._size = ColumnWriter(folder / f"{out.name}-size")
        self.appearances = 0

    def add(self, names: Sequence[str]) -> None:
        """Take the distinct names of the next piece, in the order in which they appear in it."""
        texts = [name.encode() for name in names]
        digest = digests(texts)
        position = np.arange(self.appearances, self.appearances + len(texts))
        self._by_digest.add(digest[:, 0], digest[:, 1], position)
        self._text.append(np.frombuffer(b"".join(texts), np.uint8))
        self._size.append(np.fromiter(map(len, texts), np.int64, len(texts)))
        self.appearances += len(texts)

    def number(self) -> tuple[int, Column]:
        """Number the names and write the vocabulary.

        Returns:
            How many names there are, and the id of each appearance, in order.
        """
        for writer in (self._text, self._size):
            writer.__exit__(None, None, None)
        by_first = ExternalSort(self._folder, 3, self._rows)
        for first, position, digest in self._first_appearances():
            by_first.add(first, position, digest)
        by_position = ExternalSort(self._folder, 2, self._rows)
        names = ExternalSort(self._folder, 2, self._rows)
        count, last = 0, -1
        for first, position, digest in by_first.merged():
            new = np.diff(first, prepend=last) != 0
            number = count - 1 + np.cumsum(new)
            by_position.add(position, number)
            names.add(digest[new], number[new])
            count, last = int(number[-1]) + 1, int(first[-1])
        out = self._out
        with (
            ColumnWriter(out.with_name(f"{out.name}-digest")) as digests_out,
            ColumnWriter(out.with_name(f"{out.name}-id")) as ids_out,
        ):
            for digest, number in names.merged():
                digests_out.append(digest)
                ids_out.append(number)
        return count, self._write_names(by_position)

    def _first_appearances(self) -> Iterator[IntArray]:
        """(3, n) for each appearance: the first one of the same name, itself, the digest's half."""
        held = np.zeros((3, 0), np.int64)
        for block in self._by_digest.merged():
            rows = np.concatenate([held, block], axis=1)
            # The last name may go on in the next block; a name appears once per piece, so what is
            # held back is small.
            cut = int(np.searchsorted(rows[0], rows[0, -1], side="left"))
            held = rows[:, cut:]
            yield _grouped(rows[:, :cut])
        yield _grouped(held)

    def _write_names(self, by_position: ExternalSort) -> Column:
        """Write each name once, and the id of each appearance."""
        text = Column(self._folder / f"{self._out.name}-text")
        size = Column(self._folder / f"{self._out.name}-size")
        ids_path = self._folder / f"{self._out.name}-ids"
        at, byte, end, known = 0, 0, 0, -1
        with (
            ColumnWriter(ids_path) as ids,
            ColumnWriter(self._out.with_name(f"{self._out.name}-text"), np.uint8) as texts,
            ColumnWriter(self._out.with_name(f"{self._out.name}-end")) as ends,
        ):
            for _, number in by_position.merged():
                ids.append(number)
                sizes = size.read(at, at + len(number))
                # Ids count first appearances, so a name is new where its id is the largest so far.
                new = number > np.maximum.accumulate(np.concatenate([[known], number[:-1]]))
                total = int(sizes.sum())
                texts.append(text.read(byte, byte + total)[np.repeat(new, sizes)])
                ends.append(end + np.cumsum(sizes[new]))
                end += int(sizes[new].sum())
                known = max(known, int(number.max()))
                at, byte = at + len(number), byte + total
        return Column(ids_path)


def _grouped(rows: IntArray) -> IntArray:
    """(3, n) first appearance, appearance, half digest of rows (half, other half, appearance)."""
    half, other, position = rows
    same = half[1:] == half[:-1]
    if bool((same & (other[1:] != other[:-1])).any()):
        order = np.lexsort((position, other, half))
        half, other, position = half[order], other[order], position[order]
        same = half[1:] == half[:-1]
    begins = np.ones(len(half), bool)
    begins[1:] = ~same | (other[1:] != other[:-1])
    group = np.cumsum(begins) - 1
    return np.stack([position[begins][group], position, half])
