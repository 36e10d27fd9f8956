"""Kinds of simulated worlds: who lives in them, which ties there are, and how they come about.

A kind is a description, not code: a part of ``kinds.toml``. ``careers`` has a law of its own
(``step``); all others are made by one process (``ties``), in which everything that happens at a
step is drawn from the state before it:

* every type of entity has a population that grows; a newcomer appears with one fact, its *debut*,
  whose other end is anybody, and belongs to the community of that other end;
* a subject *starts* a tie with a chance (tempo, its own activity, season). It picks the object by
  following a path of ties (who is tied to whom I am tied to), or by copying anybody's tie
  (popularity), or else on its own: within its community, or anybody at all;
* it keeps the last few ties. A tie that is kept *repeats* and *ends*, each with a fixed chance.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from metatkgr.data.calendar import date_to_raw
from metatkgr.files import read_toml

__all__ = ["CAREERS", "KINDS", "EntityType", "Kind", "Tie"]


@dataclass(frozen=True)
class EntityType:
    """A type of entity and how many there are, for a world of scale 1 (about 20,000 facts)."""

    name: str
    naming: str
    """'person', 'firm', or patterns around the name of a place: '{}_League {}_Cup'."""
    start: float
    """How many there are at the beginning."""
    join: float
    """How many join over the planned time; of those who retire: over 200 steps."""
    retires: float = 0.0
    """Chance per step to be seen no more."""
    debut: str = ""
    """Relation of the first fact; '~' before it where the newcomer is the object."""
    least: int = 4
    least_join: int = 4


@dataclass(frozen=True)
class Tie:
    """How one sort of tie starts, repeats and ends. Chances are per step."""

    starts: str
    """Relation that tells of a new tie; its name in paths."""
    subject: str
    object: str
    """Types of the two ends."""
    tempo: float
    """Chance that a subject of middling activity starts one."""
    repeats: str | None = None
    """Relation that tells of a kept tie; may be the same as ``starts``."""
    ends: str | None = None
    """Relation that tells of the end; None: a tie ends unseen."""
    keeps: int = 1
    """How many ties a subject keeps: a new one beyond that takes the place of the oldest."""
    renew: float = 0.0
    """Chance that a kept tie is reported again."""
    end: float = 0.0
    """Chance that a kept tie ends."""
    follow: tuple[tuple[str, float], ...] = ()
    """Paths with their shares of the new ties, as in ('likes > ~likes > likes', 0.5)."""
    popular: float = 0.0
    """Share of new ties that copy a tie of anybody."""
    community: float = 0.0
    """Of ties that follow nobody, the share within the subject's community."""
    season: tuple[int, float] = (1, 0.0)
    """Period in steps and depth of the wave of tempo and renewal; communities take turns."""
    late: float = 0.0
    """Share of the planned time before which such ties hardly ever start."""

    @cached_property
    def relations(self) -> tuple[str, ...]:
        """The relations that tell of it, each once."""
        relations = (self.starts, self.repeats, self.ends)
        return tuple(dict.fromkeys(name for name in relations if name is not None))


@dataclass(frozen=True)
class Kind:
    """A kind of world."""

    name: str
    about: str
    types: tuple[EntityType, ...]
    slots: dict[str, tuple[str, str]]
    """The types of subjects and objects of each relation."""
    ties: tuple[Tie, ...] = ()
    """None where the kind has a law of its own."""
    unit: str = "day"
    stride: int = 1
    """A step is so many units."""
    first: dt.date = dt.date(2015, 1, 5)
    """Date of step 0."""
    steps: int = 200
    """Planned length of a world of 20,000 facts."""
    communities: int = 6

    @cached_property
    def relations(self) -> tuple[str, ...]:
        """Names of the relations, by number."""
        return tuple(self.slots)

    @cached_property
    def slot_types(self) -> tuple[tuple[int, int], ...]:
        """For each relation the numbers of the types of its subjects and objects."""
        number = {type_.name: at for at, type_ in enumerate(self.types)}
        return tuple((number[subject], number[other]) for subject, other in self.slots.values())

    @cached_property
    def debuts(self) -> tuple[tuple[int, bool], ...]:
        """For each type the tie of its first fact, and whether the newcomer is its object."""
        names = [tie.starts for tie in self.ties]
        return tuple(
            (names.index(type_.debut.removeprefix("~")), type_.debut.startswith("~"))
            for type_ in self.types
        )

    @property
    def origin(self) -> int:
        """Raw time of step 0."""
        return date_to_raw(self.first, self.unit)


def _kind(name: str, content: dict[str, Any]) -> Kind:
    """A kind as ``kinds.toml`` has it; its relations are those of its ties."""
    types = tuple(EntityType(**type_) for type_ in content.pop("types"))
    ties = tuple(
        Tie(**tie | {key: _tuples(tie[key]) for key in ("follow", "season") if key in tie})
        for tie in content.pop("ties", ())
    )
    slots = {relation: (tie.subject, tie.object) for tie in ties for relation in tie.relations}
    slots |= {relation: _tuples(ends) for relation, ends in content.pop("slots", {}).items()}
    return Kind(name=name, types=types, slots=slots, ties=ties, **content)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


KINDS = {
    name: _kind(name, content)
    for name, content in read_toml(Path(__file__).with_name("kinds.toml")).items()
}
"""By name; ``world`` without a kind is ``careers``."""
CAREERS = KINDS["careers"]
