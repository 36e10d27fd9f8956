"""A saved run: a folder from which a trained model can be used again, by anyone, safely.

=======================  ==================================================================
``config.toml``          what was trained, on what, with which settings
``model.safetensors``    the weights
``graph.safetensors``    the facts as numbers
``vocabulary.json``      names of entities and relations, and the calendar
``trace.jsonl``          one line for each epoch
``metrics.json``         the evaluation on meta-validation
``CARD.md``              the same for people
=======================  ==================================================================

No pickle: nothing in the folder can run code. Each file is written under another name and renamed.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.files import atomic_path, write_json, write_text
from metatkgr.models import create
from metatkgr.models.trainable import TrainableModel

__all__ = ["Run", "RunConfig", "is_run", "load_config", "load_run", "save_graph", "save_model"]

_COLUMNS = ("subject", "relation", "object", "time")
_FORMAT = 1


@dataclass(frozen=True)
class RunConfig:
    """What a run is."""

    dataset: str
    model: str
    shots: int | str
    """K of the training; a range from which each entity's is drawn as text ('random': 1-5)."""
    visibility: str
    seed: int
    version: str
    """Of metatkgr."""
    preset: str = "default"
    precision: str = "float32"
    """Of the losses: float32 or bfloat16."""
    test_shots: int | str = ""
    """K of the meta-validation and meta-test entities; '': that of the training."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Every setting of the model."""
    format: int = _FORMAT


@dataclass(frozen=True, eq=False)
class Run:
    """A run that was loaded."""

    folder: Path
    config: RunConfig
    model: TrainableModel[Any]
    facts: Facts


def is_run(path: str | Path) -> bool:
    """Whether a path is the folder of a run."""
    return (Path(path) / "config.toml").is_file()


def save_graph(folder: Path, config: RunConfig, facts: Facts) -> None:
    """Write what is known before training: configuration, facts, names."""
    write_text(folder / "config.toml", _toml(asdict(config)))
    columns = {name: torch.from_numpy(getattr(facts, name)).contiguous() for name in _COLUMNS}
    _save(folder / "graph.safetensors", columns)
    calendar = facts.calendar
    content = {
        "name": facts.name,
        "calendar": {"unit": calendar.unit, "origin": calendar.origin, "stride": calendar.stride},
        "entities": _vocabulary_to_json(facts.entities),
        "relations": _vocabulary_to_json(facts.relations),
    }
    write_json(folder / "vocabulary.json", content)


def save_model(folder: Path, model: TrainableModel[Any]) -> None:
    """Write the weights."""
    _save(folder / "model.safetensors", model.state())


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    with atomic_path(path) as temporary:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, temporary)


def load_config(folder: Path) -> RunConfig:
    """The configuration of a run."""
    path = folder / "config.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder} is not a run: it has no config.toml") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    known = {f.name for f in fields(RunConfig)}
    if set(content) - known or content.get("format") != _FORMAT:
        raise DataError(f"{path} was not written by this version of metatkgr; train again")
    try:
        return RunConfig(**content)
    except TypeError as error:
        raise DataError(f"{path} is incomplete: {error}") from None


def load_run(folder: str | Path, *, device: torch.device | str = "cpu") -> Run:
    """Load a run; its model is ready for ``prepare``, ``adapt`` and ``score``."""
    folder = Path(folder)
    config = load_config(folder)
    facts = _load_graph(folder)
    model = create(config.model, config.settings, device=device)
    if not isinstance(model, TrainableModel):
        raise DataError(f"{folder}: the model {config.model!r} has no weights")
    path = folder / "model.safetensors"
    if not path.exists():
        raise DataError(f"{folder} holds no trained model yet; `metatkgr train … --resume` goes on")
    model.load_state(_load_tensors(path))
    return Run(folder, config, model, facts)


def _load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _load_graph(folder: Path) -> Facts:
    columns = _load_tensors(folder / "graph.safetensors")
    path = folder / "vocabulary.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Facts(
            subject=columns["subject"].numpy(),
            relation=columns["relation"].numpy(),
            object=columns["object"].numpy(),
            time=columns["time"].numpy(),
            entities=_vocabulary_from_json(content["entities"]),
            relations=_vocabulary_from_json(content["relations"]),
            calendar=Calendar(**content["calendar"]),
            name=content["name"],
        )
    except MetaTKGRError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error!r}") from None


def _vocabulary_to_json(vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "names": list(vocabulary.names),
        "labels": {str(number): label for number, label in vocabulary.labels.items()},
        "aliases": vocabulary.aliases,
    }


def _vocabulary_from_json(content: dict[str, Any]) -> Vocabulary:
    labels = {int(number): label for number, label in content["labels"].items()}
    return Vocabulary(content["names"], labels, content["aliases"])


def _toml(content: dict[str, Any]) -> str:
    """A flat dictionary with one level of tables as TOML."""
    plain = {key: value for key, value in content.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    # JSON's strings, numbers, booleans and lists of them are TOML's too.
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"
