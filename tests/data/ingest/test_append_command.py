"""``metatkgr data ingest --append``, and the other commands on a folder that has grown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from growing_folders import check_same, write

from command_line import Run
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import ingest
from metatkgr.data.manifest import Manifest
from metatkgr.data.readers import ReadOptions
from metatkgr.data.world import WorldSettings
from metatkgr.data.world.simulation import write_world
from peak_memory import peak_megabytes, reads_proc


def short(number: str) -> float:
    return round(float(number), 6)


def test_the_command_line(tmp_path: Path, run: Run) -> None:
    write_world(tmp_path / "world.csv", WorldSettings(facts=2000))
    head, *lines = (tmp_path / "world.csv").read_text().splitlines()
    cuts = [lines[:1850], lines[1850:1950], [*lines[1950:], lines[5]]]
    for number, part in enumerate(cuts):
        (tmp_path / f"{number}.csv").write_text("\n".join([head, *part]) + "\n")
    grown, whole = tmp_path / "grown", tmp_path / "world"
    assert run("data", "ingest", tmp_path / "world.csv", "--out", whole, "--index").code == 0
    assert run("data", "ingest", tmp_path / "0.csv", "--out", grown, "--index").code == 0
    done = run("data", "ingest", tmp_path / "1.csv", tmp_path / "2.csv", "--append", grown)
    assert done.code == 0, done.err
    assert "150 facts added, 1 repeated ones left out" in " ".join(done.out.split())
    again = run("data", "ingest", tmp_path / "2.csv", "--append", grown, "--json", "-")
    assert json.loads(again.out)["added"] == 0
    manifest = Manifest.load(grown)
    replace(manifest, name="world").save(grown)
    check_same(grown, whole)
    someone = FactFolder(whole).entities[3]
    for command, words in (
        (("data", "stats"), ()),
        (("evaluate",), ("--model", "recurrency")),
        (("predict",), ("--entity", someone, "--model", "paths")),
    ):
        shown = [run(*command, place, *words, "--json", "-") for place in (grown, whole)]
        assert shown[0].code == 0, shown[0].err
        # A fit ends where its sums do, whose last digits follow the order of the rows.
        told = [json.loads(each.out, parse_float=short) for each in shown]
        for each in told:
            each.pop("seconds", None)
        assert told[0] == told[1]
    assert manifest.index is not None
    assert manifest.index.covers == 1850
    squeezed = run("data", "ingest", "--append", grown, "--compact")
    assert squeezed.code == 0, squeezed.err
    assert "the index of links covers all facts" in " ".join(squeezed.out.split())
    assert Manifest.load(grown).index.covers == 2000  # type: ignore[union-attr]
    check_same(grown, whole)


def test_words_that_do_not_go_together_are_told(tmp_path: Path, run: Run) -> None:
    path = write(tmp_path / "b.csv", "ann,knows,dan,2020-02-01")
    for words, told in (
        ((path,), "--out FOLDER makes a folder, --append FOLDER adds to one"),
        ((path, "--out", tmp_path / "a", "--append", tmp_path / "b"), "--append FOLDER adds"),
        ((path, "--out", tmp_path / "a", "--compact"), "--compact goes with --append"),
        (("--append", tmp_path / "a"), "name at least one file"),
        ((path, "--append", tmp_path / "a"), "no folder of facts"),
    ):
        shown = run("data", "ingest", *words)
        assert shown.code == 2
        assert told in " ".join(shown.err.split())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_training_on_a_grown_folder_is_that_on_the_whole(tmp_path: Path, run: Run) -> None:
    """The ranks of a run on a folder that has grown are those on the folder made at once."""
    write_world(tmp_path / "world.csv", WorldSettings(facts=1500))
    head, *lines = (tmp_path / "world.csv").read_text().splitlines()
    for number, part in enumerate((lines[:1400], lines[1400:])):
        (tmp_path / f"{number}.csv").write_text("\n".join([head, *part]) + "\n")
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    for words in (
        (tmp_path / "0.csv", tmp_path / "1.csv", "--out", whole, "--index"),
        (tmp_path / "0.csv", "--out", grown, "--index"),
        (tmp_path / "1.csv", "--append", grown),
    ):
        assert run("data", "ingest", *words).code == 0
    links = FactFolder(grown).links()
    assert links is not None
    assert links.facts < len(FactFolder(grown)), "the later ones are a layer beside it"
    told = []
    for place in (grown, whole):
        out = tmp_path / f"run-{place.name}"
        words = ("--model", "transe", "--set", "epochs=1", "--set", "dimension=8")
        trained = run("train", place, *words, "--out", out)
        assert trained.code == 0, trained.err
        told.append(json.loads(run("evaluate", out, "--json", "-").out)["metrics"])
    assert told[0] == told[1]


@pytest.mark.slow
@reads_proc
def test_memory_does_not_grow_with_the_folder(tmp_path: Path) -> None:
    """The same facts are appended to five times the facts in the same memory."""
    program = "append([sys.argv[1]], sys.argv[2], rows=1 << 17)"
    rows = (
        f"new {n % 5000},plays for,new {n % 77},2090-01-{n // 1000 + 1:02}" for n in range(30_000)
    )
    late = write(tmp_path / "late.csv", *rows)
    peaks = []
    for facts in (1_000_000, 5_000_000):
        path, out = tmp_path / f"{facts}.parquet", tmp_path / f"facts-{facts}"
        write_world(path, WorldSettings(facts=facts), row_group=100_000)
        ingest([path], out, ReadOptions(unit="day"))
        imports = "from metatkgr.data.ingest import append"
        peaks += peak_megabytes(imports, program, late, out)[1:]
        assert len(FactFolder(out).entities) > 5000
    # The steps are numbered anew, so all facts are sorted, within a bound that both sizes reach.
    assert peaks[1] < 1.2 * peaks[0], f"{peaks} MB"
