"""Graphs of people: who sat in parliament, made films, spoke with whom, and ruled.

``congress``, from ``us-legislators`` (all members of the Congress of the United States), terms that
began from 1901 to 2015, one step a year; told once, when a term begins:

=========================  ==================  ==================
relation                   subject             object
=========================  ==================  ==================
entered the House for      person              state
entered the Senate for     person              state
sat for                    person              district
belonged to                person              party
=========================  ==================  ==================

``films``, from ``bokeh_sampledata`` (films in Wikidata), those that were made in Britain, France,
Germany or Italy and came out from 1960 to 2014, one step a year:

=========================  ==================  ==================
relation                   subject             object
=========================  ==================  ==================
acted for                  actor               director
wrote for                  writer              director
filmed in                  director            country
filmed a                   director            genre
=========================  ==================  ==================

``office``, from ``schrutepy`` (who says what in a television series), one step an episode, which
are counted from 1; only who speaks is read, no line of the text:

=========================  ==================  ==================
relation                   subject             object
=========================  ==================  ==================
answered                   character           character
was directed by            character           director
spoke words by             character           writer
=========================  ==================  ==================

Characters are as the table spells them, with its slips.

``rulers``, from ``lifelines`` (governments of the world, 1946 to 2008), one step a year, told for
each year of a government:

=========================  ==================  ==================
relation                   subject             object
=========================  ==================  ==================
led                        person              country
came to power in           person              country
led a                      person              sort of regime
was a                      country             sort of regime
lay in                     country             region
=========================  ==================  ==================

``came to power in`` is told in the first year only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError
from studies.held_out_graphs.packages import members_of_archive
from studies.held_out_graphs.tables import Row, columns_of, read_csv, read_json, read_sqlite

__all__ = ["congress", "films", "office", "rulers"]

_FIRST_TERM = "1901"
_FIRST_FILM = "1960"
_COUNTRIES = {"United Kingdom", "France", "Germany", "Italy"}


def congress(package: Path) -> list[Row]:
    """The facts of ``us-legislators``, in the order of years."""
    names = [f"data/legislators-{which}.json" for which in ("historical", "current")]
    members = members_of_archive(package, "us-legislators", names, folder="")
    people = [person for name in names for person in read_json(members[name], f"{package}, {name}")]
    try:
        rows = [row for person in people for row in _terms(person)]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{package} is of another version: {error!r}") from None
    return list(dict.fromkeys(sorted(rows, key=lambda row: row[3])))


def _terms(person: dict[str, Any]) -> Iterator[Row]:
    name = person["name"]
    who = f"{name['first']} {name['last']} ({person['id']['bioguide']})"
    for term in person["terms"]:
        year = term["start"][:4]
        if year < _FIRST_TERM:
            continue
        if term["type"] == "sen":
            yield who, "entered the Senate for", term["state"], year
        else:
            yield who, "entered the House for", term["state"], year
            yield who, "sat for", f"{term['state']}-{term['district']}", year
        if term.get("party"):
            yield who, "belonged to", term["party"], year


def films(package: Path) -> list[Row]:
    """The facts of the films in ``bokeh_sampledata``, in the order of years."""
    name = "_data/movies.db"
    content = members_of_archive(package, "bokeh_sampledata", [name])
    columns = ["Released", "Director", "Writer", "Cast", "Country", "Genre"]
    table = read_sqlite(content[name], "omdb", columns, f"{package}, {name}")
    rows: list[Row] = []
    for released, *lists in columns_of(table):
        directors, writers, cast, countries, genres = (
            [one for one in (text or "").split(", ") if one] for text in lists
        )
        if not released or released < _FIRST_FILM or not _COUNTRIES & set(countries):
            continue
        year = released[:4]
        for director in directors:
            rows += [(one, "acted for", director, year) for one in cast if one != director]
            rows += [(one, "wrote for", director, year) for one in writers if one != director]
            rows += [(director, "filmed in", one, year) for one in countries]
            rows += [(director, "filmed a", one, year) for one in genres]
    return list(dict.fromkeys(sorted(rows, key=lambda row: row[3])))


def office(package: Path) -> list[Row]:
    """The facts of ``schrutepy``, in the order of episodes."""
    name = "data/schrute.csv"
    content = members_of_archive(package, "schrutepy", [name], folder="")
    columns = ["season", "episode", "director", "writer", "character"]
    table = read_csv(content[name], columns, f"{package}, {name}")
    episodes: dict[tuple[str, str], int] = {}
    rows: list[Row] = []
    before = (0, "")
    for season, episode, directors, writers, character in columns_of(table):
        number = episodes.setdefault((season, episode), len(episodes) + 1)
        who, time = " ".join(character.split()), str(number)
        if not who:
            continue
        if before[0] == number and before[1] != who:
            rows.append((who, "answered", before[1], time))
        before = (number, who)
        rows += [(who, "was directed by", one, time) for one in directors.split(";") if one]
        rows += [(who, "spoke words by", one, time) for one in writers.split(";") if one]
    return list(dict.fromkeys(rows))


def rulers(package: Path) -> list[Row]:
    """The facts of the table of governments in ``lifelines``, in the order of years."""
    name = "datasets/dd.csv"
    content = members_of_archive(package, "lifelines", [name])
    columns = ["ctryname", "un_region_name", "ehead", "regime", "start_year", "duration"]
    rows: list[Row] = []
    table = read_csv(content[name], columns, f"{package}, {name}")
    for country, region, person, regime, start, duration in columns_of(table):
        try:
            first, years = int(start), int(duration)
        except ValueError as error:
            raise DataError(f"{package}, {name} holds no year: {error}") from None
        who = f"{person} ({country})"
        rows.append((who, "came to power in", country, str(first)))
        for year in map(str, range(first, first + years)):
            rows.append((who, "led", country, year))
            rows.append((who, "led a", regime, year))
            rows.append((country, "was a", regime, year))
            rows.append((country, "lay in", region, year))
    rows = [row for row in rows if row[0] and row[2]]
    return list(dict.fromkeys(sorted(rows, key=lambda row: row[3])))
