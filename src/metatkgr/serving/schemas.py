"""What the HTTP interface takes and gives, as types; OpenAPI is made from them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
)

from metatkgr.forecasting.explain import FactView, Forecast, Match, Reason

__all__ = [
    "MOST_FACTS",
    "PLAIN",
    "BacktestIn",
    "ChangeOut",
    "EntitiesOut",
    "ErrorOut",
    "ExplainIn",
    "ExplainOut",
    "FactIn",
    "FactsIn",
    "Few",
    "ForecastsOut",
    "GraphOut",
    "HealthOut",
    "HistoryOut",
    "ImportIn",
    "ModelQualityOut",
    "Name",
    "OneFactIn",
    "OneOrMore",
    "PredictIn",
    "QualityOut",
    "RelationOut",
    "Side",
    "SpanOut",
    "Time",
    "TimelineOut",
    "TokenOut",
    "UsageOut",
]

MOST_FACTS = 1000
"""Facts in one request."""

PLAIN = r"^[^\x00-\x1f\x7f]*$"
"""No control characters."""
Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$"),
]
"""A name: no control characters, no space in front."""


def _whole(value: Any) -> Any:
    """JSON does not tell 5 from 5.0, nor do we."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# The bounds come before the validator: in the other order they are missing from OpenAPI.
Few = Annotated[int, Field(ge=1, le=100), BeforeValidator(_whole)]
_Date = Annotated[
    str, StringConstraints(min_length=1, max_length=40, pattern=r"^[0-9+-][0-9A-Za-z:.+ -]*$")
]
Time = _Date | Annotated[int, Field(ge=-(10**12), le=10**12), BeforeValidator(_whole)]
"""A date as the graph writes it, or an integer where the graph counts in integers."""

Side = Literal["object", "subject"]


Within = (
    Annotated[str, StringConstraints(min_length=1, max_length=12, pattern=r"^[0-9]+ *[hdwy]?$")]
    | Annotated[int, Field(ge=1, le=1 << 20), BeforeValidator(_whole)]
)
"""A time as 30d, or a number of steps."""


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # the first and last hours of the calendar, in another zone
        raise ValueError("Input should be a moment that UTC has, too") from None


class _In(BaseModel):
    """A body: unknown fields and wrong types are refused, nothing is guessed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FactIn(_In):
    """One fact: who did what to whom, and when."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "subject": "Tarn Velloso",
                    "relation": "plays for",
                    "object": "FC Ostermark",
                    "time": "2018-03-05",
                }
            ]
        }
    )
    subject: Name
    relation: Name = Field(description="A relation that the graph knows.")
    object: Name
    time: Time


class TellIn(_In):
    """Who says so, and what is meant."""

    source: Annotated[str, StringConstraints(max_length=200, pattern=PLAIN)] = Field(
        "", description="Who says so; without it, the name of the token."
    )
    observed: Time | None = Field(None, description="When the source observed it.")
    confirm_new: bool = Field(
        False, description="Take new names that are nearly a known one; else they are asked back."
    )
    allow_far: bool = Field(False, description="Take dates far after the last fact.")
    retract: bool = Field(False, description="These facts do not hold: take them back.")


class OneFactIn(FactIn, TellIn):
    """A fact, and who says so."""

    replaces: Annotated[int, Field(ge=1, le=10**12), BeforeValidator(_whole)] | None = Field(
        None, description="Number of the fact in whose place this one comes."
    )


class FactsIn(TellIn):
    """Several facts; all are taken or none."""

    facts: list[FactIn] = Field(min_length=1, max_length=MOST_FACTS)


class ImportIn(TellIn):
    """A file of facts."""

    format: Literal["csv", "jsonl", "parquet"]
    text: str = Field(
        min_length=1,
        description="Its content, of Parquet in base64; columns as `metatkgr` reads them.",
    )


def _how_many(body: Any) -> str:
    return "facts" if isinstance(body, dict) and "facts" in body else "fact"


OneOrMore = Annotated[
    Annotated[OneFactIn, Tag("fact")] | Annotated[FactsIn, Tag("facts")], Discriminator(_how_many)
]
"""A fact, or several; errors speak of the one that was meant."""


class PredictIn(_In):
    """A question about one entity."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"entity": "Tarn Velloso", "relation": "plays for", "at": "2018-06-01", "top": 5},
                {"entity": "Tarn Velloso", "explain": True},
            ]
        }
    )
    entity: Name
    relation: Name | None = Field(
        None, description="Without it: the most likely next facts over all relations."
    )
    at: Time | None = Field(None, description="Without it: the step after the last known fact.")
    side: Side = Field(
        "object", description="Which end is asked for: the object (entity, relation, ?) or subject."
    )
    top: Few = 10
    within: Within | None = Field(
        None,
        description="How likely is it to come within a time (30d; also h, w, y) or so many steps "
        "from `at` on; without it: given that such a fact happens.",
    )
    explain: bool = Field(False, description="Say for each forecast what speaks for it.")
    as_of: Time | None = Field(
        None, description="Answer as if nothing had happened after this date."
    )
    known_at: Annotated[AwareDatetime, AfterValidator(_in_utc)] | None = Field(
        None,
        strict=False,
        description="Answer by what this service had been told at this moment, which has its zone: "
        "2026-05-03T00:00:00Z.",
    )
    what_if: list[FactIn] = Field(
        [], max_length=100, description="Facts that are supposed for this answer, and never kept."
    )


class BacktestIn(_In):
    """Which period to replay."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)
    begin: Time = Field(alias="from", description="First date.")
    end: Time | None = Field(None, alias="to", description="Last date; else that of the last fact.")
    questions: Annotated[int, Field(ge=1, le=200), BeforeValidator(_whole)] = 60


class ExplainIn(_In):
    """Which answer to give reasons for."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "entity": "Tarn Velloso",
                    "relation": "plays for",
                    "answer": "FC Ostermark",
                    "at": "2018-06-01",
                }
            ]
        }
    )
    entity: Name
    relation: Name
    answer: Name
    at: Time | None = None
    side: Side = "object"


class ErrorBody(BaseModel):
    """What went wrong."""

    code: str = Field(description="For programs.", examples=["unknown_name"])
    message: str = Field(examples=["unknown entity 'Tarn Veloso'"])
    hint: str = Field(description="What to do.", examples=["did you mean 'Tarn Velloso'?"])


class ErrorOut(BaseModel):
    """Every answer that is no success has this form."""

    error: ErrorBody


class ForecastsOut(BaseModel):
    """Candidates, best first."""

    query: dict[str, Any] = Field(description="The question as it was understood.")
    forecasts: list[Forecast]
    other: float | None = Field(
        description="Probability of anything else; null where several facts may come within a time."
    )
    someone_new: float | None = Field(
        description="The part of it that belongs to someone whom nobody has heard of; null where "
        "several relations are asked for."
    )
    comes: float | None = Field(
        description="Probability that such a fact comes within the time; 1 where that is given."
    )
    when: list[tuple[str, float]] = Field(
        description="Dates within the time, and the probability that such a fact has come by then; "
        "none where no time or no relation is asked for."
    )
    explanation: list[dict[str, Any]] = Field(description="About the first forecast.")
    calibration: dict[str, Any] = Field(description="How far the probabilities can be trusted.")


class ExplainOut(BaseModel):
    """Reasons, the weightiest first."""

    reasons: tuple[Reason, ...]


class EntitiesOut(BaseModel):
    """Entities whose name is like the text, best first."""

    entities: list[Match]


class TimelineOut(BaseModel):
    """The last facts of an entity, oldest first."""

    entity: str
    total: int = Field(description="How many there are.")
    facts: list[FactView]
    ids: list[int | None] = Field(
        [], description="The number of each fact that this service was told; null for the graph's."
    )


class ChangeOut(BaseModel):
    """What was said about a fact, by whom and when."""

    fact: FactView
    retracted: bool
    source: str
    observed: str
    received: datetime


class HistoryOut(BaseModel):
    """All that was said about a fact, oldest first."""

    id: int
    changes: list[ChangeOut]


class RelationOut(BaseModel):
    """A relation."""

    name: str
    label: str
    facts: int


class GraphOut(BaseModel):
    """What the service knows."""

    dataset: str
    model: str
    facts: int
    entities: int
    observed: int = Field(description="Facts that came through the store.")
    unit: str = Field(description="Of time: step, hour, day, week, month or year.")
    first: str
    last: str
    recent: str = Field(description="A date after nine tenths of the time.")
    next: str = Field(description="The step that is forecast when no date is given.")
    relations: list[RelationOut]


class TokenOut(BaseModel):
    """Someone who may ask."""

    name: str
    role: Literal["read", "write", "admin"]
    used: dict[str, int] = Field(description="Of its quotas, today: facts, entities, bytes.")
    most: dict[str, int] = Field(description="What it may use in a day.")


class UsageOut(BaseModel):
    """All tokens, by name; none where none is asked for."""

    tokens: list[TokenOut]


class HealthOut(BaseModel):
    """Whether the service answers."""

    status: Literal["ok", "degraded"]
    version: str
    detail: str = Field(description="What is wrong, where something is.")


class ModelQualityOut(BaseModel):
    """A model's numbers under the static filter."""

    name: str
    mrr: float | None
    low: float | None = Field(description="Of the 95 % interval of the MRR.")
    high: float | None
    hits_1: float | None
    hits_3: float | None
    hits_10: float | None


class SpanOut(BaseModel):
    """A part of the time."""

    first: str
    last: str
    queries: int
    mrr: dict[str, float] = Field(description="By model.")


class QualityOut(BaseModel):
    """How good the model is on new entities it was not trained on."""

    status: Literal["ready", "computing", "failed", "off"]
    detail: str = ""
    split: str = ""
    shots: str = ""
    visibility: str = ""
    questions: int = 0
    of_questions: int = Field(default=0, description="From which these were drawn.")
    models: list[ModelQualityOut] = []
    spans: list[SpanOut] = []
    calibration: dict[str, Any] = Field(
        default={}, description="How far off the probabilities are, of the first and by rank."
    )
