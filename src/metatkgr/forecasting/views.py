"""What a forecaster hands out: facts, forecasts and reasons in words, ready for people and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["FactView", "Forecast", "Forecasts", "Match", "Observed", "Reason"]


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
class Reason:
    """Something visible that speaks for a forecast."""

    __pydantic_config__ = _DESCRIBED
    kind: str
    """'repeat', 'contact', 'path', 'frequency', 'fact', 'vectors', …"""
    weight: float
    """Its share in the forecast, 0..1; how it is counted depends on the model."""
    facts: tuple[FactView, ...]
    """The facts it consists of; none, where it is about learned vectors."""
    text: str
    """A plain sentence."""


@dataclass(frozen=True)
class Forecast:
    """One candidate and how likely it is."""

    __pydantic_config__ = _DESCRIBED
    entity: str
    """The name of the forecast other end."""
    label: str
    relation: str
    side: str
    """'object': the asking entity is the subject and this is the object; 'subject': the reverse."""
    at: str
    score: float
    """The model's own number: comparable within one question only."""
    probability: float
    """That this is the answer, given that there is one; calibrated."""
    rank: int
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Forecasts:
    """The answer to one question: candidates, best first."""

    query: dict[str, Any]
    """What was asked, with names and dates as they were understood, and by whom it is answered."""
    forecasts: tuple[Forecast, ...]
    calibration: dict[str, Any] = field(default_factory=dict)
    """How far the probabilities can be trusted: error and size of the sample."""

    def __len__(self) -> int:
        return len(self.forecasts)

    def __iter__(self) -> Iterator[Forecast]:
        return iter(self.forecasts)

    def __getitem__(self, place: int) -> Forecast:
        return self.forecasts[place]

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
            "forecasts": [asdict(forecast) for forecast in self.forecasts],
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
        from metatkgr.forecasting.frames import need

        return need("pandas").DataFrame(self._columns())

    def to_polars(self) -> Any:
        """A polars frame, one row per forecast; the reasons as one text."""
        from metatkgr.forecasting.frames import need

        return need("polars").DataFrame(self._columns())

    def title(self) -> str:
        """The question as one line."""
        q = self.query
        when = q["at"] if not q.get("horizon") else f"{q['at']} to {q['until']}"
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
        if self.query.get("horizon"):
            table.add_column("at")
        table.add_column("probability", justify="right")
        explained = any(forecast.reasons for forecast in self.forecasts)
        if explained:
            table.add_column("because", overflow="fold")
        for f in self.forecasts:
            row = [str(f.rank), self._what(f) if every else f.label]
            if self.query.get("horizon"):
                row.append(f.at)
            row.append(f"{f.probability:.1%}")
            if explained:
                row.append("\n".join(reason.text for reason in f.reasons))
            # Text, not markup: names may hold brackets.
            table.add_row(*map(Text, row))
        return table

    def _what(self, forecast: Forecast) -> str:
        """The fact that is forecast."""
        ends = (self.query["label"], forecast.label)
        left, right = ends if forecast.side == "object" else ends[::-1]
        return f"{left} {forecast.relation} {right}"

    def __str__(self) -> str:
        lines = [self.title()]
        for f in self.forecasts:
            lines.append(f"{f.rank:3}. {self._what(f)}, {f.at}: {f.probability:.1%}")
            lines += [f"       {reason.text}" for reason in f.reasons]
        return "\n".join(lines)
