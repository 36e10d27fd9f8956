"""Names of newly read files behind those of a folder: known ones keep their ids, new ones get next.

Texts are written behind the end of the folder's own files, where nobody looks before the manifest
says so. What ids are looked up by is sorted, so new names get a file of their own; small ones are
merged (``manifest.layers_to_keep``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.data.large.columns import Column, ColumnWriter
from metatkgr.data.large.external_sort import merge
from metatkgr.data.large.manifest import Layer, Names, layers_to_keep, numbered
from metatkgr.data.large.store import StoredVocabulary

__all__ = ["NameGrowth", "merge_lookups"]


class NameGrowth:
    """The names of a folder and those of a reading.

    Args:
        path: of the folder's vocabulary, without endings.
        names: what of it counts.
        new: of the vocabulary that was read, without endings.
        work: a folder for the ids.
        rows: how many names may be in memory at a time.
    """

    def __init__(self, path: Path, names: Names, new: Path, work: Path, rows: int) -> None:
        self._path, self._names, self._new, self._rows = path, names, new, rows
        self._ids = work / f"{path.name}-ids-in-folder"
        self.count = names.count
        """How many names there are with the new ones."""

    def write_texts(self) -> IntArray:
        """Write the new names; (n,) the id that each name of the reading has, mapped."""
        known = StoredVocabulary(self._path, self._names)
        text, end, size = self._column("text"), self._column("end"), known.text_bytes
        place, name = self._path.with_name, self._path.name
        with (
            ColumnWriter(self._ids) as ids,
            ColumnWriter(place(f"{name}-text"), np.uint8, after=size, sync=True) as texts,
            ColumnWriter(place(f"{name}-end"), after=self.count, sync=True) as ends,
        ):
            byte = 0
            for low in range(0, len(end), self._rows):
                last = end.read(low, low + self._rows)
                sizes = np.diff(last, prepend=byte)
                data = text.read(byte, int(last[-1]))
                whole, stop = data.tobytes(), (last - byte).tolist()
                words = [whole[a:b] for a, b in zip([0, *stop], stop, strict=False)]
                found = known.find_all(words)
                new = found < 0
                found[new] = self.count + np.arange(np.count_nonzero(new))
                ids.append(found)
                texts.append(data[np.repeat(new, sizes)])
                ends.append(size + np.cumsum(sizes[new]))
                size += int(sizes[new].sum())
                self.count += int(np.count_nonzero(new))
                byte = int(last[-1])
        return Column(self._ids).map()

    def write_lookups(self, ids: IntArray, number: int) -> Names:
        """Write what the new names are looked up by; the names as they are now.

        Args:
            ids: of :meth:`write_texts`.
            number: of the append.
        """
        old, added = self._names, self.count - self._names.count
        if not added:
            return old
        keep = layers_to_keep(old.lookups, added)
        return merge_lookups(self._path, old, keep, number, self._rows, self._new_lookups(ids))

    def _new_lookups(self, ids: IntArray) -> Iterator[IntArray]:
        """(2, n) half digest and id of the new names, by digest."""
        for digest, number in _lookup_blocks(
            self._column("digest"), self._column("id"), self._rows
        ):
            found = ids[number]
            new = found >= self._names.count
            yield np.stack([digest[new], found[new]])

    def _column(self, what: str) -> Column:
        return Column(self._new.with_name(f"{self._new.name}-{what}"))


def merge_lookups(
    path: Path,
    names: Names,
    keep: int,
    number: int,
    rows: int,
    added: Iterator[IntArray] | None = None,
) -> Names:
    """Make one file of all lookups but the first few; the names as they are now.

    Args:
        path: of the vocabulary, without endings.
        names: what of it counts.
        keep: how many of the lookups stay as they are.
        number: of the append.
        rows: how many names may be in memory at a time.
        added: (2, n) half digests, ascending, and ids of further names.
    """

    def column(what: str, layer: Layer) -> Column:
        file = numbered(f"{path.name}-{what}", layer.number)
        return Column(path.with_name(file), length=layer.size)

    streams = [
        _lookup_blocks(column("digest", layer), column("id", layer), rows)
        for layer in names.lookups[keep:]
    ]
    if added is not None:
        streams.append(added)
    files = [path.with_name(numbered(f"{path.name}-{what}", number)) for what in ("digest", "id")]
    with ColumnWriter(files[0], sync=True) as digests, ColumnWriter(files[1], sync=True) as ids:
        for digest, found in merge(streams):
            digests.append(digest)
            ids.append(found)
    kept = names.lookups[:keep]
    count = sum(layer.size for layer in kept) + ids.length
    return Names(count, (*kept, Layer(number, ids.length)))


def _lookup_blocks(digest: Column, ids: Column, rows: int) -> Iterator[IntArray]:
    for low in range(0, len(digest), rows):
        yield np.stack([digest.read(low, low + rows), ids.read(low, low + rows)])
