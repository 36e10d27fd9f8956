"""Search for settings: trials, pruned when they fall behind, judged on meta-validation alone."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.errors import SettingsError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.experiments.study import (
    Search,
    ended,
    load_optuna,
    open_study,
    sampler_of,
    search_space,
    suggest,
)
from metatkgr.models import available
from metatkgr.training.device import choose_device
from metatkgr.training.estimator import configure, learn, trainable
from metatkgr.training.loop import DivergedError

__all__ = ["Search", "summary", "tune"]


def tune(
    search: Search,
    facts: Facts,
    *,
    workers: int = 1,
    cluster: str | None = None,
    progress: Callable[[Any], object] | None = None,
) -> dict[str, Any]:
    """Search until the study has as many trials as wanted, and say what was found.

    Args:
        search: what to search.
        facts: the whole graph; only the meta-validation queries judge.
        workers: processes on this machine, or on the cluster; others may join from elsewhere.
        cluster: the address of a Ray cluster that they run on, as in ``cluster.connected``; all of
            its nodes must see the study.
        progress: called with each trial (``optuna.trial.FrozenTrial``) that ended, whoever did it.

    Returns:
        As :func:`summary`.
    """
    study = open_study(search, facts.name)
    deadline = None if search.timeout is None else time.monotonic() + search.timeout
    seen = {trial.number for trial in ended(study)}

    def report() -> None:
        for trial in ended(study):
            if trial.number not in seen:
                seen.add(trial.number)
                if progress:
                    progress(trial)

    if cluster is not None:
        from metatkgr.experiments.cluster import connected

        if isinstance(search.storage, Path):
            search = dataclasses.replace(search, storage=search.storage.absolute())
        with connected(cluster, workers=workers, device=search.device) as found:
            search = dataclasses.replace(search, device=found.device)
            # Where a node dies, Ray begins its worker anew elsewhere, which joins the study again.
            join = found.remote(_join, max_retries=3)
            shared = found.ray.put(_without_law(facts))
            pending = [join(search, shared, 1) for _ in range(workers)]
            while pending:
                done, pending = found.ray.wait(pending, timeout=0.5)
                report()
                try:
                    found.ray.get(done)
                except found.ray.exceptions.RayError as error:
                    if not pending and not ended(study):
                        raise SettingsError(f"no worker could finish a trial: {error}") from None
    elif workers == 1:
        _work(study, search, facts, deadline, report)
    else:
        spawn = multiprocessing.get_context("spawn")
        threads = max(1, (os.cpu_count() or 1) // workers)
        plain = _without_law(facts)
        crew = [
            spawn.Process(target=_join, args=(search, plain, threads), daemon=True)
            for _ in range(workers)
        ]
        for worker in crew:
            worker.start()
        while any(worker.is_alive() for worker in crew):
            report()
            time.sleep(0.5)
        report()
        if any(worker.exitcode for worker in crew) and not ended(study):
            raise SettingsError("no worker could finish a trial; what went wrong is told above")
    return summary(study, search, facts.name)


def summary(study: Any, search: Search, dataset: str) -> dict[str, Any]:
    """The best trial and how many there were, as JSON's types."""
    states = [trial.state.name for trial in study.trials]
    complete = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    result: dict[str, Any] = {
        "dataset": dataset,
        "model": search.model,
        "shots": search.shots,
        "visibility": search.visibility,
        "seed": search.seed,
        "split": "meta-validation",
        "preset": search.preset,
        "fixed": search.fixed,
        "storage": str(search.storage),
        "trials": {
            name: states.count(state)
            for name, state in (("complete", "COMPLETE"), ("pruned", "PRUNED"), ("failed", "FAIL"))
        },
        "best": None,
    }
    if complete:
        # Of equals the first.
        best = max(complete, key=lambda trial: (trial.value, -trial.number))
        result["best"] = {
            "trial": best.number,
            "mrr": best.value,
            "settings": dict(best.params),
            "seconds": best.duration.total_seconds(),
        }
    result["all"] = [
        {"trial": t.number, "state": t.state.name.lower(), "mrr": t.value, "settings": t.params}
        for t in study.trials
    ]
    return result


def _without_law(facts: Facts) -> Facts:
    """The law of a simulated world is for the oracle, and does not travel."""
    return dataclasses.replace(facts, law=None)


def _join(search: Search, facts: Facts, threads: int) -> None:
    """The life of a worker in a process of its own."""
    torch.set_num_threads(threads)
    deadline = None if search.timeout is None else time.monotonic() + search.timeout
    _work(open_study(search, facts.name), search, facts, deadline, lambda: None)


def _work(
    study: Any,
    search: Search,
    facts: Facts,
    deadline: float | None,
    report: Callable[[], object],
) -> None:
    """One trial after another, until there are as many as wanted."""
    optuna = load_optuna()
    problem = Problem.of(facts, shots=search.shots, visibility=search.visibility, seed=search.seed)
    space = search_space(search)

    def objective(trial: Any) -> float:
        study.sampler = sampler_of(study, search, trial.number)
        return _try(trial, search, facts, problem, space)

    while deadline is None or time.monotonic() < deadline:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(study)
        done = len(ended(study))
        running = sum(trial.state.name == "RUNNING" for trial in study.trials)
        if done + running >= search.trials:
            if not running:
                break
            # The last ones are under way elsewhere, or were left by a worker that is gone.
            time.sleep(0.5)
            continue
        study.optimize(objective, n_trials=1)
        report()


def _try(
    trial: Any,
    search: Search,
    facts: Facts,
    problem: Problem,
    space: Mapping[str, tuple[Any, ...]],
) -> float:
    """One training; its MRR on meta-validation, told to the study as it goes."""
    optuna = load_optuna()
    settings_type = available()[search.model].settings_type
    values = {name: suggest(trial, name, space[name], settings_type) for name in space}
    device = choose_device(search.device)
    chosen = {**search.fixed, **values}
    model = trainable(search.model, chosen, preset=search.preset, dataset=facts.name, device=device)
    config = configure(
        model,
        facts,
        shots=search.shots,
        visibility=search.visibility,
        seed=search.seed,
        preset=search.preset,
        precision=search.precision,
    )
    validations = 0

    def progress(line: dict[str, Any]) -> None:
        nonlocal validations
        if "validation_mrr" in line:
            trial.report(line["validation_mrr"], validations)
            validations += 1
            if trial.should_prune():
                raise optuna.TrialPruned(f"after {validations} validations")

    try:
        lines = learn(model, facts, config, progress=progress, problem=problem)
    except DivergedError as error:
        trial.set_user_attr("diverged", str(error))
        return 0.0
    except torch.OutOfMemoryError as error:
        raise optuna.TrialPruned(f"out of memory: {error}") from None
    trial.set_user_attr("epochs", len(lines))
    found = [
        line["validation_mrr"]
        for line in lines
        if line["phase"] == lines[-1]["phase"] and "validation_mrr" in line
    ]
    # A model that does not stop early was not validated on the way.
    return max(found) if found else _validate(model, problem)


def _validate(model: Any, problem: Problem) -> float:
    return evaluate(model, problem.validation).summary(resamples=0).mrr or 0.0
