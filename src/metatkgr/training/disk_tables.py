"""The tables of a run on disk, and their checkpoints.

A checkpoint is copied under another name and renamed, then the one before is removed: whenever a
process ends, one is whole. ``working`` is never gone on with after that, only the copy.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from metatkgr.errors import DataError
from metatkgr.files import check_file
from metatkgr.training.disk_run import DiskRun
from metatkgr.training.row_table import RowTable
from metatkgr.training.tensors import read_tensors, write_tensors

__all__ = [
    "DiskPosition",
    "are_learned",
    "finish",
    "load_checkpoint",
    "save_checkpoint",
    "tables_of",
]

_STATE, _COPYING = "state.safetensors", ".checkpoint"
_TABLES = ("entity", "relation", "entity-squares", "relation-squares")


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


def are_learned(folder: Path) -> bool:
    """Whether the tables of a run are all that they will be."""
    return (folder / "tables").is_dir()


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
        path = place / f"{name}.safetensors"
        table = RowTable(path, run.settings.dimension, writable=False).all()
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
        check_file(source / path.name)
        shutil.copyfile(source / path.name, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
