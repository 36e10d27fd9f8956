"""What an append adds, what it refuses, and what others see of the folder meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from growing_folders import NAMED, add, check_index, check_same, write

from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import append, compact, ingest
from metatkgr.data.manifest import Manifest
from metatkgr.data.readers import BadRowsError, ReadOptions
from metatkgr.errors import DataError
from metatkgr.files import exclusive


@pytest.fixture(autouse=True, scope="module")
def no_power_is_lost() -> Iterator[None]:
    """What ``faults`` tests need not be waited for here."""
    with patch("os.fsync", lambda _: None):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three facts on two days, with an index."""
    path = write(
        tmp_path / "first.csv",
        "ann,knows,bob,2020-01-01",
        "bob,knows,cleo,2020-01-03",
        "ann,likes,cleo,2020-01-03",
    )
    ingest([path], tmp_path / "facts")
    return tmp_path / "facts"


def state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_what_comes_later_is_written_behind_the_end(folder: Path, tmp_path: Path) -> None:
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    done = add(write(tmp_path / "b.csv", "dan,meets,ann,2020-01-03", "a,b,c,2020-01-07"), folder)
    assert (done.added, done.new_entities, done.new_relations) == (2, 3, 2)
    assert not done.rewritten
    assert (folder / "subject.safetensors").stat().st_ino == before["subject.safetensors"]
    store = FactFolder(folder)
    assert tuple(store.entities) == ("ann", "bob", "cleo", "dan", "a", "c")
    assert store.facts().time.tolist() == [0, 1, 1, 1, 3]
    from safetensors.numpy import load_file

    assert load_file(folder / "time.safetensors")["column"].tolist() == [0, 1, 1, 1, 3]


@pytest.mark.parametrize(
    ("row", "origin", "steps"),
    [
        ("ann,knows,dan,2019-12-30", "2019-12-30", [0, 1, 2, 2]),
        ("ann,knows,dan,2020-01-02", "2020-01-01", [0, 1, 2, 2]),
        ("ann,knows,dan,2020-01-01", "2020-01-01", [0, 0, 1, 1]),
        ("ann,knows,dan,2020-01-04", "2020-01-01", [0, 2, 2, 3]),
    ],
)
def test_earlier_times_number_the_steps_anew(
    folder: Path, tmp_path: Path, row: str, origin: str, steps: list[int]
) -> None:
    reader = FactFolder(folder)
    was = [column.copy() for column in reader.read(0, 3)]
    done = add(write(tmp_path / "b.csv", row), folder)
    assert done.rewritten
    facts = FactFolder(folder).facts()
    assert facts.calendar.label(0) == origin
    assert facts.time.tolist() == steps
    check_index(folder)
    # Who had the folder open reads on, also when the next append removes what this one replaced.
    add(write(tmp_path / "c.csv", "zoe,knows,dan,2020-02-01"), folder)
    assert not (folder / "subject.safetensors").exists()
    assert all(np.array_equal(a, b) for a, b in zip(was, reader.read(0, 3), strict=True))
    assert reader.entities.id("cleo") == 2


def test_a_repeated_fact_is_dropped_and_counted(folder: Path, tmp_path: Path) -> None:
    rows = ["ann,knows,bob,2020-01-01", "ann,likes,cleo,2020-01-03", "ann,likes,dan,2020-01-03"]
    done = add(write(tmp_path / "b.csv", *rows, rows[2]), folder)
    assert (done.added, done.repeated, done.facts) == (1, 3, 4)
    assert not done.rewritten, "what is repeated does not count as early"
    before = (folder / "dataset.json").read_bytes()
    done = add(tmp_path / "b.csv", folder)
    assert (done.added, done.repeated, done.facts) == (0, 4, 4)
    assert (folder / "dataset.json").read_bytes() == before


@pytest.mark.parametrize(
    ("times", "options", "told"),
    [
        (("2020-01-04T05:00", "2020-01-04T06:00"), {}, "unit 'hour', and .* counts in 'day'"),
        (("2020-01-05", "2020-01-12"), {"unit": "week"}, "counts time in the unit 'day'"),
        (("7", "8"), {}, "unit 'step', and .* --time-unit day, or ingest everything anew"),
    ],
)
def test_other_units_are_refused(
    folder: Path, tmp_path: Path, times: tuple[str, ...], options: dict[str, Any], told: str
) -> None:
    before = state(folder)
    path = write(tmp_path / "b.csv", *(f"ann,knows,bob,{time}" for time in times))
    with pytest.raises(DataError, match=told):
        add(path, folder, **options)
    assert state(folder) == before


def test_a_coarser_date_is_read_in_the_unit_of_the_folder(folder: Path, tmp_path: Path) -> None:
    assert add(write(tmp_path / "b.csv", "ann,knows,dan,2020-02"), folder).added == 1
    facts = FactFolder(folder).facts()
    assert facts.calendar.label(int(facts.time[-1])) == "2020-02-01"
    times = "2020-03-01T05:00", "2020-03-01T06:00"
    path = write(tmp_path / "c.csv", *(f"ann,knows,dan,{time}" for time in times))
    assert add(path, folder, unit="day").added == 1


def test_bad_rows_are_told_and_nothing_is_changed(folder: Path, tmp_path: Path) -> None:
    before = state(folder)
    path = write(tmp_path / "b.csv", "ann,knows,dan,2020-02-01", "ann,,dan,2020-02-01")
    with pytest.raises(BadRowsError, match=r"b\.csv.*line 3, column 'r'"):
        add(path, folder)
    assert state(folder) == before
    assert add(path, folder, skip_bad_rows=True).report.total == 1
    assert len(FactFolder(folder)) == 4


def test_intervals_reach_to_the_end_of_their_file_or_of_the_clip_range(tmp_path: Path) -> None:
    rows = [["ann,knows,bob,1990,1992", "ann,knows,cleo,1991,####"], ["dan,knows,bob,1992,####"]]
    paths = []
    for number, lines in enumerate(rows):
        paths.append(tmp_path / f"{number}.csv")
        paths[-1].write_text("\n".join(["s,r,o,start,end", *lines]) + "\n")
    clipped = ReadOptions(name="events", clip=("1990", "1995"), unit="year")
    ingest(paths, tmp_path / "whole", clipped)
    ingest(paths[:1], tmp_path / "grown", clipped)
    append(paths[1:], tmp_path / "grown", clipped)
    check_same(tmp_path / "grown", tmp_path / "whole")
    ingest(paths[:1], tmp_path / "open", NAMED)
    assert append(paths[1:], tmp_path / "open").added == 1


def test_ids_follow_their_vocabulary(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()

    def put(entities: str, rows: str) -> None:
        (data / "entity2id.txt").write_text(entities)
        (data / "relation2id.txt").write_text("knows\t0\n")
        (data / "train.txt").write_text(rows)

    put("ann\t0\nbob\t1\n", "0\t0\t1\t5\n1\t0\t0\t6\n")
    ingest([data], tmp_path / "facts")
    put("ann\t0\nbob\t1\ncleo\t2\ndan\t3\n", "2\t0\t1\t7\n")
    assert append([data], tmp_path / "facts").new_entities == 2
    put("dan\t0\nbob\t1\n", "0\t0\t1\t8\n")
    assert append([data], tmp_path / "facts").new_entities == 0
    facts = FactFolder(tmp_path / "facts").facts()
    assert tuple(facts.entities) == ("ann", "bob", "cleo", "dan")
    assert facts.subject.tolist() == [0, 1, 2, 3]


def test_names_that_came_later_are_looked_up_too(folder: Path, tmp_path: Path) -> None:
    """Also while the order on disk does not cover them, and when names begin alike."""
    many = [f"n{i}" for i in range(40)]
    path = write(tmp_path / "b.csv", *(f"ann,knows,{name},2020-01-05" for name in many))
    append([path], folder, rows=2)
    append([write(tmp_path / "c.csv", "n1,knows,n1\u00e9,2020-01-06")], folder)
    names = FactFolder(folder).entities
    assert FactFolder(folder).manifest.entities.order.covers == 43
    assert [names.id(name) for name in names] == list(range(44))
    assert names.id("n1\u00e9") == 43
    assert not {"n", "n10x", "n40", "", "zz"} & set(names)
    assert not any(name in names for name in ("n", "n10x", "n40", "", "zz"))


def test_a_second_append_is_refused_while_the_first_is_at_work(
    folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "b.csv", "ann,knows,dan,2020-02-01")
    first = exclusive(folder / ".appending", DataError("busy"))
    with first, pytest.raises(DataError, match="another process is appending"):
        add(path, folder)
    assert add(path, folder).added == 1


def test_a_reader_stays_where_it_was(folder: Path, tmp_path: Path) -> None:
    """Also one that looks its index up after the folder has grown."""
    reader = FactFolder(folder)
    facts, names = reader.facts(), reader.entities
    before = facts.time.copy(), tuple(names)
    add(write(tmp_path / "b.csv", "dan,meets,eve,2020-01-07"), folder)
    assert np.array_equal(facts.time, before[0])
    assert (len(reader), tuple(names), "dan" in names) == (3, before[1], False)
    assert reader.links().entities == 3  # type: ignore[union-attr]
    assert FactFolder(folder).entities.id("dan") == 3


def test_who_opens_it_while_it_grows_finds_a_whole_folder(folder: Path, tmp_path: Path) -> None:
    """Also while all columns are written anew, which every third append does."""
    files = [
        write(tmp_path / f"{n}.csv", f"n{n},knows,m{n},20{17 if n % 3 == 2 else 20 + n}-01-02")
        for n in range(9)
    ]
    seen = set()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(lambda: [add(file, folder) for file in files])
        while not work.done():
            store = FactFolder(folder)
            facts = store.facts()
            try:
                links = store.links()
            except DataError:  # two appends were quicker than this thread
                assert Manifest.load(folder) != store.manifest
                continue
            seen.add(len(facts))
            facts.check()
            assert links is not None
            assert len(links.columns["key"]) == 2 * links.facts
            assert links.facts <= len(facts)
            assert facts.steps == store.steps
            assert int(max(facts.subject.max(), facts.object.max())) == len(facts.entities) - 1
        assert sum(done.rewritten for done in work.result()) >= 3
    assert len(seen) > 1
    assert len(FactFolder(folder)) == 12


def test_what_the_index_and_the_order_do_not_cover_is_little(folder: Path, tmp_path: Path) -> None:
    kept = 0
    for day in range(1, 31):
        before = FactFolder(folder).manifest
        add(write(tmp_path / "b.csv", f"n{day % 7},knows,n{day},2020-03-{day:02}"), folder)
        after = FactFolder(folder).manifest
        assert after.index is not None
        for covers, count in (
            (after.index.covers, after.facts),
            (after.entities.order.covers, after.entities.count),
        ):
            assert 8 * (count - covers) <= count
        kept += after.index == before.index
        if day % 6 == 0:
            check_index(folder)
    assert 15 < kept < 30, "it is written anew now and then"
    ours = FactFolder(folder).manifest.files()
    assert ours <= {path.name for path in folder.iterdir()}
    assert len(list(folder.iterdir())) <= len(ours) + 1, "what was replaced is gone"
    compact(folder)
    after = FactFolder(folder).manifest
    assert after.index is not None
    assert (after.index.covers, after.entities.order.covers) == (33, after.entities.count)
    check_index(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"columns": 0', '"columns": -1'),
        ('"columns": 0', '"columns": 9'),
        ('"count": 3', '"count": 2'),
        ('"facts": 3', '"facts": 4'),
        ('"version": 4', '"version": 3'),
        ('"appends"', '"other"'),
        ('"index": {', '"index": [], "other": {'),
        ('"covers": 3', '"covers": 4'),
    ],
)
def test_a_damaged_manifest_is_refused(folder: Path, old: str, new: str) -> None:
    about = folder / "dataset.json"
    text = about.read_text()
    assert old in text
    about.write_text(text.replace(old, new))
    with pytest.raises(
        DataError, match=r"damaged|cannot read|version 2, this program reads version 3"
    ):
        FactFolder(folder)


def test_what_cannot_be_appended_is_named(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "b.csv", "ann,knows,dan,2020-02-01")
    with pytest.raises(DataError, match="no folder of facts: make it with"):
        add(path, tmp_path / "nowhere")
    with pytest.raises(DataError, match="no file or folder"):
        add(tmp_path / "missing.csv", folder)
    with pytest.raises(DataError, match="at least one"):
        append([], folder)
