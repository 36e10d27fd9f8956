"""Train on a folder of facts that is larger than memory, and evaluate what was learned.

The tables are learned block by block (``translation_on_disk``); over them, MetaTKGR its encoder
(``meta_on_disk``). Killed at any moment, a training goes on exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from metatkgr.data.large.split import AskedTasks, StoredSplit
from metatkgr.data.large.store import FactStore
from metatkgr.data.periods import Period
from metatkgr.data.shots import Shots
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Visibility
from metatkgr.errors import MetaTKGRError, SettingsError
from metatkgr.evaluation.on_disk import BlockScorer, TableScorer, evaluate_on_disk
from metatkgr.files import write_json
from metatkgr.graph.stored import index_of
from metatkgr.training.disk_run import DiskRun, load_disk_run, start_disk_run
from metatkgr.training.disk_settings import DiskRunSettings, DiskSettings, disk_settings
from metatkgr.training.disk_tables import are_learned, tables_of
from metatkgr.training.meta_on_disk import asked_model, few_questions, learn_encoder
from metatkgr.training.translation_on_disk import Update, learn_translation
from metatkgr.training.triples_on_disk import DiskTriples
from metatkgr.training.writer import only_writer
from metatkgr.version import __version__

__all__ = ["configure_on_disk", "report_on_disk", "train_on_disk"]


def configure_on_disk(
    store: FactStore,
    settings: DiskSettings,
    *,
    model: str = "transe",
    shots: int | str = 3,
    test_shots: int | str | None = None,
    visibility: str = "entity-split",
    seed: int = 0,
) -> DiskRun:
    """All that a training on disk follows from."""
    if not isinstance(settings, disk_settings(model)):
        raise SettingsError(f"{type(settings).__name__} are not the settings of {model} on disk")
    trained = Shots.parse(shots).label
    return DiskRun(
        data=str(store.folder.resolve()),
        dataset=store.name,
        facts=len(store),
        entities=len(store.entities),
        relations=len(store.relations),
        model=model,
        shots=trained,
        test_shots=trained if test_shots is None else Shots.parse(test_shots).label,
        visibility=Visibility.parse(visibility).value,
        seed=seed,
        settings=settings,
        version=__version__,
    )


def train_on_disk(
    folder: Path,
    run: DiskRun,
    *,
    resume: bool = False,
    progress: Callable[[dict[str, Any]], object] | None = None,
    update: Update | None = None,
) -> dict[str, Any]:
    """Learn the weights of a run, and evaluate them on questions of meta-validation.

    Args:
        folder: becomes the run's.
        run: of :func:`configure_on_disk`.
        resume: go on from the last checkpoint in ``folder``.
        progress: called with each line of the trace.
        update: told of the rows of the facts, and of the tasks, that were gone through.

    Returns:
        The evaluation, as :func:`report_on_disk` gives it.
    """
    store = run.store()
    with index_of(store) as index, only_writer(folder):
        start_disk_run(folder, run, resume=resume)
        split = _protocol(store, run)
        judged = _validation(split, run)
        asked = judged.tasks
        if len(asked.answers) == 0:
            raise MetaTKGRError(
                f"no new entity of meta-validation has more than its first {run.test_shots} facts: "
                "there is nothing to be judged by; choose fewer shots"
            )

        def validate(learning: DiskTriples) -> float:
            scorer = TableScorer(learning.entity.all(), learning.relation.all())
            return evaluate_on_disk(scorer, asked, index).summary(resamples=0).mrr or 0.0

        if isinstance(run.settings, DiskRunSettings):
            learn_translation(
                folder,
                split.learnable(),
                run.settings,
                seed=run.seed,
                validate=validate,
                progress=progress,
                update=update,
            )
        else:
            stages = _Stages(update)
            if not are_learned(folder):
                # In these vectors the entities of meta-train are as new as those to come.
                start = _protocol(store, run, shots=1) if run.settings.one_shot else split
                learn_translation(
                    folder,
                    start.learnable(Period.META_TRAIN),
                    run.settings.translation,
                    seed=run.seed,
                    most_steps=run.settings.translation_steps,
                    progress=progress,
                    update=stages,
                )
            stages.next()
            learn_encoder(folder, run, split, asked, index, progress=progress, update=stages)
        result = _report(folder, run, split, judged, time.perf_counter())
        write_json(folder / "metrics.json", result)
    return result


def report_on_disk(
    folder: Path,
    *,
    split: str = "meta-test",
    questions: int = 1000,
    shots: int | str | None = None,
    visibility: str | None = None,
    seed: int | None = None,
    details: bool = False,
    data: str | Path | None = None,
    update: Update | None = None,
) -> dict[str, Any]:
    """Rank questions of a split with the model of a run, as the object that ``--json`` writes.

    Args:
        folder: of the run.
        split: whose new entities are asked about.
        questions: how many are asked; drawn evenly, where there are more.
        shots: K, where it is not the run's.
        visibility: which facts are visible, where it is not the run's.
        seed: of the draw and of each entity's K, where it is not the run's.
        details: add metrics per relation and per time step.
        data: where the run's facts are, if they have moved.
        update: told of the questions that were asked.
    """
    begin = time.perf_counter()
    run = load_disk_run(folder, data)
    period = Period.parse(split)
    seed = run.seed if seed is None else seed
    protocol = _protocol(run.store(), run, shots=shots, visibility=visibility, seed=seed)
    asked = protocol.tasks(period, questions, seed)
    result = _report(folder, run, protocol, asked, begin, details=details, update=update)
    return result | {"data": run.data}  # a run may lead anywhere, so it is told where


def _report(
    folder: Path,
    run: DiskRun,
    protocol: StoredSplit,
    asked: AskedTasks,
    begin: float,
    *,
    details: bool = False,
    update: Update | None = None,
) -> dict[str, Any]:
    """Ask, and tell what came of it."""
    total, period = len(asked.tasks.questions), asked.tasks.split
    with (
        index_of(protocol.store) as index,
        _scorer(folder, run, protocol, asked.tasks) as scorer,
    ):
        loaded = time.perf_counter() - begin
        evaluation = evaluate_on_disk(
            scorer,
            asked.tasks,
            index,
            progress=None if update is None else lambda done: update(done, total),
        )
    measured = evaluation.to_json(details=details)
    measured["seconds"] = {"load": round(loaded, 4)} | measured["seconds"]
    return {
        "dataset": run.dataset,
        "model": run.model,
        "settings": asdict(run.settings),
        "seed": protocol.seed,
        "version": __version__,
        "on_disk": True,
        "questions": total,
        "queries_of_split": asked.queries,
        "trained_shots": run.shots if period is Period.META_TRAIN else run.test_shots,
    } | measured


def _protocol(
    store: FactStore,
    run: DiskRun,
    *,
    shots: int | str | None = None,
    visibility: str | None = None,
    seed: int | None = None,
) -> StoredSplit:
    """The protocol of a run, or with another K for all, another visibility, another seed."""
    return StoredSplit(
        store,
        shots=shots or run.shots,
        test_shots=shots or run.test_shots,
        visibility=visibility or run.visibility,
        seed=run.seed if seed is None else seed,
    )


def _validation(split: StoredSplit, run: DiskRun) -> AskedTasks:
    """The questions of meta-validation by which a training is judged."""
    settings = run.settings
    moments = None if isinstance(settings, DiskRunSettings) else settings.moments
    return few_questions(split, Period.META_VALIDATION, settings.questions, moments, run.seed)


@contextmanager
def _scorer(
    folder: Path, run: DiskRun, protocol: StoredSplit, tasks: Tasks
) -> Iterator[BlockScorer]:
    """The model of a run, ready for questions about a split."""
    if isinstance(run.settings, DiskRunSettings):
        yield TableScorer(*tables_of(folder, run))
        return
    with asked_model(folder, run, protocol, tasks) as model:
        yield model


class _Stages:
    """The progress of one stage after another, as that of one."""

    def __init__(self, update: Update | None) -> None:
        self._update, self._before, self._done = update, 0, 0

    def next(self) -> None:
        """A stage is done."""
        self._before = self._done

    def __call__(self, done: int, total: int) -> None:
        self._done += done
        if self._update:
            self._update(done, self._before + total)
