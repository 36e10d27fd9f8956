"""The models with weights: ranks after a short training, scores from weights that were kept.

A training is repeated to the last bit only while the order of its sums stays. Where that changes,
``--weights`` tells whether a model still computes the same: scores from the weights of the code
that was recorded, within 1e-5.
"""

from __future__ import annotations

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import metatkgr as mt
from goldens.cells import Cell
from goldens.ranks import DATASETS, ranked
from goldens.ranks import graph as whole_graph
from goldens.surface import (
    loaded_model,
    part_of,
    queries_of,
    sampled,
    save_weights,
    scores_of,
    trained_model,
)

__all__ = ["SETTINGS", "SMALL_WORLD", "cells", "graph", "taught"]

SMALL_WORLD = "world:3000:1"
_TRANSLATIONAL = {"dimension": 16, "epochs": 8, "negatives": 16, "patience": 0}
_STARTED = {"translation_epochs": 3, "patience": 0}
SETTINGS: dict[str, dict[str, Any]] = {
    "transe": _TRANSLATIONAL,
    "transr": {**_TRANSLATIONAL, "translation_epochs": 1},
    "rotate": _TRANSLATIONAL,
    "renet": {"dimension": 16, "epochs": 1, "global_epochs": 1, "batch_size": 256, "patience": 0},
    "regcn": {"dimension": 16, "epochs": 1, "channels": 4, "batch_size": 256, "patience": 0},
    "lan": {"dimension": 16, "epochs": 2, "steps": 20, "batch_size": 128, "patience": 0},
    "igen": {"dimension": 16, "epochs": 2, "batch_size": 64, **_STARTED},
    "tgen": {"dimension": 16, "epochs": 2, "batch_size": 64, **_STARTED},
    "metadygnn": {"dimension": 16, "head_width": 8, "negatives": 16, "epochs": 2, **_STARTED},
    "metatkgr": {"dimension": 16, "negatives": 8, "epochs": 2, "batch_size": 64, **_STARTED},
    "evidence": {"epochs": 2, "train_queries": 300, "support_queries": 150, "patience": 0},
}
"""Of short trainings, by model."""
_LARGE: dict[str, dict[str, Any]] = {
    "transe": {"epochs": 2, "batch_size": 1024},
    "transr": {"epochs": 2, "batch_size": 1024},
    "rotate": {"epochs": 2, "batch_size": 1024},
    "renet": {"batch_size": 2048, "history": 2, "neighbours": 4},
    "regcn": {"batch_size": 2048},
    "igen": {"epochs": 1, "batch_size": 512},
    "tgen": {"epochs": 1, "batch_size": 512},
    "metadygnn": {"epochs": 1, "batch_size": 256},
    "metatkgr": {"epochs": 1, "batch_size": 256},
}
"""What is different on the published datasets, so that each takes seconds."""
_QUESTIONS, _CANDIDATES = 5, 12
_PART = 15_000
"""Of a published dataset about so many facts are learned from: RE-NET takes an hour for all."""
_SAMPLE = 300
"""Questions that are ranked of these."""
_WEIGHTS = "GOLDENS_WEIGHTS"
"""The environment's name for the folder of weights."""


def cells() -> list[Cell]:
    """A training and scores from kept weights, for each model on each graph."""
    found = []
    for name in (SMALL_WORLD, *DATASETS):
        needs = "" if name == SMALL_WORLD else name
        for model in SETTINGS:
            training = partial(_trained, name, model)
            found.append(Cell(f"trained/{name}/{model}", training, not needs, needs))
            scoring = partial(_scores, name, model)
            kept = partial(_is_kept, name, model)
            title = f"scores/{name}/{model}"
            found.append(Cell(title, scoring, not needs, needs, tolerance=1e-5, possible=kept))
    return found


@lru_cache(maxsize=1)
def graph(name: str) -> Any:
    """The graph that models are trained on."""
    facts = whole_graph(name)
    return part_of(facts, _PART) if name in DATASETS else facts


def _weights_of(name: str, model: str) -> Path | None:
    """The file of weights of a model on a graph, where a folder of weights is named."""
    folder = os.environ.get(_WEIGHTS)
    return Path(folder) / name.replace(":", "-") / f"{model}.safetensors" if folder else None


def _is_kept(name: str, model: str) -> bool:
    path = _weights_of(name, model)
    return path is not None and path.exists()


def taught(name: str, model: str) -> Any:
    """A model with weights: those that were kept, or of a training that happens now."""
    path = _weights_of(name, model)
    if path is not None and path.exists():
        return loaded_model(model, graph(name), _settings(name, model), path)
    return trained_model(model, graph(name), _settings(name, model))


def _settings(name: str, model: str) -> dict[str, Any]:
    return SETTINGS[model] | (_LARGE.get(model, {}) if name in DATASETS else {})


def _asked(name: str) -> Any:
    tasks = mt.Tasks.build(graph(name), shots=3)
    return sampled(tasks, _SAMPLE) if name in DATASETS else tasks


def _trained(name: str, model: str) -> dict[str, Any]:
    """Ranks after a training; where none were kept yet, its weights are."""
    learned = trained_model(model, graph(name), _settings(name, model))
    path = _weights_of(name, model)
    if path is not None and not path.exists():
        save_weights(learned, path)
    return ranked(learned, _asked(name))


def _scores(name: str, model: str) -> dict[str, Any]:
    """Scores of some candidates of some questions, from the weights that were kept."""
    learned, tasks = taught(name, model), _asked(name)
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(len(queries_of(tasks)[0]), _QUESTIONS, replace=False))
    candidates = np.sort(rng.choice(len(graph(name).entities), _CANDIDATES, replace=False))
    scores = scores_of(learned, tasks, rows, candidates)
    return {"scores": [[float(f"{value:.7g}") for value in row] for row in scores]}
