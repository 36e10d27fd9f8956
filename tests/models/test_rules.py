"""The rules equal their literal definition on random graphs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import metatkgr.graph.history as history
from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Tasks
from metatkgr.models import create
from references import (
    ENTITIES,
    RELATIONS,
    LiteralProtocol,
    Query,
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
    scores = create(rule).prepare(tasks.visible).adapt(tasks.supports).score(tasks.questions)
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
    whole = model.score(tasks.questions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "_LARGEST_EXPANSION", 3)
        assert torch.equal(model.score(tasks.questions), whole)
