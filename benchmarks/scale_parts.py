"""What ``python -m benchmarks --scale`` measures at each size.

A part is a function of a folder, a number of facts and a clock; it finds in the folder what the
parts before it have made, lets the clock run during what is to be measured, and says how many of
which unit it dealt with.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from metatkgr.data.answers import FILTERS, true_answers
from metatkgr.data.engine import Engine
from metatkgr.data.folder import FactFolder
from metatkgr.data.index_writer import write_index
from metatkgr.data.ingest import ingest
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.evaluation.ranking import filtered_ranks
from metatkgr.forecasting.known import LiveGraph
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import BreadthFirstSampler
from metatkgr.models.common.few_shot import PaddedFacts, ranking_loss
from metatkgr.models.common.scores import relation_vectors, score_all
from metatkgr.models.metatkgr.adaptation import TaskBatch, adapt, task_loss
from metatkgr.models.metatkgr.encoder import ENCODER, TemporalEncoder

__all__ = ["PARTS", "WORLD", "Clock"]

_DIMENSION = 64
_BUDGET = 16
_NOBODY = Supports.none()
WORLD, _STORE = "world.parquet", "facts"


@dataclass
class Clock:
    """Times the middle of a part, without its preparations."""

    seconds: float = 0.0
    cpu: float = 0.0

    def __enter__(self) -> Clock:
        self._begin = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._begin[0]
        self.cpu += time.process_time() - self._begin[1]


Part = Callable[[Path, int, Clock], tuple[int, str]]
PARTS: dict[str, Part] = {}
"""What is measured, in the order in which the parts need each other."""


def _part(name: str) -> Callable[[Part], Part]:
    def keep(function: Part) -> Part:
        PARTS[name] = function
        return function

    return keep


@_part("ingest")
def _ingest(folder: Path, facts: int, clock: Clock) -> tuple[int, str]:
    from pyarrow import parquet  # noqa: F401 - importing it is not part of reading

    shutil.rmtree(folder / _STORE, ignore_errors=True)
    with clock:
        ingest([folder / WORLD], folder / _STORE)
    return facts, "fact"


@_part("index")
def _index(folder: Path, facts: int, clock: Clock) -> tuple[int, str]:
    """The last part of ``ingest`` once more, alone."""
    store = folder / _STORE
    manifest = replace(FactFolder(store).manifest, index=None)
    with clock, TemporaryDirectory(dir=folder) as work, Engine(Path(work), 1 << 20) as engine:
        write_index(engine, store, manifest, 0)
    return facts, "fact"


@_part("sample")
def _sample(folder: Path, facts: int, clock: Clock) -> tuple[int, str]:
    """Batches of 4,096 roots: the ends of facts drawn at random, at their times."""
    store = FactFolder(folder / _STORE)
    index = TemporalIndex.of(VisibleFacts.of(store.facts()))
    sampler = BreadthFirstSampler(index, _NOBODY, budget=_BUDGET)
    generator = torch.Generator().manual_seed(0)
    total = 0
    for number in range(40):
        subject, _, other, when = _drawn(store, 2048, generator)
        entity, moment = torch.cat([subject, other]), torch.cat([when, when])
        if number < 10:
            sampler.sample(entity, moment)  # the first ones wait for the disk
            continue
        with clock:
            neighbours = sampler.sample(entity, moment)
        total += int(neighbours.mask.sum())
    return total, "neighbour"


@_part("step, MetaTKGR")
def _meta_step(folder: Path, facts: int, clock: Clock) -> tuple[int, str]:
    """Batches of 32 tasks, 3 supports and 8 queries each, neighbours from the mapped index."""
    store = FactFolder(folder / _STORE)
    index = TemporalIndex.of(VisibleFacts.of(store.facts()))
    sampler = BreadthFirstSampler(index, _NOBODY, budget=_BUDGET)
    tables = _tables(store)
    generator = torch.Generator().manual_seed(0)
    encoder = TemporalEncoder(dimension=_DIMENSION, message="gate", dropout=0.0)
    layers = {ENCODER + k: v.requires_grad_() for k, v in encoder.initial(generator).items()}
    optimiser = torch.optim.Adam(layers.values())
    tasks, rounds = 32, 8

    def step() -> None:
        batch = TaskBatch.build(
            _padded(store, tasks, 3, generator),
            _padded(store, tasks, 8, generator),
            sampler.sample,
            entities=index.entities,
            relations=index.relations // 2,
        )
        adapted = adapt(encoder, tables | layers, batch, ranking_loss, learning_rate=0.01)
        loss = task_loss(encoder, adapted, batch.query, ranking_loss).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    for number in range(2 + rounds):
        if number < 2:
            step()
            continue
        with clock:
            step()
    return tasks * rounds, "task"


@_part("evaluate")
def _evaluate(folder: Path, facts: int, clock: Clock) -> tuple[int, str]:
    """64 queries: all entities scored by translation, both filters."""
    store = FactFolder(folder / _STORE)
    facts_, tables = store.facts(), _tables(store)
    generator = torch.Generator().manual_seed(0)
    for number in range(2):
        entity, relation, answer, when = _drawn(store, 64, generator)
        vector = relation_vectors(tables["relation"], relation)
        points = tables["entity"][entity] + vector
        with clock if number else Clock():
            queries = Queries(entity.numpy(), relation.numpy(), when.numpy())
            filters = [true_answers(VisibleFacts.of(facts_), queries, name) for name in FILTERS]
            scores = score_all(points, tables["entity"])
            filtered_ranks(scores, torch.arange(len(entity)), answer, filters)
    return 64, "question"


@_part("predict")
def _predict(folder: Path, facts: int, clock: Clock) -> tuple[int, str]:
    """Newcomers with 3 facts: append them, embed them, read around them, rank all entities."""
    store = FactFolder(folder / _STORE)
    graph, tables = LiveGraph(store.facts()), _tables(store)
    known, now = len(store.entities), store.steps - 1
    generator = torch.Generator().manual_seed(0)
    newcomers = 10
    for number in range(newcomers + 2):
        _, relation, other, _ = _drawn(store, 3, generator)
        new = known + number
        with clock if number >= 2 else Clock():
            pairs = zip(relation.tolist(), other.tolist(), strict=True)
            graph.add([f"newcomer {number}"], [(new, r, o, now) for r, o in set(pairs)])
            sampler = BreadthFirstSampler(graph.snapshot().index, _NOBODY, budget=_BUDGET)
            vector = relation_vectors(tables["relation"], relation)
            embedding = (tables["entity"][other] - vector).mean(0)
            sampler.sample(torch.tensor([new]), torch.tensor([now + 1]), own=False)
            score_all(embedding[None] + vector[:1], tables["entity"]).topk(min(10, known))
    return newcomers, "newcomer"


def _drawn(
    store: FactFolder, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(n,) subjects, relations, objects, steps of facts drawn at random."""
    facts = store.facts()
    rows = torch.randint(len(facts), (count,), generator=generator).sort().values.numpy()
    columns = (facts.subject, facts.relation, facts.object, facts.time)
    subject, relation, other, when = (torch.from_numpy(column[rows]).long() for column in columns)
    return subject, relation, other, when


def _padded(store: FactFolder, tasks: int, count: int, generator: torch.Generator) -> PaddedFacts:
    entity, relation, answer, when = (
        column.view(tasks, count) for column in _drawn(store, tasks * count, generator)
    )
    negatives = torch.randint(len(store.entities), (tasks, count, 4), generator=generator)
    every = torch.ones(tasks, count, dtype=torch.bool)
    several = every[..., None].expand(-1, -1, 4)
    return PaddedFacts(entity, relation, answer, negatives, several, when, every)


def _tables(store: FactFolder) -> dict[str, Tensor]:
    """Vectors of all entities and relations; drawn, since time does not hang on their values."""
    generator = torch.Generator().manual_seed(0)
    return {
        "entity": torch.randn(len(store.entities), _DIMENSION, generator=generator),
        "relation": torch.randn(len(store.relations), _DIMENSION, generator=generator),
    }
