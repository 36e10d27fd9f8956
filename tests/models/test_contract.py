"""What holds for every registered model. A new model is tested by being registered."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from metatkgr.data.facts import Facts, IntArray, Vocabulary
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.models import available, create
from metatkgr.models.base import Model, TrainableModel
from metatkgr.training.loop import train
from metatkgr.training.runs import RunConfig, load_run, save_graph, save_model
from references import dense

UNTRAINED = "evidence:pretrained"
"""The one with weights that were learned on other graphs."""
MODELS = [*sorted(available()), "metatkgr:adapted", "metatkgr:walks", UNTRAINED]
"""By name; and a preset that is a model of its own, after a colon."""


def kind(name: str) -> type[Model[object]]:
    return available()[name.partition(":")[0]]


@lru_cache(maxsize=1)
def world() -> Facts:
    return simulate(facts=3000, seed=11)


@lru_cache(maxsize=3)
def tasks_of(visibility: str) -> Tasks:
    return Tasks.build(world(), shots=2, visibility=visibility)


def some(questions: Queries, count: int = 60) -> Queries:
    rows = np.random.default_rng(0).choice(len(questions), size=count, replace=False)
    return questions[np.sort(rows)]


QUICK = {
    "epochs": 1,
    "dimension": 16,
    "translation_epochs": 1,
    "background_epochs": 1,
    "background_steps": 3,
    "negatives": 4,
    "validate_every": 1,
}
"""Settings that make any training short; only those that a model has are used."""


@cache
def weights(name: str) -> dict[str, torch.Tensor]:
    """Weights after the shortest training, for models that have any."""
    model = made(name)
    assert isinstance(model, TrainableModel)
    train(model, Problem.of(world(), shots=2), seed=3)
    return model.state_dict()


def made(name: str, **changes: object) -> Model[object]:
    fields = {field.name for field in dataclasses.fields(kind(name).settings_type)}
    wanted = {key: value for key, value in {**QUICK, **changes}.items() if key in fields}
    if name == UNTRAINED:
        return create(kind(name).name)
    return create(kind(name).name, wanted, preset=name.partition(":")[2] or "default")


def usable(name: str) -> Model[object]:
    model = made(name)
    if isinstance(model, TrainableModel):
        if name == UNTRAINED:
            model.load_pretrained(world())
        else:
            model.load_state_dict(weights(name))
    return model


def ready(name: str, tasks: Tasks) -> Model[object]:
    return usable(name).prepare(tasks.visible).adapt(tasks.supports)


@pytest.mark.parametrize("name", MODELS)
def test_scores_every_entity_for_every_question_with_finite_numbers(name: str) -> None:
    tasks = tasks_of("entity-split")
    scores = dense(ready(name, tasks), some(tasks.questions))
    assert scores.shape == (60, len(tasks.facts.entities))
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", MODELS)
def test_no_question_gives_an_empty_table(name: str) -> None:
    tasks = tasks_of("entity-split")
    scores = dense(ready(name, tasks), tasks.questions[0:0])
    assert scores.shape == (0, len(tasks.facts.entities))


@pytest.mark.parametrize("name", MODELS)
def test_is_deterministic(name: str) -> None:
    tasks = tasks_of("frozen")
    questions = some(tasks.questions)
    assert torch.equal(dense(ready(name, tasks), questions), dense(ready(name, tasks), questions))


@pytest.mark.parametrize("name", MODELS)
def test_scores_do_not_depend_on_the_batch(name: str) -> None:
    tasks = tasks_of("streaming")
    questions = some(tasks.questions, 20)
    model = ready(name, tasks)
    together = dense(model, questions)
    alone = torch.cat([dense(model, questions[i : i + 1]) for i in range(len(questions))])
    backwards = dense(model, questions[np.arange(len(questions))[::-1]]).flip(0)
    same = torch.equal if not together.is_floating_point() else close
    assert same(together, alone)
    assert same(together, backwards)


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_of_questions_has_the_ranks_they_have_among_all(name: str) -> None:
    tasks = tasks_of("entity-split")
    few = tasks.sample(25, seed=1)
    assert len(few.questions) == 25
    all_ranks, ranks = evaluate(usable(name), tasks), evaluate(usable(name), few)
    keys = [
        tuple(zip(e.entity, e.relation, e.time, e.tasks.answers.answer, strict=True))
        for e in (all_ranks, ranks)
    ]
    place = {key: row for row, key in enumerate(keys[0])}
    rows = [place[key] for key in keys[1]]
    for filter_name, found in ranks.ranks.items():
        # Half a place: where sums of another order make a tie of two scores, or end one.
        np.testing.assert_allclose(found, all_ranks.ranks[filter_name][rows], atol=0.5)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal up to the order in which a matrix product adds."""
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def scrambled(
    rows: IntArray, generator: np.random.Generator, size: int, column: IntArray
) -> IntArray:
    changed = column.copy()
    changed[rows] = generator.integers(0, size, len(rows))
    return changed


@pytest.mark.parametrize("visibility", ["entity-split", "frozen", "streaming"])
@pytest.mark.parametrize("name", MODELS)
def test_never_looks_into_the_future(name: str, visibility: str) -> None:
    """Facts and others' supports at or after t are replaced or removed: no score changes."""
    tasks = tasks_of(visibility)
    facts = tasks.facts
    generator = np.random.default_rng(5)
    for t in np.unique(tasks.questions.time)[::7]:
        asked = np.flatnonzero(tasks.questions.time == t)[:8]
        questions = tasks.questions[asked]
        before = dense(ready(name, tasks), questions)

        # The future of the graph: other people, other relations, some of it gone. Both
        # directions of a fact change together, as they would in a file.
        future = np.flatnonzero(facts.time >= t)
        other = replace(
            facts,
            subject=scrambled(future, generator, len(facts.entities), facts.subject),
            relation=scrambled(future, generator, len(facts.relations), facts.relation),
            object=scrambled(future, generator, len(facts.entities), facts.object),
        )
        keep = np.flatnonzero((facts.time < t) | (generator.random(len(facts)) < 0.7))
        public = np.zeros(len(facts), bool)
        public[_public_rows(tasks)] = True
        visible = VisibleFacts.of(other.select(keep[public[keep]]))

        own = np.isin(tasks.supports.entity, questions.entity)
        strangers = np.flatnonzero(~own & (tasks.supports.time >= t))
        supports = Supports(
            tasks.supports.entity,
            scrambled(strangers, generator, 2 * len(facts.relations), tasks.supports.relation),
            scrambled(strangers, generator, len(facts.entities), tasks.supports.other),
            tasks.supports.time,
        )
        model = usable(name).prepare(visible).adapt(supports)
        assert torch.equal(dense(model, questions), before), f"scores at {t} depend on the future"


def _public_rows(tasks: Tasks) -> IntArray:
    """Rows of the facts that the tasks made public, found by content."""
    columns = (tasks.facts.subject, tasks.facts.relation, tasks.facts.object, tasks.facts.time)
    all_facts = list(zip(*(c.tolist() for c in columns), strict=True))
    forward = tasks.visible.relation < len(tasks.facts.relations)
    links = tasks.visible
    shown = (links.source, links.relation, links.target, links.time)
    seen = set(zip(*(c[forward].tolist() for c in shown), strict=True))
    return np.array([i for i, fact in enumerate(all_facts) if fact in seen])


def test_the_future_test_would_notice_a_model_that_peeks() -> None:
    """A rule without the time bound fails the test above: the test can fail."""
    tasks = tasks_of("streaming")
    first = int(tasks.questions.time.min())
    asked = tasks.questions[np.flatnonzero(tasks.questions.time == first)[:8]]
    late = Queries(asked.entity, asked.relation, np.full(len(asked), tasks.facts.steps))
    model = ready("recurrency", tasks)
    assert not torch.equal(dense(model, asked), dense(model, late))


LIVE = [name for name in MODELS if kind(name).live]


@pytest.mark.parametrize("name", LIVE)
def test_facts_that_are_observed_count_like_prepared_ones(name: str) -> None:
    """Facts at any time, entities that nobody had heard of; and the same model goes back again."""
    tasks = tasks_of("streaming")
    facts, questions = tasks.facts, some(tasks.questions, 30)
    last = facts.entities.names[:-40]
    old = np.maximum(facts.subject, facts.object) < len(last)
    old &= np.random.default_rng(1).random(len(facts)) < 0.9
    first = VisibleFacts.of(replace(facts.select(old), entities=Vocabulary(last)))
    everything = dense(ready(name, tasks), questions)

    model = usable(name).prepare(first)
    for rows in (~old, np.zeros_like(old), ~old & (facts.time < 50), ~old):
        model.prepare(first.grown(facts.select(rows)))
        scores = dense(model.adapt(tasks.supports), questions)
        assert scores.shape == everything.shape
        same = close if scores.is_floating_point() else torch.equal
        assert same(scores, everything) == bool((rows == ~old).all())


TRAINABLE = [n for n in MODELS if issubclass(kind(n), TrainableModel) and n != UNTRAINED]


@pytest.mark.parametrize("name", TRAINABLE)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    model = made(name)
    assert isinstance(model, TrainableModel)
    train(model, Problem.of(world(), shots=2), seed=3)
    again = model.state_dict()
    assert again.keys() == weights(name).keys()
    assert all(torch.equal(again[key], value) for key, value in weights(name).items())


@pytest.mark.parametrize("name", TRAINABLE)
def test_a_model_with_weights_is_a_module_of_torch(name: str) -> None:
    tasks = tasks_of("entity-split")
    model, other = usable(name), made(name)
    assert isinstance(model, TrainableModel)
    assert isinstance(other, TrainableModel)
    assert model.state_dict().keys() == weights(name).keys()
    assert list(model.weights) == sorted(dict(model.named_parameters()))
    assert all(parameter.requires_grad for parameter in model.parameters())
    sizes = len(tasks.facts.entities), len(tasks.facts.relations)
    other.build(*sizes, torch.Generator().manual_seed(9))
    before = list(other.parameters())
    other.load_state_dict(model.state_dict())
    assert all(one is two for one, two in zip(before, other.parameters(), strict=True))
    assert all(torch.equal(w, weights(name)[key]) for key, w in other.state_dict().items())
    assert other.to("cpu").device == torch.device("cpu")
    assert other.to("meta").device == torch.device("meta")
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({key: w[None] for key, w in model.state_dict().items()})


@pytest.mark.parametrize("name", TRAINABLE)
def test_a_saved_run_scores_as_before(name: str, tmp_path: Path) -> None:
    tasks = tasks_of("entity-split")
    questions = some(tasks.questions, 20)
    model = usable(name)
    assert isinstance(model, TrainableModel)
    config = RunConfig(
        dataset="world",
        model=model.name,
        shots=2,
        visibility="entity-split",
        seed=3,
        version="test",
        settings=dataclasses.asdict(model.settings),  # type: ignore[call-overload]
    )
    save_graph(tmp_path, config, world())
    save_model(tmp_path, model)
    run = load_run(tmp_path)
    assert run.config == config
    assert run.facts.entities.names == world().entities.names
    assert np.array_equal(run.facts.time, world().time)
    loaded = run.model.prepare(tasks.visible).adapt(tasks.supports)
    assert torch.equal(dense(loaded, questions), dense(ready(name, tasks), questions))


@pytest.mark.parametrize("name", TRAINABLE)
def test_an_interrupted_training_goes_on_exactly(name: str, tmp_path: Path) -> None:
    problem = Problem.of(world(), shots=2)

    class PowerCutError(Exception):
        """The power went out."""

    def interrupt(line: dict[str, object]) -> None:
        if line["epoch"] == 2:
            raise PowerCutError

    def fresh() -> TrainableModel[object]:
        model = made(name, epochs=3, translation_epochs=3)
        assert isinstance(model, TrainableModel)
        return model

    whole = fresh()
    lines = train(whole, problem, seed=5, folder=tmp_path / "whole")
    with pytest.raises(PowerCutError):
        train(fresh(), problem, seed=5, folder=tmp_path / "cut", progress=interrupt)
    resumed = fresh()
    again = train(resumed, problem, seed=5, folder=tmp_path / "cut", resume=True)
    assert all(torch.equal(resumed.state_dict()[k], v) for k, v in whole.state_dict().items())
    assert [line["loss"] for line in again] == [line["loss"] for line in lines]
