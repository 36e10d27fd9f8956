"""A folder of facts that opens at once, however large it is: every column is mapped from disk.

``dataset.json`` says what it is; ``subject``, ``relation``, ``object`` and ``time`` are the columns
of :class:`Facts`; ``entities-*`` and ``relations-*`` are the vocabularies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Facts, IntArray, Vocabulary
from metatkgr.data.large.columns import Column
from metatkgr.data.large.names import digests
from metatkgr.errors import DataError, UnknownNameError
from metatkgr.files import write_json

__all__ = ["COLUMNS", "FactStore", "StoredVocabulary"]

COLUMNS = ("subject", "relation", "object", "time")
_FORMAT, _VERSION = "metatkgr facts", 1
_ABOUT = "dataset.json"
_SUGGEST_AMONG = 100_000
"""In a larger vocabulary an unknown name is not compared with every other to suggest one."""


class StoredVocabulary(Vocabulary):
    """Names that stay on disk; one is read when it is asked for.

    Args:
        path: the vocabulary's files without their endings, as in ``folder/entities``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = self._column("text").map()
        self._end = self._column("end").map()
        self.labels: dict[int, str] = {}
        self.aliases: dict[str, int] = {}

    def _column(self, what: str) -> Column:
        return Column(self._path.with_name(f"{self._path.name}-{what}"))

    @cached_property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """All names, in memory; ask for single ones where that is too much."""
        return tuple(self)

    def __len__(self) -> int:
        return len(self._end)

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

    @cached_property
    def _by_digest(self) -> tuple[IntArray, IntArray]:
        return self._column("digest").map(), self._column("id").map()

    def _find(self, name: str) -> int | None:
        digest, ids = self._by_digest
        try:
            wanted = digests([name.encode()])[0, 0]
        except UnicodeEncodeError:
            return None
        low, high = np.searchsorted(digest, wanted), np.searchsorted(digest, wanted, "right")
        return next((int(n) for n in ids[low:high] if self._name(int(n)) == name), None)


class FactStore:
    """An opened folder.

    Args:
        folder: that ``ingest`` has written.

    Raises:
        DataError: it is something else, or damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        again = "make it again with 'metatkgr data ingest'"
        try:
            about = json.loads((self.folder / _ABOUT).read_text(encoding="utf-8"))
            if about["format"] != _FORMAT:
                raise DataError(f"{self.folder} is no folder of facts; {again}")
            if about["version"] != _VERSION:
                raise DataError(
                    f"{self.folder} is of version {about['version']}, this program reads version "
                    f"{_VERSION}; {again}"
                )
            self.name = str(about["name"])
            self.steps, self._facts = int(about["steps"]), int(about["facts"])
            self.calendar = Calendar(str(about["unit"]), int(about["origin"]), int(about["stride"]))
        except OSError as error:
            raise DataError(
                f"cannot read {self.folder / _ABOUT}: {error.strerror or error}; {again}"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.folder / _ABOUT} is damaged ({error}); {again}") from error
        self._columns = [Column(self.folder / f"{name}.safetensors") for name in COLUMNS]
        if any(len(column) != self._facts for column in self._columns) or self._facts == 0:
            raise DataError(f"{self.folder} is damaged: its columns differ in length; {again}")
        self.entities = StoredVocabulary(self.folder / "entities")
        self.relations = StoredVocabulary(self.folder / "relations")

    def __len__(self) -> int:
        return self._facts

    @staticmethod
    def is_at(folder: str | Path) -> bool:
        """Whether there is such a folder."""
        return (Path(folder).expanduser() / _ABOUT).is_file()

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

    @staticmethod
    def write_about(folder: Path, name: str, facts: int, steps: int, calendar: Calendar) -> None:
        """Write ``dataset.json``, the last of the files."""
        about = {
            "format": _FORMAT,
            "version": _VERSION,
            "name": name,
            "facts": facts,
            "steps": steps,
            "unit": calendar.unit,
            "origin": calendar.origin,
            "stride": calendar.stride,
        }
        write_json(folder / _ABOUT, about)
