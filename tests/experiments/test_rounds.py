"""Meta-test is shown to what was registered before; each look is kept; changed rows are stale."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import Run
from metatkgr.data.sources import TEST_GRAPHS
from metatkgr.data.world import simulate
from metatkgr.errors import DataError, SettingsError
from metatkgr.experiments import rounds
from metatkgr.experiments.cell_run import commit
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.records import Record
from metatkgr.experiments.results import Results
from metatkgr.experiments.rounds import (
    STANDING,
    Round,
    changed_settings,
    read_looks,
    read_rounds,
    refuse_unregistered,
    register,
)
from metatkgr.experiments.runner import run_grid
from metatkgr.experiments.sections.overview import unseen_graphs
from metatkgr.experiments.sections.tables import main_table
from metatkgr.experiments.suite import DATASETS, Choice, cells_for
from studies.collect import collect
from studies.held_out_graphs.graphs import write_graph


def test_the_packages_round_has_the_papers_grid_and_not_the_test_graphs(tmp_path: Path) -> None:
    standing = Round.read(STANDING)
    assert standing.datasets == DATASETS
    assert not TEST_GRAPHS & set(standing.datasets)
    lacking = {standing.lacks(cell) for cell in cells_for([], Choice())}
    assert lacking <= {"", "default"}, "only a changed default is to be registered anew"
    assert json.loads(STANDING.read_text(encoding="utf-8")) == json.loads(
        json.dumps(standing.to_json())
    )


@pytest.mark.parametrize(
    ("cell", "what"),
    [
        (Cell("YAGO", "transe", settings=(("epochs", "3"),)), "model or its settings"),
        (Cell("yago", "transe", preset="tuned"), "model or its settings"),
        (Cell("WIKI", "paths", shots=4), "number of shots"),
        (Cell("folder/wiki", "paths", shots=4), "number of shots"),
        (Cell("ICEWS18", "transe", seed=9), "seed"),
        (Cell("somewhere/test-rulers.csv", "paths"), "dataset"),
    ],
)
def test_what_was_not_registered_is_refused_until_it_is(
    cell: Cell, what: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=f"not registered: no round has this {what}"):
        run_grid(tmp_path, [cell])
    assert not list(tmp_path.iterdir())
    path = register(tmp_path, "It is better.", [cell], "abc")
    assert path is not None
    assert json.loads(path.read_text(encoding="utf-8"))["claim"] == "It is better."
    refuse_unregistered(tmp_path, [cell])
    assert register(tmp_path, "It is better.", [cell], "abc") is None, "registered once"
    refuse_unregistered(tmp_path / "elsewhere", [Cell("world:900:1", "paths", shots=9)])


def test_a_changed_default_takes_a_new_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("YAGO", "transe")
    register(tmp_path, "first", [cell], "abc")
    before = rounds._settings
    monkeypatch.setattr(rounds, "_settings", lambda row, data: before(row, data) | {"epochs": 99})
    with pytest.raises(SettingsError, match="its defaults were others in the round"):
        refuse_unregistered(tmp_path, [cell])
    register(tmp_path, "second", [cell], "abc")
    refuse_unregistered(tmp_path, [cell])
    assert [known.claim for known in read_rounds(tmp_path)[1:]] == ["first", "second"]


def test_a_test_graph_is_shown_once_in_a_round_and_the_look_is_kept(
    tmp_path: Path, run: Run
) -> None:
    facts = simulate(facts=900, seed=3)
    graph = tmp_path / "test-rulers.csv"
    write_graph(graph, [facts.describe(row) for row in range(len(facts))])
    words = ("reproduce", "3-shot", "--models", "paths", "--datasets", graph, "--no-report")
    out = tmp_path / "out"
    refused = run(*words, "--out", out)
    assert refused.code != 0
    assert "--claim" in refused.err
    registered = run(*words, "--out", out, "--claim", "Paths are found.", "--list")
    assert registered.code == 0, registered.err
    assert not read_looks(out)
    done = run(*words, "--out", out)
    assert done.code == 0, done.err
    (look,) = read_looks(out)
    assert look["round"] == read_rounds(out)[-1].name
    (record,) = (out / "cells").rglob("*.json")
    assert look["cell"].endswith(record.stem)
    assert look["commit"] == Record.read(record).commit
    assert run(*words, "--out", out).code == 0, "it is done: nothing is shown"
    collect([Record.read(record)], tmp_path / "results")
    kept = Results.of_repository(tmp_path / "results")
    assert not kept.records, "it is told apart"
    page = "\n".join(unseen_graphs(kept))
    assert "| `paths` |" in page
    assert "test-rulers" in page
    record.unlink()
    again = run(*words, "--out", out)
    assert again.code != 0
    assert "already" in again.err
    few = ("--set", "epochs=1", "--set", "dimension=4", "--out", tmp_path / "run")
    assert run("train", graph, "--model", "transe", *few).code == 0
    for way in (("evaluate", graph, "--model", "paths"), ("compare", tmp_path / "run", "paths")):
        assert "outside a registered round" in run(*way).err, "nor by another way"


def test_a_broken_round_or_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "rounds").mkdir()
    (tmp_path / "rounds" / "x.json").write_text('{"name": "x"}')
    with pytest.raises(DataError, match=r"x\.json is not a registered round"):
        read_rounds(tmp_path)
    (tmp_path / "looks.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="does not hold looks"):
        read_looks(tmp_path)


def test_a_row_whose_settings_changed_is_stale_and_marked(tmp_path: Path) -> None:
    run_grid(tmp_path, [Cell("world:3000:1", "pagerank")], say=lambda text: None)
    (record,) = Results.read(tmp_path).records
    assert record.commit == commit()
    # Nothing is known of it where the code is no checkout.
    assert re.fullmatch(r"([0-9a-f]{12}\+?)?", record.commit)
    assert changed_settings(record) == []
    assert not any("†" in line for line in main_table(Results([record]), 3))
    name = next(iter(record.settings))
    older = replace(record, settings={**record.settings, name: -1})
    assert changed_settings(older) == [name]
    gone = {key: value for key, value in record.settings.items() if key != name}
    assert changed_settings(replace(record, settings={**gone, "gone": 1})) == sorted([name, "gone"])
    assert any("†" in line for line in main_table(Results([older]), 3))


def test_pages_that_differ_from_the_records_fail(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metatkgr.experiments import report
    from studies.collect import collect

    (tmp_path / "README.md").write_text(f"# x\n{report._BEGIN}\n{report._END}\ny\n")
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "run it in a checkout" in run("reproduce", "--check").err
    cells = [Cell("world:3000:1", rule, k) for rule in ("pagerank", "paths") for k in (1, 3)]
    run_grid(tmp_path / "out", cells, say=lambda text: None)
    collect(Results.read(tmp_path / "out").records, tmp_path / "results")
    monkeypatch.setattr(report, "readme_results", lambda results: ["a table"])
    monkeypatch.setattr(report, "DATASETS", ())
    missing = run("reproduce", "--check")
    assert missing.code == 1
    assert run("reproduce", "--write-pages").code == 0
    assert "a table" in (tmp_path / "README.md").read_text()
    agreed = run("reproduce", "--check")
    assert agreed.code == 0, agreed.out
    assert "4 records (0 stale, marked †; " in agreed.out
    assert "all agree" in agreed.out
    page = tmp_path / "docs" / "results.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("(.", "(.9", 1), encoding="utf-8")
    differing = run("reproduce", "--check")
    assert differing.code == 1
    assert "docs/results.md, as it is" in differing.out
