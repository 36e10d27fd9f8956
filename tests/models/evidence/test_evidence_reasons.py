"""Reasons of weighed evidence: visible facts, the weightiest first, and they carry the score."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.models.evidence.model import EvidenceModel
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.training.loop import train
from references import dense


@pytest.fixture(scope="module")
def learned() -> tuple[EvidenceModel, Tasks]:
    facts = simulate(facts=2500, seed=3)
    few = EvidenceSettings(
        train_queries=200,
        earlier_queries=200,
        support_queries=60,
        epochs=3,
        members=2,
        hidden=8,
        start="none",
    )
    model = EvidenceModel(few)
    train(model, Problem.of(facts, shots=2), seed=0)
    return model, Tasks.build(facts, shots=2)


def top(model: EvidenceModel, asked: Queries, place: int) -> torch.Tensor:
    return dense(model, asked).argsort(1, descending=True)[:, place]


def test_reasons_are_visible_and_in_order(learned: tuple[EvidenceModel, Tasks]) -> None:
    model, tasks = learned
    model.prepare(tasks.visible).adapt(tasks.supports)
    asked = tasks.questions[np.arange(0, len(tasks.questions), 9)[:40]]
    links = facts_of(tasks.visible)
    kinds: set[str] = set()
    for place in (0, 3):
        answer = top(model, asked, place)
        for row, explanations in enumerate(model.reasons(asked, answer)):
            weights = [explanation.weight for explanation in explanations]
            assert weights == sorted(weights, reverse=True)
            assert not explanations or sum(weights) == pytest.approx(1)
            own = tasks.supports.of(int(asked.entity[row]))
            mine = set(
                zip(own.relation.tolist(), own.other.tolist(), own.time.tolist(), strict=True)
            )
            for explanation in explanations:
                kinds.add(explanation.kind)
                assert explanation.links
                for link in explanation.links:
                    is_own = link.source == asked.entity[row] and tuple(link)[1:] in mine
                    assert is_own or (link.time < asked.time[row] and tuple(link) in links)
    assert kinds >= {"repeat", "contact", "path", "shared", "frequency"}


def test_a_repeat_is_the_first_reason(learned: tuple[EvidenceModel, Tasks]) -> None:
    model, tasks = learned
    model.prepare(tasks.visible).adapt(tasks.supports)
    links = model.reader_.history.last_links(tasks.questions)
    rows = torch.unique(links.query)[:20]
    first = torch.searchsorted(links.query, rows)
    told = model.reasons(tasks.questions[rows.numpy()], links.candidate[first])
    assert all(
        explanations[0].kind == "repeat" and explanations[0].weight >= 0.7 for explanations in told
    )


def test_what_was_scored_is_not_read_again_for_its_reasons(
    learned: tuple[EvidenceModel, Tasks], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tasks = learned
    asked = tasks.questions[np.arange(0, len(tasks.questions), 31)[:20]]
    model.prepare(tasks.visible).adapt(tasks.supports)
    answer = top(model, asked, 0)
    unlikely = torch.arange(len(answer)) % len(tasks.facts.entities)
    model.adapt(tasks.supports)
    read_anew = [model.reasons(asked, who) for who in (answer, unlikely)]
    model.score(asked)
    assert model.reasons(asked, unlikely) == read_anew[1]
    monkeypatch.setattr(model.reader_, "read", None)
    for explained, anew in zip(model.reasons(asked, answer), read_anew[0], strict=True):
        assert [why.kind for why in explained] == [why.kind for why in anew]
        weights = [why.weight for why in anew]
        assert [why.weight for why in explained] == pytest.approx(weights, rel=1e-4)


@pytest.mark.parametrize("place", [0, 2])
def test_without_its_first_reason_an_answer_falls(
    learned: tuple[EvidenceModel, Tasks], place: int
) -> None:
    """By rank, against as many other visible facts, chosen blindly."""
    model, tasks = learned
    generator = np.random.default_rng(0)
    falls: list[float] = []
    control: list[float] = []
    step = max(len(tasks.questions) // 25, 1)
    for number in range(0, len(tasks.questions), step):
        asked = tasks.questions[np.array([number])]
        model.prepare(tasks.visible).adapt(tasks.supports)
        answer = top(model, asked, place)
        (explanations,) = model.reasons(asked, answer)
        if not explanations:
            continue
        told = {tuple(sorted_ends(tasks.facts, link)) for link in explanations[0].links}
        others = generator.choice(len(tasks.visible) // 2, len(told), replace=False)
        before = rank_of(model, asked, int(answer))
        for removed, values in ((told, falls), (ends_at(tasks, others), control)):
            without(model, tasks, removed)
            values.append(rank_of(model, asked, int(answer)) - before)
    assert len(falls) > 15
    assert np.mean(falls) > np.mean(control) + 1
    assert np.mean(np.array(falls) > 0) > np.mean(np.array(control) > 0) + 0.2


def facts_of(visible: VisibleFacts) -> set[tuple[int, ...]]:
    columns = (visible.source, visible.relation, visible.target, visible.time)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def sorted_ends(facts: Facts, link: tuple[int, ...]) -> tuple[int, ...]:
    """Subject, relation, object and step of a link."""
    source, relation, target, time = link
    base = len(facts.relations)
    if relation < base:
        return source, relation, target, time
    return target, relation - base, source, time


def ends_at(tasks: Tasks, rows: np.ndarray) -> set[tuple[int, ...]]:
    v = tasks.visible
    return {
        sorted_ends(
            tasks.facts, tuple(int(c[2 * row]) for c in (v.source, v.relation, v.target, v.time))
        )
        for row in rows
    }


def without(model: EvidenceModel, tasks: Tasks, removed: set[tuple[int, ...]]) -> None:
    """Show the model all visible facts and supports but some."""
    facts = tasks.facts
    kept = np.array(
        [
            (int(s), int(r), int(o), int(t)) not in removed
            for s, r, o, t in zip(
                facts.subject, facts.relation, facts.object, facts.time, strict=True
            )
        ]
    )
    own = tasks.supports
    stays = np.array(
        [
            sorted_ends(facts, link) not in removed
            for link in zip(
                own.entity.tolist(),
                own.relation.tolist(),
                own.other.tolist(),
                own.time.tolist(),
                strict=True,
            )
        ]
    )
    visible = facts_of(tasks.visible)
    public = np.array(
        [
            (int(s), int(r), int(o), int(t)) in visible
            for s, r, o, t in zip(
                facts.subject, facts.relation, facts.object, facts.time, strict=True
            )
        ]
    )
    supports = type(own)(*(c[stays] for c in (own.entity, own.relation, own.other, own.time)))
    model.prepare(VisibleFacts.of(facts.select(np.flatnonzero(kept & public)))).adapt(supports)


def rank_of(model: EvidenceModel, asked: Queries, answer: int) -> float:
    scores = dense(model, asked)[0]
    return float((scores > scores[answer]).sum()) + float((scores == scores[answer]).sum()) / 2
