"""One way from what a user names (a run, or data and perhaps a model) to a model that can answer.

``evaluate``, ``predict``, ``serve``, ``compare``, :meth:`Forecaster.load` all begin here. Under the
field's standard protocol models with weights learn them from train first.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metatkgr.data import sources
from metatkgr.data.extrapolation import SHARES, ExtrapolationProblem
from metatkgr.data.facts import Facts
from metatkgr.data.readers.bad_rows import BadRows
from metatkgr.data.tasks import Tasks
from metatkgr.errors import DataError, SettingsError
from metatkgr.files import check_signature, read_bytes, user_folder
from metatkgr.models.base import Model, TrainableModel
from metatkgr.models.registry import DEFAULT_MODEL, choose_device, create
from metatkgr.training.estimator import Estimator
from metatkgr.training.runs import is_run, load_run

__all__ = ["OpenModel", "open_extrapolation", "open_model"]


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
    # A misspelt setting is refused before a large file is read.
    create(kind.name, settings, preset=preset)
    # By any rule, for the facts: what opens them is in one place.
    opened = open_model(source, model="recurrency", seed=seed, device=device, **words)
    problem = ExtrapolationProblem(opened.facts, split=split, history=history)
    estimator = Estimator(
        kind.name,
        shots=1,
        visibility=problem.visibility.value,
        seed=opened.seed,
        preset=preset,
        device=device,
        **(settings or {}),
    )
    return replace(opened, model=estimator.fit(opened.facts, problem=problem).model_)
