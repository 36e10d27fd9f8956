"""The page of the repository's results: collected records, searches, times of trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metatkgr.errors import DataError
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.records import Record
from metatkgr.experiments.report import results_page
from metatkgr.experiments.results import Results, read_records
from metatkgr.experiments.runner import work_through
from studies.collect import collect
from studies.results_page import (
    read_searches,
    read_timings,
    results_of,
    search_section,
    times_section,
)


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
    direct, collected = Results.read(cells), results_of(results)
    assert results_page(direct) == results_page(collected)
    for one, other in zip(direct.records, collected.records, strict=True):
        mine, theirs = one.per_entity(), other.per_entity()
        assert mine is not None
        assert theirs is not None
        assert np.array_equal(mine[0], theirs[0])
        metrics = one.result["metrics"]["static"]["all"]
        assert mine[0].sum() / mine[1].sum() == pytest.approx(metrics["mrr"], abs=0.002)
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
    lines = search_section(searches)
    assert "| `transe` | .500 to .610 (3) | – |" in lines
    assert "| `rotate` | – to .250 (1) | – |" in lines
    assert search_section([]) == []
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "x.json").write_text("{}")
    with pytest.raises(DataError, match=r"x\.json does not hold a search"):
        read_searches(tmp_path)


def trained(model: str, seed: int, seconds: float, epochs: int) -> Record:
    return Record(Cell("YAGO", model, seed=seed), {}, {"seconds": seconds, "epochs": epochs})


def timed(seconds: float, **changed: Any) -> dict[str, Any]:
    usual = {"dataset": "YAGO", "model": "regcn", "shots": 3, "preset": "default", "settings": {}}
    return {**usual, "seconds": seconds, "epochs": 7, "beside": 4, **changed}


def test_the_longest_training_counts_and_only_the_same_model_with_its_defaults() -> None:
    runs = [trained("regcn", 0, 80, 9), trained("regcn", 1, 233.4, 30), trained("lan", 0, 5, 1)]
    others = [
        timed(999, preset="tuned"),
        timed(999, shots=1),
        timed(999, dataset="WIKI"),
        timed(999, model="renet"),
        timed(999, settings={"epochs": "90"}),
    ]
    lines = times_section(Results(runs), [timed(60), timed(72.2), *others])
    assert "| `regcn` | 233 (30); **72 (7)** |" in lines
    assert "| `lan` | 5 (1) |" in lines
    assert any(line.startswith("4 others beside it") for line in lines)
    assert not any("renet" in line for line in lines), "no training of it in the grid"


def test_nothing_is_said_without_times() -> None:
    assert times_section(Results([trained("regcn", 0, 80, 9)]), []) == []
    rule = Record(Cell("YAGO", "paths"), {})
    assert times_section(Results([rule]), [timed(60)]) == []


@pytest.mark.parametrize(
    "content", [[], {}, {"variants": [{}]}, {"variants": [timed(1) | {"seconds": "x"}]}]
)
def test_a_file_without_times_is_named(tmp_path: Path, content: Any) -> None:
    (tmp_path / "timings").mkdir()
    path = tmp_path / "timings" / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"bad\.json does not hold times of trainings"):
        read_timings(tmp_path)
    path.write_text(json.dumps({"variants": [timed(1), timed(2)]}))
    assert read_timings(tmp_path) == [timed(1, beside=1), timed(2, beside=1)]
