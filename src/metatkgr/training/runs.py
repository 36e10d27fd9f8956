"""A saved run: a folder from which a trained model can be used again, by anyone, safely.

=======================  ==================================================================
``config.toml``          what was trained, on what, with which settings
``model.safetensors``    the weights
``graph.safetensors``    the facts as numbers, mapped into memory when they are used
``vocabulary.json``      names of entities and relations, and the calendar
``folder.json``          where they were ingested, if they were; there they have an index
``trace.jsonl``          one line for each epoch
``metrics.json``         the evaluation on meta-validation
``CARD.md``              the same for people
``MANIFEST``             the SHA-256 of each of them, in the form of ``sha256sum``
=======================  ==================================================================

No pickle: nothing in the folder can run code. Each file is written under another name and renamed,
``MANIFEST`` last: a folder without it holds a training that was not finished.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.folder import FactFolder
from metatkgr.data.periods import Shots
from metatkgr.data.visibility import Visibility
from metatkgr.errors import DataError, MetaTKGRError, SettingsError
from metatkgr.evaluation.evaluator import evaluation_report
from metatkgr.files import (
    check_digests,
    exclusive,
    read_json,
    read_toml,
    to_toml,
    write_digests,
    write_json,
    write_text,
)
from metatkgr.models import create
from metatkgr.models.base import TrainableModel
from metatkgr.training.checkpoint import check_fit, expected_state, read_tensors, write_tensors

__all__ = [
    "FolderBusyError",
    "Run",
    "RunConfig",
    "check_facts",
    "check_folder",
    "is_run",
    "load_config",
    "load_run",
    "only_writer",
    "save_graph",
    "save_manifest",
    "save_model",
    "save_run",
]

_COLUMNS = ("subject", "relation", "object", "time")
_FORMAT = 2
_LOADED = ("config.toml", "graph.safetensors", "vocabulary.json", "model.safetensors")
"""What a model is made from again."""
_COPIES = ("graph.safetensors", "vocabulary.json")
"""Of these, what is not read where the folder of the facts is as it was."""
_FOLDER = "folder.json"
_TOLD = ("trace.jsonl", "metrics.json", "CARD.md")
"""What is there to be read by people and programs."""
_MANIFEST = "MANIFEST"
_MOST_NAMES = 1 << 31
"""Bytes of the names of a graph."""


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


class FolderBusyError(SettingsError):
    """Another process is writing to the folder."""


def only_writer(folder: Path) -> AbstractContextManager[None]:
    """Within it, no other process may write to the folder.

    Raises:
        FolderBusyError: another does.
    """
    busy = FolderBusyError(
        f"another process is training in {folder}; wait for it, stop it, or choose another folder"
    )
    return exclusive(folder / ".writer", busy)


def check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse to write over a run."""
    if is_run(folder) and not resume:
        raise SettingsError(
            f"{folder} already holds a run; choose another folder, or --resume to go on with it"
        )


def check_facts(folder: Path, facts: Facts) -> None:
    """Refuse to go on with a training on other facts than those with which it was begun."""
    begun = all((folder / name).exists() for name in _COPIES)
    # Without a checkpoint the training may have been stopped before its facts were written.
    if not begun and not (folder / "checkpoint.safetensors").exists():
        return
    if _load_graph(folder).fingerprint != facts.fingerprint:
        raise SettingsError(
            f"{folder} was begun with other facts than these {len(facts):,}; --resume needs the "
            "same data, in the same order; or train in another folder"
        )


def save_graph(folder: Path, config: RunConfig, facts: Facts) -> None:
    """Write what is known before training: configuration, facts, names."""
    write_text(folder / "config.toml", to_toml(asdict(config)))
    # A column of an ingested folder is mapped and cannot be written to, which torch warns of.
    columns = {name: np.require(getattr(facts, name), requirements=("C", "W")) for name in _COLUMNS}
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    write_tensors(folder / "graph.safetensors", tensors)
    calendar = facts.calendar
    content = {
        "name": facts.name,
        "calendar": {"unit": calendar.unit, "origin": calendar.origin, "stride": calendar.stride},
        "entities": _vocabulary_to_json(facts.entities),
        "relations": _vocabulary_to_json(facts.relations),
    }
    write_json(folder / "vocabulary.json", content)
    if facts.folder is None:
        (folder / _FOLDER).unlink(missing_ok=True)
    else:
        place = {"path": str(facts.folder.folder.absolute()), "state": facts.folder.state}
        write_json(folder / _FOLDER, {**place, "fingerprint": facts.fingerprint})


def save_model(folder: Path, model: TrainableModel[Any]) -> None:
    """Write the weights; with what :func:`save_graph` wrote they are a run."""
    # Until the new manifest is there, the folder must not say that it is whole.
    (folder / _MANIFEST).unlink(missing_ok=True)
    write_tensors(folder / "model.safetensors", model.state_dict())
    save_manifest(folder, _LOADED)


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
        folder: in which the model was trained: ``save_graph`` was called.
        model: trained.
        facts: the whole graph.
        config: all that the training followed from.
        lines: of its trace.
        progress: of the evaluation, as in ``evaluation_report``.

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
        save_manifest(folder, (*_LOADED, *_TOLD))
    return result


def save_manifest(folder: Path, names: Iterable[str] = _LOADED) -> None:
    """Write down what the files of a run hold now; without these lines they are not trusted."""
    where = (_FOLDER,) if (folder / _FOLDER).exists() else ()
    write_digests(folder / _MANIFEST, (*names, *where))


def _check_manifest(folder: Path, names: Iterable[str]) -> None:
    """Refuse a run that is not finished, or a file that is not the one that was written."""
    if not (folder / _MANIFEST).exists():
        raise DataError(
            f"{folder} holds no finished training; `metatkgr train … --resume` goes on with it"
        )
    check_digests(folder / _MANIFEST, names)


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


def load_run(
    folder: str | Path, *, device: torch.device | str = "cpu", own_facts: bool = False
) -> Run:
    """Load a run; its model is ready for ``prepare``, ``adapt`` and ``score``.

    Args:
        folder: of the run.
        device: of the model.
        own_facts: read the run's copy of the facts, also where the folder from which they came is
            at hand: ``MANIFEST`` speaks for nothing else.
    """
    folder = Path(folder)
    config = load_config(folder)
    facts = None if own_facts else _ingested(folder)
    _check_manifest(folder, set(_LOADED) - set(() if facts is None else _COPIES))
    facts = facts or _load_graph(folder)
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
    weights = read_tensors(path)[0]
    # Before the weights are made: settings of a stranger may ask for any amount of memory.
    check_fit(str(path), weights, expected_state(model, len(facts.entities), len(facts.relations)))
    model.load_state_dict(weights)
    return Run(folder, config, model, facts)


def _ingested(folder: Path) -> Facts | None:
    """The facts of a run where they were ingested; None: they were not, or that has changed."""
    path = folder / _FOLDER
    if not path.exists():
        return None
    _check_manifest(folder, (_FOLDER,))
    kept = read_json(path)
    try:
        where, state, fingerprint = (str(kept[key]) for key in ("path", "state", "fingerprint"))
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error!r}") from None
    if not re.fullmatch("[0-9a-f]{64}", fingerprint):  # files are named after it
        raise DataError(f"{path} cannot be read: its fingerprint is none")
    place = FactFolder.in_state(where, state)
    if place is None:
        return None
    facts = place.facts()
    vars(facts)["fingerprint"] = fingerprint  # else all of them are read for it
    return facts


def _load_graph(folder: Path) -> Facts:
    columns = read_tensors(folder / "graph.safetensors")[0]
    path = folder / "vocabulary.json"
    content = read_json(path, _MOST_NAMES)
    try:
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


def _vocabulary_to_json(vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "names": list(vocabulary.names),
        "labels": {str(number): label for number, label in vocabulary.labels.items()},
        "aliases": vocabulary.aliases,
    }


def _vocabulary_from_json(content: dict[str, Any]) -> Vocabulary:
    labels = {int(number): label for number, label in content["labels"].items()}
    return Vocabulary(content["names"], labels, content["aliases"])


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
