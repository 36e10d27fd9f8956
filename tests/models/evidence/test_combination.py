"""How evidence is weighed, and what is learned from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.evidence.combination import (
    combine,
    contributions,
    initial_weights,
    lifted,
    opinions,
    penalty,
)
from metatkgr.models.evidence.features import FEATURES, OF_KIND
from metatkgr.models.evidence.model import EvidenceModel
from metatkgr.models.evidence.reader import PublicFacts, Reader
from metatkgr.models.evidence.settings import KINDS, EvidenceSettings
from metatkgr.models.evidence.training import Examples, answer_loss, lessons, transfer_shares
from references import ENTITIES, RELATIONS, graphs

GENERATOR = torch.Generator().manual_seed(4)


def some_weights(hidden: int) -> dict[str, torch.Tensor]:
    weights = initial_weights(EvidenceSettings(hidden=hidden), 4, GENERATOR)
    for name in ("relation", "mean", "outer"):
        if f"evidence.{name}" in weights:
            weights[f"evidence.{name}"] += torch.randn(
                weights[f"evidence.{name}"].shape, generator=GENERATOR
            )
    return weights


def test_a_score_is_the_formula() -> None:
    weights = some_weights(hidden=3)
    features = torch.randn(2, 5, len(FEATURES), generator=GENERATOR)
    relation = torch.tensor([1, 3])
    scores = combine(weights, features, relation, prior=0.7)
    for question in range(2):
        for candidate in range(5):
            z = (features[question, candidate] - weights["evidence.mean"]) / weights[
                "evidence.deviation"
            ]
            said = []
            for member in range(weights["evidence.shared"].shape[0]):
                shared, inner, bias, outer = (
                    weights[f"evidence.{name}"][member]
                    for name in ("shared", "inner", "bias", "outer")
                )
                own = shared + weights["evidence.relation"][relation[question]]
                said.append(own @ z + outer @ torch.tanh(inner.T @ z + bias))
            walk = features[question, candidate, FEATURES.index("far_place")]
            expected = sum(said) / len(said) + 0.7 * walk
            torch.testing.assert_close(scores[question, candidate], expected)


def test_the_loss_is_that_of_the_candidates_that_count() -> None:
    weights = some_weights(hidden=3)
    examples = Examples(
        torch.randn(3, 4, len(FEATURES), generator=GENERATOR),
        torch.tensor([[True, True, False, True], [True] * 4, [True, False, False, False]]),
        torch.tensor([1, 3, 0]),
        torch.tensor([1.0, 0.0, 0.5]),
    )
    wanted = torch.tensor(0.0)
    for features, mask, relation, weight in zip(*examples, strict=True):
        said = opinions(weights, features[mask].unsqueeze(0), relation.unsqueeze(0))
        wanted = wanted - weight * torch.log_softmax(said, 2)[:, 0, 0].sum() / 1.5
    assert torch.allclose(answer_loss(weights, examples), wanted, rtol=1e-5)
    # A question without weight may hold anything, and questions without any weight teach nothing.
    features = examples.features.clone()
    features[1] = 1e9
    assert torch.equal(
        answer_loss(weights, examples._replace(features=features)), answer_loss(weights, examples)
    )
    nothing = examples._replace(weight=torch.zeros(3))
    weights["evidence.shared"].requires_grad_(True)
    loss = answer_loss(weights, nothing)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss == 0
    gradient = weights["evidence.shared"].grad
    assert gradient is not None
    assert not gradient.any()


def test_contributions_of_linear_weights_add_up_to_the_score() -> None:
    weights = some_weights(hidden=0)
    features = torch.randn(2, 5, len(FEATURES), generator=GENERATOR)
    relation = torch.tensor([0, 2])
    parts = contributions(weights, features, relation, prior=0.5)
    assert parts.shape == features.shape
    torch.testing.assert_close(parts.sum(-1), combine(weights, features, relation, prior=0.5))


def test_a_repeat_stands_above_all_else_and_the_latest_first() -> None:
    link = torch.tensor([[39, 40, -1, 39, -1]])
    share = torch.tensor([[0.1, 0.0, 1.0, 0.2, 0.0]])
    given_scores = torch.tensor([[90.0, -900.0, 99.0, -900.0, -1e3]])
    scores = lifted(given_scores, link, torch.tensor([42]), share)
    assert scores.argsort(descending=True).tolist() == [[1, 3, 0, 2, 4]]
    assert torch.equal(scores[0, [2, 4]].float(), torch.tensor([99.0, -1e3]))


def test_weights_of_no_relation_cost_nothing() -> None:
    chosen = EvidenceSettings(hidden=0)
    weights = initial_weights(chosen, 4, GENERATOR)
    assert penalty(weights, chosen) == 0
    weights["evidence.relation"][2, 1] = 2.0
    assert penalty(weights, chosen) == 4 * chosen.shrinkage


@given(facts=graphs())
@settings(max_examples=40, deadline=None)
def test_transfer_is_the_share_of_pairs_linked_by_both(facts: Facts) -> None:
    known = VisibleFacts.of(facts)
    shares = transfer_shares(known)
    columns = (known.source, known.relation, known.target)
    triples = set(zip(*(column.tolist() for column in columns), strict=True))
    pairs = [
        {(a, b) for a in range(ENTITIES) for b in range(ENTITIES) if (a, r, b) in triples}
        for r in range(2 * RELATIONS)
    ]
    for one in range(2 * RELATIONS):
        for other in range(2 * RELATIONS):
            expected = len(pairs[one] & pairs[other]) / (len(pairs[one]) + 5)
            assert abs(float(shares[one, other]) - expected) < 1e-6


def test_each_support_fact_is_foretold_from_the_earlier_ones_only() -> None:
    problem = Problem.of(simulate(facts=2000, seed=5), shots=3)
    few = EvidenceSettings(train_queries=100, earlier_queries=0)
    for chosen in (few, replace(few, repeats_first=False)):
        found = lessons(problem, chosen)
        assert len(found) == 1 + 3 * 2
        for lesson in found[1:]:
            asked = set(lesson.queries.entity.tolist())
            own = lesson.supports
            for entity in list(asked)[:20]:
                row = int(np.flatnonzero(lesson.queries.entity == entity)[0])
                mine = own.entity == entity
                assert (own.time[mine] <= lesson.queries.time[row]).all()
                assert 1 <= int(mine.sum()) <= 2
    assert len(lessons(problem, replace(few, support_share=0.0))) == 1


def test_where_repeats_are_first_only_novel_answers_are_learned_from() -> None:
    problem = Problem.of(simulate(facts=2000, seed=5), shots=3)
    chosen = EvidenceSettings(train_queries=100, earlier_queries=100, support_queries=30)
    both = lessons(problem, replace(chosen, repeats_first=False))
    for found, novel_only in ((lessons(problem, chosen), True), (both, False)):
        repeats = 0
        for number, lesson in enumerate(found):
            assert len(lesson.queries) <= (100 if number < 2 else 30)
            links = History(TemporalIndex.of(lesson.visible), lesson.supports).last_links(
                lesson.queries
            )
            linked = set(zip(links.question.tolist(), links.candidate.tolist(), strict=True))
            repeats += sum(pair in linked for pair in enumerate(lesson.answer.tolist()))
        assert (repeats == 0) == novel_only


def test_one_link_is_asked_about_three_times_at_most() -> None:
    problem = Problem.of(simulate(facts=2000, seed=5), shots=1)
    lesson = lessons(problem, EvidenceSettings(repeats_first=False, earlier_queries=0))[0]
    columns = (lesson.queries.entity, lesson.queries.relation, lesson.answer)
    novel: Counter[tuple[int, ...]] = Counter(
        zip(*(column.tolist() for column in columns), strict=True)
    )
    # Three as novel answers, three as repeats.
    assert 1 < max(novel.values()) <= 6


def test_known_true_answers_are_no_rivals() -> None:
    problem = Problem.of(simulate(facts=1500, seed=5), shots=2)
    chosen = EvidenceSettings(train_queries=60, earlier_queries=0)
    model = EvidenceModel(chosen)
    known = problem.known
    model.build(len(known.entities), len(known.relations), GENERATOR)
    columns = (known.source, known.relation, known.target)
    true = set(zip(*(column.tolist() for column in columns), strict=True))
    lesson = lessons(problem, chosen)[0]
    (phase,) = model.phases(problem)
    next(iter(phase.batches(GENERATOR)))
    read = phase._examples  # type: ignore[attr-defined]
    transfer = model.weights["evidence.transfer"].detach()
    public = PublicFacts(lesson.visible, torch.device("cpu"))
    reader = Reader(public, lesson.supports, transfer, chosen)
    found = reader.read(lesson.queries, None, torch.from_numpy(lesson.answer))
    dropped = 0
    for row in range(len(lesson.queries)):
        e, r = int(lesson.queries.entity[row]), int(lesson.queries.relation[row])
        assert read.mask[row, 0]
        for place in range(1, found.entity.shape[1]):
            is_true = (e, r, int(found.entity[row, place])) in true
            assert bool(read.mask[row, place]) == (bool(found.mask[row, place]) and not is_true)
            dropped += is_true
    assert dropped > 0


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_left_out_changes_no_score(kind: str) -> None:
    tasks = Tasks.build(simulate(facts=1500, seed=2), shots=2)
    relations = 2 * len(tasks.facts.relations)
    plain, without = EvidenceSettings(), EvidenceSettings(without=kind)
    asked = tasks.questions[np.arange(20)]
    public = PublicFacts(tasks.visible, torch.device("cpu"))
    features = [
        Reader(public, tasks.supports, torch.zeros(relations, relations), chosen)
        .read(asked, None, None)
        .features
        for chosen in (plain, without)
    ]
    gone = [FEATURES.index(name) for name in OF_KIND[kind]]
    assert (features[1][..., gone] == 0).all()
    kept = [place for place in range(len(FEATURES)) if place not in gone]
    assert torch.equal(features[0][..., kept], features[1][..., kept])


def test_unknown_evidence_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="magic; choose from contact"):
        EvidenceSettings(without="walks, magic")


def test_what_is_learned_from_holds_no_query_of_later_splits() -> None:
    facts = simulate(facts=2000, seed=5)
    problem = Problem.of(facts, shots=2)
    allowed = set(problem.train.answers.answer.tolist())
    supports = (problem.train.supports, problem.validation.supports, problem.newest)
    given_facts = {
        fact
        for s in supports
        for fact in zip(
            s.entity.tolist(), s.relation.tolist(), s.other.tolist(), s.time.tolist(), strict=True
        )
    }
    few = EvidenceSettings(train_queries=50, earlier_queries=0)
    for number, lesson in enumerate(lessons(problem, few)):
        q = lesson.queries
        asked = zip(
            q.entity.tolist(),
            q.relation.tolist(),
            lesson.answer.tolist(),
            q.time.tolist(),
            strict=True,
        )
        if number == 0:
            assert set(lesson.answer.tolist()) <= allowed
        else:
            assert set(asked) <= given_facts


def test_earlier_entities_are_taken_as_new_and_show_nothing_but_known_facts() -> None:
    facts = simulate(facts=2000, seed=5)
    for visibility in ("entity-split", "frozen"):
        problem = Problem.of(facts, shots=2, visibility=visibility)
        known = problem.known
        allowed = set(
            zip(
                known.source.tolist(),
                known.relation.tolist(),
                known.target.tolist(),
                known.time.tolist(),
                strict=True,
            )
        )
        tasks = problem.earlier
        question = tasks.answers.question
        asked = zip(
            tasks.questions.entity[question].tolist(),
            tasks.questions.relation[question].tolist(),
            tasks.answers.answer.tolist(),
            tasks.questions.time[question].tolist(),
            strict=True,
        )
        assert len(tasks.answers) > 0
        assert set(asked) <= allowed
        first = lessons(problem, EvidenceSettings(train_queries=50, earlier_queries=50))
        assert len(first[1].queries) > 0
