"""Names that keep coming: a vocabulary that grows, and the search for a name typed by hand."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from metatkgr.data.facts import Vocabulary
from metatkgr.errors import UnknownNameError

__all__ = ["GrowingVocabulary", "NameIndex", "search_names"]

_CLOSER_LOOK = 50
"""Names most alike by their pieces that are compared letter by letter."""
_NEARLY = 0.6
"""Share of letters in common from which on a name is spelt nearly alike."""
_LONGEST = 100
"""Letters of a text that are compared."""


class _Shared:
    """What all sizes of one growing vocabulary share; names are only ever added."""

    def __init__(self, known: Vocabulary) -> None:
        self.names = list(known.names)
        self.ids = {name: number for number, name in enumerate(self.names)}
        self.ids_by_label = {label: number for number, label in known.labels.items()}
        self._others = [*self.ids_by_label.items(), *known.aliases.items()]
        self._index: NameIndex | None = None
        self._lock = threading.Lock()

    def index(self) -> NameIndex:
        """All names for searching; those that came since the last search are added."""
        with self._lock:
            if self._index is None:
                self._index = NameIndex()
                self._index.add(self._others)
                self._seen = 0
            new = self.names[self._seen :]
            self._index.add([(name, self._seen + place) for place, name in enumerate(new)])
            self._seen += len(new)
            return self._index


class GrowingVocabulary(Vocabulary):
    """A vocabulary to which names are added without touching those who hold a smaller one.

    ``grown`` takes the time of the names added, however many there are already: all sizes share
    one list and one dictionary, and each sees only its own first ``len(self)`` names.

    Args:
        known: what it starts from.
    """

    def __init__(self, known: Vocabulary) -> None:
        self._shared = _Shared(known)
        self._size = len(known)
        self.labels = known.labels
        self.aliases = known.aliases

    def grown(self, names: list[str]) -> GrowingVocabulary:
        """This vocabulary and ``names``, all of them new; only the largest one may grow."""
        shared = self._shared
        if len(shared.names) != self._size:
            raise ValueError("only the largest of the vocabularies that share names may grow")
        for name in names:
            shared.ids[name] = len(shared.names)
            shared.names.append(name)
        larger = object.__new__(GrowingVocabulary)
        larger._shared, larger._size = shared, len(shared.names)
        larger.labels, larger.aliases = self.labels, self.aliases
        return larger

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """All names; takes time in proportion."""
        return tuple(self._shared.names[: self._size])

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, index: Any) -> Any:
        return self.names[index] if isinstance(index, slice) else self.name(index)

    def name(self, number: int) -> str:
        """The name of an id."""
        if not 0 <= number < self._size:
            raise IndexError(f"there is no name number {number}")
        return self._shared.names[number]

    def searchable(self) -> NameIndex:
        """For searching; also knows names that are not in this vocabulary yet."""
        return self._shared.index()

    def find(self, name: str) -> int | None:
        """The id of a name, label or alias, or None."""
        return self._find(name)

    def _find(self, name: str) -> int | None:
        for known in (self._shared.ids, self._shared.ids_by_label, self.aliases):
            number = known.get(name)
            if number is not None and number < self._size:
                return number
        return None

    def id(self, name: str, kind: str = "name") -> int:
        """Id of a name, label or alias; an unknown one is an error that suggests the nearest."""
        found = self._find(name)
        if found is None:
            raise UnknownNameError(kind, name, [*self.names, *self.labels.values()])
        return found

    def label(self, number: int) -> str:
        """What to show a person for ``number``."""
        return self.labels.get(int(number)) or self.name(int(number))


class NameIndex:
    """Names in small letters, and the pieces of three letters in which they are alike."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._plain: list[str] = []
        self._numbers: list[int] = []
        self._pieces: dict[str, list[int]] = {}
        self._lengths: list[int] = []

    def add(self, names: Iterable[tuple[str, int]]) -> None:
        """Take in names with their ids."""
        for name, number in names:
            plain = name.casefold()
            pieces = _pieces(plain)
            for piece in pieces:
                self._pieces.setdefault(piece, []).append(len(self._plain))
            self._lengths.append(len(pieces))
            self._names.append(name)
            self._numbers.append(number)
            self._plain.append(plain)

    def containing(self, text: str, size: int) -> list[int]:
        """Ids below ``size`` of names that contain ``text``, best first.

        Exactly equal, equal but for case, beginning with it, a word beginning with it, containing
        it; the shorter ones first.
        """
        wanted = text.casefold()
        # Underscores are how some datasets write spaces.
        spaced = wanted.replace(" ", "_")
        best: dict[int, tuple[int, int, str]] = {}
        for place, plain in enumerate(self._plain[:]):
            if wanted not in plain and spaced not in plain:
                continue
            number = self._numbers[place]
            if number < size:
                likeness = _likeness(self._names[place], plain, text, wanted, spaced)
                found = (likeness, len(plain), plain)
                best[number] = min(found, best.get(number, found))
        return sorted(best, key=lambda number: best[number])

    def alike(self, text: str, size: int, limit: int) -> list[int]:
        """Ids below ``size`` of names that are spelt nearly like ``text``, best first."""
        wanted = text.casefold()
        pieces = _pieces(wanted)
        found = [self._pieces[piece] for piece in pieces if piece in self._pieces]
        if not found:
            return []
        shared = np.bincount(np.concatenate([np.array(places) for places in found]))
        places = np.flatnonzero(shared)
        lengths = np.array(self._lengths)[places]
        alike = 2 * shared[places] / (lengths + len(pieces))
        ranked: dict[int, float] = {}
        for at in np.argsort(-alike, kind="stable")[:_CLOSER_LOOK]:
            place = int(places[at])
            ratio = difflib.SequenceMatcher(None, self._plain[place], wanted).ratio()
            number = self._numbers[place]
            if ratio >= _NEARLY and number < size:
                ranked[number] = max(ratio, ranked.get(number, 0.0))
        return sorted(ranked, key=lambda number: -ranked[number])[:limit]


def _pieces(plain: str) -> set[str]:
    """All pieces of three letters, with an edge on either side."""
    edged = f"  {plain} "
    return {edged[at : at + 3] for at in range(len(edged) - 2)}


def _likeness(name: str, plain: str, text: str, wanted: str, spaced: str) -> int:
    if name == text:
        return 0
    if plain in (wanted, spaced):
        return 1
    if plain.startswith((wanted, spaced)):
        return 2
    at = max(plain.find(wanted), plain.find(spaced))
    return 3 if not plain[at - 1].isalnum() else 4


def search_names(vocabulary: GrowingVocabulary, text: str, limit: int) -> list[int]:
    """Ids whose name, label or alias is like ``text``, best first.

    Those that contain it (see :meth:`NameIndex.containing`), and where these are fewer than
    ``limit``, those spelt nearly so.
    """
    wanted = text.strip()
    if not wanted or limit < 1:
        return []
    index, size = vocabulary.searchable(), len(vocabulary)
    found = index.containing(wanted, size)[:limit]
    if len(found) < limit and len(wanted) > 2:
        more = index.alike(wanted[:_LONGEST], size, limit)
        found += [number for number in more if number not in found]
    return found[:limit]
