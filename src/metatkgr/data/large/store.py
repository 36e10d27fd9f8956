"""A folder of facts that opens at once, however large it is: every column is mapped from disk.

``dataset.json`` says what it is; ``subject``, ``relation``, ``object`` and ``time`` are the columns
of :class:`Facts`; ``entities-*`` and ``relations-*`` are the vocabularies. A folder that grows
(``large.append``) while it is open stays what it was when it was opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import Facts, IntArray, Vocabulary
from metatkgr.data.large.columns import Column
from metatkgr.data.large.manifest import ABOUT, COLUMNS, Manifest, Names, numbered
from metatkgr.data.large.names import digests
from metatkgr.errors import DataError, UnknownNameError

__all__ = ["FactStore", "StoredVocabulary"]

_SUGGEST_AMONG = 100_000
"""In a larger vocabulary an unknown name is not compared with every other to suggest one."""


class StoredVocabulary(Vocabulary):
    """Names that stay on disk; one is read when it is asked for.

    Args:
        path: the vocabulary's files without their endings, as in ``folder/entities``.
        names: which of what the files hold belongs to it; None: everything.
    """

    def __init__(self, path: Path, names: Names | None = None) -> None:
        def column(what: str, number: int = 0, length: int | None = None) -> IntArray:
            place = path.with_name(numbered(f"{path.name}-{what}", number))
            return Column(place, length=length).map()

        if names is None:
            self._end, self._text = column("end"), column("text")
            self._lookups = [(column("digest"), column("id"))]
        else:
            self._end = column("end", 0, names.count)
            size = int(self._end[-1]) if names.count else 0
            self._text = column("text", 0, size)
            self._lookups = [
                (column("digest", part.number, part.size), column("id", part.number, part.size))
                for part in names.lookups
            ]
        self.labels: dict[int, str] = {}
        self.aliases: dict[str, int] = {}

    @cached_property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """All names, in memory; ask for single ones where that is too much."""
        return tuple(self)

    def __len__(self) -> int:
        return len(self._end)

    @property
    def text_bytes(self) -> int:
        """How many bytes all names have together."""
        return int(self._end[-1]) if len(self) else 0

    def __iter__(self) -> Iterator[str]:
        return (self._name(number) for number in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self._name(number) for number in range(*index.indices(len(self))))
        number = int(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"there are {len(self):,} names, and none with the number {number}")
        return self._name(number % len(self))

    def _name(self, number: int) -> str:
        low = int(self._end[number - 1]) if number else 0
        return bytes(self._text[low : int(self._end[number])]).decode()

    def id(self, name: str, kind: str = "name") -> int:
        """Id of a name; an unknown one is an error that suggests the nearest."""
        found = self._find(name)
        if found is None:
            known = self.names if len(self) <= _SUGGEST_AMONG else ()
            raise UnknownNameError(kind, name, known)
        return found

    def label(self, number: int) -> str:
        """What to show a person for ``number``."""
        return str(self[number])

    def _find(self, name: str) -> int | None:
        try:
            found = int(self.find_all([name.encode()])[0])
        except UnicodeEncodeError:
            return None
        return None if found < 0 else found

    def find_all(self, texts: Sequence[bytes]) -> IntArray:
        """(n,) ids of names in UTF-8; -1 for those that are not there."""
        wanted = digests(texts)[:, 0]
        # In their order, so that neighbours are looked up on the same pages.
        order = np.argsort(wanted)
        found = np.full(len(texts), -1, np.int64)
        for digest, ids in self._lookups:
            waiting = order[found[order] < 0]
            place = np.searchsorted(digest, wanted[waiting])
            while len(waiting):
                there = place < len(digest)
                there[there] = digest[place[there]] == wanted[waiting[there]]
                waiting, place = waiting[there], place[there]
                same = self._equal(ids[place], [texts[at] for at in waiting.tolist()])
                found[waiting[same]] = ids[place[same]]
                # Two names may share half a digest: then the next one may be it.
                waiting, place = waiting[~same], place[~same] + 1
        return found

    def _equal(self, ids: IntArray, texts: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """(n,) whether each text is the name with that id."""
        end = self._end[ids]
        begin = np.where(ids > 0, self._end[ids - 1], 0)
        size = np.fromiter(map(len, texts), np.int64, len(texts))
        same: npt.NDArray[np.bool_] = end - begin == size
        some = np.flatnonzero(same)
        theirs = np.frombuffer(b"".join([texts[at] for at in some.tolist()]), np.uint8)
        first = np.cumsum(size[some]) - size[some]
        place = np.arange(len(theirs)) + np.repeat(begin[some] - first, size[some])
        wrong = np.repeat(some, size[some])[self._text[place] != theirs]
        same[wrong] = False
        return same


class FactStore:
    """An opened folder.

    Args:
        folder: that ``ingest`` has written.

    Raises:
        DataError: it is something else, or damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self.manifest = Manifest.load(self.folder)
        while True:
            try:
                self._open()
                return
            except DataError:
                # An append may have replaced files since the manifest was read.
                latest = Manifest.load(self.folder)
                if latest == self.manifest:
                    raise
                self.manifest = latest

    def _open(self) -> None:
        about = self.manifest
        self.name, self.steps, self.calendar = about.name, about.steps, about.calendar
        self._facts = about.facts
        length = about.facts if about.grown else None
        files = (numbered(f"{name}.safetensors", about.columns) for name in COLUMNS)
        self._columns = [Column(self.folder / file, length=length) for file in files]
        if any(len(column) != self._facts for column in self._columns) or self._facts == 0:
            raise DataError(
                f"{self.folder} is damaged: its columns differ in length; make it again with "
                "'metatkgr data ingest'"
            )
        self.entities = StoredVocabulary(self.folder / "entities", about.entities)
        self.relations = StoredVocabulary(self.folder / "relations", about.relations)

    def __len__(self) -> int:
        return self._facts

    @staticmethod
    def is_at(folder: str | Path) -> bool:
        """Whether there is such a folder."""
        return (Path(folder).expanduser() / ABOUT).is_file()

    def facts(self) -> Facts:
        """The facts, mapped: nothing is read before it is looked at."""
        subject, relation, other, time = (column.map() for column in self._columns)
        return Facts(
            subject, relation, other, time,
            self.entities, self.relations, self.calendar, self.name,
        )  # fmt: skip

    def blocks(self, rows: int) -> Iterator[tuple[IntArray, IntArray, IntArray, IntArray]]:
        """Subjects, relations, objects and steps, ``rows`` at a time, in time order."""
        for low in range(0, len(self), rows):
            yield self.read(low, min(low + rows, len(self)))

    def read(self, low: int, high: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Subjects, relations, objects and steps of the facts ``low`` to ``high``, not included."""
        subject, relation, other, time = (column.read(low, high) for column in self._columns)
        return subject, relation, other, time
