"""Models to be trained, by name and preset; the preset 'tuned' was chosen on meta-validation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import metatkgr.models
from metatkgr.errors import DataError, SettingsError
from metatkgr.files import read_toml, to_toml, write_text
from metatkgr.models import available, create
from metatkgr.models.base import Model
from metatkgr.models.trainable import TrainableModel

__all__ = ["TUNED", "TUNED_FILE", "create_for", "keep_tuned", "trainable", "tuned_settings"]

TUNED = "tuned"
"""Name of the preset."""
TUNED_FILE = Path(metatkgr.models.__file__).with_name("tuned.toml")
"""The settings that come with the package."""


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
        preset: named settings; 'tuned' stands for those chosen for ``dataset``. A preset that is
            there for this dataset too, as 'paper:WIKI', is taken in place of the general one.
        dataset: name of the facts; None: not known yet, then 'tuned' is the default.
        device: where the model computes.
    """
    model = create_for(dataset, name, settings, preset=preset, device=device)
    if not isinstance(model, TrainableModel):
        raise SettingsError(
            f"{name} needs no training; use it at once: metatkgr evaluate DATA --model {name}"
        )
    return model


def create_for(
    dataset: str | None,
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    preset: str = "default",
    device: torch.device | str = "cpu",
) -> Model[Any]:
    """A model by name, with what its preset says for a dataset; arguments as above."""
    chosen = dict(settings or {})
    if preset == TUNED:
        preset = "default"
        chosen = (tuned_settings(name, dataset) if dataset is not None else {}) | chosen
    model = available().get(name)
    if model is not None and f"{preset}:{dataset}" in model.presets:
        preset = f"{preset}:{dataset}"
    return create(name, chosen, preset=preset, device=device)


def tuned_settings(model: str, dataset: str, path: Path = TUNED_FILE) -> dict[str, Any]:
    """The settings that were chosen for a model on a dataset.

    Raises:
        SettingsError: none were chosen yet.
    """
    known = _read(path).get(model, {})
    if dataset not in known:
        chosen = ", ".join(known) if known else "no dataset yet"
        raise SettingsError(
            f"no settings of {model} were tuned on {dataset} (only on: {chosen}); leave out "
            f"--preset tuned, or choose some: metatkgr tune {dataset} --model {model} --out {path}"
        )
    return dict(known[dataset])


def keep_tuned(path: Path, model: str, dataset: str, settings: Mapping[str, Any]) -> None:
    """Put settings into a file beside what it holds for other models and datasets.

    The comment that the file begins with is kept.
    """
    content = _read(path) if path.exists() else {}
    content.setdefault(model, {})[dataset] = dict(settings)
    ordered = {
        name: {data: dict(sorted(values.items())) for data, values in sorted(known.items())}
        for name, known in sorted(content.items())
    }
    head = "".join(f"{line}\n" for line in _comment(path))
    write_text(path, (head + "\n" if head else "") + to_toml(ordered))


def _read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    content = read_toml(path)
    tables = [data for known in content.values() for data in _values(path, known)]
    if not all(isinstance(table, dict) for table in tables):
        raise DataError(f"{path} is not made of tables [MODEL.DATASET] with settings")
    return content


def _values(path: Path, known: Any) -> list[Any]:
    if not isinstance(known, dict):
        raise DataError(f"{path} is not made of tables [MODEL.DATASET] with settings")
    return list(known.values())


def _comment(path: Path) -> list[str]:
    """The lines at the head of a file that are comments."""
    lines: list[str] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                break
            lines.append(line)
    return lines
