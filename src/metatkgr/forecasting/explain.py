"""From ids to words: facts and reasons as a person would say them."""

from __future__ import annotations

from collections.abc import Sequence

from metatkgr.forecasting.graph import Snapshot
from metatkgr.forecasting.views import FactView, Reason
from metatkgr.models.base import Clue

__all__ = ["Verbaliser"]

_NAMED = 3
"""So many others are named one by one."""


class Verbaliser:
    """Puts ids of a snapshot, facts and explanations into words.

    Args:
        snapshot: whose vocabularies and calendar are used.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._entities = snapshot.entities
        self._relations = snapshot.first.relations
        self._calendar = snapshot.first.calendar

    def relation(self, directed: int) -> str:
        """What a directed relation is called, without its direction."""
        return self._relations.label(directed % len(self._relations))

    def date(self, step: int) -> str:
        """The date of a step."""
        return self._calendar.label(step)

    def fact(self, source: int, relation: int, target: int, step: int) -> FactView:
        """A link as the fact it is read from."""
        if relation >= len(self._relations):
            source, target = target, source
        label = self._entities.label
        return FactView(label(source), self.relation(relation), label(target), self.date(step))

    def reason(self, entity: int, relation: int, answer: int, clue: Clue) -> Reason:
        """A clue for an answer to (entity, relation, ?), in words."""
        speak = {
            "repeat": self._repeat,
            "contact": self._contact,
            "path": self._path,
            "frequency": self._frequency,
            "fact": self._carrying,
            "vectors": self._vectors,
        }.get(clue.kind, self._other)
        facts = tuple(dict.fromkeys(self.fact(*link) for link in clue.links))
        return Reason(clue.kind, clue.weight, facts, speak(entity, relation, answer, clue))

    def _repeat(self, entity: int, relation: int, answer: int, clue: Clue) -> str:
        return (
            f"{self._linked(entity, relation, answer)} "
            f"{self._when([link.time for link in clue.links], clue.count)}"
        )

    def _linked(self, entity: int, relation: int, answer: int) -> str:
        """'linked by playsFor to X', or from X, seen from the entity."""
        way = "from" if relation >= len(self._relations) else "to"
        return f"linked by {self.relation(relation)} {way} {self._entities.label(answer)}"

    def _contact(self, entity: int, relation: int, answer: int, clue: Clue) -> str:
        names = list(dict.fromkeys(self.relation(link.relation) for link in clue.links))
        by = _listed(names, len(names))
        when = self._when([link.time for link in clue.links], clue.count)
        return f"linked with {self._entities.label(answer)} by {by} {when}"

    def _path(self, entity: int, relation: int, answer: int, clue: Clue) -> str:
        label, name = self._entities.label, self.relation(relation)
        middle = label(clue.links[0].target)
        # The links of a walk come in threes: e to y, z to y, z to x.
        others = list(dict.fromkeys(label(link.source) for link in clue.links[2::3]))
        listed = _listed(others, clue.count)
        if relation < len(self._relations):
            noun = "another" if clue.count == 1 else f"{clue.count:,} others"
            verb = "is" if clue.count == 1 else "are"
            return (
                f"{noun} linked by {name} to {middle} {verb} also linked by it to "
                f"{label(answer)}: {listed}"
            )
        noun = "another" if clue.count == 1 else f"{clue.count:,} others"
        return (
            f"{middle}, linked by {name} to {label(entity)}, is also linked by it to {noun} to "
            f"which {label(answer)} is linked too: {listed}"
        )

    def _frequency(self, entity: int, relation: int, answer: int, clue: Clue) -> str:
        place = "subject" if relation >= len(self._relations) else "object"
        last = self._on(self.date(clue.links[0].time))
        times = f"once before, {last}"
        if clue.count > 1:
            times = f"{clue.count:,} times before, last {last}"
        return (
            f"{self._entities.label(answer)} was the {place} of {self.relation(relation)} {times}"
        )

    def _carrying(self, entity: int, relation: int, answer: int, clue: Clue) -> str:
        fact = self.fact(*clue.links[0])
        when = self._when([link.time for link in clue.links], clue.count)
        without = "this" if clue.count == 1 else "these"
        return (
            f"{fact.subject} {fact.relation} {fact.object} {when}; without {without} "
            f"{clue.weight:.0%} less likely"
        )

    def _vectors(self, entity: int, relation: int, answer: int, clue: Clue) -> str:
        label = self._entities.label
        said = (
            "no single visible fact carries this forecast: it comes from the learned vectors of "
            f"{label(entity)} and {label(answer)}"
        )
        if not clue.entities:
            return said
        near = _listed([label(other) for other in clue.entities], len(clue.entities))
        return f"{said}; nearest to {label(entity)}: {near}"

    def _other(self, entity: int, relation: int, answer: int, clue: Clue) -> str:
        said = [
            f"{fact.subject} {fact.relation} {fact.object} {self._on(fact.time)}"
            for fact in (self.fact(*link) for link in clue.links[:_NAMED])
        ]
        return f"{clue.kind}: {_listed(said, clue.count)} ({clue.weight:.0%})"

    def _on(self, date: str) -> str:
        return f"{'on' if self._calendar.unit in ('day', 'hour', 'week') else 'in'} {date}"

    def _when(self, steps: Sequence[int], count: int) -> str:
        """'in 2004', 'in 2004-2006 (3 times)', 'on 2018-03-05'."""
        first, last = self.date(min(steps)), self.date(max(steps))
        if first == last:
            return self._on(last)
        if self._calendar.unit in ("year", "step"):
            span = f"in {first}-{last}"
        else:
            span = f"from {first} to {last}"
        return f"{span} ({count:,} times)"


def _listed(names: Sequence[str], count: int) -> str:
    """'A, B and C', or 'A, B, C and 4 more' of ``count``."""
    shown = list(names[:_NAMED])
    more = count - len(shown)
    if more > 0:
        return f"{', '.join(shown)} and {more:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
