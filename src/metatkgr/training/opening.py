"""One way from what a user names (a run, or data and perhaps a model) to a model that can answer.

``evaluate``, ``predict``, ``serve``, ``compare``, :meth:`Forecaster.load` all begin here, as does
the way from the words for a device and a precision to what they stand for. So do models to be
trained, by name and preset; the preset 'tuned' was chosen on meta-validation.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import metatkgr.models
from metatkgr.data import sources
from metatkgr.data.facts import Facts
from metatkgr.data.readers.bad_rows import BadRows
from metatkgr.data.tasks import Tasks
from metatkgr.errors import DataError, SettingsError
from metatkgr.files import check_signature, read_bytes, read_toml, to_toml, user_folder, write_text
from metatkgr.models import DEFAULT_MODEL, available, create
from metatkgr.models.base import Model
from metatkgr.models.trainable import TrainableModel
from metatkgr.training.runs import is_run, load_run

__all__ = [
    "PRECISIONS",
    "TUNED",
    "TUNED_FILE",
    "OpenModel",
    "choose_device",
    "choose_precision",
    "create_for",
    "keep_tuned",
    "open_model",
    "trainable",
    "tuned_settings",
]

PRECISIONS = ("auto", "float32", "tf32", "bfloat16")


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A model ready for ``prepare``, with the facts and the protocol that belong to it."""

    model: Model[Any]
    facts: Facts
    shots: int | str
    """K, or a range from which each entity's K is drawn."""
    visibility: str
    seed: int
    folder: Path | None = None
    """Of the run; None where the model needed no training."""
    trained_shots: int | str | None = None
    """K of the run's own meta-test entities; ``shots`` may have been chosen otherwise."""
    path: Path | None = None
    """Of the data, where they lie at one."""
    verified: bool = False
    """Whether the run bears its maker's signature. What lies beside it without one is not used."""

    @property
    def protocol(self) -> dict[str, Any]:
        """What the tasks follow from besides the facts."""
        return {"shots": self.shots, "visibility": self.visibility, "seed": self.seed}

    @property
    def store(self) -> Path:
        """The file in which a service keeps what it is given besides these facts.

        A place of the user's own: the folder of a run may be a stranger's, and so may a database
        in it. Data that lie at a path keep their store when they grow.
        """
        name = re.sub(r"[^\w.-]+", "-", self.facts.name or "facts")[:60]
        path = None if self.path is None else hashlib.sha256(os.fsencode(self.path)).hexdigest()
        return user_folder("observed") / f"{name}-{(path or self.facts.fingerprint)[:12]}.sqlite"

    @property
    def quality_file(self) -> Path | None:
        """Where the quality of a run is kept, in a place of the user's own; None: nowhere."""
        try:
            if self.folder is None:
                return None
            run = hashlib.sha256(read_bytes(self.folder / "MANIFEST")).hexdigest()
            return user_folder("quality") / f"{run[:24]}.json"
        except DataError:
            return None

    def tasks(self, split: str = "meta-test") -> Tasks:
        """The few-shot tasks of a split."""
        return Tasks.build(self.facts, split=split, **self.protocol)

    def another(self) -> Model[Any]:
        """The same model once more, for work that must not disturb this one."""
        if self.folder is not None:
            return load_run(self.folder, device=self.model.device).model
        other = type(self.model)(self.model.settings, device=self.model.device)
        if isinstance(self.model, TrainableModel) and isinstance(other, TrainableModel):
            other.load_state_dict(self.model.state_dict())
        return other


def open_model(
    source: str | Path | Facts,
    *,
    model: str | None = None,
    preset: str = "default",
    settings: Mapping[str, Any] | None = None,
    shots: int | str | None = None,
    visibility: str | None = None,
    seed: int | None = None,
    device: str = "auto",
    reading: Mapping[str, Any] | None = None,
    verify: str | Path | None = None,
    tell: Callable[[BadRows], object] | None = None,
) -> OpenModel:
    """Open a trained run, or a model that needs no training here over any data.

    Args:
        source: the folder of a run; or data: a catalogue name, 'world', a file, an ingested
            folder, or facts that are at hand.
        model: a model that needs no training, where ``source`` is not a run; None: the default.
        preset, settings: of that model.
        shots, visibility, seed: of the tasks; None: the run's, or 3, 'entity-split' and 0.
        device: 'cpu', 'cuda', 'cuda:N' or 'auto', a GPU where there is one.
        reading: fields of ``ReadOptions``, where ``source`` is a file.
        verify: file of the key with which the run must have been signed; None: whoever made it.
        tell: called with what came of the rows of a file.

    Raises:
        SettingsError: the run has chosen already what was given, or the model has to be trained.
        DataError: what is there cannot be used, or is not signed as it should be.
    """
    where = choose_device(device)
    if not isinstance(source, Facts) and is_run(source):
        if model or settings or reading or preset != "default":
            raise SettingsError(
                f"{source} is a run: its model, settings and facts are chosen already"
            )
        if verify is not None:
            check_signature(Path(source) / "MANIFEST", Path(verify))
        run = load_run(source, device=where, own_facts=verify is not None)
        known = run.config.test_shots or run.config.shots
        return OpenModel(
            run.model,
            run.facts,
            known if shots is None else shots,
            visibility or run.config.visibility,
            run.config.seed if seed is None else seed,
            run.folder,
            known,
            verified=verify is not None,
        )
    if verify is not None:
        raise SettingsError("only a run can be verified: data and rules have no signature")
    # A misspelt model or setting is refused before a large file is read.
    chosen = create(model or DEFAULT_MODEL, settings, preset=preset, device=where)
    if isinstance(chosen, TrainableModel) and not chosen.pretrained:
        data = "DATA" if isinstance(source, Facts) else source
        raise SettingsError(
            f"{chosen.name} has to be trained first: metatkgr train {data} --model {chosen.name} "
            "--out RUN, then name RUN here; or take the usual model, which needs no training"
        )
    facts, rows = (
        (source, None)
        if isinstance(source, Facts)
        else sources.load_with_report(str(source), **(reading or {}))
    )
    if rows is not None and tell is not None:
        tell(rows)
    if isinstance(chosen, TrainableModel):
        chosen.load_pretrained(facts)
    path = None if isinstance(source, Facts) else Path(source).expanduser()
    return OpenModel(
        chosen,
        facts,
        3 if shots is None else shots,
        visibility or "entity-split",
        seed or 0,
        path=path.resolve() if path is not None and path.exists() else None,
    )


def choose_device(name: str) -> str:
    """The device to compute on; 'auto' is a GPU where there is one."""
    if name == "auto":
        # Of several processes each takes a GPU of its own.
        return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"unknown device {name!r}; use cpu, cuda, cuda:N or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"{name!r} was asked for, but this machine has no usable GPU; use cpu")
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"device {name!r} is not supported; use cpu, cuda, cuda:N or auto")
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return str(device)


def choose_precision(name: str, device: torch.device | str = "cpu") -> str:
    """The precision of the losses, 'float32', 'tf32' or 'bfloat16', that is meant by ``name``.

    'auto' is tf32 on a GPU: products with a table of all entities are most of many models' work,
    and there their factors lose digits that no training misses. It is float32 on a CPU.
    """
    if name not in PRECISIONS:
        raise SettingsError(f"precision is one of {', '.join(PRECISIONS)}, not {name!r}")
    if name != "auto":
        return name
    return "tf32" if torch.device(device).type == "cuda" else "float32"


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
    known = _read_tuned(path).get(model, {})
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
    content = _read_tuned(path) if path.exists() else {}
    content.setdefault(model, {})[dataset] = dict(settings)
    ordered = {
        name: {data: dict(sorted(values.items())) for data, values in sorted(known.items())}
        for name, known in sorted(content.items())
    }
    head = "".join(f"{line}\n" for line in _comment(path))
    write_text(path, (head + "\n" if head else "") + to_toml(ordered))


def _read_tuned(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
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
