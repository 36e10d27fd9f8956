"""Search for settings: trials, pruned when they fall behind, judged on meta-validation alone.

The study lies in an SQLite file, or in a database by its URL. Whoever is started with the same one
and the same search joins it; a worker that is killed leaves a trial that the others give up after
a while, and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import torch

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.sources import refuse_test_graph
from metatkgr.errors import SettingsError, need
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.models.registry import available, trainable
from metatkgr.training.cluster import connected, crew
from metatkgr.training.estimator import Estimator
from metatkgr.training.loop import DivergedError

__all__ = [
    "Search",
    "ended",
    "is_range",
    "load_optuna",
    "open_study",
    "sampler_of",
    "search_space",
    "suggest",
    "summary",
    "tune",
]

_HEARTBEAT = 2
"""Seconds between signs of life of a worker."""
_SILENCE = 20
"""Seconds without one after which a trial is given up."""


@dataclass(frozen=True)
class Search:
    """What is searched, and for how long."""

    model: str
    storage: Path | str
    """An SQLite file; or the URL of a database, for workers that share no file system."""
    trials: int = 20
    """Trials in all, of all workers, that ended or were pruned."""
    timeout: float | None = None
    """Seconds after which no worker begins another trial."""
    shots: int | str = 3
    visibility: str = "entity-split"
    seed: int = 0
    fixed: dict[str, Any] = field(default_factory=dict)
    """Settings that are not searched."""
    preset: str = "default"
    device: str = "auto"
    precision: str = "auto"
    startup: int = 5
    """Trials before any is pruned."""
    space: dict[str, tuple[Any, ...]] | None = None
    """What to search; None: the ranges beside the model. ``(low, high, 'log' | 'linear')`` is a
    range, any other tuple a choice."""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise SettingsError(f"at least 1 trial is needed, not {self.trials}")
        if self.timeout is not None and not self.timeout > 0:
            raise SettingsError(f"the timeout is a number of seconds above 0, not {self.timeout}")


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


def suggest(trial: Any, name: str, model: str, values: tuple[Any, ...]) -> Any:
    """The value of a setting in a trial."""
    if not is_range(values):
        return trial.suggest_categorical(name, list(values))
    low, high, scale = values
    if get_type_hints(available()[model].settings_type).get(name) is int:
        return trial.suggest_int(name, int(low), int(high), log=scale == "log")
    return trial.suggest_float(name, float(low), float(high), log=scale == "log")


def is_range(values: tuple[Any, ...]) -> bool:
    """Whether ``values`` are the ends of a range and its scale; else they are choices."""
    return len(values) == 3 and values[2] in ("log", "linear")


def search_space(search: Search) -> dict[str, tuple[Any, ...]]:
    """What is searched: the ranges of the model without the settings that are fixed."""
    # Says what is wrong with the name or a fixed setting.
    trainable(search.model, search.fixed, preset=search.preset)
    ranges = available()[search.model].tuning if search.space is None else search.space
    space = {name: values for name, values in ranges.items() if name not in search.fixed}
    if not space:
        kept = "every setting with a range is fixed" if ranges else "it has no ranges"
        raise SettingsError(
            f"there is nothing to search for {search.model}: {kept}; ranges are kept in the "
            "attribute 'tuning' of the model's class"
        )
    return space


def sampler_of(study: Any, search: Search, number: int) -> Any:
    """What draws the settings of a trial.

    The first trial has the settings that one has without a search, so the result is never worse;
    if it was lost, the next one has them. (Not by ``enqueue_trial``: in SQLite two workers that ask
    at once both take the trial that waits.) The others are seeded by their numbers: workers that
    start together do not draw the same settings, and a single one draws the same ones every time.
    """
    optuna = load_optuna()
    drawn = optuna.samplers.TPESampler(
        seed=search.seed * 100_003 + number, n_startup_trials=search.startup
    )
    earlier = [trial for trial in study.trials if trial.number < number]
    defaults = _defaults(search)
    if defaults is None or any(trial.state.name != "FAIL" for trial in earlier):
        return drawn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.PartialFixedSampler(defaults, drawn)


def _defaults(search: Search) -> dict[str, Any] | None:
    """The searched settings as they are without a search; None where they are out of range."""
    preset = "default" if search.preset == "tuned" else search.preset
    values = dataclasses.asdict(trainable(search.model, search.fixed, preset=preset).settings)
    space = search_space(search)
    for name, allowed in space.items():
        value = values[name]
        inside = allowed[0] <= value <= allowed[1] if is_range(allowed) else value in allowed
        if not inside or (isinstance(value, float) and not math.isfinite(value)):
            return None
    return {name: values[name] for name in space}


def open_study(search: Search, dataset: str) -> Any:
    """The study of a search, new or as far as it has come; an ``optuna.Study``."""
    optuna = load_optuna()
    if isinstance(search.storage, Path) and not search.storage.exists():
        _make_tables(search.storage)
    study = optuna.create_study(
        study_name=f"{search.model} on {dataset}, {search.shots}-shot, {search.visibility}",
        storage=_storage(search.storage),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=search.startup, n_warmup_steps=1),
        direction="maximize",
        load_if_exists=True,
    )
    conditions = json.dumps(
        {"fixed": search.fixed, "preset": search.preset, "space": search_space(search)},
        sort_keys=True,
    )
    begun = study.user_attrs.get("asked")
    if begun is None:
        study.set_user_attr("asked", conditions)
    elif begun != conditions:
        raise SettingsError(
            f"{search.storage} holds this search with other fixed settings or ranges: choose "
            "another --storage, or repeat what it was begun with"
        )
    return study


def _storage(storage: Path | str) -> Any:
    """The studies in a file or a database."""
    optuna = load_optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        url = f"sqlite:///{storage}" if isinstance(storage, Path) else storage
        # Workers wait for each other's writes instead of giving up.
        patient = {"connect_args": {"timeout": 120}} if url.startswith("sqlite") else {}
        return optuna.storages.RDBStorage(
            url, heartbeat_interval=_HEARTBEAT, grace_period=_SILENCE, engine_kwargs=patient
        )


def _make_tables(path: Path) -> None:
    """A file without studies; it appears whole, so that workers may all try to make it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(6)}-{path.name}")
    try:
        empty = _storage(temporary)
        empty.remove_session()
        empty.engine.dispose()
        with suppress(FileExistsError):  # another worker was first
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def ended(study: Any) -> list[Any]:
    """The trials that were judged, to their end or as far as it took."""
    return [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]


def summary(study: Any, search: Search, dataset: str) -> dict[str, Any]:
    """The best trial and how many there were, as JSON's types."""
    trials = study.trials
    states = [trial.state.name for trial in trials]
    named = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
    # Of equals the first.
    best = max(
        (trial for trial in trials if trial.state.name == "COMPLETE"),
        key=lambda trial: (trial.value, -trial.number),
        default=None,
    )
    return {
        "dataset": dataset,
        **{name: getattr(search, name) for name in ("model", "shots", "visibility", "seed")},
        "split": "meta-validation",
        "preset": search.preset,
        "fixed": search.fixed,
        "storage": str(search.storage),
        "trials": {name: states.count(state) for name, state in named.items()},
        "seconds": sum(trial.duration.total_seconds() for trial in trials if trial.duration),
        "best": best
        and {
            "trial": best.number,
            "mrr": best.value,
            "settings": dict(best.params),
            "seconds": best.duration.total_seconds(),
        },
        "all": [
            {"trial": t.number, "state": t.state.name.lower(), "mrr": t.value, "settings": t.params}
            for t in trials
        ],
    }


def load_optuna() -> Any:
    """The module ``optuna``, quiet; imported only where a search is made."""
    optuna = need("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
