"""The folder of a run whose graph and tables stay on disk, and its checkpoints.

=====================  =====================================================================
``on-disk.json``       what is trained, with which settings, on the facts of which folder
``working/``           the tables that are being learned, changed in place
``checkpoint-N/``      a copy of them as they were at one moment, and where that was
``tables/``            the last checkpoint, when the training is done
``trace.jsonl``        one line for each epoch
``metrics.json``       the evaluation on questions of meta-validation
=====================  =====================================================================

A checkpoint is copied under another name and renamed, then the one before is removed: whenever a
process ends, one is whole. ``working`` is never gone on with after that, only the copy.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from metatkgr.data.large.store import FactStore
from metatkgr.data.shots import Shots
from metatkgr.data.visibility import Visibility
from metatkgr.errors import DataError, SettingsError
from metatkgr.files import read_json, write_json
from metatkgr.graph.index import GraphIndex
from metatkgr.models.base import parse_settings
from metatkgr.training.row_table import RowTable
from metatkgr.training.runs import is_run
from metatkgr.training.tensors import read_tensors, write_tensors
from metatkgr.training.triples_on_disk import DiskTripleSettings

__all__ = [
    "DiskPosition",
    "DiskRun",
    "DiskRunSettings",
    "finish",
    "is_disk_run",
    "load_checkpoint",
    "load_disk_run",
    "open_index",
    "refuse_disk_run",
    "save_checkpoint",
    "start_disk_run",
    "tables_of",
]

INDEX = "index.safetensors"
_ABOUT, _STATE, _FORMAT, _VERSION = "on-disk.json", "state.safetensors", "metatkgr run on disk", 1
_COPYING = ".checkpoint"
_TABLES = ("entity", "relation", "entity-squares", "relation-squares")


@dataclass(frozen=True, kw_only=True)
class DiskRunSettings(DiskTripleSettings):
    """Settings of a training on disk, from its beginning to its end."""

    epochs: int = 10
    """Passes over the facts that may be learned from."""
    questions: int = 256
    """Of meta-validation, asked after each epoch."""
    checkpoint_blocks: int = 64
    """Blocks between two checkpoints; there is one after each epoch besides."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "questions", "checkpoint_blocks"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class DiskRun:
    """What a run is."""

    data: str
    """The folder of the facts."""
    dataset: str
    facts: int
    entities: int
    relations: int
    model: str
    shots: int | str
    test_shots: int | str
    visibility: str
    seed: int
    settings: DiskRunSettings
    version: str
    """Of metatkgr."""

    def store(self) -> FactStore:
        """The facts.

        Raises:
            DataError: they are not there any more, or others are.
        """
        if not FactStore.is_at(self.data):
            raise DataError(
                f"the facts of this run were in {self.data} and are not there any more; put them "
                "back, or train again"
            )
        store = FactStore(self.data)
        sizes = len(store), len(store.entities), len(store.relations)
        if sizes != (self.facts, self.entities, self.relations):
            raise DataError(f"{self.data} holds other facts than this run learned; train again")
        return store


@dataclass
class DiskPosition:
    """How far a training has come."""

    epoch: int = 0
    """Epochs that are done."""
    block: int = 0
    """Blocks of this epoch that are done."""
    step: int = 0
    """Steps in all."""
    facts: int = 0
    """Facts of this epoch that were learned from."""
    loss: float = 0.0
    """Sum of the losses of these."""
    trace_lines: int = 0
    seconds: float = 0.0
    checkpoints: int = 0
    """How many were written."""

    def check(self) -> None:
        """Raise a ValueError unless every number is one that a training can have."""
        for name, value in asdict(self).items():
            kinds = (int, float) if name in ("loss", "seconds") else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 2**62:
                raise ValueError(f"{name} is {value!r}")

    def next_epoch(self) -> None:
        """An epoch is done, and a line of the trace written."""
        self.epoch, self.trace_lines = self.epoch + 1, self.trace_lines + 1
        self.block, self.facts, self.loss = 0, 0, 0.0


def is_disk_run(path: str | Path) -> bool:
    """Whether a path is the folder of a run on disk."""
    try:
        return (Path(path) / _ABOUT).is_file()
    except (OSError, ValueError):
        return False  # no name that a path can have


def refuse_disk_run(path: str | Path) -> None:
    """Say that a run whose graph stays on disk can be evaluated, and nothing else yet."""
    if is_disk_run(path):
        raise SettingsError(
            f"{path} is a run on disk (train --on-disk), which metatkgr evaluate takes; forecasts "
            "need a run that was trained in memory: leave out --on-disk"
        )


def load_disk_run(folder: str | Path) -> DiskRun:
    """What the folder says that it is."""
    path = Path(folder) / _ABOUT
    content = read_json(path)
    wrong = f"{path} was not written by this version of metatkgr, or is damaged; train again"
    if not isinstance(content, dict):
        raise DataError(wrong)
    head = content.pop("format", None), content.pop("format_version", None)
    known = {f.name: str(f.type) for f in fields(DiskRun)}
    if head != (_FORMAT, _VERSION) or set(content) != set(known):
        raise DataError(wrong)
    for name, kinds in known.items():
        kind = type(content[name]).__name__
        if kind not in (["dict"] if name == "settings" else kinds.split(" | ")):
            raise DataError(f"{path}: {name} is {str(content[name])[:80]!r}, not {kinds}")
    if not 0 <= content["seed"] < 2**63:
        raise DataError(f"{path}: the seed {content['seed']} is not between 0 and 2^63")
    for name in ("shots", "test_shots"):
        Shots.parse(content[name])
    Visibility.parse(content["visibility"])
    settings = parse_settings(DiskRunSettings, content.pop("settings"))
    return DiskRun(**content, settings=settings)


def start_disk_run(folder: Path, run: DiskRun, *, resume: bool) -> None:
    """Make the folder this run's; refuse to write over another.

    Raises:
        SettingsError: there is a run already, and it is not to be gone on with, or is another.
    """
    if is_run(folder) or (is_disk_run(folder) and not resume):
        raise SettingsError(
            f"{folder} already holds a run; choose another folder, or --resume to go on with it"
        )
    if is_disk_run(folder):
        if load_disk_run(folder) != run:
            raise SettingsError(
                f"{folder} was begun with other settings; --resume must repeat them"
            )
        return
    about = {"format": _FORMAT, "format_version": _VERSION, **asdict(run)}
    write_json(folder / _ABOUT, about)


def open_index(store: FactStore) -> GraphIndex:
    """The index beside the facts.

    Raises:
        DataError: there is none, or it is of other facts.
    """
    path = store.folder / INDEX
    if not path.is_file():
        raise DataError(
            f"{store.folder} has no index of links; make it with 'metatkgr data ingest … --index'"
        )
    index = GraphIndex.open(path)
    if (index.entities, index.relations) != (len(store.entities), 2 * len(store.relations)):
        raise DataError(f"{path} is the index of other facts; make it again")
    return index


def save_checkpoint(folder: Path, position: DiskPosition, generator: torch.Generator) -> None:
    """Copy ``working`` with all that is needed to go on exactly."""
    position.checkpoints += 1
    target = folder / f"checkpoint-{position.checkpoints}"
    temporary = folder / _COPYING
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        _copy(folder / "working", temporary)
        state = {"generator": generator.get_state()}
        write_tensors(temporary / _STATE, state, {"position": json.dumps(asdict(position))})
        os.replace(temporary, target)
        for old in _checkpoints(folder):
            if old != target:
                shutil.rmtree(old)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}") from error


def load_checkpoint(folder: Path) -> tuple[DiskPosition, Tensor] | None:
    """Put the last checkpoint into ``working``; None: there is none, ``working`` is empty.

    Returns:
        Where it was, and the state of the generator.
    """
    working = folder / "working"
    shutil.rmtree(working, ignore_errors=True)
    place = _last(folder)
    if place is None:
        return None
    state, about = read_tensors(place / _STATE)
    try:
        _copy(place, working)
        position = DiskPosition(**json.loads(about["position"]))
        position.check()
        torch.Generator().set_state(state["generator"])
        return position, state["generator"]
    except OSError as error:
        raise DataError(f"cannot read {place}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RuntimeError, RecursionError) as error:
        raise DataError(f"{place} cannot be gone on with ({error}); begin anew") from None


def finish(folder: Path) -> None:
    """The last checkpoint is what was learned."""
    last = _last(folder)
    if last is not None and last.name != "tables":
        os.replace(last, folder / "tables")
    for rest in (folder / "working", folder / _COPYING, *_checkpoints(folder)):
        shutil.rmtree(rest, ignore_errors=True)


def tables_of(folder: Path, run: DiskRun) -> tuple[Tensor, Tensor]:
    """(E, d) and (R, d) vectors, mapped, of the end of a training or of its last checkpoint."""
    place = _last(folder)
    if place is None:
        raise DataError(f"{folder} holds no trained model yet; `metatkgr train … --resume` goes on")
    tables = []
    for name, rows in (("entity", run.entities), ("relation", run.relations)):
        table = RowTable(place / f"{name}.safetensors", run.settings.dimension).all()
        if len(table) != rows:
            raise DataError(f"{place} has {len(table):,} rows for {rows:,} names; train again")
        tables.append(table)
    return tables[0], tables[1]


def _checkpoints(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()]
    return sorted(found, key=lambda path: int(path.name[11:]))


def _last(folder: Path) -> Path | None:
    done = folder / "tables"
    return done if done.is_dir() else next(reversed(_checkpoints(folder)), None)


def _copy(source: Path, target: Path) -> None:
    """Copy the tables; they are on the disk when this returns."""
    target.mkdir(parents=True)
    for name in _TABLES:
        path = target / f"{name}.safetensors"
        shutil.copyfile(source / path.name, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
