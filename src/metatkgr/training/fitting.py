"""From facts to a trained model, and to the folder of a run: what every way to train shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.shots import Shots
from metatkgr.errors import SettingsError
from metatkgr.evaluation.evaluator import evaluation_report
from metatkgr.files import write_json, write_text
from metatkgr.models import create
from metatkgr.models.trainable import TrainableModel
from metatkgr.training.device import choose_precision
from metatkgr.training.distributed import current_part, evaluate_together
from metatkgr.training.loop import train
from metatkgr.training.runs import RunConfig, is_run, load_config, save_graph, save_model
from metatkgr.training.tuned import TUNED, tuned_settings
from metatkgr.training.writer import only_writer
from metatkgr.version import __version__

__all__ = ["Progress", "check_folder", "configure", "learn", "save_run", "trainable"]

Progress = Callable[[dict[str, Any]], object]
"""Is given each line of the trace."""


def trainable(
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    preset: str = "default",
    dataset: str | None = None,
    device: torch.device | str = "cpu",
) -> TrainableModel[Any]:
    """A model by name that can be trained.

    Args:
        name: of the model.
        settings: by name; they win over the preset's.
        preset: named settings; 'tuned' stands for those chosen for ``dataset``.
        dataset: name of the facts; None: not known yet, then 'tuned' is the default.
        device: where the model computes.
    """
    chosen = dict(settings or {})
    if preset == TUNED:
        preset = "default"
        chosen = (tuned_settings(name, dataset) if dataset is not None else {}) | chosen
    model = create(name, chosen, preset=preset, device=device)
    if not isinstance(model, TrainableModel):
        raise SettingsError(
            f"{name} needs no training; use it at once: metatkgr evaluate DATA --model {name}"
        )
    return model


def configure(
    model: TrainableModel[Any],
    facts: Facts,
    *,
    shots: int | str = 3,
    test_shots: int | str | None = None,
    visibility: str = "entity-split",
    seed: int = 0,
    preset: str = "default",
    precision: str = "auto",
) -> RunConfig:
    """All that a training follows from, to be stored with the run."""
    trained = Shots.parse(shots).label
    later = trained if test_shots is None else Shots.parse(test_shots).label
    return RunConfig(
        dataset=facts.name,
        model=model.name,
        shots=trained,
        visibility=visibility,
        seed=seed,
        version=__version__,
        preset=preset,
        precision=choose_precision(precision, model.device),
        test_shots="" if later == trained else later,
        settings=dataclasses.asdict(model.settings),
    )


def check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse to write over a run."""
    if is_run(folder) and not resume:
        raise SettingsError(
            f"{folder} already holds a run; choose another folder, or --resume to go on with it"
        )


def learn(
    model: TrainableModel[Any],
    facts: Facts,
    config: RunConfig,
    *,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    problem: Problem | None = None,
) -> list[dict[str, Any]]:
    """Train a model on facts; weights are selected by MRR on meta-validation and nothing else.

    Args:
        model: gets new weights, in place.
        facts: the whole graph; the queries of meta-validation and meta-test are not learned from.
        config: from :func:`configure`.
        folder: becomes a run in the making, which can be resumed; None writes nothing.
        resume: go on from the checkpoint in ``folder``.
        progress: called with each line of the trace.
        problem: that of ``facts`` and ``config``, when it is at hand already.

    Returns:
        The lines of the trace.
    """
    with ExitStack() as stack:
        if folder is not None and current_part().number == 0:
            check_folder(folder, resume=resume)
            stack.enter_context(only_writer(folder))
            if is_run(folder) and load_config(folder) != config:
                raise SettingsError(
                    f"{folder} was begun with other settings; --resume must repeat them"
                )
            save_graph(folder, config, facts)
        return _learn(model, facts, config, folder, resume, progress, problem)


def _learn(
    model: TrainableModel[Any],
    facts: Facts,
    config: RunConfig,
    folder: Path | None,
    resume: bool,
    progress: Progress | None,
    problem: Problem | None,
) -> list[dict[str, Any]]:
    if problem is None:
        problem = Problem.of(
            facts,
            shots=config.shots,
            test_shots=config.test_shots or None,
            visibility=config.visibility,
            seed=config.seed,
        )
    selected_by = problem.validation

    def validate(candidate: TrainableModel[Any]) -> float:
        return evaluate_together(candidate, selected_by).summary(resamples=0).mrr or 0.0

    return train(
        model,
        problem,
        seed=config.seed,
        validate=validate,
        folder=folder,
        resume=resume,
        progress=progress,
        precision=config.precision,
    )


def save_run(
    folder: Path,
    model: TrainableModel[Any],
    facts: Facts,
    config: RunConfig,
    lines: list[dict[str, Any]],
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Write the weights, their evaluation on meta-validation and the card of a trained model.

    Args:
        folder: in which :func:`learn` trained the model.
        model: trained.
        facts: as given to :func:`learn`.
        config: as given to :func:`learn`.
        lines: as returned by it.
        progress: of the evaluation, as in :func:`evaluation_report`.

    Returns:
        The evaluation.
    """
    with only_writer(folder):
        save_model(folder, model)
    result = evaluation_report(
        model,
        facts,
        shots=config.test_shots or config.shots,
        visibility=config.visibility,
        split="meta-validation",
        seed=config.seed,
        progress=progress,
    )
    with only_writer(folder):
        write_json(folder / "metrics.json", result)
        write_text(folder / "CARD.md", _card(config, result, lines))
    return result


def _card(config: RunConfig, result: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    metrics = result["metrics"]["static"]["all"]
    settings = "\n".join(f"- {key}: {value}" for key, value in config.settings.items())
    shots = f"{config.shots}-shot"
    if config.test_shots:
        shots += f" (tested {config.test_shots}-shot)"
    return (
        f"# {config.model} on {config.dataset}\n\n"
        f"{shots}, visibility {config.visibility}, seed {config.seed}, {config.precision}, "
        f"metatkgr {config.version}. {len(lines)} epochs, {lines[-1]['seconds']:.0f} s.\n\n"
        f"Meta-validation, static filter: MRR {metrics['mrr']:.4f} (95 % interval "
        f"{metrics['mrr_ci95'][0]:.3f} to {metrics['mrr_ci95'][1]:.3f}), H@10 "
        f"{metrics['hits@10']:.4f}. Meta-test was not looked at.\n\n## Settings\n\n{settings}\n"
    )
