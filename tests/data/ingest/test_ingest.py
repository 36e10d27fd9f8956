"""A file read piece by piece into a folder gives the facts that the reader in memory gives."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import Run
from metatkgr.data import sources
from metatkgr.data.columns import Column
from metatkgr.data.facts import Facts
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import append, ingest
from metatkgr.data.readers import BadRowsError, ReadOptions, read_facts_with_report
from metatkgr.data.world import WorldSettings
from metatkgr.data.world.simulation import write_world
from metatkgr.errors import DataError, MetaTKGRError, UnknownNameError
from peak_memory import peak_megabytes, reads_proc


def check_same(ours: Facts, theirs: Facts) -> None:
    for column in ("subject", "relation", "object", "time"):
        assert np.array_equal(getattr(ours, column), getattr(theirs, column)), column
    assert tuple(ours.entities) == theirs.entities.names
    assert tuple(ours.relations) == theirs.relations.names
    assert (ours.calendar, ours.name) == (theirs.calendar, theirs.name)


def check_file(path: Path, rows: int, **choices: object) -> None:
    """Both readers agree on the facts and on the bad rows, or on the error."""
    options = ReadOptions(**choices)  # type: ignore[arg-type]
    out = path.parent / "store"
    expected: MetaTKGRError | None = None
    try:
        facts, report = read_facts_with_report(path, options)
    except MetaTKGRError as error:
        expected = error
    if expected is not None:
        with pytest.raises(type(expected)) as raised:
            ingest([path], out, options, rows=rows)
        if isinstance(expected, BadRowsError):
            assert str(raised.value) == str(expected)
        assert not out.exists()
        assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing is left"
        return
    done = ingest([path], out, options, rows=rows)
    check_same(FactFolder(out).facts(), facts)
    assert done.report == report
    assert (done.facts, done.entities) == (len(facts), len(facts.entities))


cells = st.sampled_from(["a", "b", "c d", " a", "é", "", '"q"', "7"])
times = st.sampled_from(["2018-01-31", "2018-02-01", "2018-02-01T05:00:00", "2018", "soon", ""])
rows_of_text = st.lists(st.tuples(cells, cells, cells, times), min_size=1, max_size=30)


@given(rows=rows_of_text, at_once=st.integers(1, 8), skip=st.booleans())
@settings(max_examples=30, deadline=None)
def test_text_is_read_as_in_memory_clean_or_not(
    rows: list[tuple[str, ...]],
    at_once: int,
    skip: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("text") / "events.csv"
    lines = ["subject,relation,object,time", *(",".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    check_file(path, at_once, skip_bad_rows=skip)


interval = st.tuples(
    st.sampled_from("abc"),
    st.just("knows"),
    st.sampled_from("abc"),
    st.sampled_from(["1990", "1992-05-##", "####-##-##"]),
    st.sampled_from(["1993", "1995-##-##", "####-##-##", "1980"]),
)


@given(rows=st.lists(interval, min_size=1, max_size=20), at_once=st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_intervals_are_filled_as_in_memory(
    rows: list[tuple[str, ...]], at_once: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("intervals") / "events.tsv"
    lines = ["subject\trelation\tobject\tstart\tend", *("\t".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    check_file(path, at_once, skip_bad_rows=True)


@pytest.mark.parametrize("kind", ["parquet", "csv", "tsv"])
def test_a_world_in_pieces_of_any_size(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"world.{kind}"
    write_world(path, WorldSettings(facts=5000), row_group=700)
    check_file(path, 450)


def test_a_compressed_file_that_is_out_of_order(tmp_path: Path) -> None:
    path = tmp_path / "world.csv"
    write_world(path, WorldSettings(facts=3000))
    head, *rest = path.read_bytes().splitlines(keepends=True)
    path.unlink()
    order = np.random.default_rng(0).permutation(len(rest))
    path = tmp_path / "world.csv.gz"
    path.write_bytes(gzip.compress(head + b"".join([rest[i] for i in order] + rest[:500])))
    check_file(path, 200)
    done = FactFolder(tmp_path / "store")
    assert len(done) == 3000, "the 500 that came twice are there once"


def test_ids_and_vocabularies_beside_the_data(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "entity2id.txt").write_text("ann\t0\nbob\t1\ncleo\t2\n")
    (folder / "relation2id.txt").write_text("knows\t0\n")
    (folder / "train.txt").write_text("0\t0\t1\t5\n1\t0\t2\t6\n")
    (folder / "valid.txt").write_text("2\t0\t0\t7\n")
    ingest([folder], tmp_path / "store", rows=2)
    facts, _ = read_facts_with_report(folder)
    check_same(FactFolder(tmp_path / "store").facts(), facts)


def test_parts_are_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "part-2.csv").write_text("s,r,o,t\nb,knows,c,2\n")
    (folder / "part-1.csv").write_text("s,r,o,t\na,knows,b,1\n")
    ingest([folder], tmp_path / "store")
    assert tuple(FactFolder(tmp_path / "store").entities) == ("a", "b", "c")


def test_names_are_found_and_unknown_ones_suggested(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("s,r,o,t\nÅsa,knows,Bertil,1\n")
    ingest([path], tmp_path / "store")
    names = FactFolder(tmp_path / "store").entities
    assert names.id("Åsa") == 0
    assert names[1] == names[-1] == names.label(1) == "Bertil"
    assert "Bertil" in names
    assert "\ud800" not in names
    assert names[0:2] == ("Åsa", "Bertil")
    with pytest.raises(UnknownNameError, match="did you mean 'Bertil'"):
        names.id("Bertll")
    with pytest.raises(IndexError):
        names[2]


def test_the_folder_is_data_for_every_command(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "facts"
    write_world(tmp_path / "world.parquet", WorldSettings(facts=2000))
    shown = run("data", "ingest", tmp_path / "world.parquet", "--out", out, "--json", "-")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["facts"] == 2000
    check_same(sources.load(str(out)), sources.load(str(tmp_path / "world.parquet")))
    shown = run("evaluate", out, "--model", "recurrency", "--json", "-")
    assert shown.code == 0, shown.err
    again = run("data", "ingest", tmp_path / "world.parquet", "--out", out)
    assert again.code == 2
    assert "exists" in again.err


def test_bad_rows_are_told_and_skipped_on_demand(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "events.csv"
    path.write_text("s,r,o,t\na,knows,b,1\na,,b,2\na,knows,c,soon\n")
    shown = run("data", "ingest", path, "--out", tmp_path / "store")
    assert shown.code == 2
    assert "line 3, column 'r'" in shown.err
    assert "--skip-bad-rows" in shown.err
    report = tmp_path / "bad.json"
    words = ("--skip-bad-rows", "--bad-rows-report", report)
    assert run("data", "ingest", path, "--out", tmp_path / "store", *words).code == 0
    assert json.loads(report.read_text())["rows_bad"] == 2


@pytest.mark.parametrize("damage", ["cut", "header", "about", "version", "missing"])
def test_a_damaged_folder_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("s,r,o,t\na,knows,b,1\nb,knows,c,2\n")
    out = tmp_path / "store"
    ingest([path], out)
    column, about = out / "time.safetensors", out / "dataset.json"
    if damage == "cut":
        column.write_bytes(column.read_bytes()[:-8])
    elif damage == "header":
        column.write_bytes(b"\xff" * 5000)
    elif damage == "missing":
        column.unlink()
    elif damage == "about":
        about.write_text("{")
    else:
        about.write_text(about.read_text().replace('"version": 4', '"version": 3'))
    with pytest.raises(DataError, match=r"damaged|cannot read|version 3"):
        FactFolder(out)


def test_only_what_was_touched_is_read_to_be_checked(tmp_path: Path) -> None:
    path, out = tmp_path / "events.csv", tmp_path / "store"
    path.write_text("s,r,o,t\na,knows,b,1\nb,knows,c,2\n")
    ingest([path], out)
    with patch.object(FactFolder, "check") as check:
        sources.load(str(out))
        assert check.call_count == 0, "nothing is read when the folder is opened"
        column = out / "index-link_time.safetensors"
        column.write_bytes(column.read_bytes())
        sources.load(str(out))
        assert check.call_count == 1
        path.write_text("s,r,o,t\na,knows,c,3\n")
        append([path], out)
        sources.load(str(out))
        assert check.call_count == 1, "an append has written it anew"
        shutil.copytree(out, tmp_path / "copy", copy_function=shutil.copyfile)
        sources.load(str(tmp_path / "copy"))
        assert check.call_count == 2


def test_what_cannot_be_ingested_is_named(tmp_path: Path) -> None:
    out = tmp_path / "store"
    with pytest.raises(DataError, match="no file or folder"):
        ingest([tmp_path / "nowhere.csv"], out)
    for name, content in (("a.csv", b""), ("a.json", b"{}"), ("b.parquet", b"PAR1 not")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            ingest([tmp_path / name], out)
    with pytest.raises(DataError, match="at least one"):
        ingest([], out)


def test_columns_are_files_of_the_tensor_library(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    path = tmp_path / "events.csv"
    path.write_text("s,r,o,t\na,knows,b,1\nb,knows,c,2\n")
    ingest([path], tmp_path / "store")
    file = tmp_path / "store" / "object.safetensors"
    assert load_file(file)["column"].tolist() == Column(file).map().tolist() == [1, 2]


@pytest.mark.slow
@reads_proc
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Ten times the facts, the same memory (but for what pyarrow keeps of a row group)."""
    program = "ingest([sys.argv[1]], sys.argv[2], rows=1 << 17)"
    peaks = []
    for facts in (300_000, 3_000_000):
        path = tmp_path / f"{facts}.parquet"
        write_world(path, WorldSettings(facts=facts), row_group=100_000)
        words = (path, tmp_path / f"store-{facts}")
        peaks += peak_megabytes("from metatkgr.data.ingest import ingest", program, *words)[1:]
    assert peaks[1] < 1.5 * peaks[0], f"{peaks} MB"
