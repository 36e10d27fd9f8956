"""The grid of experiments: the whole pipeline, and what happens when parts of it die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from command_line import Run
from metatkgr.errors import SettingsError, UnknownNameError
from metatkgr.experiments.cells import BASELINES, Cell
from metatkgr.experiments.leases import Lease
from metatkgr.experiments.records import Record
from metatkgr.experiments.report import results_page
from metatkgr.experiments.results import Results, read_records
from metatkgr.experiments.runner import Limits, failures, record_path, run_grid, work_through
from metatkgr.experiments.suite import EXPERIMENTS, Choice, cells_for

WORLD = "world:3000:1"


def rules(*shots: int) -> list[Cell]:
    return [Cell(WORLD, rule, k) for k in shots for rule in ("recurrency", "paths")]


def test_the_whole_pipeline_runs_quickly_and_is_not_run_twice(run: Run, tmp_path: Path) -> None:
    begin = time.perf_counter()
    shown = run("reproduce", "--quick", "--workers", 2, "--out", tmp_path)
    assert shown.code == 0, shown.err
    assert time.perf_counter() - begin < 120
    cells = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").rglob("*.json")}
    assert len(cells) == 27
    assert not list((tmp_path / "work").rglob("*.safetensors"))
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    for heading in ("3-shot", "Cross-shot", "Who is better", "Ablations", "Datasets", "Figures"):
        assert f"## {heading}" in page
    assert "Visibility `frozen`" in page
    for name in ("over-time-world", "ablations", "training-time-world", "bound"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 1000
        assert (tmp_path / "figures" / f"{name}.svg").exists()
    html = (tmp_path / "results.html").read_text(encoding="utf-8")
    assert html.count("data:image/png;base64,") == page.count("](figures/")
    assert 'src="figures' not in html

    again = run("reproduce", "--quick", "--out", tmp_path)
    assert again.code == 0
    assert "done    " not in again.out
    assert cells == {path: path.stat().st_mtime_ns for path in cells}
    assert f"\n{page.partition('## What')[2]}".endswith(
        results_page(Results.read(tmp_path)).partition("## What")[2]
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        if condition():
            return
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    raise AssertionError("waited for a minute")


def test_a_killed_worker_loses_nothing_but_its_last_epoch(tmp_path: Path) -> None:
    settings = (("dimension", "16"), ("epochs", "40"), ("patience", "0"))
    cell = Cell(WORLD, "transe", 3, 0, settings=settings)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    words = [
        "reproduce",
        "3-shot",
        "--models",
        "transe",
        "--seeds",
        "1",
        "--no-report",
        "--device",
        "cpu",
    ]
    words += ["--datasets", WORLD, "--out", str(killed)]
    words += [word for key, value in settings for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "metatkgr", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    trace = killed / "work" / cell.name / "trace.jsonl"
    checkpoint = trace.with_name("checkpoint.safetensors")
    try:
        wait_for(lambda: checkpoint.exists() and trace.read_text().count("\n") >= 3, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not record_path(killed, cell).exists()
    assert list((killed / "leases" / cell.name).iterdir()), "the lease of the dead is left"
    done_before = trace.read_text().count("\n")

    # The dead process is gone from this machine: its lease is taken over at once.
    work_through(killed, [cell])
    work_through(whole, [cell])
    resumed, uninterrupted = (Record.read(record_path(out, cell)) for out in (killed, whole))
    assert done_before >= 3
    assert resumed.result["metrics"] == uninterrupted.result["metrics"]
    assert resumed.result["per_entity"] == uninterrupted.result["per_entity"]
    assert resumed.training["epochs"] == 40
    assert not (killed / "work" / cell.name).exists()
    assert not (killed / "leases" / cell.name).exists()


def test_two_workers_never_compute_a_cell_twice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cells = rules(1, 2, 3, 4)
    run_grid(tmp_path, cells, workers=2)
    done = Counter(
        line.split()[1].rstrip(":")
        for line in capfd.readouterr().out.splitlines()
        if line.startswith("done")
    )
    assert done == Counter(cell.name for cell in cells)
    assert len(read_records(tmp_path / "cells")) == len(cells)


def test_of_many_that_see_a_dead_lease_one_takes_over(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    for generation in range(20):
        with ThreadPoolExecutor(16) as pool:
            leases = list(pool.map(lambda _: Lease.take(folder), range(16)))
        taken = [lease for lease in leases if lease is not None]
        assert [lease.generation for lease in taken] == [generation]
        assert Lease.take(folder) is None
        os.utime(folder / str(generation), (0, 0))  # its owner was last heard of in 1970
        assert not taken[0].lost


def test_a_lease_that_was_taken_over_is_lost_to_its_first_owner(tmp_path: Path) -> None:
    first = Lease.take(tmp_path / "cell")
    assert first is not None
    with first:
        os.utime(tmp_path / "cell" / "0", (0, 0))
        second = Lease.take(tmp_path / "cell")
        assert second is not None
        assert first.lost
        assert not second.lost
    assert Lease.take(tmp_path / "cell") is None, "the first must not give back what is not its own"
    with second:
        pass
    assert Lease.take(tmp_path / "cell") is not None


def test_a_cell_that_fails_does_not_stop_the_others(run: Run, tmp_path: Path) -> None:
    bad = Cell("no-such-dataset", "recurrency", 3)
    cells = [bad, *rules(3)]
    run_grid(tmp_path, cells, say=lambda text: None)
    assert list(failures(tmp_path, cells)) == [bad.name]
    assert "no-such-dataset" in failures(tmp_path, cells)[bad.name]
    assert len(read_records(tmp_path / "cells")) == 2
    words = ("--datasets", f"{WORLD},no-such-dataset", "--models", "recurrency", "--no-report")
    shown = run("reproduce", "3-shot", *words, "--out", tmp_path)
    assert shown.code == 1
    assert "failed: no-such-dataset" in shown.out


def test_out_of_time_nothing_is_begun_and_a_training_is_left_resumable(tmp_path: Path) -> None:
    work_through(tmp_path, rules(3), limits=Limits.of(0.0, None))
    assert read_records(tmp_path / "cells") == []
    endless = (("epochs", "100000"), ("patience", "0"))
    cell = Cell(WORLD, "transe", 3, settings=endless)
    said: list[str] = []
    work_through(tmp_path, [cell], limits=Limits.of(None, 1.0), say=said.append)
    assert said == [f"left    {cell.name}"]
    assert (tmp_path / "work" / cell.name / "checkpoint.safetensors").exists()
    assert not (tmp_path / "leases" / cell.name).exists()


def test_cells_have_one_name_for_each_training_and_read_back() -> None:
    cells = cells_for([], Choice(best=("transe",)))
    assert len({cell.name for cell in cells}) == len(cells)
    assert all(Cell.from_json(json.loads(json.dumps(c.to_json()))) == c for c in cells)
    assert Cell("YAGO", "paths", 3, test_shots="3").name == Cell("YAGO", "paths", 3).name
    with pytest.raises(SettingsError, match="shots"):
        Cell("YAGO", "paths", 0)
    with pytest.raises(UnknownNameError, match="3-shot"):
        cells_for(["3-shots"], Choice())


def test_the_grid_has_what_the_paper_has() -> None:
    cells = cells_for([], Choice(best=("transe",)))
    seeds = Counter((c.dataset, c.model) for c in cells_for(["3-shot"], Choice(best=("transe",))))
    for dataset in ("YAGO", "WIKI", "ICEWS18"):
        assert seeds[dataset, "metatkgr"] == 10, "five seeds, two presets"
        assert seeds[dataset, "transe"] == 5
        assert seeds[dataset, "paths"] == 1
    assert {c.visibility for c in cells if c.model == "transe"} == {
        "entity-split",
        "frozen",
        "streaming",
    }
    crossed = {(c.shots, c.test_shots) for c in cells if c.model == "metatkgr"}
    assert crossed >= {(k, test) for k in (1, 3) for test in ("1", "3", "5", "random")}
    assert {dict(c.settings).get("variant") for c in cells} >= {"fine-tuning", "static-maml"}
    assert [c.dataset for c in cells[:3]] == ["YAGO", "WIKI", "ICEWS18"], "datasets alternate"
    assert set(EXPERIMENTS) >= {"3-shot", "cross-shot", "ablations", "bound"}
    assert "metadygnn" in BASELINES
