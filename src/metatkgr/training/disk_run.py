"""The folder of a run whose graph and tables stay on disk.

=======================  ===================================================================
``on-disk.json``         what is trained, with which settings, on the facts of which folder
``working/``             the tables that are being learned, changed in place
``checkpoint-N/``        a copy of them as they were at one moment, and where that was
``tables/``              the last checkpoint, when the tables are learned
``indexes/``             of MetaTKGR: what it may see while it learns, as indexes
``meta/``                of MetaTKGR: the checkpoint and the trace of its meta-training
``encoder.safetensors``  of MetaTKGR: its encoder, when the training is done
``trace.jsonl``          one line for each epoch
``metrics.json``         the evaluation on questions of meta-validation
=======================  ===================================================================

Only ``on-disk.json``, ``tables``, the encoder and the last two are left in the end.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from metatkgr.data.large.store import FactStore
from metatkgr.data.shots import Shots
from metatkgr.data.visibility import Visibility
from metatkgr.errors import DataError, SettingsError
from metatkgr.files import read_json, write_json
from metatkgr.graph.stored import open_index
from metatkgr.models.base import parse_settings
from metatkgr.training.disk_settings import DiskSettings, disk_settings
from metatkgr.training.runs import is_run

__all__ = [
    "DiskRun",
    "is_disk_run",
    "load_disk_run",
    "open_index",
    "refuse_disk_run",
    "start_disk_run",
]

_ABOUT, _FORMAT, _VERSION = "on-disk.json", "metatkgr run on disk", 1


@dataclass(frozen=True)
class DiskRun:
    """What a run is."""

    data: str
    """The folder of the facts; in the file, seen from the folder of the run."""
    dataset: str
    facts: int
    entities: int
    relations: int
    model: str
    shots: int | str
    test_shots: int | str
    visibility: str
    seed: int
    settings: DiskSettings
    version: str
    """Of metatkgr."""

    def store(self) -> FactStore:
        """The facts.

        Raises:
            DataError: they are not there any more, or others are.
        """
        if not FactStore.is_at(self.data):
            raise DataError(
                f"the facts of this run were in {self.data} and are not there any more; say where "
                "they are: metatkgr evaluate RUN --data FOLDER, or metatkgr train FOLDER … --resume"
            )
        store = FactStore(self.data)
        sizes = len(store), len(store.entities), len(store.relations)
        if sizes != (self.facts, self.entities, self.relations):
            raise DataError(
                f"{self.data} holds other facts than this run learned; say where those are (--data "
                "FOLDER), or train again"
            )
        return store


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


def load_disk_run(folder: str | Path, data: str | Path | None = None) -> DiskRun:
    """What the folder says that it is.

    Args:
        folder: of the run.
        data: where its facts are, if they have moved.
    """
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
    settings = parse_settings(disk_settings(content["model"]), content.pop("settings"))
    # Behind an absolute path, which earlier versions wrote, nothing else counts.
    seen = os.path.join(Path(folder).resolve(), content.pop("data"))
    where = os.path.normpath(seen) if data is None else str(Path(data).expanduser().resolve())
    return DiskRun(where, **content, settings=settings)


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
        begun = load_disk_run(folder)
        if replace(begun, data=run.data) != run:
            raise SettingsError(
                f"{folder} was begun with other settings; --resume must repeat them"
            )
        if begun == run:
            return
    about = {"format": _FORMAT, "format_version": _VERSION, **asdict(run)}
    write_json(folder / _ABOUT, about | {"data": _seen_from(folder, run.data)})


def _seen_from(folder: Path, data: str) -> str:
    """The way from a run to its facts: it stays right where both are moved together."""
    try:
        return os.path.relpath(data, folder.resolve())
    except ValueError:
        return data  # on another drive there is none
