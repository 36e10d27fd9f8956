"""Ranks, filters and summaries equal brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data import answers
from metatkgr.data.answers import FILTERS, TrueAnswers, true_answers
from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import MetaTKGRError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.evaluation.ranking import (
    NonFiniteScoreError,
    bootstrap_interval,
    check_finite,
    filtered_ranks,
    summarise,
)
from metatkgr.models import create
from metatkgr.training.comparing import paired_difference
from references import (
    ENTITIES,
    RELATIONS,
    LiteralProtocol,
    Query,
    graphs,
    literal_rank,
    literal_true,
    recurrency_parts,
    tuples,
)

visibilities = st.sampled_from(["entity-split", "frozen", "streaming"])


def queries_of(tasks: Tasks) -> list[Query]:
    q, a = tasks.questions, tasks.answers
    rows = zip(
        q.entity[a.question].tolist(),
        q.relation[a.question].tolist(),
        q.time[a.question].tolist(),
        a.answer.tolist(),
        strict=True,
    )
    return [Query(*row) for row in rows]


@given(facts=graphs(), visibility=visibilities, shots=st.integers(1, 2))
@settings(max_examples=100, deadline=None)
def test_evaluation_equals_brute_force(facts: Facts, visibility: str, shots: int) -> None:
    tasks = Tasks.build(facts, shots=shots, visibility=visibility)
    literal = LiteralProtocol(tuples(facts), RELATIONS, shots=shots, visibility=visibility, split=3)
    if len(tasks.answers) == 0:
        with pytest.raises(MetaTKGRError, match="no query"):
            evaluate(create("recurrency"), tasks)
        return
    # the smallest budget: one question at a time
    result = evaluate(create("recurrency"), tasks, score_bytes=1)
    for row, query in enumerate(queries_of(tasks)):
        scores = recurrency_parts(literal, query, ENTITIES, walks=False)
        for name in FILTERS:
            true = literal_true(literal, query, name)
            assert result.ranks[name][row] == literal_rank(scores, query, true)
        assert result.novel[row] == (scores[query.answer][0] == -1)


@given(facts=graphs(), block=st.sampled_from([1, 2, 7, 1 << 20]))
@settings(max_examples=100, deadline=None)
def test_filters_equal_brute_force(facts: Facts, block: int) -> None:
    tasks = Tasks.build(facts, shots=1)
    literal = LiteralProtocol(tuples(facts), RELATIONS, shots=1, visibility="entity-split", split=3)
    for name in FILTERS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(answers, "_BLOCK", block)
            table = true_answers(VisibleFacts.of(facts), tasks.questions, name)
        for row, query in enumerate(queries_of(tasks)):
            q = int(tasks.answers.question[row])
            found = table.entity[int(table.start[q]) : int(table.stop[q])].tolist()
            assert found == sorted(literal_true(literal, query, name))


@given(
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int64]),
)
@settings(max_examples=60, deadline=None)
def test_ranks_of_random_scores_equal_brute_force(data: st.DataObject, dtype: torch.dtype) -> None:
    facts = data.draw(graphs())
    tasks = Tasks.build(facts, shots=1)
    # few distinct values, so that ties are common
    seed = data.draw(st.integers(0, 1000))
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-2, 3, (len(tasks.questions), ENTITIES), generator=generator).to(dtype)
    literal = LiteralProtocol(tuples(facts), RELATIONS, shots=1, visibility="entity-split", split=3)
    tables = [true_answers(VisibleFacts.of(facts), tasks.questions, name) for name in FILTERS]
    question = torch.from_numpy(tasks.answers.question)
    ranks = filtered_ranks(scores, question, torch.from_numpy(tasks.answers.answer), tables)
    for row, query in enumerate(queries_of(tasks)):
        parts = [(int(v),) for v in scores[int(question[row])].tolist()]
        for name, found in zip(FILTERS, ranks, strict=True):
            true = literal_true(literal, query, name)
            assert found[row] == literal_rank(parts, query, true)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_score_is_an_error_and_never_a_rank(bad: float) -> None:
    scores = torch.zeros(3, 4)
    scores[1, 2] = bad
    with pytest.raises(NonFiniteScoreError, match="question 1, candidate 2"):
        check_finite(scores)


def test_a_constant_score_gets_the_mean_rank() -> None:
    scores = torch.zeros(1, 11)
    zero = torch.zeros(1, dtype=torch.int64)
    no_filter = TrueAnswers(zero, zero, zero[:0])
    ranks = filtered_ranks(scores, zero, torch.tensor([4]), [no_filter])
    assert ranks[0].item() == 6.0


def test_micro_counts_queries_and_macro_counts_entities() -> None:
    ranks = np.array([1.0, 1.0, 1.0, 4.0])
    summary = summarise(ranks, np.array([7, 7, 7, 9]))
    assert summary.mrr == pytest.approx((3 + 0.25) / 4)
    assert summary.mrr_macro == pytest.approx((1 + 0.25) / 2)
    assert summary.hits == {1: 0.75, 3: 0.75, 10: 1.0}
    assert summary.hits_macro[1] == 0.5
    assert (summary.queries, summary.entities) == (4, 2)


def test_a_summary_of_nothing_has_no_numbers() -> None:
    summary = summarise(np.zeros(0), np.zeros(0, np.int64))
    assert summary.mrr is None
    assert summary.mrr_ci95 is None
    assert summary.to_json()["hits@10"] is None


def test_the_interval_resamples_whole_entities() -> None:
    # One entity holds nearly all queries: the interval must know that there are only two draws.
    total, size = np.array([900.0, 0.0]), np.array([1000.0, 10.0])
    low, high = bootstrap_interval(total, size, resamples=2000, seed=1)
    assert low == 0.0
    assert high == pytest.approx(0.9)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        size = generator.integers(1, 20, 60).astype(float)
        chance = generator.beta(2, 2, 60)
        low, high = bootstrap_interval(chance * size, size, resamples=300, seed=trial)
        covered += low <= 0.5 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_the_bootstrap_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    total, size = np.arange(10.0), np.arange(1.0, 11.0)
    whole = bootstrap_interval(total, size, resamples=100, seed=3)
    monkeypatch.setattr("metatkgr.evaluation.ranking._CELLS", 30)
    assert bootstrap_interval(total, size, resamples=100, seed=3) == whole


def test_a_paired_difference_sees_what_two_separate_intervals_hide() -> None:
    generator = np.random.default_rng(2)
    entity = np.repeat(np.arange(80), 5)
    # entities differ a lot; the second model is a little worse on every one of them
    one = np.repeat(generator.integers(1, 30, 80), 5).astype(float)
    other = one * 1.2
    difference, low, high = paired_difference(one, other, entity)
    assert difference == pytest.approx(float((1 / one - 1 / other).mean()))
    assert 0 < low < difference < high
    separate = [summarise(ranks, entity).mrr_ci95 for ranks in (one, other)]
    assert separate[0] is not None
    assert separate[1] is not None
    assert separate[0][0] < separate[1][1]
    assert paired_difference(one, one, entity) == (0.0, 0.0, 0.0)
