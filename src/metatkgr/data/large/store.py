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

_AGAIN = "make it again with 'metatkgr data ingest'"
_ROWS = 1 << 20
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
            dtype = np.uint8 if what == "text" else np.int64
            return Column(place, length=length, dtype=dtype).map()

        self._path = path

        if names is None:
            self._end, self._text = column("end"), column("text")
            self._lookups = [(column("digest"), column("id"))]
        else:
            self._end = column("end", 0, names.count)
            self._text = column("text", 0, self.text_bytes)
            self._lookups = [
                (column("digest", part.number, part.size), column("id", part.number, part.size))
                for part in names.lookups
            ]
        if any(len(digest) != len(ids) for digest, ids in self._lookups):
            raise self._damaged("its ids are not as many as what they are looked up by")
        if self.text_bytes != len(self._text):
            raise self._damaged("its names do not end where their text does")
        self.labels: dict[int, str] = {}
        self.aliases: dict[str, int] = {}

    def _damaged(self, why: str) -> DataError:
        return DataError(f"the vocabulary {self._path} is damaged: {why}; {_AGAIN}")

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
        low, high = int(self._end[number - 1]) if number else 0, int(self._end[number])
        if not 0 <= low <= high <= len(self._text):
            raise self._damaged(f"the name {number:,} has no place in the text")
        try:
            return bytes(self._text[low:high]).decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"the name {number:,} is not UTF-8") from error

    def check_text(self, rows: int) -> None:
        """Go over all names, ``rows`` at a time.

        Raises:
            DataError: one of them is not in the text, or no UTF-8.
        """
        begin = 0
        for low in range(0, len(self), rows):
            end = np.asarray(self._end[low : low + rows])
            start = np.concatenate([[begin], end[:-1]])
            if bool((start > end).any()) or int(end[-1]) > len(self._text):
                raise self._damaged("a name has no place in the text")
            text, begin = self._text[begin : int(end[-1])], int(end[-1])
            # All of it is UTF-8, and no name begins in the middle of a character.
            first = text[(start - start[0])[start < end]]
            try:
                bytes(text).decode()
                whole = not bool((first & 0xC0 == 0x80).any())
            except UnicodeDecodeError:
                whole = False
            if not whole:
                raise self._damaged(f"one of the names {low:,} to {low + rows:,} is not UTF-8")

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
        if bool(((ids < 0) | (ids >= len(self))).any()):
            raise self._damaged("an id is not one of its names")
        end = self._end[ids]
        begin = np.where(ids > 0, self._end[ids - 1], 0)
        if bool(((begin < 0) | (begin > end) | (end > len(self._text))).any()):
            raise self._damaged("a name has no place in the text")
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
        self._columns = [
            Column(self.folder / file, length=length, dtype=np.int64) for file in files
        ]
        if any(len(column) != self._facts for column in self._columns) or self._facts == 0:
            raise DataError(f"{self.folder} is damaged: its columns differ in length; {_AGAIN}")
        self.entities = StoredVocabulary(self.folder / "entities", about.entities)
        self.relations = StoredVocabulary(self.folder / "relations", about.relations)
        time = self._columns[3]
        first, last = time.read(0, 1)[0], time.read(self._facts - 1, self._facts)[0]
        if (first, last) != (0, self.steps - 1):
            raise DataError(
                f"{self.folder} is damaged: its facts are not those of {self.steps:,} steps; "
                f"{_AGAIN}"
            )

    def __len__(self) -> int:
        return self._facts

    @staticmethod
    def is_at(folder: str | Path) -> bool:
        """Whether there is such a folder."""
        try:
            return (Path(folder).expanduser() / ABOUT).is_file()
        except (OSError, ValueError, RuntimeError):
            return False  # no name that a path can have

    def check(self, rows: int = _ROWS) -> None:
        """Read everything once, ``rows`` facts at a time.

        Raises:
            DataError: a fact is none of these entities, relations and steps, facts are not in the
                order of their times, or a name is no text. That a bit has flipped and left a fact
                that could be is not noticed.
        """
        last = 0
        for *_, time in self.blocks(rows):
            if int(time[0]) < last or bool((time[1:] < time[:-1]).any()):
                raise DataError(
                    f"{self.folder} is damaged: its facts are not in the order of their times; "
                    f"{_AGAIN}"
                )
            last = int(time[-1])
        for names in (self.entities, self.relations):
            names.check_text(rows)

    def facts(self) -> Facts:
        """The facts, mapped: nothing is read before it is looked at, and nothing is checked."""
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
        entities, relations = len(self.entities), len(self.relations)
        for column, size, what in (
            (subject, entities, "subject"),
            (relation, relations, "relation"),
            (other, entities, "object"),
            (time, self.steps, "step"),
        ):
            # Without a sign, a number below 0 is a very large one.
            if len(column) and int(column.view(np.uint64).max()) >= size:
                raise DataError(
                    f"{self.folder} is damaged: one of the facts {low:,} to {high:,} has a {what} "
                    f"that is not one of {size:,}; {_AGAIN}"
                )
        return subject, relation, other, time
