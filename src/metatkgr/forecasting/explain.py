"""What a forecaster says: facts, forecasts and reasons in words, ready for people and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from metatkgr.forecasting.live import Snapshot
from metatkgr.models.base import Explanation

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "FactView",
    "Forecast",
    "Forecasts",
    "Match",
    "Observed",
    "Reason",
    "Retracted",
    "Verbaliser",
]

_NAMED = 3
"""So many others are named one by one."""
_SAYS_WEIGHT = ("fact", "vectors")
"""Reasons whose sentences tell their weight, or have none."""
_DESCRIBED = {"use_attribute_docstrings": True}
"""For the service: OpenAPI describes the fields below by the texts under them."""


class FactView(NamedTuple):
    """A fact as a person writes it; in JSON ``[subject, relation, object, time]``."""

    subject: str
    relation: str
    object: str
    time: str


@dataclass(frozen=True)
class Match:
    """An entity found by :meth:`Forecaster.search`."""

    __pydantic_config__ = _DESCRIBED
    name: str
    label: str
    """What to show a person; the name, where there is no better one."""
    facts: int
    """How many facts it is in."""
    first: str
    """Date of its first fact; empty without one."""
    last: str
    """Date of its last fact; empty without one."""


@dataclass(frozen=True)
class Observed:
    """What came of observing some facts."""

    __pydantic_config__ = _DESCRIBED
    accepted: int
    """Facts that were not known before."""
    duplicates: int
    """Facts that were known already, or came twice."""
    new_entities: tuple[str, ...] = ()
    """Names that appeared for the first time."""


@dataclass(frozen=True)
class Retracted:
    """What came of retracting some facts."""

    __pydantic_config__ = _DESCRIBED
    retracted: int
    """Facts that held and do so no more."""
    unknown: int
    """Facts that did not hold."""
    gone_entities: tuple[str, ...] = ()
    """Names that went with the last of their facts."""


@dataclass(frozen=True)
class Reason:
    """Something visible that speaks for a forecast, or against it."""

    __pydantic_config__ = _DESCRIBED
    kind: str
    """'repeat', 'contact', 'path', 'frequency', 'fact', 'vectors', …"""
    weight: float
    """The share of the forecast's chance that would be lost without it, 0..1, measured by leaving
    it out. Below 0: it speaks against the forecast, and takes this share."""
    facts: tuple[FactView, ...]
    """The facts it consists of; none, where it is about learned vectors."""
    text: str
    """A plain sentence."""
    count: int = 1
    """How many facts (of walks: how many others) there are in all; ``facts`` may be some."""


@dataclass(frozen=True)
class Forecast:
    """One candidate and how likely it is."""

    __pydantic_config__ = _DESCRIBED
    entity: str
    """The name of the forecast other end."""
    label: str
    relation: str
    side: str
    """'object': the query entity is the subject and this is the object; 'subject': the reverse."""
    at: str
    score: float
    """The model's own number: comparable within one query only."""
    probability: float
    """That this is the answer, given that there is one; within a time, that it comes and is this.
    Calibrated."""
    rank: int
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Forecasts:
    """The answer to one query: candidates, best first."""

    query: dict[str, Any]
    """What was asked, with names and dates as they were understood, and by whom it is answered."""
    forecasts: tuple[Forecast, ...]
    other: float | None = 0.0
    """Probability of anything else; None: within a time, of all relations, where several facts may
    come."""
    someone_new: float | None = None
    """The part of it that belongs to someone whom nobody has heard of; None: of several relations,
    where it is not told apart."""
    comes: float | None = 1.0
    """Probability that such a fact comes within the time; 1 where that is given."""
    when: tuple[tuple[str, float], ...] = ()
    """Dates within the time, and the probability that such a fact has come by then; none, where no
    time or no relation is asked for."""
    calibration: dict[str, Any] = field(default_factory=dict)
    """How far the probabilities can be trusted: error and size of the sample."""

    def __len__(self) -> int:
        return len(self.forecasts)

    def __iter__(self) -> Iterator[Forecast]:
        return iter(self.forecasts)

    def __getitem__(self, index: int) -> Forecast:
        return self.forecasts[index]

    def to_json(self) -> dict[str, Any]:
        """As ``metatkgr predict --json`` writes it; ``explanation`` is about the first forecast."""
        best = self.forecasts[0].reasons if self.forecasts else ()
        explanation = [
            {"fact": list(fact), "weight": reason.weight, "kind": reason.kind}
            for reason in best
            for fact in reason.facts
        ]
        return {
            "query": self.query,
            # Not ``asdict``, which copies every text of every fact.
            "forecasts": [
                {**vars(forecast), "reasons": [dict(vars(reason)) for reason in forecast.reasons]}
                for forecast in self.forecasts
            ],
            "other": self.other,
            "someone_new": self.someone_new,
            "comes": self.comes,
            "when": [list(row) for row in self.when],
            "explanation": explanation,
            "calibration": self.calibration,
        }

    def _columns(self) -> dict[str, list[Any]]:
        names = ("rank", "entity", "label", "relation", "side", "at", "score", "probability")
        columns: dict[str, list[Any]] = {
            name: [getattr(forecast, name) for forecast in self.forecasts] for name in names
        }
        columns["reasons"] = [
            "; ".join(reason.text for reason in forecast.reasons) for forecast in self.forecasts
        ]
        return columns

    def to_pandas(self) -> Any:
        """A pandas frame, one row per forecast; the reasons as one text."""
        from metatkgr.errors import need

        return need("pandas").DataFrame(self._columns())

    def to_polars(self) -> Any:
        """A polars frame, one row per forecast; the reasons as one text."""
        from metatkgr.errors import need

        return need("polars").DataFrame(self._columns())

    def title(self) -> str:
        """The query as one line."""
        q = self.query
        when = q["at"] if not q.get("within") else f"{q['at']} to {q['until']}"
        if q.get("relation") is None:
            return f"What next for {q['label']}, {when}?"
        ends = (q["label"], "…") if q["side"] == "object" else ("…", q["label"])
        return f"{ends[0]} {q['relation']} {ends[1]}, {when}?"

    def __rich__(self) -> Table:
        """A table for people."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.title()), title_justify="left", header_style="bold")
        every = self.query.get("relation") is None
        table.add_column("", justify="right")
        table.add_column("forecast", overflow="fold")
        table.add_column("probability", justify="right")
        explained = any(forecast.reasons for forecast in self.forecasts)
        if explained:
            table.add_column("because (lost without it)", overflow="fold")
        for f in self.forecasts:
            row = [str(f.rank), self._what(f) if every else f.label]
            row.append(f"{f.probability:.1%}")
            if explained:
                row.append("\n".join(_because(f)))
            # Text, not markup: names may hold brackets.
            table.add_row(*map(Text, row))
        for what, chance in self._rest():
            table.add_row("", what, f"{chance:.1%}")
        if self.when:
            table.caption, table.caption_justify = self._by(), "left"
        return table

    def _by(self) -> str:
        """The distribution of its time."""
        by = [f"{date}: {chance:.1%}" for date, chance in self.when]
        return f"such a fact comes by {', by '.join(by)}"

    def _rest(self) -> list[tuple[str, float]]:
        """What the forecasts leave."""
        if self.other is None or self.comes is None:
            return []
        new = "" if self.someone_new is None else f" (someone new: {self.someone_new:.1%})"
        rest = [(f"anything else{new}", self.other)]
        if self.query.get("within"):
            rest.append(("nothing such in this time", 1 - self.comes))
        return rest

    def _what(self, forecast: Forecast) -> str:
        """The fact that is forecast."""
        ends = (self.query["label"], forecast.label)
        left, right = ends if forecast.side == "object" else ends[::-1]
        return f"{left} {forecast.relation} {right}"

    def __str__(self) -> str:
        lines = [self.title()]
        for f in self.forecasts:
            lines.append(f"{f.rank:3}. {self._what(f)}, {f.at}: {f.probability:.1%}")
            lines += [f"       {why}" for why in _because(f)]
        lines += [f"     {what}: {chance:.1%}" for what, chance in self._rest()]
        if self.when:
            lines.append(f"     {self._by()}")
        return "\n".join(lines)


def _because(forecast: Forecast) -> list[str]:
    """Reasons with their weights; those without any only where none has one."""
    weighty = [reason for reason in forecast.reasons if reason.weight] or forecast.reasons
    return [
        reason.text if reason.kind in _SAYS_WEIGHT else f"{abs(reason.weight):.0%} {reason.text}"
        for reason in weighty
    ]


class Verbaliser:
    """Puts ids of a snapshot, facts and explanations into words.

    Args:
        snapshot: whose vocabularies and calendar are used.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._count = len(snapshot.first.relations)
        self._calendar = snapshot.first.calendar
        # One answer speaks of few entities, relations and dates, and often.
        self._label, self._date = cache(snapshot.entities.label), cache(self._calendar.label)
        self._relation_label = cache(snapshot.first.relations.label)

    def relation(self, directed: int) -> str:
        """What a directed relation is called, without its direction."""
        return self._relation_label(directed % self._count)

    def date(self, step: int) -> str:
        """The date of a step."""
        return self._date(step)

    def fact(self, source: int, relation: int, target: int, step: int) -> FactView:
        """A link as the fact it is read from."""
        if relation >= self._count:
            source, target, relation = target, source, relation - self._count
        label = self._label
        return FactView(
            label(source), self._relation_label(relation), label(target), self._date(step)
        )

    def reason(self, entity: int, relation: int, answer: int, why: Explanation) -> Reason:
        """What speaks for an answer to (entity, relation, ?), in words."""
        speak = {
            "repeat": self._repeat,
            "contact": self._contact,
            "path": self._path,
            "frequency": self._frequency,
            "shared": self._shared,
            "fact": self._carrying,
            "vectors": self._vectors,
        }.get(why.kind, self._other)
        facts = tuple(dict.fromkeys(starmap(self.fact, why.links)))
        text = speak(entity, relation, answer, why)
        if why.weight < 0:
            text = f"against: {text}"
        return Reason(why.kind, why.weight, facts, text, why.count)

    def _repeat(self, entity: int, relation: int, answer: int, why: Explanation) -> str:
        said = self._said(entity, relation, answer)
        return f"{said} {self._when([link.time for link in why.links], why.count)}"

    def _said(self, entity: int | None, relation: int, answer: int | None) -> str:
        """A fact as the graph writes it, in quotes: that is right whatever a relation is called.

        Seen from the entity; '…' stands for anybody.
        """
        ends = ["…" if end is None else self._label(end) for end in (entity, answer)]
        left, right = ends[::-1] if relation >= self._count else ends
        return f"“{left} {self.relation(relation)} {right}”"

    def _contact(self, entity: int, relation: int, answer: int, why: Explanation) -> str:
        names = [f"“{self.relation(link.relation)}”" for link in why.links]
        names = list(dict.fromkeys(names))
        when = self._when([link.time for link in why.links], why.count)
        return f"facts with {self._label(answer)} by {_listed(names, len(names))} {when}"

    def _path(self, entity: int, relation: int, answer: int, why: Explanation) -> str:
        middle = why.links[0].target
        # The links of a walk come in threes: e to y, z to y, z to x.
        others = list(dict.fromkeys(self._label(link.source) for link in why.links[2::3]))
        least = "at least " if why.at_least else ""
        noun, verb = f"{least}{why.count:,} others", "are"
        if why.count == 1:
            noun, verb = f"{least}one other", "is"
        return (
            f"{noun} of {self._said(None, relation, middle)} {verb} also in "
            f"{self._said(None, relation, answer)}: {_listed(others, why.count)}"
        )

    def _frequency(self, entity: int, relation: int, answer: int, why: Explanation) -> str:
        last = self._on(self.date(why.links[0].time))
        times = f"once before, {last}"
        if why.count > 1:
            times = f"{why.count:,} times before, last {last}"
        return f"{self._said(None, relation, answer)} {times}"

    def _shared(self, entity: int, relation: int, answer: int, why: Explanation) -> str:
        # Two links for each neighbour: of the entity and of the answer.
        others = [self._label(link.target) for link in why.links[::2]]
        ends = f"{self._label(entity)} and {self._label(answer)}"
        return f"{ends} both have facts with {_listed(others, why.count, why.at_least)}"

    def _carrying(self, entity: int, relation: int, answer: int, why: Explanation) -> str:
        fact = self.fact(*why.links[0])
        when = self._when([link.time for link in why.links], why.count)
        this, share = "this" if why.count == 1 else "these", f"{abs(why.weight):.0%} less likely"
        worth = f"without {this} {share}" if why.weight >= 0 else f"with {this} {share}"
        return f"“{fact.subject} {fact.relation} {fact.object}” {when}; {worth}"

    def _vectors(self, entity: int, relation: int, answer: int, why: Explanation) -> str:
        label = self._label
        said = (
            "no single visible fact carries this forecast: it comes from the learned vectors of "
            f"{label(entity)} and {label(answer)}"
        )
        if not why.entities:
            return said
        near = _listed([label(other) for other in why.entities], len(why.entities))
        return f"{said}; nearest to {label(entity)}: {near}"

    def _other(self, entity: int, relation: int, answer: int, why: Explanation) -> str:
        said = [
            f"“{fact.subject} {fact.relation} {fact.object}” {self._on(fact.time)}"
            for fact in (self.fact(*link) for link in why.links[:_NAMED])
        ]
        return f"{why.kind}: {_listed(said, why.count, why.at_least)}"

    def _on(self, date: str) -> str:
        return f"{'on' if self._calendar.unit in ('day', 'hour', 'week') else 'in'} {date}"

    def _when(self, steps: Sequence[int], count: int) -> str:
        """'in 2004', 'in 2004-2006 (3 times)', 'on 2018-03-05'."""
        first, last = self.date(min(steps)), self.date(max(steps))
        if count > len(steps):  # only the latest are known
            return f"{count:,} times, last {self._on(last)}"
        if first == last:
            return self._on(last)
        if self._calendar.unit in ("year", "step"):
            span = f"in {first}-{last}"
        else:
            span = f"from {first} to {last}"
        return f"{span} ({count:,} times)"


def _listed(names: Sequence[str], count: int, at_least: bool = False) -> str:
    """'A, B and C', or 'A, B, C and 4 more' of ``count``."""
    shown = list(names[:_NAMED])
    more = count - len(shown)
    if more > 0:
        return f"{', '.join(shown)} and {'at least ' if at_least else ''}{more:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
