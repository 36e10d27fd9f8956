"""How evidence is weighed, and what is learned from."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.models.evidence.combination import (
    combine,
    contributions,
    initial_weights,
    lifted,
    penalty,
)
from metatkgr.models.evidence.reader import FEATURES
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.training import lessons, transfer_shares
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
    scores = combine(weights, features, relation)
    for question in range(2):
        for candidate in range(5):
            z = (features[question, candidate] - weights["evidence.mean"]) / weights[
                "evidence.deviation"
            ]
            own = weights["evidence.shared"] + weights["evidence.relation"][relation[question]]
            hidden = torch.tanh(weights["evidence.inner"].T @ z + weights["evidence.bias"])
            expected = own @ z + weights["evidence.outer"] @ hidden
            torch.testing.assert_close(scores[question, candidate], expected)


def test_contributions_of_linear_weights_add_up_to_the_score() -> None:
    weights = some_weights(hidden=0)
    features = torch.randn(2, 5, len(FEATURES), generator=GENERATOR)
    relation = torch.tensor([0, 2])
    parts = contributions(weights, features, relation)
    assert parts.shape == features.shape
    torch.testing.assert_close(parts.sum(-1), combine(weights, features, relation))


def test_a_repeat_stands_above_all_else_and_the_latest_first() -> None:
    features = torch.zeros(1, 3, len(FEATURES))
    link, age = FEATURES.index("link"), FEATURES.index("link_age")
    features[0, 0, link], features[0, 0, age] = 1, 5.0
    features[0, 1, link], features[0, 1, age] = 1, 0.5
    scores = lifted(torch.tensor([[0.0, -40.0, 90.0]]), features)
    assert scores.argsort(descending=True).tolist() == [[1, 0, 2]]


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
    found = lessons(problem, EvidenceSettings(train_queries=100, earlier_queries=0))
    assert len(found) == 1 + 3 * 2
    for lesson in found[1:]:
        asked = set(lesson.queries.entity.tolist())
        own = lesson.supports
        for entity in list(asked)[:20]:
            row = int(np.flatnonzero(lesson.queries.entity == entity)[0])
            mine = own.entity == entity
            assert (own.time[mine] <= lesson.queries.time[row]).all()
            assert 1 <= int(mine.sum()) <= 2
    nothing = lessons(
        problem, EvidenceSettings(train_queries=100, earlier_queries=0, support_share=0.0)
    )
    assert len(nothing) == 1


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
    for number, lesson in enumerate(
        lessons(problem, EvidenceSettings(train_queries=50, earlier_queries=0))
    ):
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
