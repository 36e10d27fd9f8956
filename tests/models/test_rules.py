"""The rules equal their literal definition on random graphs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import metatkgr.graph.history as history
from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.models import create
from references import (
    ENTITIES,
    RELATIONS,
    LiteralProtocol,
    Query,
    dense,
    graphs,
    recurrency_parts,
    tuples,
)

visibilities = st.sampled_from(["entity-split", "frozen", "streaming"])


def same_order(scores: torch.Tensor, parts: list[tuple[int, ...]]) -> bool:
    """Whether two scorings of the same candidates order them the same, ties included."""
    numbers = scores.tolist()
    distinct = {part: i for i, part in enumerate(sorted(set(parts)))}
    ranks = {number: i for i, number in enumerate(sorted(set(numbers)))}
    return [distinct[part] for part in parts] == [ranks[number] for number in numbers]


@pytest.mark.parametrize("rule", ["recurrency", "paths"])
@given(facts=graphs(), visibility=visibilities, shots=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_a_rule_orders_candidates_like_its_definition(
    rule: str, facts: Facts, visibility: str, shots: int
) -> None:
    tasks = Tasks.build(facts, shots=shots, visibility=visibility)
    literal = LiteralProtocol(tuples(facts), RELATIONS, shots=shots, visibility=visibility, split=3)
    scores = dense(create(rule).prepare(tasks.visible).adapt(tasks.supports), tasks.questions)
    assert scores.shape == (len(tasks.questions), ENTITIES)
    for row, (entity, relation, time) in enumerate(
        zip(
            tasks.questions.entity.tolist(),
            tasks.questions.relation.tolist(),
            tasks.questions.time.tolist(),
            strict=True,
        )
    ):
        query = Query(entity, relation, time, answer=-1)
        parts = recurrency_parts(literal, query, ENTITIES, walks=rule == "paths")
        assert same_order(scores[row], parts)


@given(facts=graphs())
@settings(max_examples=40, deadline=None)
def test_walks_counted_in_small_blocks_are_the_same(facts: Facts) -> None:
    tasks = Tasks.build(facts, shots=1, visibility="streaming")
    model = create("paths").prepare(tasks.visible).adapt(tasks.supports)
    whole = dense(model, tasks.questions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "_LARGEST_EXPANSION", 3)
        assert torch.equal(dense(model, tasks.questions), whole)


@pytest.mark.parametrize("rule", ["recurrency", "paths"])
@given(facts=graphs(), visibility=visibilities, shots=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_changing_or_removing_every_invisible_fact_changes_no_score(
    rule: str, facts: Facts, visibility: str, shots: int, seed: int
) -> None:
    tasks = Tasks.build(facts, shots=shots, visibility=visibility)
    literal = LiteralProtocol(tuples(facts), RELATIONS, shots=shots, visibility=visibility, split=3)
    scores = dense(create(rule).prepare(tasks.visible).adapt(tasks.supports), tasks.questions)
    generator = np.random.default_rng(seed)
    rows = tuples(facts)
    for number in range(min(len(tasks.questions), 8)):
        question = tasks.questions[number : number + 1]
        entity, time = int(question.entity[0]), int(question.time[0])
        allowed = set(literal.visible(entity, time))
        seen = np.array([row in allowed for row in rows])
        own = tasks.supports.of(entity)
        # only what is visible, and nothing else in the world
        alone = create(rule).prepare(VisibleFacts.of(facts.select(seen))).adapt(own)
        assert torch.equal(dense(alone, question)[0], scores[number])
        # what is public but still to come, changed at random
        later = ~seen & (facts.time >= time)
        other = dataclasses.replace(
            facts,
            subject=np.where(later, generator.integers(0, ENTITIES, len(facts)), facts.subject),
            relation=np.where(later, generator.integers(0, RELATIONS, len(facts)), facts.relation),
            object=np.where(later, generator.integers(0, ENTITIES, len(facts)), facts.object),
        )
        changed = create(rule).prepare(VisibleFacts.of(other.select(seen | later))).adapt(own)
        assert torch.equal(dense(changed, question)[0], scores[number])
