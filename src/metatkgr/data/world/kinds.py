"""Kinds of simulated worlds: who lives in them, which ties there are, and how they come about.

A kind is a description, not code. ``careers`` has a law of its own (``step``); all others are
made by one process (``ties``), in which everything that happens at a step is drawn from the state
before it:

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

from metatkgr.data.calendar import date_to_raw

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
    """Chance that a kept tie is told again."""
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

    @classmethod
    def of_ties(
        cls,
        name: str,
        about: str,
        types: tuple[EntityType, ...],
        ties: tuple[Tie, ...],
        **more: int | str | dt.date,
    ) -> Kind:
        """A kind whose relations are those of its ties."""
        slots = {relation: (tie.subject, tie.object) for tie in ties for relation in tie.relations}
        return cls(name, about, types, slots, ties, **more)  # type: ignore[arg-type]

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


CAREERS = Kind(
    "careers",
    "leagues, clubs, players and sponsors; weeks",
    (
        EntityType("league", "{}_League {}_Premier_Division {}_Championship {}_Superliga",
                   6, 0, least=2, least_join=0),
        EntityType("club", "FC_{} SV_{} {}_United {}_Rovers Sporting_{} {}_Athletic {}_Town AC_{}",
                   24, 26),
        EntityType("sponsor", "firm", 10, 20, least=2),
        EntityType("player", "person", 130, 640, retires=1 / 60, least=8, least_join=40),
    ),
    {
        "plays for": ("player", "club"),
        "competes in": ("club", "league"),
        "sponsors": ("sponsor", "club"),
        "scores against": ("player", "club"),
        "endorses": ("player", "sponsor"),
    },
    stride=7,
)  # fmt: skip

_TRADE = Kind.of_ties(
    "trade",
    "countries, firms and goods; dense, most facts repeat; months",
    (
        EntityType("country", "Republic_of_{} Kingdom_of_{} {}_Federation {}_Union", 12, 10,
                   debut="exports to"),
        EntityType("good", "{}_ore {}_oil {}_cloth {}_grain", 10, 20, debut="~produces"),
        EntityType("firm", "firm", 14, 110, retires=0.006, debut="is based in", least_join=24),
    ),
    (
        Tie("exports to", "country", "country", 0.10, "exports to", "stops exports to", keeps=6,
            renew=0.9, end=0.01, follow=(("exports to > ~exports to > exports to", 0.4),),
            popular=0.2, community=0.8, season=(12, 0.1)),
        Tie("produces", "country", "good", 0.03, "produces", keeps=4, renew=0.5, end=0.005,
            follow=(("exports to > produces", 0.4),), popular=0.2, community=0.7),
        Tie("is based in", "firm", "country", 0.002, "is based in", renew=0.3, community=0.9),
        Tie("ships to", "firm", "country", 0.06, "ships to", keeps=4, renew=0.8, end=0.02,
            follow=(("is based in > exports to", 0.6),), popular=0.1, community=0.8,
            season=(12, 0.3)),
        Tie("deals in", "firm", "good", 0.02, "deals in", keeps=3, renew=0.6, end=0.01,
            follow=(("is based in > produces", 0.7),), community=0.7),
    ),
    unit="month", first=dt.date(1998, 1, 1), steps=120,
)  # fmt: skip

_CONFLICT = Kind.of_ties(
    "conflict",
    "armed groups, regions and mediators; attacks, answers to them, alliances; days",
    (
        EntityType("region", "{}_Province {}_District {}_Governorate {}_Canton", 24, 20,
                   debut="~operates in"),
        EntityType("group", "{}_Front {}_Brigade {}_Movement {}_Militia", 40, 260, retires=0.004,
                   debut="operates in", least_join=40),
        EntityType("envoy", "person", 6, 40, retires=0.01, debut="meets"),
    ),
    (
        Tie("operates in", "group", "region", 0.05, "operates in", keeps=3, renew=0.03, end=0.02,
            follow=(("allies with > operates in", 0.3), ("attacks > operates in", 0.3)),
            community=0.85),
        Tie("attacks", "group", "group", 0.14, "attacks", keeps=3, renew=0.05, end=0.05,
            follow=(("~attacks", 0.35), ("allies with > attacks", 0.25)), community=0.9,
            season=(90, 0.6)),
        Tie("allies with", "group", "group", 0.02, "supports", "breaks with", keeps=3, renew=0.05,
            end=0.01, follow=(("attacks > ~attacks", 0.5), ("allies with > allies with", 0.2)),
            community=0.9),
        Tie("meets", "envoy", "group", 0.15, "meets", keeps=2, renew=0.1, end=0.05,
            follow=(("meets > attacks", 0.6),), community=0.8, late=0.5),
    ),
    unit="day", first=dt.date(2011, 3, 1), steps=300,
)  # fmt: skip

_CONTRACTS = Kind.of_ties(
    "contracts",
    "agencies, suppliers and lines of work; contracts start, are extended and ended; years",
    (
        EntityType("work", "{}_paving {}_dredging {}_bridges {}_sewers", 12, 20,
                   debut="~works in"),
        EntityType("agency", "{}_Ministry {}_Council {}_Harbour_Board {}_Water_Board", 60, 240,
                   debut="awards to", least_join=24),
        EntityType("supplier", "firm", 90, 1500, retires=0.05, debut="works in",
                   least_join=60),
    ),
    (
        Tie("works in", "supplier", "work", 0.10, "works in", keeps=2, renew=0.12, end=0.05,
            follow=(("~awards to > awards to > works in", 0.3), ("buys from > works in", 0.2)),
            popular=0.1, community=0.8),
        Tie("awards to", "agency", "supplier", 0.9, "extends with", "ends with", keeps=5,
            renew=0.35, end=0.15,
            follow=(("awards to > ~awards to > awards to", 0.5),), popular=0.1, community=0.8),
        Tie("buys from", "supplier", "supplier", 0.15, "buys from", keeps=3, renew=0.15, end=0.1,
            follow=(("~awards to > awards to", 0.5),), community=0.9),
    ),
    unit="year", first=dt.date(1960, 1, 1), steps=50,
)  # fmt: skip

_SOCIAL = Kind.of_ties(
    "social",
    "people, circles and products; friends of friends; few facts repeat; days",
    (
        EntityType("circle", "{}_Circle {}_Choir {}_Runners {}_Readers", 20, 60, debut="~joins"),
        EntityType("product", "firm", 20, 140, debut="~recommends"),
        EntityType("person", "person", 120, 1500, retires=0.01, debut="joins", least_join=60),
    ),
    (
        Tie("joins", "person", "circle", 0.03, keeps=4,
            follow=(("befriends > joins", 0.5), ("joins > ~joins > joins", 0.2)), community=0.8),
        Tie("befriends", "person", "person", 0.10, None, "falls out with", keeps=6, end=0.005,
            follow=(("befriends > befriends", 0.45), ("~befriends", 0.1), ("joins > ~joins", 0.25)),
            community=0.9, season=(7, 0.6)),
        Tie("recommends", "person", "product", 0.05, keeps=4,
            follow=(("befriends > recommends", 0.6),), popular=0.2, community=0.5, season=(7, 0.3)),
    ),
    unit="day", first=dt.date(2020, 1, 6), steps=200,
)  # fmt: skip

_LETTERS = Kind.of_ties(
    "letters",
    "people, offices and topics; bursts of letters among few; weekdays and weekends; days",
    (
        EntityType("office", "{}_Desk {}_Bureau {}_Division {}_Works", 12, 20,
                   debut="~belongs to"),
        EntityType("person", "person", 60, 420, retires=0.006, debut="belongs to",
                   least_join=50),
        EntityType("topic", "Project_{} Case_{} Plan_{} Inquiry_{}", 10, 120, retires=0.03,
                   debut="~works on"),
    ),
    (
        Tie("belongs to", "person", "office", 0.002, renew=0.0, community=0.7),
        Tie("writes to", "person", "person", 0.05, "writes to", keeps=5, renew=0.2, end=0.02,
            follow=(("~writes to", 0.3), ("belongs to > ~belongs to", 0.3),
                    ("works on > ~works on", 0.2)),
            community=0.9, season=(7, 0.8)),
        Tie("works on", "person", "topic", 0.04, "works on", keeps=3, renew=0.14, end=0.03,
            follow=(("writes to > works on", 0.6),), popular=0.1, community=0.8, season=(7, 0.8)),
    ),
    unit="day", first=dt.date(1999, 1, 4), steps=200, communities=10,
)  # fmt: skip

KINDS = {kind.name: kind for kind in (CAREERS, _TRADE, _CONFLICT, _CONTRACTS, _SOCIAL, _LETTERS)}
"""By name; ``world`` without a kind is ``careers``."""
