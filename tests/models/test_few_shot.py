"""Facts picked by their query entity, padded; and one gradient step of many tasks at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from metatkgr.models.common.few_shot import FactTable, PaddedFacts, inner_step

COUNT, ENTITIES = 40, 7


def random_columns() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    columns = [draw.integers(0, high, COUNT) for high in (ENTITIES, 6, 20, 30)]
    columns[0][columns[0] == 3] = 2  # an entity without facts
    return columns


def test_facts_are_picked_as_a_loop_over_an_entitys_facts_does() -> None:
    columns = random_columns()
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    table = FactTable(*columns)
    assert len(table) == COUNT
    assert table.entities().tolist() == sorted({row[0] for row in rows})
    chosen = torch.tensor([5, 3, 0])
    expected = [[row for row in rows if row[0] == entity] for entity in chosen.tolist()]
    assert table.counts(chosen).tolist() == [len(facts) for facts in expected]
    *picked, mask = table.padded(chosen)
    for task, facts in enumerate(expected):
        found = zip(*(column[task][mask[task]].tolist() for column in picked), strict=True)
        assert list(found) == facts
    assert not any(column[~mask].any() for column in picked)
    # The last fact of the first and of the third; the second has none.
    last = table.counts(chosen).clamp(min=1).unsqueeze(1) - 1
    answer = table.pick(chosen, last, last.new_tensor([[1], [0], [1]]).bool())[2]
    assert answer.flatten().tolist() == [expected[0][-1][2], 0, expected[2][-1][2]]


def test_of_no_facts_nothing_is_picked() -> None:
    table = FactTable(*[np.zeros(0, np.int64)] * 4)
    *columns, mask = table.padded(torch.tensor([0, 2]))
    assert mask.shape == (2, 1)
    assert not mask.any()
    assert not any(column.any() for column in columns)
    assert len(table.entities()) == 0


def test_tasks_with_fewer_facts_are_filled_up_with_facts_that_do_not_count() -> None:
    def facts(tasks: int, width: int) -> PaddedFacts:
        columns = torch.ones(4, tasks, width, dtype=torch.int64)
        negatives = torch.ones(tasks, width, 2, dtype=torch.int64)
        entity, relation, answer, time = columns
        mask = torch.ones(tasks, width, dtype=torch.bool)
        return PaddedFacts(entity, relation, answer, negatives, negatives.bool(), time, mask)

    both = PaddedFacts.cat([facts(2, 1), facts(1, 3)])
    assert both.mask.tolist() == [[True, False, False]] * 2 + [[True] * 3]
    assert both.negatives.shape == (3, 3, 2)
    assert not both.negative_mask[:2, 1:].any()


@pytest.mark.parametrize("second_order", [True, False])
def test_a_step_of_all_tasks_is_the_step_of_each_alone(second_order: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    shared = torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randn(4, 3, generator=generator, dtype=torch.float64)

    def losses(values: dict[str, Tensor]) -> Tensor:
        return ((values["w"] - targets) ** 4).sum(-1)

    moved = inner_step(
        {"w": shared.expand(4, 3)}, losses, learning_rate=0.1, second_order=second_order
    )["w"]
    for task in range(4):
        (gradient,) = torch.autograd.grad(((shared - targets[task]) ** 4).sum(), shared)
        torch.testing.assert_close(moved[task], shared - 0.1 * gradient)
    (outer,) = torch.autograd.grad(moved.sum(), shared)
    curvature = 12 * (shared - targets) ** 2 if second_order else torch.zeros(4, 3).double()
    torch.testing.assert_close(outer, (1 - 0.1 * curvature).sum(0))


def test_without_an_outer_graph_a_step_is_a_constant() -> None:
    with torch.no_grad():
        moved = inner_step({"w": torch.ones(2, 1)}, lambda v: v["w"].sum(1) ** 2, learning_rate=0.1)
    assert not moved["w"].requires_grad
    assert torch.allclose(moved["w"], torch.full((2, 1), 0.8))
