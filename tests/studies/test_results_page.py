"""The page of the repository's results: collected records, rounds, looks, searches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from metatkgr.errors import DataError
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.report import results_page
from metatkgr.experiments.results import Results, read_records
from metatkgr.experiments.rounds import STANDING, read_looks, read_rounds
from metatkgr.experiments.runner import work_through
from metatkgr.experiments.sections.provenance import _budgets
from studies.collect import collect, keep_looks


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    grid = [Cell("world:3000:1", rule, k) for rule in ("recurrency", "paths") for k in (1, 3)]
    work_through(tmp_path / "out", grid, say=lambda text: None)
    return tmp_path / "out"


def test_collected_results_make_the_same_page_and_merge(cells: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    found = read_records(cells / "cells")
    collect(found[:3], results)
    files = collect(found[2:], results)
    assert [path.relative_to(results).as_posix() for path in files] == [
        "cells/world_3000_1/recurrency.json"
    ]
    assert len(collect(found, results)) == 2
    direct, collected = Results.read(cells), Results.of_repository(results)
    assert results_page(direct) == results_page(Results(collected.records))
    for one, other in zip(direct.records, collected.records, strict=True):
        mine, theirs = one.per_entity(), other.per_entity()
        assert mine is not None
        assert theirs is not None
        assert np.array_equal(mine[0], theirs[0])
        metrics = one.result["metrics"]["static"]["all"]
        assert mine[0].sum() / mine[1].sum() == pytest.approx(metrics["mrr"], abs=1e-12)
        hits = round(metrics["hits@10"] * metrics["queries"])
        assert sum(one.result["per_step"]["hits@10_static"]) == hits
        assert ("per_step" in other.result) == (other.cell.shots == 3), "no figure needs the rest"


def test_a_search_is_told_with_what_it_began_with(tmp_path: Path) -> None:
    def trial(number: int, state: str, mrr: float) -> dict[str, object]:
        return {"trial": number, "state": state, "mrr": mrr, "settings": {}}

    def search_of(model: str, dataset: str, *trials: dict[str, object]) -> dict[str, object]:
        states = [t["state"] for t in trials]
        done = [t for t in trials if t["state"] == "complete"]
        return {
            "model": model,
            "dataset": dataset,
            "trials": {state: states.count(state) for state in ("complete", "pruned", "failed")},
            "best": max(done, key=lambda t: t["mrr"]) if done else None,
            "all": list(trials),
        }

    searches = [
        search_of("rotate", "YAGO", trial(0, "failed", 0), trial(1, "complete", 0.25)),
        search_of("rotate", "own", trial(0, "pruned", 0.1)),
        search_of(
            "transe",
            "YAGO",
            trial(0, "complete", 0.5),
            trial(1, "pruned", 0.2),
            trial(2, "complete", 0.61),
        ),
    ]
    (tmp_path / "tuning").mkdir()
    for number, search in enumerate(searches):
        (tmp_path / "tuning" / f"{number}.json").write_text(json.dumps(search))
    told = "\n".join(_budgets(Results([], folder=tmp_path)))
    none = "not searched; 0 seeds"
    assert f"| `transe` | 3 trials, .500 to .610; 0 seeds | {none} |" in told
    assert f"| `rotate` | 1 trials, – to .250; 0 seeds | {none} |" in told
    assert _budgets(Results([])) == []
    (tmp_path / "tuning" / "x.json").write_text("{}")
    with pytest.raises(DataError, match=r"x\.json is no object with model, dataset"):
        _budgets(Results([], folder=tmp_path))


def test_rounds_and_looks_come_along(tmp_path: Path) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    (out / "rounds").mkdir(parents=True)
    (out / "rounds" / "one.json").write_text(STANDING.read_text(encoding="utf-8"))
    look = {"time": "now", "round": "one", "cell": "YAGO/x", "commit": "abc"}
    (out / "looks.jsonl").write_text(json.dumps(look) + "\n")
    for _ in range(2):
        keep_looks(out, results)
    assert read_looks(results) == [look]
    assert len(read_rounds(results)) == 2
