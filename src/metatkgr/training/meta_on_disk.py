"""MetaTKGR on a folder of facts that is larger than memory: its meta-training and its questions.

The same model, phase and loop as in memory, which are handed other things to read: an index of the
public facts and one of the queries, both mapped, and the mapped tables. What is held is a few
numbers per entity, the first K facts of each new one, and the rows that a batch touches.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metatkgr.data.large.public import SplitFacts
from metatkgr.data.large.split import AskedTasks, StoredSplit
from metatkgr.data.periods import Period
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Supports, Visibility
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.evaluation.on_disk import evaluate_on_disk
from metatkgr.files import write_text
from metatkgr.graph.build import Block, build_index
from metatkgr.graph.checking import check_links
from metatkgr.graph.index import GraphIndex, LinkIndex
from metatkgr.graph.negatives import Negatives
from metatkgr.models.metatkgr.encoder import initial_encoder
from metatkgr.models.metatkgr.mapped import MappedMetaTKGR
from metatkgr.models.metatkgr.queries import MetaSource
from metatkgr.training.checkpoint import load_checkpoint
from metatkgr.training.disk_run import DiskRun, open_index
from metatkgr.training.disk_settings import DiskMetaSettings
from metatkgr.training.disk_tables import tables_of
from metatkgr.training.loop import train
from metatkgr.training.negatives_on_disk import MappedNegatives, build_places
from metatkgr.training.queries_on_disk import MappedQueries
from metatkgr.training.tensors import check_fit, only_shapes, read_tensors, write_tensors
from metatkgr.training.trace import read_trace
from metatkgr.training.translation_on_disk import Update

__all__ = ["asked_model", "few_questions", "learn_encoder", "meta_source", "public_index"]

_ENCODER, _META, _INDEXES = "encoder.safetensors", "meta", "indexes"
_DRAW = 16
"""So many times the questions are drawn before those of a few steps are chosen among them."""


def learn_encoder(
    folder: Path,
    run: DiskRun,
    split: StoredSplit,
    asked: Tasks,
    index: LinkIndex,
    *,
    progress: Callable[[dict[str, Any]], object] | None = None,
    update: Update | None = None,
) -> None:
    """Meta-train over the tables of a run, from its last checkpoint on; keeps the best encoder.

    Args:
        folder: of the run; its tables are learned.
        run: what is trained.
        split: the protocol of the run.
        asked: tasks of meta-validation, to select by.
        index: all facts, for the filters of the validation.
        progress: called with each line of the trace.
        update: told of the tasks that were gone through.
    """
    settings = _settings(run)
    if not (folder / _ENCODER).is_file():
        model = MappedMetaTKGR(settings, *tables_of(folder, run))
        some = split.tasks(Period.META_TRAIN, 1).tasks
        source = meta_source(folder / _INDEXES, split, settings, some.supports)
        total = settings.epochs * _tasks_of_an_epoch(source, settings)
        model.learn_from(
            source,
            most=settings.interval_tasks,
            told=None if update is None else lambda done: update(done, total),
        )
        where = folder / _INDEXES / "validation.safetensors"
        public = public_index(where, split, Period.META_VALIDATION)

        def validate(learning: Any) -> float:
            learning.read(public).adapt(asked.supports)
            return evaluate_on_disk(learning, asked, index).summary(resamples=0).mrr or 0.0

        train(
            model,
            _problem(some, asked),
            seed=run.seed,
            validate=validate,
            folder=folder / _META,
            resume=True,
            progress=progress,
        )
        write_tensors(folder / _ENCODER, model.state())
    # From here on, done again after a crash: one trace, and nothing that is not needed.
    if (folder / _META / "trace.jsonl").is_file():
        known = [x for x in read_trace(folder / "trace.jsonl") if x.get("phase") != "meta"]
        lines = [*known, *read_trace(folder / _META / "trace.jsonl")]
        write_text(folder / "trace.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    for rest in (_META, _INDEXES):
        shutil.rmtree(folder / rest, ignore_errors=True)


@contextmanager
def asked_model(
    folder: Path, run: DiskRun, split: StoredSplit, tasks: Tasks
) -> Iterator[MappedMetaTKGR]:
    """The model of a run, ready for questions about a split; of a training not done, its best.

    Args:
        folder: of the run; the index of what may be seen is built there, and removed after.
        run: what was trained.
        split: the protocol of the questions.
        tasks: their supports.
    """
    settings = _settings(run)
    model = MappedMetaTKGR(settings, *tables_of(folder, run))
    checkpoint = folder / _META / "checkpoint.safetensors"
    if (folder / _ENCODER).is_file():
        state = read_tensors(folder / _ENCODER)[0]
    elif checkpoint.is_file():
        state = load_checkpoint(checkpoint)[2]
    else:
        raise DataError(
            f"{folder} holds no trained encoder yet; `metatkgr train … --resume` goes on"
        )
    # Before anything is as large as the settings say.
    fresh = only_shapes(run.model, lambda: initial_encoder(settings.encoder, torch.Generator()))
    check_fit(str(folder), state, fresh)
    model.load_state(state)
    with tempfile.TemporaryDirectory(prefix=".index-", dir=_writable(folder)) as place:
        index = public_index(Path(place) / "public.safetensors", split, tasks.split)
        yield model.read(index).adapt(tasks.supports)


def _writable(folder: Path) -> Path | None:
    """The folder, or None (the system's place) where nothing can be written to it."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return None


def public_index(path: Path, split: StoredSplit, period: Period) -> GraphIndex:
    """The index of what tasks of a period may see, built at ``path`` unless it is there."""
    if split.visibility is Visibility.STREAMING:
        everything = open_index(split.store)
        if isinstance(everything, GraphIndex):  # and not in layers
            return everything
    return _index(path, split, SplitFacts(split, period).public)


def meta_source(
    folder: Path, split: StoredSplit, settings: DiskMetaSettings, supports: Supports
) -> MetaSource:
    """What meta-training reads; indexes that are not in ``folder`` yet are built there."""
    period = Period.META_TRAIN
    index = public_index(folder / "train.safetensors", split, period)
    asked = _index(folder / "queries.safetensors", split, SplitFacts(split, period).asked)
    new = torch.from_numpy(np.flatnonzero(split.periods.of_entity == period))
    queries = MappedQueries(asked, new, settings.query_intervals)
    if not any(queries.size(number) for number in range(queries.intervals)):
        raise MetaTKGRError(
            f"no new entity of meta-train has more than its first {split.shots.label} facts: there "
            "is nothing to learn from; choose fewer shots"
        )
    places = folder / "places.safetensors"
    if not places.is_file():
        build_places(places, index)
    entities, relations = len(split.store.entities), len(split.store.relations)
    negatives: Negatives = MappedNegatives(places, entities, settings.negative_kind, relations)
    return MetaSource(entities, relations, supports, index, negatives, queries)


def few_questions(
    split: StoredSplit, period: Period, most: int, moments: int | None, seed: int
) -> AskedTasks:
    """The tasks of a period with some of its questions.

    Args:
        split: the protocol.
        period: whose new entities are asked about.
        most: how many questions, at most.
        moments: of how many steps, which are drawn by how many questions they have: candidates are
            encoded once for each. None: of any.
        seed: of the draw.
    """
    if moments is None:
        return split.tasks(period, most, seed)
    asked = split.tasks(period, _DRAW * most, seed)
    time = asked.tasks.questions.time
    drawn = time[np.random.default_rng(seed).permutation(len(time))]
    steps = drawn[np.sort(np.unique(drawn, return_index=True)[1])][:moments]
    rows = np.flatnonzero(np.isin(time, steps)).astype(np.int64)
    return replace(asked, tasks=asked.tasks.only(rows).sample(most, seed))


def _settings(run: DiskRun) -> DiskMetaSettings:
    if not isinstance(run.settings, DiskMetaSettings):
        raise ValueError(f"a run of {run.model} has no encoder")
    return run.settings


def _index(path: Path, split: StoredSplit, blocks: Callable[[int], Iterator[Block]]) -> GraphIndex:
    store = split.store
    sizes = {"entities": len(store.entities), "relations": len(store.relations)}
    if path.is_file():
        index = GraphIndex.open(path)
        if (index.entities, index.relations) != (sizes["entities"], 2 * sizes["relations"]):
            raise DataError(f"{path} is the index of other facts; remove it and go on")
        check_links(index, str(path))
        return index
    return build_index(path, blocks, steps=store.steps, **sizes)


def _tasks_of_an_epoch(source: MetaSource, settings: DiskMetaSettings) -> int:
    each = [len(source.queries.entities(m)) for m in range(source.queries.intervals)]
    return sum(min(count, settings.interval_tasks or count) for count in each)


def _problem(train_tasks: Tasks, validation: Tasks) -> Problem:
    """What the loop asks of a problem: the sizes of the vocabularies. The facts stay on disk."""
    some, nobody = train_tasks.visible, Supports(*(np.zeros(0, np.int64) for _ in range(4)))
    return Problem(
        known=some,
        few_shot=some,
        one_shot=some,
        train=train_tasks,
        validation=validation,
        earlier=train_tasks,
        newest=nobody,
        shots=train_tasks.shots,
        visibility=train_tasks.visibility,
    )
