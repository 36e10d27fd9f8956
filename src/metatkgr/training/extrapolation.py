"""Models under the field's standard protocol: those with weights learn them from train first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from metatkgr.data.extrapolation import SHARES, ExtrapolationProblem
from metatkgr.data.facts import Facts
from metatkgr.errors import SettingsError
from metatkgr.models import DEFAULT_MODEL, create
from metatkgr.models.trainable import TrainableModel
from metatkgr.training.estimator import configure, learn
from metatkgr.training.opening import OpenModel, choose_device, open_model
from metatkgr.training.runs import is_run

__all__ = ["open_extrapolation"]


def open_extrapolation(
    source: str | Path | Facts,
    *,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    split: tuple[float, float] = SHARES,
    history: str = "single-step",
    seed: int | None = None,
    device: str = "auto",
    **words: Any,
) -> OpenModel:
    """Any model over any data, ready to be asked about valid and test.

    A model with weights learns them from the facts of train; where it validates, valid selects
    them. It has the settings of its preset 'extrapolation', where it has one.

    Args:
        source: data, as for ``open_model``; not a run.
        model: its name; None: the default.
        settings: of the model; they win over the preset's.
        split, history: as for ``Extrapolation.build``.
        seed: of the training; None: 0.
        device: as for ``open_model``.
        words: further arguments of ``open_model``.
    """
    if not isinstance(source, Facts) and is_run(source):
        raise SettingsError(
            f"{source} was trained for the few-shot protocol, on facts that may be as late as "
            "those that extrapolation asks about: name DATA and a --model, which learns from "
            "train first"
        )
    kind = create(model or DEFAULT_MODEL)
    if not isinstance(kind, TrainableModel):
        return open_model(source, model=model, settings=settings, seed=seed, device=device, **words)
    preset = "extrapolation" if "extrapolation" in kind.presets else "default"
    learner = create(kind.name, settings, preset=preset, device=choose_device(device))
    assert isinstance(learner, TrainableModel)
    # By any rule, for the facts: what opens them is in one place.
    opened = open_model(source, model="recurrency", seed=seed, device=device, **words)
    problem = ExtrapolationProblem(opened.facts, split=split, history=history)
    config = configure(
        learner,
        opened.facts,
        shots=1,
        visibility=problem.visibility.value,
        seed=opened.seed,
        preset=preset,
    )
    learn(learner, opened.facts, config, problem=problem)
    return replace(opened, model=learner)
