"""Train on a folder of facts that is larger than memory; killed at any moment, it goes on exactly.

Facts are read block by block, in an order drawn for each epoch; of each block only what the
protocol lets a model learn from is seen. One block is learned from in batches, whose rows of the
tables are all that is touched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from metatkgr.data.large.split import LearnableFacts, StoredSplit
from metatkgr.data.large.store import FactStore
from metatkgr.data.periods import Period
from metatkgr.data.shots import Shots
from metatkgr.data.visibility import Visibility
from metatkgr.errors import MetaTKGRError, SettingsError
from metatkgr.evaluation.on_disk import evaluate_on_disk
from metatkgr.files import write_json
from metatkgr.training.disk_run import (
    DiskPosition,
    DiskRun,
    DiskRunSettings,
    finish,
    load_checkpoint,
    load_disk_run,
    open_index,
    save_checkpoint,
    start_disk_run,
    tables_of,
)
from metatkgr.training.trace import Trace
from metatkgr.training.triples_on_disk import DiskTriples
from metatkgr.training.writer import only_writer
from metatkgr.version import __version__

__all__ = ["MODEL", "configure_on_disk", "report_on_disk", "train_on_disk"]

MODEL = "transe"
"""The model that can be trained like this."""

Update = Callable[[int, int], object]
"""Is told how much was done since the last call, and how much there is in all."""


def configure_on_disk(
    store: FactStore,
    settings: DiskRunSettings,
    *,
    model: str = MODEL,
    shots: int | str = 3,
    test_shots: int | str | None = None,
    visibility: str = "entity-split",
    seed: int = 0,
) -> DiskRun:
    """All that a training on disk follows from."""
    if model != MODEL:
        raise SettingsError(f"on disk only {MODEL} can be trained so far, not {model}")
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
    """Learn the tables of a run, and evaluate them on questions of meta-validation.

    Args:
        folder: becomes the run's.
        run: of :func:`configure_on_disk`.
        resume: go on from the last checkpoint in ``folder``.
        progress: called with each line of the trace.
        update: told of the rows of the facts that were gone through.

    Returns:
        The evaluation, as :func:`report_on_disk` gives it.
    """
    store = run.store()
    index = open_index(store)
    with only_writer(folder):
        start_disk_run(folder, run, resume=resume)
        split = StoredSplit(
            store,
            shots=run.shots,
            test_shots=run.test_shots,
            visibility=run.visibility,
            seed=run.seed,
        )
        asked = split.tasks(Period.META_VALIDATION, run.settings.questions, run.seed).tasks
        if len(asked.answers) == 0:
            raise MetaTKGRError(
                f"no new entity of meta-validation has more than its first {run.test_shots} facts: "
                "there is nothing to be judged by; choose fewer shots"
            )

        def validate(learning: DiskTriples) -> float:
            tables = learning.entity.all(), learning.relation.all()
            return evaluate_on_disk(*tables, asked, index).summary(resamples=0).mrr or 0.0

        _learn(folder, run, split, validate, progress, update)
        finish(folder)
    result = report_on_disk(
        folder, split="meta-validation", questions=run.settings.questions, seed=run.seed
    )
    with only_writer(folder):
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
    update: Update | None = None,
) -> dict[str, Any]:
    """Rank questions of a split with the tables of a run, as the object that ``--json`` writes.

    Args:
        folder: of the run.
        split: whose new entities are asked about.
        questions: how many are asked; drawn evenly, where there are more.
        shots: K, where it is not the run's.
        visibility: which facts are visible, where it is not the run's.
        seed: of the draw and of each entity's K, where it is not the run's.
        details: add metrics per relation and per time step.
        update: told of the questions that were asked.
    """
    begin = time.perf_counter()
    run = load_disk_run(folder)
    store, period = run.store(), Period.parse(split)
    entity, relation = tables_of(folder, run)
    seed = run.seed if seed is None else seed
    own = run.shots if period is Period.META_TRAIN else run.test_shots
    protocol = StoredSplit(
        store, shots=shots or own, visibility=visibility or run.visibility, seed=seed
    )
    asked = protocol.tasks(period, questions, seed)
    loaded = time.perf_counter() - begin
    total = len(asked.tasks.questions)
    evaluation = evaluate_on_disk(
        entity,
        relation,
        asked.tasks,
        open_index(store),
        progress=None if update is None else lambda done: update(done, total),
    )
    measured = evaluation.to_json(details=details)
    measured["seconds"] = {"load": round(loaded, 4)} | measured["seconds"]
    return {
        "dataset": run.dataset,
        "model": run.model,
        "settings": asdict(run.settings),
        "seed": seed,
        "version": __version__,
        "on_disk": True,
        "questions": total,
        "queries_of_split": asked.queries,
        "trained_shots": own,
    } | measured


def _learn(
    folder: Path,
    run: DiskRun,
    split: StoredSplit,
    validate: Callable[[DiskTriples], float],
    progress: Callable[[dict[str, Any]], object] | None,
    update: Update | None,
) -> None:
    settings, facts = run.settings, split.learnable()
    found = load_checkpoint(folder)
    position = DiskPosition() if found is None else found[0]
    # The tables are drawn where there are none yet. All that is asked of a store is there.
    learning = DiskTriples(facts, folder / "working", settings, seed=run.seed)  # type: ignore[arg-type]
    if found is not None:
        learning.generator.set_state(found[1])
    trace = Trace(folder / "trace.jsonl", keep=position.trace_lines)
    blocks = -(-len(facts) // settings.block)
    total = settings.epochs * len(facts)
    if update:
        done = min(position.block * settings.block, len(facts))
        update(position.epoch * len(facts) + done, total)
    before, begin = position.seconds, time.perf_counter()
    while position.epoch < settings.epochs:
        order = torch.randperm(blocks, generator=_generator(run.seed, position.epoch)).tolist()
        while position.block < blocks:
            rows = _block(learning, facts, order[position.block], position)
            position.seconds = before + time.perf_counter() - begin
            if update:
                update(rows, total)
            if position.block < blocks and position.block % settings.checkpoint_blocks == 0:
                save_checkpoint(folder, position, learning.generator)
        if position.facts == 0:
            raise MetaTKGRError(f"{run.dataset} has no fact that may be learned from")
        line: dict[str, Any] = {
            "loss": position.loss / position.facts,
            "phase": "translation",
            "epoch": position.epoch + 1,
            "epochs": settings.epochs,
            "facts": position.facts,
            "step": position.step,
            "validation_mrr": validate(learning),
        }
        position.seconds = before + time.perf_counter() - begin
        line["seconds"] = line["seconds_phase"] = round(position.seconds, 4)
        trace.write(line)
        position.next_epoch()
        save_checkpoint(folder, position, learning.generator)
        if progress:
            progress(line)


def _generator(seed: int, epoch: int) -> torch.Generator:
    """Of the order of an epoch's blocks: known again after a stop in its middle."""
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)


def _block(
    learning: DiskTriples, facts: LearnableFacts, number: int, position: DiskPosition
) -> int:
    """Learn from one block of the facts; how many rows it has, visible or not."""
    settings = learning.settings
    low = number * settings.block
    high = min(low + settings.block, len(facts))
    subject, relation, other = (torch.from_numpy(c) for c in facts.read(low, high)[:3])
    order = torch.randperm(len(subject), generator=learning.generator)
    # Of nothing, `split` makes one empty batch.
    for part in torch.split(order, settings.batch_size) if len(order) else ():
        loss = learning.step(subject[part], relation[part], other[part])
        if not math.isfinite(loss):
            raise MetaTKGRError(
                f"the loss became {loss} at step {position.step + 1}; begin anew with a smaller "
                "learning_rate"
            )
        position.loss += loss * len(part)
        position.facts += len(part)
        position.step += 1
    position.block += 1
    return high - low
