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
import re
import zlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.shots import Shots
from metatkgr.data.visibility import Visibility
from metatkgr.errors import DataError, MetaTKGRError, SettingsError
from metatkgr.files import read_json, read_toml, write_json, write_text
from metatkgr.models import create
from metatkgr.models.trainable import TrainableModel
from metatkgr.training.tensors import check_fit, expected_state, read_tensors, write_tensors

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
    try:
        return (Path(path) / "config.toml").is_file()
    except (OSError, ValueError):
        return False  # no name that a path can have


def save_graph(folder: Path, config: RunConfig, facts: Facts) -> None:
    """Write what is known before training: configuration, facts, names."""
    write_text(folder / "config.toml", _toml(asdict(config)))
    columns = {name: torch.from_numpy(getattr(facts, name)).contiguous() for name in _COLUMNS}
    write_tensors(folder / "graph.safetensors", columns)
    calendar = facts.calendar
    content = {
        "name": facts.name,
        "calendar": {"unit": calendar.unit, "origin": calendar.origin, "stride": calendar.stride},
        "entities": _vocabulary_to_json(facts.entities),
        "relations": _vocabulary_to_json(facts.relations),
    }
    write_json(folder / "vocabulary.json", {**content, "checksum": _checksum(content)})


def save_model(folder: Path, model: TrainableModel[Any]) -> None:
    """Write the weights."""
    write_tensors(folder / "model.safetensors", model.state_dict())


def load_config(folder: Path) -> RunConfig:
    """The configuration of a run."""
    path = folder / "config.toml"
    if not is_run(folder):
        raise DataError(f"{str(folder)[:300]!r} is not a run: it has no config.toml")
    content = read_toml(path)
    known = {f.name: str(f.type) for f in fields(RunConfig)}
    if set(content) - set(known) or content.get("format") != _FORMAT:
        raise DataError(f"{path} was not written by this version of metatkgr; train again")
    for name, value in content.items():
        if type(value).__name__ not in re.split(r"[^a-z]+", known[name]):
            raise DataError(f"{path}: {name} is {str(value)[:80]!r}, not {known[name]}")
    try:
        config = RunConfig(**content)
    except TypeError as error:
        raise DataError(f"{path} is incomplete: {error}") from None
    if not 0 <= config.seed < 2**63:
        raise DataError(f"{path}: the seed {config.seed} is not between 0 and 2^63")
    Shots.parse(config.shots)
    Shots.parse(config.test_shots or config.shots)
    Visibility.parse(config.visibility)
    return config


def load_run(folder: str | Path, *, device: torch.device | str = "cpu") -> Run:
    """Load a run; its model is ready for ``prepare``, ``adapt`` and ``score``."""
    folder = Path(folder)
    config = load_config(folder)
    facts = _load_graph(folder)
    try:
        model = create(config.model, config.settings, device=device)
    except SettingsError as error:
        raise DataError(
            f"{folder / 'config.toml'}: {error} "
            "If it was written by another version of metatkgr, train again"
        ) from None
    if not isinstance(model, TrainableModel):
        raise DataError(f"{folder}: the model {config.model!r} has no weights")
    path = folder / "model.safetensors"
    if not path.exists():
        raise DataError(f"{folder} holds no trained model yet; `metatkgr train … --resume` goes on")
    weights = read_tensors(path)[0]
    # Before the weights are made: settings of a stranger may ask for any amount of memory.
    check_fit(str(path), weights, expected_state(model, len(facts.entities), len(facts.relations)))
    model.load_state_dict(weights)
    return Run(folder, config, model, facts)


def _load_graph(folder: Path) -> Facts:
    columns = read_tensors(folder / "graph.safetensors")[0]
    path = folder / "vocabulary.json"
    content = read_json(path)
    try:
        told = content.pop("checksum", None)
        if told is not None and told != _checksum(content):
            raise DataError(f"{path} is damaged: its content is not what was written")
        facts = Facts(
            subject=columns["subject"].numpy(),
            relation=columns["relation"].numpy(),
            object=columns["object"].numpy(),
            time=columns["time"].numpy(),
            entities=_vocabulary_from_json(content["entities"]),
            relations=_vocabulary_from_json(content["relations"]),
            calendar=Calendar(**content["calendar"]),
            name=content["name"],
        )
        facts.check()
        return facts
    except MetaTKGRError as error:
        raise DataError(f"the facts in {folder} cannot be used: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read: {error!r}") from None


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return f"crc32:{zlib.crc32(text.encode()):08x}"


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
