"""Entities without a row are encoded from their links and adapted by gradient steps."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import metatkgr as mt
from metatkgr.data.problem import Problem
from metatkgr.data.world import simulate
from metatkgr.graph.index import TemporalIndex
from metatkgr.models import create
from metatkgr.models.base import Part
from metatkgr.models.metatkgr.episodes import Adapter, Episode, EpisodePhase
from metatkgr.models.metatkgr.links import Moment
from metatkgr.models.metatkgr.model import MetaTKGR
from metatkgr.models.metatkgr.newcomers import unit_vectors

SMALL = {"dimension": 8, "translation_epochs": 3, "epochs": 1, "support_negatives": 12}


@lru_cache(maxsize=1)
def problem() -> Problem:
    return Problem.of(simulate(facts=2000, seed=7), shots=2)


def built(**changes: object) -> tuple[MetaTKGR, list[object]]:
    model = create("metatkgr", {**SMALL, **changes}, preset="adapted")
    assert isinstance(model, MetaTKGR)
    known = problem().known
    model.build(len(known.entities), len(known.relations), torch.Generator().manual_seed(0))
    # Relations begin without a direction; a test wants one.
    with torch.no_grad():
        model.relation.normal_(0, 0.3, generator=torch.Generator().manual_seed(1))
    return model, list(model.phases(problem()))


def adapter(model: MetaTKGR, **changes: object) -> Adapter:
    tasks = problem().train
    settings = model.settings.__class__(**{**vars(model.settings), **changes})  # type: ignore[arg-type]
    index = TemporalIndex.of(tasks.visible)
    return Adapter(model.weights, model.has_row, index, tasks.supports, settings)


def late() -> int:
    return int(np.quantile(problem().train.questions.time, 0.7))


def columns_of(episode: Episode) -> tuple[Tensor, Tensor, Tensor]:
    return episode.entity, episode.relation, episode.answer


def own_links(entity: int, time: int) -> list[tuple[int, int, float]]:
    """Relation, target and age of the distinct links that a query about the entity may see."""
    tasks, last = problem().train, dict[tuple[int, int], int]()
    seen = tasks.visible
    public = zip(
        *(c.tolist() for c in (seen.source, seen.relation, seen.target, seen.time)), strict=True
    )
    for source, relation, target, step in public:
        if source == entity and step < time:
            last[relation, target] = max(step, last.get((relation, target), -1))
    links = [(r, x, float(time - step)) for (r, x), step in last.items()]
    own = tasks.supports.of(entity)
    for r, x, step in zip(
        own.relation.tolist(), own.other.tolist(), own.time.tolist(), strict=True
    ):
        if step >= time:
            links.append((r, x, 0.0))
    return links


def slots(time: int) -> dict[tuple[int, int], int]:
    """By relation and entity: how many were linked to the entity by the relation."""
    seen, found = problem().train.visible, dict[tuple[int, int], set[int]]()
    rows = zip(
        *(c.tolist() for c in (seen.source, seen.relation, seen.target, seen.time)), strict=True
    )
    for source, relation, target, step in rows:
        if step < time:
            found.setdefault((relation, target), set()).add(source)
    return {key: len(sources) for key, sources in found.items()}


def literal_vector(made: Adapter, moment: Moment, table: Tensor, entity: int) -> Tensor:
    """The text of ``newcomers.py`` for one entity, its steps by automatic differentiation."""
    phi = {name: value.detach() for name, value in made.learned.items()}
    links, filled = own_links(entity, moment.time), slots(moment.time)
    everyone = made.everyone(moment)
    half = len(everyone.relation)
    g, fade = functional.softplus(phi["prior"]), functional.softplus(phi["fade"])
    trust, tau = torch.sigmoid(phi["trust"][1]), phi["sharpness"].exp()

    def h(relation: int) -> Tensor:
        return everyone.relation[relation % half] * (1 if relation < half else -1)

    def slot(relation: int, x: int, less: int = 0) -> Tensor:
        n = max(filled.get((relation, x), 0) - less, 0)
        return phi["slot"][0] * np.log1p(n) + phi["slot"][1] * (n > 0)

    def encoded(some: list[tuple[int, int, float]]) -> Tensor:
        total, weight = g * everyone.start[entity], g
        for relation, x, age in some:
            a = (1 + age) ** -fade * (1.0 if made.has_row[x] else trust)
            total, weight = total + a * (table[x] - h(relation)), weight + a
        return total / weight

    starts = [encoded([x for x in links if x is not link]) for link in links]
    spread = np.log(moment.seen / len(moment.contrast))

    def loss(moved: Tensor) -> Tensor:
        total = torch.zeros(())
        for (relation, x, _), start in zip(links, starts, strict=True):
            point = start + moved + h(relation)
            right = slot(relation, x, 1) - tau * (point - table[x]).square().sum()
            wrong = [
                slot(relation, c) + spread - tau * (point - table[c]).square().sum()
                for c in moment.contrast.tolist()
                if c != x
            ]
            total = total + torch.logsumexp(torch.stack([right, *wrong]).flatten(), 0) - right
        return total.sum() / len(links)

    moved, speed = torch.zeros_like(table[0]), torch.zeros_like(table[0])
    for step, momentum in zip(phi["step"], phi["momentum"], strict=True):
        moved = moved.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(moved), moved)
        speed = torch.sigmoid(momentum) * speed - gradient / (2 * tau)
        moved = moved + functional.softplus(step) * speed
    return encoded(links) + moved.detach()


@torch.no_grad()
def test_the_steps_are_those_of_gradient_descent_on_the_support_left_out_in_turn() -> None:
    model, _ = built(inner_steps=3)
    made, time = adapter(model), late()
    moment = made.around.at(time)
    everyone = made.everyone(moment)
    asked = [e for e in np.unique(problem().train.questions.entity).tolist() if own_links(e, time)]
    for entity in asked[::9]:
        entities = torch.tensor([entity])
        links = made.around.own(entities, time)
        assert sorted(zip(*(c.tolist() for c in links[1:]), strict=True)) == sorted(
            own_links(entity, time)
        )
        vectors = made._own(moment, everyone, links, entities)
        with torch.enable_grad():
            expected = literal_vector(made, moment, everyone.entity, entity)
        torch.testing.assert_close(vectors[0], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_score_is_distance_memory_and_who_stood_there() -> None:
    model, _ = built(inner_steps=0)
    made, time = adapter(model), late()
    moment = made.around.at(time)
    everyone, phi = made.everyone(moment), made.learned
    entity = next(
        e for e in np.unique(problem().train.questions.entity).tolist() if own_links(e, time)
    )
    filled, half = slots(time), len(everyone.relation)
    for relation in (0, half):
        logits = made.logits(moment, everyone, torch.tensor([entity]), torch.tensor([relation]))
        links = made.around.own(torch.tensor([entity]), time)
        vector = made._own(moment, everyone, links, torch.tensor([entity]))[0]
        point = vector + everyone.relation[0] * (1 if relation == 0 else -1)
        expected = -phi["weight"].exp() * (point - everyone.entity).square().sum(1)
        for x in range(len(expected)):
            n = filled.get((relation, x), 0)
            expected[x] += phi["slot"][0] * np.log1p(n) + phi["slot"][1] * (n > 0)
        for r, x, age in own_links(entity, time):
            kind = 0 if r == relation else 1 if r % half == relation % half else 2
            fade = functional.softplus(phi["memory_fade"][kind])
            expected[x] += phi["memory"][kind] * (1 + age) ** -fade
        torch.testing.assert_close(logits[0], expected, rtol=1e-4, atol=1e-4)


def test_only_background_entities_have_a_row() -> None:
    model, _ = built()
    periods = problem().train.periods
    assert model.has_row.tolist() == (periods.of_entity == 0).tolist()


def test_what_stands_in_the_table_for_an_entity_without_a_row_is_never_read() -> None:
    model, _ = built()
    tasks = problem().validation
    model.prepare(tasks.visible).adapt(tasks.supports)
    before = model.score(tasks.questions[:20])
    with torch.no_grad():
        model.entity[~model.has_row] = 1e6
    model.adapt(tasks.supports)
    assert torch.equal(model.score(tasks.questions[:20]), before)


def test_the_outer_gradient_goes_through_the_steps() -> None:
    """The slope of the loss in each step's size, against a difference of two losses."""
    model, phases = built(inner_steps=2, variant="no-regulariser")
    phase = phases[-1]
    assert isinstance(phase, EpisodePhase)
    generator = torch.Generator().manual_seed(0)
    batch = list(phase.batches(generator))[-1]
    phase.loss(batch, generator).value.backward()  # type: ignore[no-untyped-call]
    for name in ("inner.step", "inner.relation_step", "inner.momentum", "inner.memory"):
        weight = model.weights[name]
        assert weight.grad is not None
        with torch.no_grad():
            values = []
            for change in (0.02, -0.04):
                weight[1] += change
                values.append(float(phase.loss(batch, generator).value))
            weight[1] += 0.02
        slope = (values[0] - values[1]) / 0.04
        assert float(weight.grad[1]) == pytest.approx(slope, rel=0.05, abs=2e-4)


def test_two_parts_of_an_episode_are_the_whole() -> None:
    model, phases = built(inner_steps=2)
    phase = phases[-1]
    assert isinstance(phase, EpisodePhase)
    generator = torch.Generator().manual_seed(0)
    batch = max(phase.batches(generator), key=lambda episode: len(episode.entity))
    gradients = []
    for count in (1, 2):
        model.zero_grad()
        for number in range(count):
            loss = phase.loss(batch, generator, Part(number, count))
            (loss.value * loss.share).backward()  # type: ignore[no-untyped-call]
        gradients.append({name: model.weights[name].grad.clone() for name in phase.learned})  # type: ignore[union-attr]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("near", ["calendar", "age"])
def test_episodes_hold_every_query_once_from_near_to_far(near: str) -> None:
    _, phases = built(near=near, batch_size=10_000)
    phase, tasks = phases[-1], problem().train
    assert isinstance(phase, EpisodePhase)
    row = tasks.answers.question
    time, entity = tasks.questions.time[row], tasks.questions.entity[row]
    last = {e: tasks.supports.of(e).time.max() for e in np.unique(entity).tolist()}
    far = (
        time
        if near == "calendar"
        else np.maximum([t - last[e] for t, e in zip(time, entity, strict=True)], 0)
    )
    interval, seen = -1, []
    for episode in phase.batches(torch.Generator().manual_seed(0)):
        assert episode.interval >= interval
        interval = episode.interval
        assert float(episode.weight.mean()) == pytest.approx(1)
        seen += [
            (episode.time, *query, interval)
            for query in zip(*(c.tolist() for c in columns_of(episode)), strict=True)
        ]
    parts = (far - far.min()) * 3 // (far.max() - far.min() + 1)
    relation = tasks.questions.relation[row]
    columns = (time, entity, relation, tasks.answers.answer, parts)
    assert sorted(seen) == sorted(zip(*(c.tolist() for c in columns), strict=True))


def test_an_interval_may_see_what_the_ones_before_it_asked_about() -> None:
    _, phases = built(near="autoregressive")
    phase, tasks = phases[-1], problem().train
    assert isinstance(phase, EpisodePhase)
    time = tasks.questions.time
    begins = [phase.time[phase.interval == number].min() for number in range(3)]
    facts, own = tasks.facts, tasks.periods.of_fact == tasks.split
    for adapter_, begin in zip(phase.adapters, begins, strict=True):
        assert tasks.visible.public is not None
        seen = tasks.visible.public | (own & (facts.time < begin))
        entities = torch.arange(len(facts.entities))
        after = torch.full_like(entities, int(time.max()) + 1)
        links = adapter_.around.index.facts_before(entities, after)
        assert int(links.sum()) == 2 * int((seen & (facts.time <= time.max())).sum())
    assert len(phase.adapters) == 3
    generator = torch.Generator().manual_seed(0)
    assert all(
        torch.isfinite(phase.loss(episode, generator).value)
        for episode in list(phase.batches(generator))[::6]
    )


def test_a_newcomer_is_adapted_when_its_facts_arrive(tmp_path: Path) -> None:
    facts = simulate(facts=2000, seed=7)
    small = mt.Estimator("metatkgr", preset="adapted", device="cpu", **SMALL, inner_steps=2)
    small.fit(facts, folder=tmp_path / "run")
    forecaster = mt.Forecaster.load(tmp_path / "run")
    relation, other = facts.relations[0], facts.entities[int(facts.object[-1])]
    forecaster.observe([("Cy", relation, other, facts.steps)])
    first = forecaster.predict("Cy", relation, explain=True)
    assert first[0].entity == other, "what it has done before is remembered"
    assert first[0].reasons[0].facts[0][:3] == ("Cy", relation, other)
    model = forecaster.model
    assert isinstance(model, MetaTKGR)
    assert not model.has_row[-1]
    forecaster.observe([("Di", relation, "Cy", facts.steps)])
    found = [f.entity for f in forecaster.predict("Di", relation, top=5)]
    assert found[0] == "Cy"


@torch.no_grad()
def test_the_fixed_vectors_of_entities_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = built()
    tasks = problem().validation
    model.prepare(tasks.visible).adapt(tasks.supports)
    scores = model.score(tasks.questions[:5])
    first = model.adapter_.unit
    assert torch.equal(first[3:9], unit_vectors(torch.arange(3, 9), first.shape[1]))
    drawn: list[int] = []

    def draw(entity: Tensor, dimension: int) -> Tensor:
        drawn.append(len(entity))
        return unit_vectors(entity, dimension)

    monkeypatch.setattr("metatkgr.models.metatkgr.episodes.unit_vectors", draw)
    model.adapt(tasks.supports)
    assert drawn == [0]
    assert torch.equal(model.score(tasks.questions[:5]), scores)


def test_fine_tuning_learns_no_step() -> None:
    _, phases = built(variant="fine-tuning")
    assert [phase.name for phase in phases] == ["translation"]  # type: ignore[attr-defined]


def test_fewer_and_more_steps_than_were_learned_can_be_taken() -> None:
    model, _ = built(inner_steps=2)
    with torch.no_grad():
        model.weights["inner.step"][1] = 0.7
    assert adapter(model, inner_steps=1).learned["step"].tolist() == [-0.5]
    more = adapter(model, inner_steps=4).learned["step"].tolist()
    assert more == pytest.approx([-0.5, 0.7, 0.7, 0.7])
    assert len(adapter(model, inner_steps=0).learned["step"]) == 0
