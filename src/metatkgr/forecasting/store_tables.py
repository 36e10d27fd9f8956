"""The tables of a store of facts, what is asked of them, and how strange ones are told.

A fact is a row that never changes and never goes; what was said about it, and when, is a log of
changes beside it. What holds now is what the last change of each fact says.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from metatkgr.data.facts import Facts
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.forecasting.explain import FactView

__all__ = [
    "CHANGES",
    "FACTS",
    "LAST",
    "LOG",
    "NOW",
    "PROBE",
    "SCHEMA",
    "STATES",
    "TABLES",
    "VERSION",
    "Amounts",
    "QuotaError",
    "Spending",
    "checked_fact",
    "checked_text",
    "claim",
    "digest_of",
    "migrate",
    "spend",
    "strange_schema",
    "used_today",
]

VERSION = 3
"""Of the tables below. One of version 1 (no log of changes) or 2 (of no graph) is brought up to it
when it is opened; one of a later version is refused."""

_KNOWN_BY = 1000
"""First facts of a graph by which it is known."""

_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")

TABLES = sa.MetaData()
FACTS = sa.Table(
    "metatkgr_fact",
    TABLES,
    sa.Column("sequence", _Number, primary_key=True, autoincrement=True),
    # Of the four texts together: an index on the texts themselves has a length limit.
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("relation", sa.Text, nullable=False),
    sa.Column("object", sa.Text, nullable=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("received", sa.DateTime(timezone=True), server_default=sa.func.now()),
    sqlite_autoincrement=True,
)
CHANGES = sa.Table(
    "metatkgr_change",
    TABLES,
    sa.Column("number", _Number, primary_key=True, autoincrement=True),
    sa.Column("fact", _Number, nullable=False, index=True),
    sa.Column("retracted", sa.Boolean, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("observed", sa.Text, nullable=False),
    sa.Column("received", sa.DateTime(timezone=True), nullable=False),
    sqlite_autoincrement=True,
)
SCHEMA = sa.Table(
    "metatkgr_store",
    TABLES,
    sa.Column("version", sa.Integer, nullable=False),
)
PROBE = sa.Table(
    "metatkgr_probe",
    TABLES,
    sa.Column("writes", sa.BigInteger, nullable=False),
)

GRAPH = sa.Table(
    "metatkgr_graph",
    TABLES,
    sa.Column("facts", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)
USAGE = sa.Table(
    "metatkgr_usage",
    TABLES,
    sa.Column("token", sa.String(64), primary_key=True),
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("facts", sa.BigInteger, nullable=False),
    sa.Column("entities", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)

LAST = sa.select(sa.func.max(CHANGES.c.number))
LOG = (
    sa.select(
        CHANGES.c.number,
        *(FACTS.c[name] for name in FactView._fields),
        CHANGES.c.fact,
        CHANGES.c.retracted,
        CHANGES.c.source,
        CHANGES.c.observed,
        CHANGES.c.received,
    )
    .join(FACTS, FACTS.c.sequence == CHANGES.c.fact)
    .order_by(CHANGES.c.number)
)
"""Every change with its fact, in the order of their numbers."""
NOW = sa.select(sa.func.max(CHANGES.c.number)).group_by(CHANGES.c.fact)
"""The numbers of the last changes."""
_later = CHANGES.alias()
STATES = (
    sa.select(FACTS.c.digest, FACTS.c.sequence, CHANGES.c.retracted)
    .join(CHANGES, FACTS.c.sequence == CHANGES.c.fact, isouter=True)
    .where(
        FACTS.c.digest.in_(sa.bindparam("digests", expanding=True)),
        ~sa.exists().where(_later.c.fact == FACTS.c.sequence, _later.c.number > CHANGES.c.number),
    )
)
"""Digest, number and state of some facts; None for one of which nothing was said yet."""


def migrate(connection: sa.Connection, version: int) -> None:
    """Bring tables of an earlier version up to this one: every fact was told once, by nobody."""
    if version == 1:
        change = sa.select(
            FACTS.c.sequence,
            sa.false(),
            sa.literal(""),
            sa.literal(""),
            sa.func.coalesce(FACTS.c.received, sa.func.now()),
        ).order_by(FACTS.c.sequence)
        columns = ["fact", "retracted", "source", "observed", "received"]
        connection.execute(sa.insert(CHANGES).from_select(columns, change))
    if version < VERSION:
        connection.execute(sa.update(SCHEMA).values(version=VERSION))


def claim(connection: sa.Connection, graph: Facts, *, adopt: bool) -> bool:
    """Whether a store is that of a graph; one of none becomes it, and with ``adopt`` any.

    A graph is known by its first facts in its own words, whatever file they come from. So it stays
    the same one when it grows.
    """
    known = connection.execute(sa.select(GRAPH.c.facts, GRAPH.c.digest)).first()
    if known is not None and not adopt:
        return bool(known.digest == _digest_of_first(graph, int(known.facts)))
    early = graph.time[min(_KNOWN_BY, len(graph)) - 1]
    # Whole steps, but for a very long one; the last may not have been told to its end yet.
    whole = int(np.searchsorted(graph.time, early, side="right"))
    before_last = int(np.searchsorted(graph.time, graph.time[-1])) or len(graph)
    count = min(whole, before_last, 20 * _KNOWN_BY)
    connection.execute(sa.delete(GRAPH))
    connection.execute(sa.insert(GRAPH).values(facts=count, digest=_digest_of_first(graph, count)))
    return True


def _digest_of_first(graph: Facts, count: int) -> str:
    """SHA-256 of some facts in words; their order within a step does not matter."""
    columns = (graph.subject, graph.relation, graph.object, graph.time)
    rows = zip(*(column[:count].tolist() for column in columns), strict=True)
    words = [
        (graph.entities[s], graph.relations[r], graph.entities[o], graph.calendar.label(t))
        for s, r, o, t in rows
    ]
    return hashlib.sha256(json.dumps(sorted(words)).encode()).hexdigest()


class QuotaError(MetaTKGRError):
    """Someone has told as much as was allowed."""


class Amounts(NamedTuple):
    """What is told, or may be."""

    facts: int
    entities: int
    """That are new."""
    bytes: int


class Spending(NamedTuple):
    """What one token's facts take of its quota."""

    token: str
    taken: Amounts
    most: Amounts
    """That it may take on one day."""


def used_today(connection: sa.Connection) -> dict[str, Amounts]:
    """What each token has taken today, in UTC."""
    columns = (USAGE.c.token, USAGE.c.facts, USAGE.c.entities, USAGE.c.bytes)
    rows = connection.execute(sa.select(*columns).where(USAGE.c.day == _today()))
    return {token: Amounts(*map(int, amounts)) for token, *amounts in rows}


def spend(connection: sa.Connection, spendings: Iterable[Spending]) -> dict[int, QuotaError]:
    """Count what tokens take, within the transaction that keeps their facts; each object once.

    Returns:
        why not, by the ``id`` of those that are more than is left for today; they do not count.
    """
    refused: dict[int, QuotaError] = {}
    for number, spending in {id(one): one for one in spendings}.items():
        used = used_today(connection).get(spending.token, Amounts(0, 0, 0))
        total = Amounts(*(a + b for a, b in zip(used, spending.taken, strict=True)))
        for what, now, most in zip(Amounts._fields, total, spending.most, strict=True):
            if now > most:
                words = "new entities" if what == "entities" else what
                refused[number] = QuotaError(
                    f"{spending.token} may tell {most:,} {words} a day, and this would make "
                    f"{now:,}; it begins anew at midnight UTC"
                )
        if number not in refused:
            kind = sqlite if connection.dialect.name == "sqlite" else postgresql
            row = {"token": spending.token, "day": _today(), **total._asdict()}
            connection.execute(
                kind.insert(USAGE)
                .values(row)
                .on_conflict_do_update(index_elements=["token", "day"], set_=total._asdict())
            )
    return refused


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def checked_fact(fact: Sequence[str]) -> FactView:
    """A fact whose texts any database can hold."""
    if not isinstance(fact, (tuple, list)) or len(fact) != len(FactView._fields):
        raise DataError(f"a fact is (subject, relation, object, time), not {fact!r}")
    for what, text in zip(FactView._fields, fact, strict=True):
        if not isinstance(text, str):
            raise DataError(f"a fact's {what} is a text, not {text!r}")
        if not text.strip():
            raise DataError(f"a fact's {what} is empty")
        if "\x00" in text or not _is_unicode(text):
            raise DataError(f"a fact's {what} holds a character that is none: {text!a}")
    return FactView(*fact)


def checked_text(text: str, what: str) -> str:
    """A text about a fact, which may be empty."""
    if not isinstance(text, str) or "\x00" in text or not _is_unicode(text):
        raise DataError(f"a fact's {what} is a text, not {text!a}")
    return text


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest_of(fact: FactView) -> str:
    """By which a fact is found."""
    return hashlib.sha256(json.dumps(fact).encode()).hexdigest()


def strange_schema(connection: sa.Connection) -> str:
    """What an SQLite file has beside our tables: a trigger or a view could do anything.

    Returns:
        what is wrong with it; empty where nothing is.
    """
    for name, part in _schema_of(connection).items():
        known = _own_schema().get(name)
        # SQLite's own: notes for its planner, and indexes that nobody has written out.
        own = re.fullmatch("sqlite_stat[0-9]", name) and part.kind == "table"
        own = own or (name.startswith("sqlite_autoindex_") and part == _Part("index", "none"))
        if part != known and not own:
            what = "is not as we make it" if known else "is none of ours"
            return f"its {part.kind} {name[:80]!r} {what}"
    return ""


class _Part(NamedTuple):
    """A table, index, view or trigger of an SQLite file."""

    kind: str
    sql: str


def _schema_of(connection: sa.Connection) -> dict[str, _Part]:
    rows = connection.exec_driver_sql("SELECT name, type, sql FROM sqlite_master")
    return {str(name): _Part(str(kind), _plain(str(sql))) for name, kind, sql in rows}


def _plain(sql: str) -> str:
    """Without what versions of SQLAlchemy write in their own ways."""
    folded = "".join(sql.split()).lower()
    return folded.replace("default(current_timestamp)", "defaultcurrent_timestamp")


@cache
def _own_schema() -> dict[str, _Part]:
    """What an SQLite file of ours holds."""
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        TABLES.create_all(connection)
        return _schema_of(connection)
