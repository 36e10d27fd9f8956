"""A search for settings: shared by workers, pruned, kept, and judged on meta-validation alone."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import metatkgr as mt
from command_line import Run
from metatkgr.errors import SettingsError
from metatkgr.experiments.results import Results
from metatkgr.models.base import TrainableModel
from metatkgr.models.registry import TUNED_FILE, create_for, keep_tuned, trainable, tuned_settings
from metatkgr.training import tuning
from metatkgr.training.tuning import Search, is_range, open_study, search_space, tune

RESULTS = Path(__file__).parents[2] / "results"
SMALL = {"epochs": 6, "dimension": 8, "validate_every": 1}
SPACE: dict[str, tuple[Any, ...]] = {
    "learning_rate": (1e-3, 5e-2, "log"),
    "batch_size": (256, 512),
}


@pytest.fixture(scope="module")
def world() -> mt.Facts:
    return mt.simulate(facts=2000)


def search(folder: Path, **changed: Any) -> Search:
    values = {"model": "transe", "storage": folder / "study.db", "fixed": SMALL, "space": SPACE}
    return Search(**(values | {"trials": 3, "device": "cpu"} | changed))


def words(folder: Path, trials: int) -> list[str]:
    fixed = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    where = ["--storage", str(folder / "study.db"), "--device", "cpu", "--trials", str(trials)]
    return ["tune", "world:2000", "--model", "transe", *fixed, *where]


def launch(folder: Path, trials: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "metatkgr", *words(folder, trials), "--json", "-"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_best_of_a_study_is_no_worse_than_the_defaults(world: mt.Facts, tmp_path: Path) -> None:
    told: list[int] = []
    found = tune(search(tmp_path), world, progress=lambda trial: told.append(trial.number))
    assert found["trials"] == {"complete": 3, "pruned": 0, "failed": 0}
    assert told == [0, 1, 2]
    first = found["all"][0]
    assert first["settings"] == {"learning_rate": 0.005, "batch_size": 512}, "the defaults"
    assert found["best"]["mrr"] == max(trial["mrr"] for trial in found["all"])
    settings = SMALL | found["best"]["settings"]
    model = mt.Estimator("transe", device="cpu", **settings).fit(world)
    assert model.evaluate("meta-validation").summary().mrr == pytest.approx(found["best"]["mrr"])


def test_a_search_is_repeated_by_its_seed_and_goes_on(world: mt.Facts, tmp_path: Path) -> None:
    one = tune(search(tmp_path / "one"), world)
    two = tune(search(tmp_path / "two", trials=2), world)
    assert len(two["all"]) == 2
    two = tune(search(tmp_path / "two"), world)
    assert one["all"] == two["all"]
    with pytest.raises(SettingsError, match="other fixed settings"):
        tune(search(tmp_path / "one", fixed=SMALL | {"dimension": 16}), world)


def test_meta_test_is_not_looked_at(
    world: mt.Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = mt.evaluate

    def watched(model: Any, tasks: mt.Tasks, **more: Any) -> Any:
        asked.append(tasks.split.label)
        return real(model, tasks, **more)

    monkeypatch.setattr("metatkgr.training.distributed.evaluate", watched)
    monkeypatch.setattr("metatkgr.training.tuning.evaluate", watched)
    tune(search(tmp_path, trials=1, fixed=SMALL | {"patience": 0}), world)
    tune(search(tmp_path / "stops", trials=1), world)
    assert set(asked) == {"meta-validation"}


def test_trials_that_fall_behind_are_pruned_and_counted(world: mt.Facts, tmp_path: Path) -> None:
    rates = {"learning_rate": (1e-6, 0.005)}
    found = tune(search(tmp_path, trials=6, startup=1, space=rates, fixed=SMALL), world)
    count = found["trials"]
    assert count["pruned"] > 0
    assert count["complete"] + count["pruned"] == 6
    assert found["best"]["settings"] == {"learning_rate": 0.005}


def test_a_loss_that_diverges_is_the_worst_value(
    world: mt.Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise tuning.DivergedError("the loss became nan")

    monkeypatch.setattr(tuning.Estimator, "fit", diverge)
    assert tune(search(tmp_path, trials=1), world)["best"]["mrr"] == 0.0


def test_two_processes_share_a_study(tmp_path: Path) -> None:
    workers = [launch(tmp_path, 6), launch(tmp_path, 6)]
    results = []
    for worker in workers:
        out, err = worker.communicate(timeout=240)
        assert worker.returncode == 0, err
        results.append((json.loads(out), err))
    # One of them may have ended while the other was still at a trial: who asks now knows all.
    out, err = launch(tmp_path, 6).communicate(timeout=240)
    whole = json.loads(out)
    ended = whole["trials"]["complete"] + whole["trials"]["pruned"]
    assert 6 <= ended <= 7
    assert whole["best"] in [result["best"] for result, _ in results]
    assert all(result["best"]["mrr"] <= whole["best"]["mrr"] for result, _ in results)
    chosen = [json.dumps(trial["settings"]) for trial in whole["all"]]
    assert len(set(chosen)) == len(chosen), "two workers tried the same settings"


def test_workers_of_one_command_share_a_study(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "tuned.toml"
    shown = run(*words(tmp_path, 3), "--workers", 2, "--out", kept, "--json", "-")
    assert shown.code == 0, shown.err
    result = json.loads(shown.out)
    assert result["trials"]["complete"] + result["trials"]["pruned"] >= 3
    assert "trial 0" in shown.err
    assert "--set learning_rate=" in result["set"]
    settings = tuned_settings("transe", "world", kept)
    assert settings == SMALL | result["best"]["settings"]


def test_a_killed_worker_leaves_a_study_that_goes_on(
    world: mt.Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = launch(tmp_path, 50)
    ranges = mt.available()["transe"].tuning
    same = search(
        tmp_path, fixed={key: str(value) for key, value in SMALL.items()}, space=dict(ranges)
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if same.storage.exists():
            states = [trial.state.name for trial in open_study(same, "world").trials]
            if "COMPLETE" in states and "RUNNING" in states:
                break
        time.sleep(0.05)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    before = open_study(same, "world").trials
    assert any(trial.state.name == "COMPLETE" for trial in before)
    wanted = sum(trial.state.name in ("COMPLETE", "PRUNED") for trial in before) + 2
    monkeypatch.setattr(tuning, "_SILENCE", 3)
    found = tune(search(tmp_path, trials=wanted, fixed=same.fixed, space=same.space), world)
    assert found["trials"]["complete"] + found["trials"]["pruned"] == wanted
    assert not [t for t in open_study(same, "world").trials if t.state.name == "RUNNING"]


def test_every_range_of_every_model_fits_its_settings() -> None:
    for name, model in mt.available().items():
        if not issubclass(model, TrainableModel) or not model.tuning:
            continue
        for setting, values in model.tuning.items():
            for value in values[:2] if is_range(values) else values:
                created = mt.create(name, {setting: value})
                assert getattr(created.settings, setting) == value


def test_a_model_without_ranges_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mt.available()["transe"], "tuning", {})
    shown = run(*words(tmp_path, 1))
    assert shown.code == 2
    assert "nothing to search for transe" in shown.err
    with pytest.raises(SettingsError, match="every setting with a range is fixed"):
        search_space(search(tmp_path, space={"dimension": (8, 16)}))
    assert "needs no training" in run("tune", "world", "--model", "paths").err


def test_without_optuna_one_is_told_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    shown = run(*words(tmp_path, 1))
    assert shown.code == 2
    assert "metatkgr[tune]" in shown.err


def test_tuned_settings_are_kept_beside_others_and_used(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "tuned.toml"
    kept.write_text("# about this file\n\n[metatkgr.YAGO]\nepochs = 3\n")
    keep_tuned(kept, "transe", "world", {"epochs": 2, "learning_rate": 0.01})
    keep_tuned(kept, "transe", "a file.csv", {"epochs": 4})
    keep_tuned(kept, "transe", "world", {"epochs": 2, "dimension": 8})
    assert kept.read_text().startswith("# about this file\n")
    assert tuned_settings("metatkgr", "YAGO", kept) == {"epochs": 3}
    assert tuned_settings("transe", "a file.csv", kept) == {"epochs": 4}
    assert tuned_settings("transe", "world", kept) == {"epochs": 2, "dimension": 8}
    monkeypatch.setattr(tuned_settings, "__defaults__", (kept,))
    out = tmp_path / "run"
    line = ["train", "world:2000", "--model", "transe", "--preset", "tuned", "--out", out]
    shown = run(*line, "--set", "epochs=1")
    assert shown.code == 0, shown.err
    text = (out / "config.toml").read_text()
    assert 'preset = "tuned"' in text
    assert "dimension = 8" in text
    assert "\nepochs = 1" in text


def test_the_packages_tuned_settings_are_settings() -> None:
    import tomllib

    kept = tomllib.loads(TUNED_FILE.read_text(encoding="utf-8"))
    for name, datasets in kept.items():
        for settings in datasets.values():
            mt.create(name, settings)
    learned = {name for name, model in mt.available().items() if issubclass(model, TrainableModel)}
    assert set(kept) == learned
    found = {(s["model"], s["dataset"]): s for s in Results([], folder=RESULTS).kept("tuning")}
    assert {(name, dataset) for name in kept for dataset in kept[name]} == set(found)
    for (name, dataset), search_ in found.items():
        complete = [t for t in search_["all"] if t["state"] == "complete"]
        best = max(complete, key=lambda trial: (trial["mrr"], -trial["trial"]))
        tuned = dict(kept[name][dataset])
        if name == "evidence":  # searched before there were weights to start from
            assert tuned.pop("start") == "none"
        assert search_["best"]["settings"] == best["settings"] == tuned
        assert search_["split"] == "meta-validation"


def test_a_preset_may_have_numbers_of_its_own_for_a_dataset() -> None:
    """The paper's γ and η on WIKI differ from those of its other datasets; all else is the same."""
    everywhere, wiki = (
        dataclasses.asdict(trainable("metatkgr", preset="paper", dataset=name).settings)
        for name in ("YAGO", "WIKI")
    )
    changed = {key: (value, wiki[key]) for key, value in everywhere.items() if value != wiki[key]}
    assert changed == {"margin": (0.5, 0.4), "inner_rate": (1e-4, 5e-5)}
    plain, tuned = (
        create_for("WIKI", "metatkgr", {"margin": 0.3}, preset=preset)
        for preset in ("paper", "tuned")
    )
    assert plain.settings.margin == tuned.settings.margin == 0.3
    assert plain.settings.inner_rate == 5e-5
