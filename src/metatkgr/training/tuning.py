"""Search for settings: trials, pruned when they fall behind, judged on meta-validation alone."""

from __future__ import annotations

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.sources import refuse_test_graph
from metatkgr.errors import SettingsError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.training.cluster import connected, crew
from metatkgr.training.estimator import Estimator
from metatkgr.training.loop import DivergedError
from metatkgr.training.study import (
    Search,
    ended,
    load_optuna,
    open_study,
    sampler_of,
    search_space,
    suggest,
    summary,
)

__all__ = ["tune"]


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
        workers: processes on this machine, or on the cluster; others may join from other machines.
        cluster: the address of a Ray cluster that they run on, as in ``cluster.connected``; all of
            its nodes must see the study.
        progress: called with each trial (``optuna.trial.FrozenTrial``) that ended, whoever did it.

    Returns:
        The best trial, how many there were, and all of them, as JSON's types.
    """
    refuse_test_graph(facts.name, "tuned on")
    study = open_study(search, facts.name)
    seen = {trial.number for trial in ended(study)}

    def report() -> None:
        for trial in ended(study):
            if trial.number not in seen:
                seen.add(trial.number)
                if progress:
                    progress(trial)

    if workers == 1 and cluster is None:
        _work(study, search, facts, report)
    else:
        # The law of a simulated world is for the oracle, and does not travel.
        plain = dataclasses.replace(facts, law=None)
        at_work = _processes(search, plain, workers)
        if cluster is not None:
            at_work = _cluster_workers(search, plain, workers, cluster)
        last_problem = ""
        for problem in at_work:
            last_problem = problem or last_problem
            report()
        report()
        if last_problem and not ended(study):
            raise SettingsError(f"no worker could finish a trial; {last_problem}")
    return summary(study, search, facts.name)


def _processes(search: Search, facts: Facts, workers: int) -> Iterator[str]:
    """Workers on this machine; while they work, now and then, what went wrong so far."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    with crew(_join, (search, facts), workers, threads=threads) as processes:
        while any(process.is_alive() for process in processes):
            yield ""
            time.sleep(0.5)
        if any(process.exitcode for process in processes):
            yield "what went wrong is told above"


def _cluster_workers(search: Search, facts: Facts, workers: int, address: str) -> Iterator[str]:
    """The same on a cluster."""
    if isinstance(search.storage, Path):
        search = dataclasses.replace(search, storage=search.storage.absolute())
    with connected(address, workers=workers, device=search.device) as cluster:
        search = dataclasses.replace(search, device=cluster.device)
        # Where a node dies, Ray begins its worker anew on another, which joins the study again.
        join = cluster.remote(_join)
        shared = cluster.ray.put(facts)
        pending = [join(search, shared) for _ in range(workers)]
        while pending:
            done, pending = cluster.ray.wait(pending, timeout=0.5)
            try:
                cluster.ray.get(done)
            except cluster.ray.exceptions.RayError as error:
                yield str(error)
            yield ""


def _join(search: Search, facts: Facts) -> None:
    """The life of a worker in a process of its own."""
    _work(open_study(search, facts.name), search, facts, lambda: None)


def _work(study: Any, search: Search, facts: Facts, report: Callable[[], object]) -> None:
    """One trial after another, until there are as many as wanted."""
    optuna = load_optuna()
    deadline = math.inf if search.timeout is None else time.monotonic() + search.timeout
    problem = Problem.of(facts, shots=search.shots, visibility=search.visibility, seed=search.seed)
    space = search_space(search)

    def objective(trial: Any) -> float:
        study.sampler = sampler_of(study, search, trial.number)
        return _try(trial, search, facts, problem, space)

    while time.monotonic() < deadline:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(study)
        running = sum(trial.state.name == "RUNNING" for trial in study.trials)
        if len(ended(study)) + running >= search.trials:
            if not running:
                break
            # The last ones are under way in other processes, or were left by a worker that is gone.
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
    """One training; its MRR on meta-validation, reported to the study as it goes."""
    optuna = load_optuna()
    chosen = search.fixed | {
        name: suggest(trial, name, search.model, space[name]) for name in space
    }
    estimator = Estimator(
        search.model,
        shots=search.shots,
        visibility=search.visibility,
        seed=search.seed,
        preset=search.preset,
        device=search.device,
        precision=search.precision,
        **chosen,
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
        lines = estimator.fit(facts, progress=progress, problem=problem).trace_
    except DivergedError as error:
        trial.set_user_attr("diverged", str(error))
        return 0.0
    except torch.OutOfMemoryError as error:
        raise optuna.TrialPruned(f"out of memory: {error}") from None
    trial.set_user_attr("epochs", len(lines))
    last_phase = [line for line in lines if line["phase"] == lines[-1]["phase"]]
    validated = [float(line["validation_mrr"]) for line in last_phase if "validation_mrr" in line]
    if validated:
        return max(validated)
    # A model that does not stop early was not validated on the way.
    return evaluate(estimator.model_, problem.validation).summary(resamples=0).mrr or 0.0
