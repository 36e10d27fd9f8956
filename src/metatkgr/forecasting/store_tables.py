"""The tables of a store of facts, what is asked of them, and how strange ones are told."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import sqlalchemy as sa

from metatkgr.forecasting.explain import FactView

__all__ = [
    "DIGESTS_SINCE",
    "FACTS",
    "LAST",
    "PROBE",
    "SCHEMA",
    "SINCE",
    "TABLES",
    "VERSION",
    "strange_schema",
]

VERSION = 1
"""Of the tables below; a store of another version is refused."""

TABLES = sa.MetaData()
FACTS = sa.Table(
    "metatkgr_fact",
    TABLES,
    sa.Column(
        "sequence",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    # Of the four texts together: an index on the texts themselves has a length limit.
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("relation", sa.Text, nullable=False),
    sa.Column("object", sa.Text, nullable=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("received", sa.DateTime(timezone=True), server_default=sa.func.now()),
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

LAST = sa.select(sa.func.max(FACTS.c.sequence))
_LATER = FACTS.c.sequence > sa.bindparam("sequence")
DIGESTS_SINCE = sa.select(FACTS.c.sequence, FACTS.c.digest).where(_LATER)
SINCE = (
    sa.select(FACTS.c.sequence, *(FACTS.c[name] for name in FactView._fields))
    .where(_LATER)
    .order_by(FACTS.c.sequence)
)


def strange_schema(connection: sa.Connection) -> str:
    """What an SQLite file has beside our tables: a trigger or a view could do anything.

    Returns:
        what is wrong with it; empty where nothing is.
    """
    for name, part in _schema_of(connection).items():
        known = _own_schema().get(name)
        own = part.kind in ("table", "index") and name.startswith("sqlite_")  # SQLite's
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
    return {
        str(name): _Part(str(kind), "".join(str(sql).split()).lower()) for name, kind, sql in rows
    }


@cache
def _own_schema() -> dict[str, _Part]:
    """What an SQLite file of ours holds."""
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        TABLES.create_all(connection)
        return _schema_of(connection)
