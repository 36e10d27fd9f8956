"""Reasons of weighed evidence: visible facts, the weightiest first, and they carry the score."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.readers import read_facts
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.graph.index import EntityFacts
from metatkgr.models.base import Explanation
from metatkgr.models.common.explanations import supporting
from metatkgr.models.common.leave_one_out import Deletions
from metatkgr.models.evidence.features import FEATURES
from metatkgr.models.evidence.model import EvidenceModel
from metatkgr.models.evidence.reader import Reader
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
            assert weights == sorted(weights, key=lambda weight: (weight < 0, -abs(weight)))
            assert all(-1 <= weight <= 1 for weight in weights)
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
    assert {explanations[0].kind for explanations in told} == {"repeat"}
    # Where nobody else was met before, one may stay first without it.
    assert np.median([explanations[0].weight for explanations in told]) >= 0.9


def test_what_was_scored_is_not_scored_again_for_its_reasons(
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
    monkeypatch.setattr(model, "_score", None)
    assert [model.reasons(asked, who) for who in (answer, unlikely)] == read_anew


@torch.no_grad()
def test_leaving_facts_out_of_the_look_ups_is_leaving_them_out_of_the_graph(
    learned: tuple[EvidenceModel, Tasks],
) -> None:
    """Features without the facts of a reason, read at once and from a graph that lacks them."""
    model, tasks = learned
    rows = np.arange(0, len(tasks.questions), max(len(tasks.questions) // 12, 1))
    asked = tasks.questions[rows]
    seen: Counter[str] = Counter()
    apart: list[float] = []
    for place in (0, 4):
        model.prepare(tasks.visible).adapt(tasks.supports)
        answer, history = top(model, asked, place), model.reader_.history
        found = supporting(history, asked, answer, walks=True, shared=True)
        deletions, first = Deletions.of(history, asked, answer, found)
        similar = model.similar(deletions.queries)
        read = model.reader_.read(deletions.queries, similar, deletions=deletions)
        row, entity, scores = model._ranked(read, deletions.queries)
        own = entity == deletions.answer[row]
        score = scores[own][torch.argsort(row[own])]
        for number, some in enumerate(found):
            question, x = asked[np.array([number])], int(answer[number])
            for world, why in enumerate(some, int(first[number]) + 1):
                seen[why.kind] += 1
                without(model, tasks, left_out(tasks, question, x, why))
                literal = model.reader_.read(question, model.similar(question), answer[[number]])
                _, who, scored = model._ranked(literal, question)
                features = literal.features[literal.entity == x][0]
                wrong = (read.features[world] - features).abs() > 1e-3
                if why.kind != "frequency":
                    # How many facts the slot has in all is not counted anew.
                    assert {FEATURES[n] for n in torch.nonzero(wrong)} <= {"far_slot"}
                    assert float(scored[who == x]) == pytest.approx(float(score[world]), abs=0.05)
                else:
                    assert not wrong[[FEATURES.index(name) for name in IN_THE_SLOT]].any()
                    apart.append(float((scored[who == x] - score[world]).abs()))
    assert seen.keys() == {"repeat", "contact", "path", "shared", "frequency"}
    # Nor is PageRank, where facts of others are left out.
    assert np.median(apart) < 0.2


IN_THE_SLOT = ("slot_count", "slot_recent", "slot_season", "slot_era", "slot_age", "walks", "peers")


def left_out(tasks: Tasks, asked: Queries, x: int, why: Explanation) -> set[tuple[int, ...]]:
    """All visible facts that a reason rests on."""
    e, r, t = (int(column[0]) for column in (asked.entity, asked.relation, asked.time))
    base, own = len(tasks.facts.relations), tasks.supports.of(e)
    columns = (own.relation.tolist(), own.other.tolist(), own.time.tolist())
    links = [(e, *rest) for rest in zip(*columns, strict=True)]
    links += [link for link in facts_of(tasks.visible) if link[3] < t]
    shared = {link.target for link in why.links[::2]} if why.kind == "shared" else set()
    y = why.links[0].target

    def gone(source: int, along: int, target: int) -> bool:
        if why.kind == "frequency":
            return (source, along) == (x, (r + base) % (2 * base)) and target != e
        if why.kind == "shared":
            return source == e and target in shared
        return (source, target) == (e, y) and (along == r) == (why.kind != "contact")

    return {sorted_ends(tasks.facts, link) for link in links if gone(*link[:3])}


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


def test_reasons_of_a_hub_read_its_latest_facts_again_and_not_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [("Hub", "knows", f"Fan {n}", 1 + n // 100) for n in range(900)]
    rows += [(f"Fan {n}", "knows", f"Friend {n % 7}", 2) for n in range(50)]
    facts = read_facts(rows, unit="step")
    model = EvidenceModel(EvidenceSettings())
    model.load_pretrained(facts)
    model.prepare(VisibleFacts.of(facts)).adapt(Supports.none())
    hub = facts.entities.id("Hub")
    asked = Queries(np.full(6, hub), np.zeros(6, np.int64), np.full(6, facts.steps))
    candidate = torch.tensor([facts.entities.id(f"Fan {n}") for n in (0, 1, 2, 897, 898, 899)])
    read: list[int] = []
    past = Reader._past

    def counted(reader: Reader, *words: Any) -> EntityFacts:
        found = past(reader, *words)
        read.append(int(torch.bincount(found.row).max()))
        return found

    monkeypatch.setattr(Reader, "_past", counted)
    reasons = model.reasons(asked, candidate)
    assert read == [256, 900], "without each reason; and once to score"
    assert all(why.weight > 0.5 for why, *_ in reasons[3:]), "what is read counts as ever"
