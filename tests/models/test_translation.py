"""The scores that translations share."""

from __future__ import annotations

import torch

from metatkgr.models.translation import never_itself, rivals


def test_the_asking_entity_comes_last_and_the_others_stay() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, -4.0]])
    asked = never_itself(scores.clone(), torch.tensor([0, 1]))
    assert asked.tolist() == [[0.0, 1.0, 2.0], [0.0, -5.0, -4.0]]


def test_a_question_is_ranked_alike_alone_and_among_others() -> None:
    scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    entity = torch.tensor([0, 5, 2, 2])
    together = never_itself(scores.clone(), entity)
    alone = [never_itself(scores[i : i + 1].clone(), entity[i : i + 1]) for i in range(4)]
    assert torch.equal(together, torch.cat(alone))


def test_the_asking_entity_is_no_rival_unless_it_is_the_answer() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, -4.0]], requires_grad=True)
    kept = rivals(scores, torch.tensor([0, 1]), torch.tensor([2, 1]))
    share = torch.softmax(kept, 1)
    assert share[0, 0] == 0
    torch.testing.assert_close(share[0, 1:], torch.softmax(torch.tensor([1.0, 2.0]), 0))
    assert torch.equal(kept[1], scores[1])
    torch.nn.functional.cross_entropy(kept, torch.tensor([2, 1])).backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[0, 0] == 0
