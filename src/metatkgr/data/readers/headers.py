"""What the columns of event files are called: the words of headers, and GDELT, which has none."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from metatkgr.data.calendar import NUMBER_FORMS, minutes_of_numbers

__all__ = [
    "GDELT",
    "are_events",
    "is_gdelt",
    "numbers_are_dates",
    "recognise",
    "recognise_all",
    "role_of",
]

_USUAL = {
    "subject": ("subject", "s", "head", "source"),
    "relation": ("relation", "r", "predicate", "rel", "type"),
    "object": ("object", "o", "tail", "target"),
    "time": ("time", "t", "timestamp", "date", "year", "when", "start"),
    "end": ("end", "until", "stop"),
}
"""Each of these is clear by itself."""
_EVENTS = {
    "subject": ("actor1name", "actor1code", "sourcename", "actorname"),
    "relation": ("eventcode", "eventtext", "eventtype"),
    "object": ("actor2name", "actor2code", "targetname", "recipientname"),
    "time": ("sqldate", "eventdate"),
    "end": (),
}
"""Of GDELT, ICEWS and POLECAT."""
_OTHERS = {
    "subject": ("from", "src", "sender", "actor", "actor1", "who", "headentity", "sourcenodeuuid"),
    "relation": (
        *("relationtype", "relationship", "edgetype", "event", "action", "verb", "property"),
        *("label", "what", "name"),
    ),
    "object": (
        *("to", "dst", "destination", "receiver", "recipient", "actor2", "whom", "tailentity"),
        "targetnodeuuid",
    ),
    "time": (
        *("ts", "datetime", "day", "month", "validfrom", "validat", "starttime", "startdate"),
        *("eventtime", "since", "moment", "at", "attime", "pointintime", "generatedattime"),
    ),
    "end": ("validto", "validuntil", "invalidat", "endtime", "enddate"),
}
"""These are clear only in company: where all four roles are found."""
_NAMED = ("subject", "relation", "object", "time")
_NOT_WORD = re.compile(r"[\W_]+")

GDELT = {
    "subject": (6, "Actor1Name"),
    "relation": (26, "EventCode"),
    "object": (16, "Actor2Name"),
    "time": (1, "SQLDATE"),
}
"""Position and name of the columns that are read; the same in all versions of the format."""
_GDELT_WIDTHS = (57, 58, 61)
"""Before April 2013, of version 1.0 since then, and of version 2.0."""


def recognise(names: Sequence[str]) -> dict[str, int]:
    """Role to position for each role that a name of a header stands for by itself."""
    folded = [name.strip().casefold() for name in names]
    found = _found(folded, _USUAL)
    if "end" in found and "start" in folded:
        found["time"] = folded.index("start")
    return found


def recognise_all(names: Sequence[str]) -> dict[str, int]:
    """Role to position if subject, relation, object and time are all there; empty if not."""
    folded = [_folded(name) for name in names]
    words = {role: (*_EVENTS[role], *_USUAL[role], *_OTHERS[role]) for role in _USUAL}
    found = _found(folded, words)
    clear = all(role in found for role in _NAMED) and len(set(found.values())) == len(found)
    return found if clear else {}


def role_of(name: str) -> str:
    """The role that a name stands for in company; empty for others."""
    word = _folded(name)
    return next((role for role in _USUAL if word in _USUAL[role] + _OTHERS[role]), "")


def are_events(names: Sequence[str], positions: Mapping[str, int]) -> bool:
    """Whether both ends are actors of an event format, where one of them may be missing."""
    ends = ("subject", "object")
    return all(_folded(names[positions[role]]) in _EVENTS[role] for role in ends)


def is_gdelt(rows: Sequence[Sequence[str]]) -> bool:
    """Whether rows without a header are a raw export of GDELT's events."""
    alike = sum(
        len(row) in _GDELT_WIDTHS
        and row[0].isdecimal()
        and len(row[1]) == 8
        and row[1].isdecimal()
        and numbers_are_dates({int(row[1])})
        for row in rows
    )
    return 2 * alike > len(rows)


def numbers_are_dates(values: Collection[int]) -> bool:
    """Whether most of some distinct numbers state a day: yyyymmdd, perhaps with a time of day."""
    known = [value for value in values if abs(value) < 10**15]
    form = minutes_of_numbers(np.asarray(known, np.int64))[1]
    days = np.isin(form, [at for at, name in enumerate(NUMBER_FORMS) if name.startswith("yyyy")])
    return bool(2 * np.count_nonzero(days) > len(values))


def _folded(name: str) -> str:
    return _NOT_WORD.sub("", name.casefold())


def _found(folded: Sequence[str], words: Mapping[str, Sequence[str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for role, synonyms in words.items():
        at = next((folded.index(word) for word in synonyms if word in folded), None)
        if at is not None:
            found[role] = at
    return found
