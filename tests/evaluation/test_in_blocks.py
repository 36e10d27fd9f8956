"""Ranks counted block by block, with true answers from the index, are the ranks of the protocol."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import VisibleFacts
from metatkgr.evaluation.filters import FILTERS, true_answers
from metatkgr.evaluation.in_blocks import best_in_blocks, ranks_in_blocks, true_answers_of
from metatkgr.evaluation.ranking import NonFiniteScoreError, filtered_ranks
from metatkgr.graph.index import GraphIndex
from references import ENTITIES, graphs


@given(facts=graphs(), block=st.integers(1, 2 * ENTITIES), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_the_ranks_are_those_of_one_table(facts: Facts, block: int, seed: int) -> None:
    links = VisibleFacts.of(facts)
    asked = Queries(links.source, links.relation, links.time)
    index = GraphIndex.of(links)
    columns = [torch.from_numpy(c) for c in (asked.entity, asked.relation, asked.time)]
    filters = []
    for name in FILTERS:
        ours, theirs = true_answers_of(index, *columns, name), true_answers(facts, asked, name)
        for row in range(len(asked)):
            mine = ours.entity[ours.start[row] : ours.stop[row]].tolist()
            assert mine == theirs.entity[theirs.start[row] : theirs.stop[row]].tolist()
        filters.append(ours)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(5, (len(asked), ENTITIES), generator=generator).float()  # with ties
    question, answer = torch.arange(len(asked)), torch.from_numpy(links.target)
    found = ranks_in_blocks(
        lambda low, high: scores[:, low:high], ENTITIES, question, answer, filters, block=block
    )
    for ours, theirs in zip(found, filtered_ranks(scores, question, answer, filters), strict=True):
        assert torch.equal(ours, theirs)


@given(
    table=st.lists(st.lists(st.integers(0, 4), min_size=9, max_size=9), min_size=1, max_size=4),
    block=st.integers(1, 12),
    count=st.integers(1, 12),
)
@settings(max_examples=30, deadline=None)
def test_the_best_are_those_of_a_sorted_table(
    table: list[list[int]], block: int, count: int
) -> None:
    scores = torch.tensor(table).float()
    found, ids = best_in_blocks(lambda low, high: scores[:, low:high], 9, count, block=block)
    for row, best, names in zip(table, found.tolist(), ids.tolist(), strict=True):
        expected = sorted(range(9), key=lambda x: (-row[x], x))[:count]
        assert names == expected
        assert best == [row[x] for x in expected]


def test_a_score_that_is_not_finite_has_no_rank() -> None:
    scores = torch.tensor([[0.0, 1.0, float("nan")]])
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(NonFiniteScoreError):
        ranks_in_blocks(lambda low, high: scores[:, low:high], 3, one, one, [], block=2)
