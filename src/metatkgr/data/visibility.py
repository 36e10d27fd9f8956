"""What a model may see. Every model, sampler, rule and calibration goes through this file.

For a query of entity e at time t, exactly these facts are visible:

1. e's own support, whatever its time;
2. of the *public* facts, those with time strictly before t.

Which facts are public depends on the visibility:

================  ==========================================================================
``entity-split``  facts whose entities are all older than the period; and every support
``frozen``        facts up to the end of the previous period; and every support
``streaming``     everything
================  ==========================================================================

A model is handed :class:`VisibleFacts` (a mask over the facts, which shows the public ones) and the
:class:`Supports`, and reads both through ``graph.index.TemporalIndex`` and what is built on it:
``History`` for evidence about pairs, the samplers for neighbours. These apply the time bound; a
contract test changes the future under every registered model and demands the same scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Column, Facts, IntArray, Vocabulary
from metatkgr.data.periods import Period, Periods
from metatkgr.errors import DataError, UnknownNameError

__all__ = [
    "Directed",
    "PublicRule",
    "Supports",
    "Visibility",
    "VisibleFacts",
    "as_of",
    "directed",
    "public_facts",
]


class Visibility(StrEnum):
    """The three answers to 'what may a model see?'."""

    ENTITY_SPLIT = "entity-split"
    FROZEN = "frozen"
    STREAMING = "streaming"

    @classmethod
    def parse(cls, name: str) -> Visibility:
        """The visibility called ``name``."""
        try:
            return cls(name)
        except ValueError:
            raise UnknownNameError("visibility", name, [v.value for v in cls]) from None


@dataclass(frozen=True, eq=False)
class PublicRule:
    """Which facts anyone may see once their time has passed, so that it can be asked of one fact.

    The facts among old entities up to a step, and some besides: of each of these one end is new,
    and all earlier facts of its two ends with one another are public too.
    """

    old: npt.NDArray[np.bool_] | None
    """(E,) who is old; None: everybody."""
    until: int
    """The last step of the facts among them."""
    besides: IntArray
    """Ascending rows of the others."""

    def mask(self, facts: Facts) -> npt.NDArray[np.bool_]:
        """(N,) mask of the public facts."""
        public: npt.NDArray[np.bool_] = facts.time <= self.until
        if self.old is not None:
            public &= self.old[facts.subject]
            public &= self.old[facts.object]
        public[self.besides] = True
        return public


def public_facts(
    periods: Periods,
    split: Period,
    visibility: Visibility,
    in_support: IntArray,
) -> PublicRule | None:
    """The facts that anyone may see once their time has passed; None: all.

    Args:
        periods: of the whole graph.
        split: the period whose new entities are being forecast.
        visibility: which rule applies.
        in_support: ascending rows of the facts in anyone's support.
    """
    if visibility is Visibility.STREAMING:
        return None
    if visibility is Visibility.FROZEN:
        return PublicRule(None, int(periods.last_step[split - 1]), in_support)
    return PublicRule(periods.of_entity < split, int(periods.last_step[-1]), in_support)


def as_of(facts: Facts, step: int, *, names: bool = True) -> Facts:
    """The facts up to and with a step: what somebody knew who knew nothing later.

    Facts come in time order, so these are the first ones; their columns are not copied where no
    name has to go.

    Args:
        facts: the whole graph.
        step: the last that is seen.
        names: leave out entities and relations that nobody had heard of, so that not even their
            number is known; else ids stay as they are, as a model with weights for them needs it.

    Raises:
        DataError: nothing had happened yet.
    """
    count = int(np.searchsorted(facts.time, step, side="right"))
    if not count:
        raise DataError(
            f"nothing is known as of {facts.calendar.label(step)}: the first fact is of "
            f"{facts.calendar.label(int(facts.time[0]) if len(facts) else 0)}"
        )
    subject, relation, object_, time = (
        column[:count] for column in (facts.subject, facts.relation, facts.object, facts.time)
    )
    entities, relations = facts.entities, facts.relations
    if names:
        entities, (subject, object_) = _used(entities, subject, object_)
        relations, (relation,) = _used(relations, relation)
    return replace(
        facts,
        subject=subject,
        relation=relation,
        object=object_,
        time=time,
        entities=entities,
        relations=relations,
        law=None,
    )


def _used(names: Vocabulary, *columns: Column) -> tuple[Vocabulary, tuple[Column, ...]]:
    """The names that columns of ids use, in the same order, and the columns in their new ids."""
    used = np.unique(np.concatenate([np.unique(column) for column in columns]))
    if len(used) == len(names):
        return names, columns
    new = dict(zip(used.tolist(), range(len(used)), strict=True))
    kept = Vocabulary(
        (names[number] for number in new),
        {new[n]: label for n, label in names.labels.items() if n in new},
        {alias: new[n] for alias, n in names.aliases.items() if n in new},
    )
    return kept, tuple(np.searchsorted(used, column).astype(np.int32) for column in columns)


@dataclass(frozen=True, eq=False)
class VisibleFacts:
    """The public facts, each in both directions: (s, r, o) and (o, r + R, s), R relations.

    A selection over one base, no copy: a mask, and perhaps a few facts that arrived later. The
    directed columns are made when they are read, and not kept; rows are in time order. This
    is the only place where inverse relations are made.
    """

    base: Facts
    """The whole graph, hidden facts too: nobody but this class reads it."""
    public: npt.NDArray[np.bool_] | None = None
    """(N,) which facts of the base can be seen; None: all."""
    recent: Facts | None = None
    """Facts besides, at any time; its vocabulary begins with the base's and may be larger."""
    arrival: IntArray | None = None
    """A number for each recent fact, higher for those that came later and never given twice: what
    is made of those that came first is used again. None: all came at once."""
    rule: PublicRule | None = None
    """What ``public`` is the mask of, where it can be said in other words."""
    layers: WeakValueDictionary[str, Any] = field(default_factory=WeakValueDictionary, repr=False)
    """Indices of the public facts of the base that are in use, by device: one is made once."""
    indices: WeakValueDictionary[str, Any] = field(
        default_factory=WeakValueDictionary, init=False, repr=False
    )
    """The same of these very facts; not passed on to a copy, which may show others."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Indices do not travel: another process makes its own."""
        return VisibleFacts, (self.base, self.public, self.recent, self.arrival, self.rule)

    @classmethod
    def of(cls, facts: Facts, public: npt.NDArray[np.bool_] | None = None) -> VisibleFacts:
        """The facts of a mask, or all, in both directions (a self-link too: both name e's slot)."""
        return cls(facts, public)

    @classmethod
    def by_rule(cls, facts: Facts, rule: PublicRule | None) -> VisibleFacts:
        """The facts that are public by a rule; None: all."""
        return cls(facts, None if rule is None else rule.mask(facts), rule=rule)

    def about(self, entity: IntArray) -> VisibleFacts:
        """Those of the facts, or more of them, that are about some entities, none of them recent.

        Of new entities nothing is public but what is besides the facts of old ones, which is little
        to go over.
        """
        rule = self.rule
        if rule is None or rule.old is None or self.recent or bool(rule.old[entity].any()):
            return self
        return VisibleFacts.of(self.base.select(rule.besides))

    def grown(self, recent: Facts, arrival: IntArray | None = None) -> VisibleFacts:
        """These facts and others, none of them among these; replaces those of earlier calls."""
        return replace(self, recent=recent, arrival=arrival)

    @property
    def _latest(self) -> Facts:
        return self.base if self.recent is None else self.recent

    @property
    def entities(self) -> Vocabulary:
        """All entities, also those that no visible fact names."""
        return self._latest.entities

    @property
    def relations(self) -> Vocabulary:
        """The R relations as the data has them (directed relations number 2R)."""
        return self._latest.relations

    @property
    def calendar(self) -> Calendar:
        """What the steps are called."""
        return self.base.calendar

    @property
    def law(self) -> Any:
        """The generating law, where the facts are simulated (only the oracle reads it)."""
        return self.base.law

    def facts(self) -> Facts:
        """The visible facts in one direction, as one; of facts at one step the recent ones last."""
        base = self.base if self.public is None else self.base.select(self.public)
        return base if self.recent is None else base.merged(self.recent)

    def directed(self, dtype: npt.DTypeLike = np.int64) -> Directed:
        """Source, relation, target and time of all links, (D,) each, D = 2N.

        Args:
            dtype: of the columns; in the narrower one of facts, products of ids overflow.
        """
        return directed(self.facts(), dtype)

    def blocks(self, size: int) -> Iterator[Directed]:
        """The columns of all links, those of at most so many facts at a time: first all in their
        own direction, then all in the other."""
        selections = [(self.base, self.public)]
        if self.recent is not None:
            selections.append((self.recent, None))
        for facts, public in selections:
            count = np.int32(len(self.relations))
            for begin in range(0, len(facts), size):
                rows = slice(begin, begin + size)
                columns = (facts.subject, facts.relation, facts.object, facts.time)
                some = (np.asarray(column[rows]) for column in columns)
                if public is not None:
                    some = (column[public[rows]] for column in some)
                subject, relation, other, time = some
                yield subject, relation, other, time
                yield other, relation + count, subject, time

    def time_range(self) -> tuple[int, int] | None:
        """First and last step; None where nothing is visible."""
        steps = [int(facts.time[row]) for facts, row in self._ends()]
        return (min(steps), max(steps)) if steps else None

    def _ends(self) -> Iterator[tuple[Facts, int]]:
        """The first and the last visible fact of the base and of the recent ones."""
        if self.public is None:
            yield from ((self.base, row) for row in (0, -1) if len(self.base))
        elif self.public.any():
            yield self.base, int(self.public.argmax())
            yield self.base, len(self.public) - 1 - int(self.public[::-1].argmax())
        if self.recent is not None and len(self.recent):
            yield from ((self.recent, row) for row in (0, -1))

    @property
    def source(self) -> IntArray:
        """(D,) entity the link starts from."""
        return self.directed()[0]

    @property
    def relation(self) -> IntArray:
        """(D,) directed relation, 0..2R-1; r + R is the inverse of r."""
        return self.directed()[1]

    @property
    def target(self) -> IntArray:
        """(D,) entity the link leads to."""
        return self.directed()[2]

    @property
    def time(self) -> IntArray:
        """(D,) step, non-decreasing."""
        return self.directed()[3]

    def __len__(self) -> int:
        first = len(self.base) if self.public is None else int(np.count_nonzero(self.public))
        return 2 * (first + (0 if self.recent is None else len(self.recent)))


Directed = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


def directed(facts: Facts, dtype: npt.DTypeLike = np.int64) -> Directed:
    """Source, directed relation, target and time of facts, each fact and then its inverse."""
    count = len(facts.relations)

    def both(forth: Column, back: Column) -> npt.NDArray[Any]:
        column = np.empty((len(forth), 2), dtype)
        column[:, 0], column[:, 1] = forth, back
        return column.reshape(-1)

    return (
        both(facts.subject, facts.object),
        both(facts.relation, facts.relation + np.int32(count)),
        both(facts.object, facts.subject),
        both(facts.time, facts.time),
    )


@dataclass(frozen=True, eq=False)
class Supports:
    """The first K facts of every new entity, seen from that entity.

    A support fact between two new entities may be in one support or in both; it has one row for
    each entity that owns it (two for a fact of an entity with itself: one per direction).
    Rows are grouped by entity and in time order inside a group.
    """

    entity: IntArray
    """(S,) the new entity that owns the fact."""
    relation: IntArray
    """(S,) directed relation, from the entity's side."""
    other: IntArray
    """(S,) the other end."""
    time: IntArray
    """(S,) step."""

    @classmethod
    def none(cls) -> Supports:
        """Of nobody."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing, nothing)

    def __len__(self) -> int:
        return len(self.entity)

    def __getitem__(self, rows: slice | npt.NDArray[Any]) -> Supports:
        """Some of the facts: positions, a mask or a slice."""
        return Supports(self.entity[rows], self.relation[rows], self.other[rows], self.time[rows])

    def directed(self, dtype: npt.DTypeLike = np.int64) -> Directed:
        """Source, relation, target and time: as links, from the owner's side only."""
        columns = (self.entity, self.relation, self.other, self.time)
        source, relation, target, time = (c.astype(dtype, copy=False) for c in columns)
        return source, relation, target, time

    def time_range(self) -> tuple[int, int] | None:
        """First and last step; None where there is no fact."""
        return (int(self.time.min()), int(self.time.max())) if len(self) else None

    def of(self, entity: int) -> Supports:
        """The support of one entity."""
        return self[slice(*np.searchsorted(self.entity, [entity, entity + 1]))]
