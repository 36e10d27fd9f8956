"""A folder of facts that opens at once, however large it is: every column is mapped from disk.

``dataset.json`` says what it is (``data.manifest``); ``subject``, ``relation``, ``object`` and
``time`` are the columns of :class:`Facts`; ``entities-*`` and ``relations-*`` are the vocabularies;
``index-*`` are the links. ``data.ingest`` writes it. A folder that grows while it is open stays
what it was when it was opened.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from metatkgr.data.columns import Column
from metatkgr.data.facts import Facts, IntArray, Vocabulary
from metatkgr.data.manifest import ABOUT, AGAIN, COLUMNS, Manifest, Names, StoredLinks, numbered
from metatkgr.errors import DataError, UnknownNameError

__all__ = ["FactFolder", "StoredVocabulary"]

_ROWS = 1 << 20
_REMEMBERED = 1 << 14
"""Names whose ids are not searched again."""
_SUGGEST_AMONG = 100_000
"""In a larger vocabulary an unknown name is not compared with every other to suggest one."""


class StoredVocabulary(Vocabulary):
    """Names that stay on disk; one is read when it is asked for.

    An id is looked up by binary search in the order of the names (their UTF-8 bytes). Of names that
    came after that order was written, which are few, it is made when the first one is looked up.

    Args:
        path: the vocabulary's files without their endings, as in ``folder/entities``.
        names: how much of what the files hold belongs to it.
    """

    def __init__(self, path: Path, names: Names) -> None:
        def column(ending: str, length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
            place = path.with_name(f"{path.name}-{ending}")
            if not length:
                return np.zeros(0, dtype)  # nothing has been written yet
            return Column(place, length=length, dtype=dtype).map()

        self._path = path
        self._end = column("end", names.count, np.int64)
        self._text = column("text", self.text_bytes, np.uint8)
        order = names.order
        self._order = column(numbered("order", order.number), order.covers, np.int32)
        self.labels: dict[int, str] = {}
        self.aliases: dict[str, int] = {}
        self._found: dict[str, int | None] = {}

    def _damaged(self, why: str) -> DataError:
        return DataError(f"the vocabulary {self._path} is damaged: {why}; {AGAIN}")

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
        try:
            return self._bytes(number).decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"the name {number:,} is not UTF-8") from error

    def _bytes(self, number: int) -> bytes:
        """A name in UTF-8."""
        if not 0 <= number < self._end.size:
            raise self._damaged("an id is not one of its names")
        low, high = self._end.item(number - 1) if number else 0, self._end.item(number)
        if not 0 <= low <= high <= self._text.size:
            raise self._damaged(f"the name {number:,} has no place in the text")
        return self._text[low:high].tobytes()

    def texts(self, rows: int) -> Iterator[tuple[IntArray, npt.NDArray[np.uint8]]]:
        """Where ``rows`` names at a time begin and end in their UTF-8 text, and that text.

        Raises:
            DataError: a name is not in the text.
        """
        begin = 0
        for low in range(0, len(self), rows):
            bounds = np.concatenate([[begin], self._end[low : low + rows]])
            if bounds[-1] > len(self._text) or bool((np.diff(bounds) < 0).any()):
                raise self._damaged("a name has no place in the text")
            yield bounds - begin, self._text[begin : int(bounds[-1])]
            begin = int(bounds[-1])

    def check_text(self, rows: int) -> None:
        """Go over all names, ``rows`` at a time.

        Raises:
            DataError: one of them is not in the text, or no UTF-8.
        """
        for bounds, text in self.texts(rows):
            data = text.tobytes()
            try:
                if not data.isascii():
                    data.decode()
            except UnicodeDecodeError as error:
                raise self._damaged("its text is not UTF-8") from error
            # No name begins within a character.
            begins = bounds[:-1][bounds[:-1] < len(data)]
            if bool((text[begins] & 0xC0 == 0x80).any()):
                raise self._damaged("a name is not UTF-8")

    def id(self, name: str, kind: str = "name") -> int:
        """Id of a name; an unknown one is an error that suggests the nearest of not too many."""
        found = self.find(name)
        if found is None:
            known = self.names if len(self) <= _SUGGEST_AMONG else ()
            raise UnknownNameError(kind, name, known)
        return found

    def find(self, name: str) -> int | None:
        """The id of a name, or None."""
        # One request asks several times for the same names.
        found = self._found.get(name, -1)
        if found == -1:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            found = self._found[name] = self._search(name)
        return found

    def _search(self, name: str) -> int | None:
        try:
            wanted = name.encode()
        except UnicodeEncodeError:
            return None
        for order in (self._order, self._later):
            at = bisect_left(order, wanted, key=lambda number: self._bytes(int(number)))
            if at < len(order) and self._bytes(int(order[at])) == wanted:
                return int(order[at])
        return None

    @cached_property
    def _later(self) -> npt.NDArray[np.int32]:
        """The ids that the order on disk does not cover, in the order of their names."""
        ids = sorted(range(len(self._order), len(self)), key=self._bytes)
        return np.asarray(ids, np.int32)


class FactFolder:
    """An opened folder.

    Args:
        folder: that ``data.ingest`` has written.

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

    @classmethod
    def in_state(cls, folder: str, state: str) -> Self | None:
        """A folder if nothing has changed in it since it was in this :attr:`state`; or None."""
        try:
            found = cls(folder)
        except DataError:
            return None
        return found if found.state == state and found.is_untouched() else None

    @property
    def state(self) -> str:
        """Tells it from what it was before an append, and from another in its place."""
        return hashlib.sha256(repr(self.manifest).encode()).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens it too, where it sees the same folder."""
        return _opened_elsewhere, (str(self.folder.absolute()), self.manifest)

    def _open(self) -> None:
        about = self.manifest
        self.name, self.steps, self.calendar = about.name, about.steps, about.calendar
        self._links: StoredLinks | None = None
        files = (numbered(f"{name}.safetensors", about.columns) for name in COLUMNS)
        self._columns = [
            Column(self.folder / file, length=about.facts, dtype=np.int32) for file in files
        ]
        if about.facts == 0:
            raise self._damaged("there are no facts")
        self.entities = StoredVocabulary(self.folder / "entities", about.entities)
        self.relations = StoredVocabulary(self.folder / "relations", about.relations)
        time = self._columns[3]
        first, last = time.read(0, 1)[0], time.read(about.facts - 1, about.facts)[0]
        if (first, last) != (0, self.steps - 1):
            raise self._damaged(f"its facts are not those of {self.steps:,} steps")

    def _damaged(self, why: str) -> DataError:
        return DataError(f"{self.folder} is damaged: {why}; {AGAIN}")

    def __len__(self) -> int:
        return self.manifest.facts

    @staticmethod
    def is_at(folder: str | Path) -> bool:
        """Whether there is such a folder."""
        try:
            return (Path(folder).expanduser() / ABOUT).is_file()
        except (OSError, ValueError, RuntimeError):
            return False  # no name that a path can have

    def is_untouched(self) -> bool:
        """Whether its files are those that were written: then there is nothing to check.

        A copy, and files that an append was killed over, are not.
        """
        return self.manifest.is_untouched(self.folder)

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
                raise self._damaged("its facts are not in the order of their times")
            last = int(time[-1])
        for names in (self.entities, self.relations):
            names.check_text(rows)
        links = self.links()
        wrong = None if links is None else links.check(rows)
        if wrong is not None:
            raise self._damaged(wrong)

    def facts(self) -> Facts:
        """The facts, mapped: nothing is read before it is looked at, and nothing is checked."""
        subject, relation, other, time = (column.map() for column in self._columns)
        facts = Facts(
            subject, relation, other, time,
            self.entities, self.relations, self.calendar, self.name,
        )  # fmt: skip
        object.__setattr__(facts, "folder", self)
        return facts

    def links(self) -> StoredLinks | None:
        """The index of links; None where its keys would not have fitted into 63 bits.

        Raises:
            DataError: it is damaged, or of other facts.
        """
        part = self.manifest.index
        if self._links is None and part is not None:
            fits = (
                0 < part.entities <= len(self.entities)
                and 0 < part.relations <= 2 * len(self.relations)
                and part.relations % 2 == 0
                and 0 < part.steps <= self.steps + 1
            )
            if not fits:
                raise self._damaged("its index is that of other facts")
            self._links = StoredLinks.open(self.folder, part)
        return self._links

    def blocks(self, rows: int, low: int = 0) -> Iterator[tuple[IntArray, ...]]:
        """Subjects, relations, objects and steps from the fact ``low`` on, ``rows`` at a time."""
        for begin in range(low, len(self), rows):
            yield self.read(begin, min(begin + rows, len(self)))

    def read(self, low: int, high: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Subjects, relations, objects and steps of the facts ``low`` to ``high``, not included."""
        subject, relation, other, time = (
            column.read(low, high).astype(np.int64, copy=False) for column in self._columns
        )
        entities, relations = len(self.entities), len(self.relations)
        for column, size, what in (
            (subject, entities, "subject"),
            (relation, relations, "relation"),
            (other, entities, "object"),
            (time, self.steps, "step"),
        ):
            # Without a sign, a number below 0 is a very large one.
            if len(column) and int(column.view(np.uint64).max()) >= size:
                raise self._damaged(
                    f"one of the facts {low:,} to {high:,} has a {what} that is not one of {size:,}"
                )
        return subject, relation, other, time


def _opened_elsewhere(folder: str, manifest: Manifest) -> FactFolder:
    """A folder that was opened by another process.

    Raises:
        DataError: it cannot be opened here, or holds other facts.
    """
    found = FactFolder(folder)
    if found.manifest != manifest:
        raise DataError(f"{folder} holds other facts here: all machines must share it, unchanged")
    return found
