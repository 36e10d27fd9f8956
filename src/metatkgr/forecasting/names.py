"""Names that keep coming: checked, kept in a vocabulary that grows, and found as typed by hand."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import re
import threading
import unicodedata
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from metatkgr.data.facts import Vocabulary
from metatkgr.data.readers.bad_rows import shorten
from metatkgr.errors import DataError, UnknownNameError

__all__ = ["GrowingVocabulary", "checked_name", "near_name", "search_names"]

LONGEST_NAME = 500
"""Characters; longer names are refused."""
_NEARLY = 60
"""Per cent of letters in common, in order, from which on a name is spelt nearly alike."""
_BESIDE = 1000
"""New names that are searched one by one."""
_LONGEST = 100
"""Letters of a text that are compared."""
_REMEMBERED = 1 << 16
"""Names that are not looked up again."""
_SHORTEST_SLIP = 5
"""Letters of a name in which a slip is looked for."""
_SLIPS = 1000
"""Names that are compared for a slip with one half of another."""
_SLIPS_AMONG = 2_000_000
_SUGGEST_AMONG = 100_000
"""In a larger vocabulary an unknown name is not compared with every other to suggest one."""


def checked_name(value: Any, what: str) -> str:
    """A name that can be stored and shown, without space around it.

    Raises:
        DataError: it is missing, empty, too long, not text, or holds control characters.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, np.integer)):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise DataError(f"the {what} is missing")
        raise DataError(f"the {what} is a {type(value).__name__}; names are text")
    name = str(value).strip()
    if not name:
        raise DataError(f"the {what} is empty")
    if len(name) > LONGEST_NAME:
        raise DataError(
            f"the {what} {shorten(name, 40)!r} has {len(name):,} characters; names have at most "
            f"{LONGEST_NAME}"
        )
    if not name.isprintable() and any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise DataError(f"the {what} {shorten(name, 40)!r} holds control characters")
    return name


class _Added:
    """What all sizes of one growing vocabulary share; names are only ever added."""

    def __init__(self, base: Vocabulary) -> None:
        self.base, self.first = base, len(base)
        self.base_name: Callable[[int], str] = lru_cache(_REMEMBERED)(base.__getitem__)
        """What a number of the base is called; those of a folder are looked up in files."""
        self.names: list[str] = []
        self.ids: dict[str, int] = {}
        self._index: _SearchIndex | None = None
        self._lock = threading.Lock()

    def index(self) -> _SearchIndex:
        """All names for searching; those that came since the last search are added."""
        with self._lock:
            if self._index is None:
                self._index = _SearchIndex()
                for number, label in self.base.labels.items():
                    self._index.add(label, number)
                for alias, number in self.base.aliases.items():
                    self._index.add(alias, number)
                for number, name in enumerate(self.base):
                    self._index.add(name, number)
                self._seen = 0
            for name in self.names[self._seen :]:
                self._index.add(name, self.first + self._seen)
                self._seen += 1
            self._index.join()
            return self._index


class GrowingVocabulary(Vocabulary):
    """A vocabulary to which names are added without touching those who hold a smaller one.

    The names it starts from stay where they are, in memory or on disk. ``grown`` takes the time of
    the names added, however many there are already: all sizes share one list and one dictionary of
    what was added, and each sees only its own first ``len(self)`` names.

    Args:
        base: what it starts from.
    """

    def __init__(self, base: Vocabulary) -> None:
        self._added = _Added(base)
        self._size = len(base)
        self.labels, self.aliases = base.labels, base.aliases

    def grown(self, names: list[str]) -> GrowingVocabulary:
        """This vocabulary and ``names``, all of them new; only the largest one may grow."""
        added, first = self._added, self._added.first
        if first + len(added.names) != self._size:
            raise ValueError("only the largest of the vocabularies that share names may grow")
        for name in names:
            added.ids[name] = first + len(added.names)
            added.names.append(name)
        larger = object.__new__(GrowingVocabulary)
        larger._added, larger._size = added, first + len(added.names)
        larger.labels, larger.aliases = self.labels, self.aliases
        return larger

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """All names; takes time in proportion."""
        added = self._added
        return (*added.base.names, *added.names[: self._size - added.first])

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
        added = self._added
        if number < added.first:
            return added.base_name(number)
        return added.names[number - added.first]

    def find(self, name: str) -> int | None:
        """The id of a name, label or alias, or None."""
        known = self._added.base.find(name)
        if known is None:
            known = self._added.ids.get(name, self._size)
        return known if known < self._size else None

    def id(self, name: str, kind: str = "name") -> int:
        """Id of a name, label or alias; an unknown one is an error that suggests the nearest."""
        known = self.find(name)
        if known is None:
            few = len(self) <= _SUGGEST_AMONG
            near = [self.label(number) for number in search_names(self, name, 3)] if few else []
            raise UnknownNameError(kind, name, near, among=len(self))
        return known

    def searchable(self) -> _SearchIndex:
        """For searching; also knows names that are not in this vocabulary yet."""
        return self._added.index()


class _SearchIndex:
    """Names, labels and aliases in small letters, each with its id."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._plain: list[str] = []
        self._ids = array("i")
        self._joined: tuple[str, array[int]] = "", array("q")
        """The first names as one text, which is searched at once, and where each ends."""
        self._halves = _Halves()
        """Rows of names by their length, their marks and their first or last letters."""
        self._halved, self._halving = 0, threading.Lock()

    def add(self, name: str, number: int) -> None:
        """Take in a name of an id."""
        # In this order: who searches meanwhile looks as far as there are small letters.
        self._ids.append(number)
        self._names.append(name)
        self._plain.append(name.casefold())

    def join(self) -> None:
        """Make one text of all names, where those beside it have become many."""
        count = len(self._plain)
        if count - len(self._joined[1]) > max(_BESIDE, count // 8):
            ends = itertools.accumulate((len(plain) + 1 for plain in self._plain), initial=1)
            next(ends)
            self._joined = "\n" + "\n".join(self._plain) + "\n", array("q", ends)

    def _rows_with(self, part: str, *, first: bool) -> Iterator[int]:
        """The names that contain a part; ``first``: that begin with it."""
        text, ends = self._joined
        wanted = f"\n{part}" if first else part
        at = text.find(wanted)
        while at >= 0:
            row = bisect.bisect_right(ends, at + first)
            inside = _has(self._plain[row], part, first)  # else it reaches into the next name
            if inside:
                yield row
            at = text.find(wanted, ends[row] - first if inside else at + 1)
        for row in range(len(ends), len(self._plain)):
            if _has(self._plain[row], part, first):
                yield row

    def containing(self, text: str, size: int, limit: int) -> list[int]:
        """At most ``limit`` ids below ``size`` of names that contain ``text``, best first.

        Exactly equal, equal but for case, beginning with it, a word beginning with it, containing
        it; the shorter ones first.
        """
        wanted = text.casefold()
        # Underscores are how some datasets write spaces.
        parts = {wanted, wanted.replace(" ", "_")}
        # Most names have some letter; if enough begin with it, the others need no look.
        for first in (True, False):
            best: dict[int, tuple[int, int, str]] = {}
            for row in {row for part in parts for row in self._rows_with(part, first=first)}:
                number, plain = self._ids[row], self._plain[row]
                if number < size:
                    likeness = _likeness(self._names[row], plain, text, parts)
                    key = (likeness, len(plain), plain)
                    best[number] = min(key, best.get(number, key))
            if len(best) >= limit:
                break
        return heapq.nsmallest(limit, best, key=lambda number: best[number])

    def near(self, text: str, size: int) -> int | None:
        """The id below ``size`` of a name that differs from ``text`` by a slip, or None.

        A slip is a letter too much, too little or another, two letters turned round, small letters
        or spaces. Numbers and single letters tell things apart ("Team A", "Flight 12"): a slip in
        one is none. Who shares neither the first nor the last half of the letters is not looked at.
        """
        from rapidfuzz.distance import OSA

        with self._halving:
            if self._halved < len(self._plain):
                new = range(self._halved, len(self._plain))
                keys = (_halves(_squeezed(self._plain[n]), _marks(self._names[n])) for n in new)
                self._halves = self._halves.grown(list(itertools.chain.from_iterable(keys)), new)
                self._halved = new.stop
            halves = self._halves
        word, marks = _squeezed(text.casefold()), _marks(text)
        if len(word) < _SHORTEST_SLIP:
            return None
        best: tuple[int, int] | None = None
        for length in (len(word), len(word) - 1, len(word) + 1):
            for key in _halves(word, marks, length):
                for row in itertools.islice(halves.rows(key), _SLIPS):
                    if self._ids[row] >= size:
                        continue
                    known = _squeezed(self._plain[row])
                    far = OSA.distance(word, known, score_cutoff=1)
                    if far <= 1 and (best is None or (far, row) < best):
                        best = far, row
        return None if best is None else self._ids[best[1]]

    def alike(self, text: str, size: int, limit: int) -> list[int]:
        """Ids below ``size`` of names that are spelt nearly like ``text``, best first."""
        from rapidfuzz import fuzz, process

        # An id may be found by its name, label and alias, or be too new for this vocabulary.
        matches = process.extract(
            text.casefold(),
            self._plain[:],
            scorer=fuzz.ratio,
            score_cutoff=_NEARLY,
            limit=None if len(self._plain) < 4 * limit else 4 * limit,
        )
        numbers = (self._ids[row] for _, _, row in matches)
        return list(dict.fromkeys(number for number in numbers if number < size))[:limit]


def _squeezed(plain: str) -> str:
    """Letters and digits alone."""
    return "".join(letter for letter in plain if letter.isalnum())


def _marks(name: str) -> tuple[str, ...]:
    """What tells apart names of one pattern: their numbers and single letters."""
    words = re.findall(r"\w+", name.casefold().replace("_", " "))
    return tuple(word for word in words if len(word) == 1 or any(map(str.isdigit, word)))


def _halves(word: str, marks: tuple[str, ...], length: int | None = None) -> tuple[int, int]:
    """The first and the last letters of a word, as one of another length would have them.

    Each as a number that stands for it, its side, the length and the marks. Two names of one
    number that should not have it would only be compared with each other.
    """
    length = len(word) if length is None else length
    half = max(length // 2 - 1, 2)
    return hash((length, marks, False, word[:half])), hash((length, marks, True, word[-half:]))


class _Halves:
    """The rows of names by the numbers of their halves; it never changes.

    Two sorted columns, 24 bytes a name; a dictionary of lists took 660. The rows
    that came last lie beside the others, so that a few more are not paid for with a look at all.
    """

    def __init__(self, *parts: tuple[array[int], array[int]]) -> None:
        self._parts = parts
        """Numbers in ascending order, and the rows, ascending among equal numbers."""

    def grown(self, keys: list[int], rows: range) -> _Halves:
        """With two numbers for each of some rows that are larger than all before."""
        first, beside = self._parts or (_NO_HALVES, _NO_HALVES)
        late = _by_number(beside, (array("q", keys), array("i", np.repeat(rows, 2).tolist())))
        if len(late[0]) > max(2 * _BESIDE, len(first[0]) // 8):
            return _Halves(_by_number(first, late), _NO_HALVES)
        return _Halves(first, late)

    def rows(self, key: int) -> Iterator[int]:
        """The rows of a number, ascending."""
        for keys, rows in self._parts:
            for place in range(bisect.bisect_left(keys, key), len(keys)):
                if keys[place] != key:
                    break
                yield rows[place]


_NO_HALVES = array("q"), array("i")


def _by_number(*parts: tuple[array[int], array[int]]) -> tuple[array[int], array[int]]:
    """Columns of numbers and rows as one, in the order of the numbers and of the parts."""
    keys = np.concatenate([np.frombuffer(keys, np.int64) for keys, _ in parts if keys])
    rows = np.concatenate([np.frombuffer(rows, np.int32) for _, rows in parts if rows])
    order = np.argsort(keys, kind="stable")
    return array("q", keys[order].tobytes()), array("i", rows[order].tobytes())


def _has(plain: str, part: str, first: bool) -> bool:
    return plain.startswith(part) if first else part in plain


def _likeness(name: str, plain: str, text: str, parts: set[str]) -> int:
    if name == text:
        return 0
    if plain in parts:
        return 1
    if plain.startswith(tuple(parts)):
        return 2
    at = max(plain.find(part) for part in parts)
    return 3 if not plain[at - 1].isalnum() else 4


def search_names(vocabulary: GrowingVocabulary, text: str, limit: int) -> list[int]:
    """Ids whose name, label or alias is like ``text``, best first.

    Those that contain it (exactly equal, beginning with it, a word beginning with it, anywhere),
    and where these are fewer than ``limit``, those spelt nearly so.
    """
    wanted = text.strip()
    if not wanted or limit < 1:
        return []
    index, size = vocabulary.searchable(), len(vocabulary)
    numbers = index.containing(wanted, size, limit)
    if len(numbers) < limit and len(wanted) > 2:
        more = index.alike(wanted[:_LONGEST], size, limit)
        numbers += [number for number in more if number not in numbers]
    return numbers[:limit]


def near_name(vocabulary: GrowingVocabulary, text: str) -> str | None:
    """A known name, or its label, from which ``text`` differs by a slip; None where there is none.

    A vocabulary of millions is not searched: a new name there is taken as it is.
    """
    if len(vocabulary) > _SLIPS_AMONG:
        return None
    number = vocabulary.searchable().near(text, len(vocabulary))
    return None if number is None else vocabulary.label(number)
