"""How the ranker orders candidates, and what it is learned from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Tasks
from metatkgr.data.world import simulate
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.evidence.features import FEATURES, KINDS, columns_of
from metatkgr.models.evidence.model import EvidenceModel
from metatkgr.models.evidence.ranker import REPEAT_BOOST, Ranker, initial_weights, repeat_scores
from metatkgr.models.evidence.reader import Reader
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.training import (
    Examples,
    answer_loss,
    example_sets,
)

GENERATOR = torch.Generator().manual_seed(4)


def some_ranker(hidden: int) -> Ranker:
    weights = initial_weights(EvidenceSettings(hidden=hidden), 4, GENERATOR)
    for name in ("relation", "mean", "outer"):
        if name in weights:
            weights[name] += torch.randn(weights[name].shape, generator=GENERATOR)
    return Ranker(weights)


def test_a_logit_is_the_formula() -> None:
    ranker = some_ranker(hidden=3)
    features = torch.randn(6, len(FEATURES), generator=GENERATOR)
    relation = torch.tensor([1, 3, 0, 1, 2, 3])
    logits = ranker(features, relation, prior=0.7)
    for candidate in range(6):
        z = (features[candidate] - ranker.mean) / ranker.deviation
        members = []
        for member in range(len(ranker.shared)):
            own = ranker.shared[member] + ranker.relation[relation[candidate]]
            hidden = torch.tanh(ranker.inner[member].T @ z + ranker.bias[member])
            members.append(own @ z + ranker.outer[member] @ hidden)
        walk = features[candidate, FEATURES.index("far_slot")]
        expected = sum(members) / len(members) + 0.7 * walk
        torch.testing.assert_close(logits[candidate], expected)


def test_the_loss_is_that_of_the_answer_among_its_candidates() -> None:
    ranker = some_ranker(hidden=3)
    examples = Examples(
        torch.randn(8, len(FEATURES), generator=GENERATOR),
        torch.tensor([0, 3, 7, 8]),
        torch.tensor([2, 0, 0]),
        torch.tensor([1, 3, 0]),
        torch.tensor([1.0, 0.25, 0.5]),
    )
    wanted = torch.tensor(0.0)
    for row in range(3):
        features = examples.features[examples.start[row] : examples.start[row + 1]]
        relation = examples.relation[row].expand(len(features))
        chance = torch.log_softmax(ranker.member_logits(features, relation), 1)
        wanted = wanted - examples.weight[row] * chance[:, examples.answer[row]].sum() / 1.75
    assert torch.allclose(answer_loss(ranker, examples), wanted, rtol=1e-5)
    # Some of the queries, in another order.
    some = examples.some(torch.tensor([2, 0]))
    assert torch.equal(some.features, examples.features[[7, 0, 1, 2]])
    assert (some.start.tolist(), some.answer.tolist()) == ([0, 1, 4], [0, 2])
    both = Examples.cat([examples.some(torch.tensor([0])), examples.some(torch.tensor([1, 2]))])
    assert all(torch.equal(one, other) for one, other in zip(both, examples, strict=True))


def test_a_repeat_stands_above_all_else_and_the_latest_first() -> None:
    link = torch.tensor([39, 40, 39, 0])
    share = torch.tensor([0.1, 0.0, 0.2, 1.0])
    scores = repeat_scores(link, torch.full_like(link, 42), share)
    assert scores.argsort(descending=True).tolist() == [1, 2, 0, 3]
    assert float(scores.min()) > REPEAT_BOOST / 3


def test_weights_of_no_relation_cost_nothing() -> None:
    chosen = EvidenceSettings(hidden=0)
    ranker = Ranker(initial_weights(chosen, 4, GENERATOR))
    assert ranker.penalty(chosen) == 0
    ranker.relation.data[2, 1] = 2.0
    assert ranker.penalty(chosen) == 4 * chosen.shrinkage


def test_each_support_fact_is_foretold_from_the_earlier_ones_only() -> None:
    problem = Problem.of(simulate(facts=2000, seed=5), shots=3)
    few = EvidenceSettings(train_queries=100, earlier_queries=0)
    for chosen in (few, replace(few, repeats_first=False)):
        found = example_sets(problem, chosen, 0)
        assert len(found) == 1 + 3 * 2
        for examples in found[1:]:
            asked = set(examples.queries.entity.tolist())
            own = examples.supports
            for entity in list(asked)[:20]:
                row = int(np.flatnonzero(examples.queries.entity == entity)[0])
                mine = own.entity == entity
                assert (own.time[mine] <= examples.queries.time[row]).all()
                assert 1 <= int(mine.sum()) <= 2
    assert len(example_sets(problem, replace(few, support_share=0.0), 0)) == 1


def test_each_seed_learns_from_a_sample_of_its_own() -> None:
    """Else the deviation over seeds would say nothing of the sample."""
    problem = Problem.of(simulate(facts=2000, seed=5), shots=2)
    few = EvidenceSettings(train_queries=40, support_queries=20, start="none")
    model = EvidenceModel(settings=few)
    means = []
    for seed in (0, 1, 0):
        model.build(len(problem.known.entities), len(problem.known.relations), GENERATOR)
        phase = model.phases(problem)[-1]
        next(iter(phase.batches(torch.Generator().manual_seed(seed))))
        means.append(model.evidence.mean.clone())
    assert torch.equal(means[0], means[2])
    assert not torch.equal(means[0], means[1])


def test_where_repeats_are_first_only_novel_answers_are_learned_from() -> None:
    problem = Problem.of(simulate(facts=2000, seed=5), shots=3)
    chosen = EvidenceSettings(train_queries=100, earlier_queries=100, support_queries=30)
    both = example_sets(problem, replace(chosen, repeats_first=False), 0)
    for found, novel_only in ((example_sets(problem, chosen, 0), True), (both, False)):
        repeats = 0
        for number, examples in enumerate(found):
            assert len(examples.queries) <= (100 if number < 2 else 30)
            links = History(TemporalIndex.of(examples.visible), examples.supports).last_links(
                examples.queries
            )
            linked = set(zip(links.query.tolist(), links.candidate.tolist(), strict=True))
            repeats += sum(pair in linked for pair in enumerate(examples.answer.tolist()))
        assert (repeats == 0) == novel_only


def test_one_link_is_asked_about_three_times_at_most() -> None:
    problem = Problem.of(simulate(facts=2000, seed=5), shots=1)
    examples = example_sets(problem, EvidenceSettings(repeats_first=False, earlier_queries=0), 0)[0]
    columns = (examples.queries.entity, examples.queries.relation, examples.answer)
    novel: Counter[tuple[int, ...]] = Counter(
        zip(*(column.tolist() for column in columns), strict=True)
    )
    # Three as novel answers, three as repeats.
    assert 1 < max(novel.values()) <= 6


def test_known_true_answers_are_not_ranked_against() -> None:
    problem = Problem.of(simulate(facts=1500, seed=5), shots=2)
    chosen = EvidenceSettings(train_queries=60, earlier_queries=0)
    model = EvidenceModel(chosen)
    known = problem.known
    model.build(len(known.entities), len(known.relations), GENERATOR)
    columns = (known.source, known.relation, known.target)
    true = set(zip(*(column.tolist() for column in columns), strict=True))
    examples = example_sets(problem, chosen, GENERATOR.initial_seed())[0]
    (phase,) = model.phases(problem)
    next(iter(phase.batches(GENERATOR)))
    read = phase._examples  # type: ignore[attr-defined]
    index = TemporalIndex.of(examples.visible)
    reader = Reader(index, examples.supports, chosen)
    found = reader.read(examples.queries, None, torch.from_numpy(examples.answer))
    dropped = taught = 0
    for row in range(len(examples.queries)):
        e, r = int(examples.queries.entity[row]), int(examples.queries.relation[row])
        mine, answer = found.query == row, int(examples.answer[row])
        gold = found.entity[mine] == answer
        if not bool(found.covered[mine][gold]):
            continue  # nothing spoke for the answer: not learned from
        is_true = torch.tensor([(e, r, x) in true for x in found.entity[mine].tolist()])
        kept = ~is_true | gold
        part = slice(int(read.start[taught]), int(read.start[taught + 1]))
        assert torch.equal(read.features[part], found.features[mine][kept])
        assert int(read.answer[taught]) == int(torch.nonzero(gold[kept]))
        dropped, taught = dropped + int((~kept).sum()), taught + 1
    assert dropped > 0
    assert taught > 0


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_left_out_changes_no_score(kind: str) -> None:
    tasks = Tasks.build(simulate(facts=1500, seed=2), shots=2)
    plain, without = EvidenceSettings(), EvidenceSettings(without=kind)
    asked = tasks.questions[np.arange(20)]
    public = TemporalIndex.of(tasks.visible)
    features = [
        Reader(public, tasks.supports, chosen).read(asked).features for chosen in (plain, without)
    ]
    gone = columns_of(kind)
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
    for number, examples in enumerate(example_sets(problem, few, 0)):
        q = examples.queries
        asked = zip(
            q.entity.tolist(),
            q.relation.tolist(),
            examples.answer.tolist(),
            q.time.tolist(),
            strict=True,
        )
        if number == 0:
            assert set(examples.answer.tolist()) <= allowed
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
        first = example_sets(problem, EvidenceSettings(train_queries=50, earlier_queries=50), 0)
        assert len(first[1].queries) > 0
