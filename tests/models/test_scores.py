"""The scores that translations share."""

from __future__ import annotations

import numpy as np
import torch

from metatkgr.data.visibility import Supports
from metatkgr.models.common.scores import (
    l2_logits,
    mask_query_entity,
    mask_query_logits,
    new_entity_rows,
    score_all,
)


def test_the_query_entity_comes_last_and_the_others_stay() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, -4.0]])
    asked = mask_query_entity(scores.clone(), torch.tensor([0, 1]))
    assert asked.tolist() == [[0.0, 1.0, 2.0], [0.0, -5.0, -4.0]]


def test_a_query_is_ranked_alike_alone_and_among_others() -> None:
    scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    entity = torch.tensor([0, 5, 2, 2])
    together = mask_query_entity(scores.clone(), entity)
    alone = [mask_query_entity(scores[i : i + 1].clone(), entity[i : i + 1]) for i in range(4)]
    assert torch.equal(together, torch.cat(alone))


def test_the_query_entity_is_out_of_the_softmax_unless_it_is_the_answer() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, -4.0]], requires_grad=True)
    kept = mask_query_logits(scores.clone(), torch.tensor([0, 1]), torch.tensor([2, 1]))
    share = torch.softmax(kept, 1)
    assert share[0, 0] == 0
    torch.testing.assert_close(share[0, 1:], torch.softmax(torch.tensor([1.0, 2.0]), 0))
    assert torch.equal(kept[1], scores[1])
    torch.nn.functional.cross_entropy(kept, torch.tensor([2, 1])).backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[0, 0] == 0


def test_l2_logits_have_the_softmax_and_the_gradient_of_the_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (5, 9)]
    answer = torch.tensor([0, 8, 3, 3, 1])
    found = []
    for score in (score_all, l2_logits):
        asked, candidates = (table.clone().requires_grad_() for table in tables)
        logits = score(asked, candidates)
        torch.nn.functional.cross_entropy(logits, answer).backward()
        found.append((logits.log_softmax(1), asked.grad, candidates.grad))
    for plain, lean in zip(*found, strict=True):
        torch.testing.assert_close(lean, plain)


def test_a_newcomer_is_where_its_first_facts_would_have_it_be() -> None:
    table = torch.tensor([[0.0, 0.0], [4.0, 2.0]])
    relation = torch.tensor([[1.0, 0.0]])
    columns = [[0, 2, 2, 3], [0, 0, 1, 0], [1, 1, 0, 2], [0, 5, 6, 7]]
    supports = Supports(*(np.array(column, np.int64) for column in columns))
    rows = new_entity_rows(table, relation, supports, 5)
    # entity 2: (2 r 1) says (3, 2), (0 r 2), read backwards, says (1, 0)
    assert rows[0].tolist() == [2.0, 1.0]
    # entity 3: (3 r 2) says entity 2's new row less the relation
    assert rows[1].tolist() == [1.0, 1.0]
    # entity 4 has no fact: the mean of all
    assert rows[2].tolist() == [2.0, 1.0]
    alone = new_entity_rows(table, None, supports, 5)
    assert alone[0].tolist() == [2.0, 1.0]
    assert new_entity_rows(table[:, 0], None, supports, 5).tolist() == [2.0, 2.0, 2.0]
