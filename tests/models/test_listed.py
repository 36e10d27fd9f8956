"""Scores of some entities rank answers exactly like a table of all would."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import metatkgr.graph.history as history
from metatkgr.data.answers import FILTERS, true_answers
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.sources import load
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.evaluation.ranking import filtered_ranks
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.pagerank import PageRank
from metatkgr.models import create
from metatkgr.models.common.listed import ListedScores, best_of
from references import ENTITIES, RELATIONS, graphs


@st.composite
def listed(draw: st.DrawFn) -> ListedScores:
    """Some scores of a random graph, equal ones and unlisted ones above listed ones among them."""
    facts = draw(graphs())
    index = TemporalIndex.of(VisibleFacts.of(facts))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    rows = draw(st.integers(1, 6))
    cells = torch.randperm(rows * ENTITIES, generator=seed)
    cells = cells[: draw(st.integers(0, rows * ENTITIES))]
    kind = torch.int64 if draw(st.booleans()) else torch.float64
    slope = torch.randint(1, 3, (rows,), generator=seed).to(kind)
    offset = torch.randint(-4, 4, (rows,), generator=seed).to(kind)
    return ListedScores(
        cells // ENTITIES,
        cells % ENTITIES,
        offset[cells // ENTITIES] + torch.randint(9, (len(cells),), generator=seed).to(kind),
        slots=index.slots,
        relation=torch.randint(2 * RELATIONS, (rows,), generator=seed),
        time=torch.randint(0, facts.steps + 2, (rows,), generator=seed),
        entities=ENTITIES,
        offset=offset,
        slope=slope / 4 if kind == torch.float64 else slope,
    )


@given(scores=listed())
@settings(max_examples=150, deadline=None)
def test_counts_are_those_of_the_table(scores: ListedScores) -> None:
    table = scores.dense()
    query = torch.arange(scores.rows).repeat_interleave(ENTITIES)
    answer = torch.arange(ENTITIES).repeat(scores.rows)
    better, equal = scores.counts(query, answer)
    value = table[query, answer].unsqueeze(1)
    assert torch.equal(better, (table[query] > value).sum(1))
    assert torch.equal(equal, (table[query] == value).sum(1) - 1)


@given(scores=listed(), most=st.integers(1, ENTITIES + 3))
@settings(max_examples=150, deadline=None)
def test_the_best_are_those_of_the_table(scores: ListedScores, most: int) -> None:
    table = scores.dense()
    value, entity = scores.top(most)
    expected, _ = best_of(table, most)
    assert torch.equal(value, expected)
    assert torch.equal(table.gather(1, entity), value)
    assert all(len(set(row)) == len(row) for row in entity.tolist())


@pytest.mark.parametrize("rule", ["recurrency", "paths", "pagerank"])
@given(facts=graphs(), shots=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_filtered_ranks_of_rules_are_those_of_the_table(
    rule: str, facts: Facts, shots: int
) -> None:
    tasks = Tasks.build(facts, shots=shots, visibility="streaming")
    if not len(tasks.answers):
        return
    scores = create(rule).prepare(tasks.visible).adapt(tasks.supports).score(tasks.questions)
    assert isinstance(scores, ListedScores)
    dropped = [true_answers(VisibleFacts.of(facts), tasks.questions, name) for name in FILTERS]
    query, answer = map(torch.from_numpy, (tasks.answers.question, tasks.answers.answer))
    ranks = filtered_ranks(scores, query, answer, dropped)
    of_table = filtered_ranks(scores.dense(), query, answer, dropped)
    assert all(torch.equal(one, other) for one, other in zip(ranks, of_table, strict=True))


def test_walks_of_a_hub_follow_its_latest_links_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody points at a hub: what a hop looks at stays bounded, and the latest are kept."""
    many, hub = 60, 0
    subject = np.arange(1, 1 + many)
    first = np.zeros_like(subject)
    facts = Facts.build(
        np.concatenate([subject, subject]),
        np.zeros(2 * many, np.int64),
        np.concatenate([np.full(many, hub), subject + many]),
        np.concatenate([first, 1 + np.arange(many)]),
        entities=Vocabulary.numbered(1 + 2 * many),
        relations=Vocabulary.numbered(1),
    )
    index = TemporalIndex.of(VisibleFacts.of(facts))
    asked = Queries(np.array([1]), np.array([0]), np.array([facts.steps]))
    whole = history.History(index, Supports.none()).walks(asked)
    assert set(whole.entity.tolist()) == {hub, *range(1 + many, 1 + 2 * many)}
    monkeypatch.setattr(history, "_MOST_LINKS", 16)
    bounded = history.History(index, Supports.none()).walks(asked)
    # 16 of those that point at the hub; each of them goes on along its latest link.
    assert set(bounded.entity.tolist()) < set(whole.entity.tolist())
    assert len(bounded.entity) <= 17
    # Walks of others at the same time change nothing, also those that lead nowhere.
    both = Queries(np.array([1, 1 + many]), np.array([0, 0]), np.full(2, facts.steps))
    together = history.History(index, Supports.none()).walks(both)
    assert together.query.tolist() == [0] * len(bounded.entity)
    assert together.entity.tolist() == bounded.entity.tolist()


def test_walkers_stop_where_they_would_spread_too_thin() -> None:
    """The bound of PageRank: shares are never too large, and what is missing is known."""
    facts = load("world:3000")
    visible = VisibleFacts.of(facts)
    index = TemporalIndex.of(visible)
    entity = torch.arange(0, len(facts.entities), 2)
    time = torch.full_like(entity, facts.steps)
    exact, bounded = (
        PageRank(index.neighbours, Supports.none(), threshold=threshold).walks(entity, time)
        for threshold in (1e-12, 1e-2)
    )
    tables = torch.zeros(2, len(entity), index.entities)
    for table, walks in zip(tables, (exact, bounded), strict=True):
        table[walks.row, walks.entity] = walks.far
    missing = tables[0] - tables[1]
    assert len(bounded.entity) < len(exact.entity) / 2
    assert float(missing.min()) > -1e-6
    torch.testing.assert_close(missing.sum(1), bounded.lost - exact.lost, atol=1e-5, rtol=1e-5)
