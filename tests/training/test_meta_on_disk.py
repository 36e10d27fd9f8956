"""MetaTKGR on a folder of facts: the tasks, neighbours, losses and scores of the one in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disk_world import SMALL_META as SMALL
from disk_world import ingested_world

from metatkgr.data.large.split import StoredSplit
from metatkgr.data.large.store import FactStore
from metatkgr.data.periods import Period
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Tasks
from metatkgr.errors import SettingsError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.evaluation.on_disk import evaluate_on_disk
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.negatives import Negatives
from metatkgr.models.metatkgr.curriculum import MetaPhase
from metatkgr.models.metatkgr.mapped import MappedMetaTKGR
from metatkgr.models.metatkgr.model import MetaTKGR
from metatkgr.models.metatkgr.queries import HeldQueries
from metatkgr.models.trainable import WHOLE, Phase
from metatkgr.training.disk_run import open_index
from metatkgr.training.loop import train
from metatkgr.training.meta_on_disk import few_questions, meta_source, public_index
from metatkgr.training.negatives_on_disk import MappedNegatives, build_places

VISIBILITIES = ("entity-split", "frozen", "streaming")
DEEPER = {"layers": 2, "message": "printed", "sampler": "recent", "answers_itself": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ingested_world(tmp_path_factory.mktemp("world"))


def both(
    folder: Path, place: Path, visibility: str, **changes: Any
) -> tuple[MetaTKGR, MappedMetaTKGR, Problem, StoredSplit]:
    """The same weights in memory and with mapped tables, ready to learn."""
    store = FactStore(folder)
    options: dict[str, Any] = {"shots": 2, "visibility": visibility, "seed": 5}
    problem, split = Problem.of(store.facts(), **options), StoredSplit(store, rows=700, **options)
    settings = dataclasses.replace(SMALL, **changes)
    held = MetaTKGR(settings)
    held.build(len(store.entities), len(store.relations), torch.Generator().manual_seed(0))
    with torch.no_grad():
        if "encoder.gate" in held.weights:
            held.weights["encoder.gate"] += 0.3  # at its start no neighbour is heard
    tables = [held.weights[name].detach().clone() for name in ("entity", "relation")]
    mapped = MappedMetaTKGR(settings, *tables)
    mapped.load_state(held.state())
    supports = split.tasks(Period.META_TRAIN, 1).tasks.supports
    mapped.learn_from(meta_source(place / visibility, split, settings, supports))
    return held, mapped, problem, split


def phases(held: MetaTKGR, mapped: MappedMetaTKGR, problem: Problem) -> tuple[MetaPhase, MetaPhase]:
    in_memory, on_disk = held.phases(problem)[-1], mapped.phases(problem)[-1]
    assert isinstance(in_memory, MetaPhase)
    assert isinstance(on_disk, MetaPhase)
    return in_memory, on_disk


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_the_tasks_neighbours_and_losses_are_those_in_memory(
    folder: Path, tmp_path: Path, visibility: str
) -> None:
    held, mapped, problem, _ = both(folder, tmp_path, visibility, dropout=0.2)
    ours, theirs = phases(held, mapped, problem)[::-1]
    generators = [torch.Generator().manual_seed(9) for _ in range(2)]
    pairs = zip(ours.batches(generators[0]), theirs.batches(generators[1]), strict=True)
    seen = 0
    for mine, yours in pairs:
        # Batches are made ready several at a time: the loss of one may have drawn for the next.
        generators[0].set_state(generators[1].get_state())
        assert (mine.interval, mine.queries_in_interval) == (
            yours.interval,
            yours.queries_in_interval,
        )
        assert torch.equal(mine.entity, yours.entity)
        state = generators[0].get_state()
        drawn = [p._draw_queries(mine, g) for p, g in zip((ours, theirs), generators, strict=True)]
        assert torch.equal(drawn[0].mask, drawn[1].mask)
        for name in ("entity", "relation", "answer", "time", "negatives"):
            columns = [getattr(facts, name)[facts.mask] for facts in drawn]
            assert torch.equal(columns[0], columns[1]), name
        found = [
            p.sampler.sample(f.entity[f.mask], f.time[f.mask])
            for p, f in zip((ours, theirs), drawn, strict=True)
        ]
        for name in ("entity", "relation", "time", "mask"):
            assert torch.equal(getattr(found[0], name), getattr(found[1], name)), name
        losses = []
        for phase, batch, generator in zip((ours, theirs), (mine, yours), generators, strict=True):
            generator.set_state(state)
            losses.append(phase.loss(batch, generator).value)
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
        gradients = [
            torch.autograd.grad(loss, phase.parameters(), allow_unused=True)
            for loss, phase in zip(losses, (ours, theirs), strict=True)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
        seen += len(mine.entity)
    assert seen > 50


@pytest.mark.parametrize(
    ("visibility", "changes"), [*((v, {}) for v in VISIBILITIES), ("entity-split", DEEPER)]
)
def test_the_scores_and_ranks_are_those_in_memory(
    folder: Path, tmp_path: Path, visibility: str, changes: dict[str, Any]
) -> None:
    held, mapped, _, split = both(folder, tmp_path, visibility, **changes)
    asked = few_questions(split, Period.META_TEST, 50, 6, 0).tasks
    whole = Tasks.build(split.store.facts(), shots=2, visibility=visibility, seed=5)
    index = public_index(tmp_path / "test.safetensors", split, Period.META_TEST)
    expected = GraphIndex.of(whole.visible)
    assert torch.equal(index.target, expected.target)
    assert torch.equal(index.relation, expected.relation)
    held.prepare(whole.visible).adapt(whole.supports)
    mapped.read(index).adapt(asked.supports)
    groups = mapped.together(asked.questions)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(asked.questions)))
    assert 1 < len(groups) <= 6
    for group in groups:
        ours = mapped.scores(asked.questions[group])(0, mapped.entities)
        theirs = held.score(asked.questions[group])
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    ranked = evaluate_on_disk(mapped, asked, open_index(split.store))
    exact = {row: rank for rank, row in zip(*_ranks(held, whole), strict=True)}
    near = [abs(rank - exact[row]) for rank, row in zip(*_rows(ranked), strict=True)]
    # Sums in another order: two candidates may change places where they are all but equal.
    assert np.mean(np.asarray(near) <= 1) > 0.95


def _rows(evaluation: Any) -> tuple[list[float], list[tuple[int, ...]]]:
    columns = (
        evaluation.entity,
        evaluation.relation,
        evaluation.time,
        evaluation.tasks.answers.answer,
    )
    return evaluation.ranks["static"].tolist(), list(
        zip(*(c.tolist() for c in columns), strict=True)
    )


def _ranks(model: MetaTKGR, tasks: Tasks) -> tuple[list[float], list[tuple[int, ...]]]:
    return _rows(evaluate(model, tasks))


def test_a_whole_meta_training_is_that_in_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"patience": 0, "epochs": 3}
    held, mapped, problem, _ = both(folder, tmp_path, "entity-split", **changes)
    start = {name: value.clone() for name, value in held.state().items()}
    # The same weights for both; the loop would draw others.
    monkeypatch.setattr(type(held), "build", lambda self, *_: self.load_state(dict(start)))
    monkeypatch.setattr(type(mapped), "build", lambda self, *_: self.load_state(dict(start)))

    def only_meta(self: MetaTKGR, problem: Problem) -> list[Phase]:
        return [MetaPhase(self.weights, problem.train, self.settings, self.device)]

    monkeypatch.setattr(MetaTKGR, "phases", only_meta)
    theirs, ours = train(held, problem, seed=3), train(mapped, problem, seed=3)
    assert [line["loss"] for line in ours] == pytest.approx([x["loss"] for x in theirs], rel=1e-5)
    assert [line["bound"] for line in ours] == pytest.approx([x["bound"] for x in theirs], rel=1e-5)
    for name, value in mapped.state().items():
        torch.testing.assert_close(value, held.state()[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_places_of_relations_are_those_of_the_facts(
    folder: Path, tmp_path: Path, at_once: int
) -> None:
    tasks = Tasks.build(FactStore(folder).facts(), split=Period.META_TRAIN)
    some = {
        name: getattr(tasks.visible, name)[:400]
        for name in ("source", "relation", "target", "time")
    }
    visible = dataclasses.replace(tasks.visible, **some)
    build_places(tmp_path / "places.safetensors", GraphIndex.of(visible), at_once)
    sizes = len(visible.entities), len(visible.relations)
    ours = MappedNegatives(tmp_path / "places.safetensors", sizes[0], "mixed", sizes[1])
    theirs = Negatives(visible, "mixed")
    assert torch.equal(ours._target, theirs._target)
    assert torch.equal(ours._start, theirs._start)


def test_neighbours_that_are_drawn_follow_from_where_the_epoch_began(
    folder: Path, tmp_path: Path
) -> None:
    held, mapped, problem, _ = both(folder, tmp_path, "entity-split", sampler="uniform", budget=2)

    def losses(phase: Phase) -> list[float]:
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            return [float(phase.loss(b, generator, WHOLE).value) for b in phase.batches(generator)]

    phases = [model.phases(problem)[-1] for model in (held, mapped)]
    first = [losses(phase) for phase in phases]
    assert [losses(phase) for phase in phases] == first
    torch.testing.assert_close(first[0], first[1], rtol=1e-5, atol=1e-5)


def test_an_epoch_can_draw_some_tasks_of_each_interval(folder: Path, tmp_path: Path) -> None:
    _, mapped, problem, split = both(folder, tmp_path, "entity-split")
    source = mapped._source
    assert source is not None
    told: list[int] = []
    mapped.learn_from(source, most=8, told=told.append)
    phase = mapped.phases(problem)[-1]
    batches = list(phase.batches(torch.Generator().manual_seed(0)))
    assert [len(batch.entity) for batch in batches] == told == [8, 8, 8]
    held = HeldQueries(problem.train, 3)
    for number in range(3):
        assert torch.equal(source.queries.entities(number), held.entities(number))
        assert source.queries.size(number) == held.size(number)
    few = few_questions(split, Period.META_VALIDATION, 20, 2, 1).tasks.questions
    assert len(np.unique(few.time)) <= 2
    assert 1 <= len(few) <= 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"learn_tables": True},
        {"background_epochs": 1},
        {"candidates": "exact"},
        {"translation_epochs": 0},
        {"moments": 0},
        {"interval_tasks": -1},
        {"block": 0},
    ],
)
def test_settings_that_cannot_be_on_disk_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        dataclasses.replace(SMALL, **wrong)
