"""Facts: who did what to whom, and when; the one form in which every graph enters the program."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from metatkgr.data.calendar import Calendar
from metatkgr.errors import DataError, UnknownNameError

__all__ = ["Column", "Facts", "IntArray", "Vocabulary"]

IntArray = npt.NDArray[np.int64]
Column = npt.NDArray[np.int32]
"""A column of facts, perhaps mapped from a file. Half as wide as the numbers made from it: who
multiplies ids to a key widens them first (``graph.ragged.pack`` does)."""

_MOST = 2**31 - 2
"""Steps that a graph may span, and names that a vocabulary may have: what a column can hold."""


class Vocabulary(Sequence[str]):
    """Names of entities or relations; the position of a name is its id.

    Args:
        names: one name per id, all different.
        labels: ids to readable labels where a name is a code (Wikidata's Q-ids); may be partial.
        aliases: other spellings that lead to an id too; may be partial.
    """

    def __init__(
        self,
        names: Iterable[str],
        labels: Mapping[int, str] | None = None,
        aliases: Mapping[str, int] | None = None,
    ) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self.labels: dict[int, str] = dict(labels or {})
        self.aliases: dict[str, int] = dict(aliases or {})

    @classmethod
    def numbered(cls, size: int) -> Vocabulary:
        """A vocabulary of ``size`` ids whose names are their numbers."""
        return cls(map(str, range(size)))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, index: Any) -> Any:
        return self.names[index]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def _ids_by_label(self) -> dict[str, int]:
        return {label: number for number, label in self.labels.items()}

    def id(self, name: str, kind: str = "name") -> int:
        """Id of a name, label or alias; an unknown one is an error that suggests the nearest."""
        number = self.find(name)
        if number is None:
            raise UnknownNameError(kind, name, [*self.names, *self.labels.values()])
        return number

    def find(self, name: str) -> int | None:
        """The id of a name, label or alias, or None."""
        for known in (self._ids, self._ids_by_label, self.aliases):
            if name in known:
                return known[name]
        return None

    def check(self) -> None:
        """Raise a DataError unless names are distinct texts and ids belong to them."""
        size = len(self.names)
        texts = (*self.names, *self.labels.values(), *self.aliases)
        if not size or not all(isinstance(text, str) for text in texts):
            raise DataError("a vocabulary is made of texts, at least one")
        if len(set(self.names)) != size:
            raise DataError("two names of a vocabulary are the same")
        for number in (*self.labels, *self.aliases.values()):
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < size:
                raise DataError(f"{str(number)[:80]!r} is no id of a vocabulary of {size:,} names")

    def label(self, number: int) -> str:
        """What to show a person for ``number``."""
        return self.labels.get(int(number)) or str(self[int(number)])


def first_of_each(columns: Sequence[tuple[IntArray, int]]) -> IntArray:
    """Ascending positions of the first occurrence of each distinct row.

    Args:
        columns: (N,) values from 0, and what all of them are less than.
    """
    key, room = np.zeros(len(columns[0][0]), np.int64), 1
    for column, size in columns:
        if room * size >= 2**63:
            # There are no more different keys than rows: numbered anew, they leave room.
            key, room = np.unique(key, return_inverse=True)[1], len(key)
        key, room = key * size + column, room * size
    return np.sort(np.unique(key, return_index=True)[1])


def check_steps(steps: int) -> None:
    """Raise a DataError where a graph spans more steps than can be numbered."""
    if steps > _MOST:
        raise DataError(
            f"the facts span {steps:,} time steps, and {_MOST:,} can be told apart: choose a "
            "coarser time unit"
        )


def _narrowed(name: str, column: npt.NDArray[Any]) -> Column:
    """A column of any whole numbers as int32.

    Raises:
        DataError: a number is too large for it, or none.
    """
    if not np.issubdtype(column.dtype, np.integer):
        raise DataError(f"the column {name} holds no whole numbers but {column.dtype}")
    if column.size and (int(column.min()) < -_MOST or int(column.max()) >= _MOST):
        advice = ": choose a coarser time unit" if name == "time" else ""
        raise DataError(f"the column {name} reaches {int(column.max()):,}, of {_MOST:,}{advice}")
    return column.astype(np.int32)


@dataclass(frozen=True, eq=False)
class Facts:
    """Distinct quadruples (s, r, o, t) in chronological order, with names and a calendar.

    Invariants (established by :meth:`build`): all columns int32 of one length N; ids within the
    vocabularies; no two rows equal; ``time`` is a step index, non-decreasing, starts at 0; rows of
    one step keep the order in which they were read. Columns are in memory or mapped from a folder
    (``data.ingest``); nobody changes them. Wider ones are narrowed when they are handed in.
    """

    subject: Column
    """(N,) entity id of the subject."""
    relation: Column
    """(N,) relation id."""
    object: Column
    """(N,) entity id of the object."""
    time: Column
    """(N,) step index."""
    entities: Vocabulary
    relations: Vocabulary
    calendar: Calendar = field(default_factory=Calendar)
    name: str = ""
    """What to call this graph in tables."""
    law: Any = None
    """The law that generated the facts, where they are simulated (see ``data.world``)."""
    folder: Any = field(default=None, init=False, repr=False)
    """The ``data.folder.FactFolder`` that these are all facts of; not passed on to a copy, which
    may hold others."""

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process go the columns, or the path of their folder; a law stays behind."""
        if self.folder is not None:
            return self.folder.facts, ()
        columns = (self.subject, self.relation, self.object, self.time)
        return Facts, (*columns, self.entities, self.relations, self.calendar, self.name)

    def __post_init__(self) -> None:
        for name in ("subject", "relation", "object", "time"):
            column = getattr(self, name)
            if column.dtype != np.int32:
                object.__setattr__(self, name, _narrowed(name, column))

    @classmethod
    def build(
        cls,
        subject: npt.ArrayLike,
        relation: npt.ArrayLike,
        object: npt.ArrayLike,
        time: npt.ArrayLike,
        *,
        entities: Vocabulary,
        relations: Vocabulary,
        unit: str = "step",
        name: str = "",
        law: Any = None,
    ) -> Facts:
        """Order, deduplicate and number the time of raw columns.

        Args:
            subject, relation, object: (N,) ids.
            time: (N,) raw times in ``unit`` (see ``data.calendar``).
            entities, relations: names by id.
            unit: what one raw time unit is.
            name: what to call this graph in tables.
            law: the generating law of a simulated graph.

        Returns:
            Facts with the invariants above.
        """
        columns = [np.asarray(c, dtype=np.int64) for c in (subject, relation, object, time)]
        s, r, o, raw = columns
        if len({c.shape for c in columns}) != 1 or s.ndim != 1:
            raise DataError(f"columns differ in shape: {[c.shape for c in columns]}")
        if len(s) == 0:
            raise DataError(f"{name or 'the input'} holds no facts")
        for column, size, what in (
            (s, len(entities), "subject"),
            (r, len(relations), "relation"),
            (o, len(entities), "object"),
        ):
            low, high = int(column.min()), int(column.max())
            if low < 0 or high >= size:
                worst = low if low < 0 else high
                raise DataError(f"{what} id {worst} is outside the vocabulary of {size} names")
        order = np.argsort(raw, kind="stable")
        s, r, o, raw = s[order], r[order], o[order], raw[order]
        origin = int(raw[0])
        stride = max(int(np.gcd.reduce(raw - origin)), 1)
        step = (raw - origin) // stride
        check_steps(int(step[-1]) + 1)
        keep = first_of_each(
            [(step, int(step[-1]) + 1), (r, len(relations)), (s, len(entities)), (o, len(entities))]
        )
        subject_, relation_, object_, time_ = (c[keep].astype(np.int32) for c in (s, r, o, step))
        return cls(
            subject_,
            relation_,
            object_,
            time_,
            entities,
            relations,
            Calendar(unit, origin, stride),
            name,
            law,
        )

    def check(self) -> None:
        """Raise a DataError where an invariant does not hold; for facts that others have written.

        Whether rows repeat is not looked at: nothing breaks if they do.
        """
        columns = (self.subject, self.relation, self.object, self.time)
        if any(c.ndim != 1 or len(c) != len(self.time) for c in columns):
            raise DataError("the columns are not of one length")
        if len(self.time) == 0:
            raise DataError("there are no facts")
        for names in (self.entities, self.relations):
            names.check()
        for what, column, size in (
            ("a subject's id", self.subject, len(self.entities)),
            ("a relation's id", self.relation, len(self.relations)),
            ("an object's id", self.object, len(self.entities)),
            ("a time", self.time, _MOST),
        ):
            if int(column.min()) < 0 or int(column.max()) >= size:
                raise DataError(f"{what} is not between 0 and {size - 1:,}")
        if bool((self.time[1:] < self.time[:-1]).any()):
            raise DataError("the facts are not in the order of their times")
        if not isinstance(self.name, str):
            raise DataError(f"the name {self.name!r} is no text")

    def __len__(self) -> int:
        return len(self.time)

    def __repr__(self) -> str:
        if not len(self):
            return f"Facts({self.name or 'unnamed'}: none)"
        first, last = self.calendar.label(0), self.calendar.label(self.steps - 1)
        return (
            f"Facts({self.name or 'unnamed'}: {len(self):,} facts, {len(self.entities):,} entities"
            f", {len(self.relations):,} relations, {first} to {last})"
        )

    @property
    def steps(self) -> int:
        """Number of time steps, from 0 to the last fact's inclusive."""
        return int(self.time[-1]) + 1

    def select(self, rows: npt.NDArray[np.bool_] | IntArray) -> Facts:
        """A copy with only ``rows`` (a mask or ascending positions); the calendar stays.

        What a model may see is no copy but a mask: :class:`~metatkgr.data.visibility.VisibleFacts`.
        """
        return replace(
            self,
            subject=self.subject[rows],
            relation=self.relation[rows],
            object=self.object[rows],
            time=self.time[rows],
        )

    def merged(self, recent: Facts) -> Facts:
        """A copy with further facts, in time order; those at one step come behind the others.

        Args:
            recent: in time order, none of them among these; its vocabulary begins with this one.
        """
        position = np.searchsorted(self.time, recent.time, side="right")

        def both(name: str) -> Column:
            return np.insert(getattr(self, name), position, getattr(recent, name))

        return replace(
            self,
            subject=both("subject"),
            relation=both("relation"),
            object=both("object"),
            time=both("time"),
            entities=recent.entities,
            relations=recent.relations,
        )

    def describe(self, row: int) -> tuple[str, str, str, str]:
        """One fact in words: subject, relation, object, date."""
        return (
            self.entities.label(self.subject[row]),
            self.relations.label(self.relation[row]),
            self.entities.label(self.object[row]),
            self.calendar.label(self.time[row]),
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the facts and their names: the same for the same graph, whatever its file."""
        digest = hashlib.sha256(repr(self.calendar).encode())
        for column in (self.subject, self.relation, self.object, self.time):
            digest.update(np.ascontiguousarray(column).data)
        for names in (self.entities, self.relations):
            for name in names:
                digest.update(f"{len(name)} {name}".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    @cached_property
    def emerged_at(self) -> IntArray:
        """(E,) step of each entity's first fact; -1 for entities of the vocabulary without one."""
        first, begin = np.full(len(self.entities), np.iinfo(np.int64).max), 0
        links = None if self.folder is None else self.folder.links()
        if links is not None:  # the first link of each entity is at the head of its links
            known, begin = links.first_steps(), links.facts
            first[: len(known)] = np.where(known < 0, first[: len(known)], known)
        time = self.time[begin:]
        np.minimum.at(first, self.subject[begin:], time)
        np.minimum.at(first, self.object[begin:], time)
        first[first == np.iinfo(np.int64).max] = -1
        return first
