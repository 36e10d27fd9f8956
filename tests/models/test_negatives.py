"""Wrong answers are drawn where they should be."""

from __future__ import annotations

import pytest
import torch

from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.errors import UnknownNameError
from metatkgr.models.common.few_shot import Negatives, fixed_negatives

WORLD = simulate(facts=2000, seed=1)
VISIBLE = VisibleFacts.of(WORLD)


def places() -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for relation, target in zip(VISIBLE.relation.tolist(), VISIBLE.target.tolist(), strict=True):
        found.setdefault(relation, set()).add(target)
    return found


def draw(kind: str, relation: torch.Tensor, count: int = 400) -> torch.Tensor:
    return Negatives(VISIBLE, kind).draw(relation, count, torch.Generator().manual_seed(0))


def test_uniform_negatives_reach_every_entity() -> None:
    drawn = draw("uniform", torch.zeros(200, dtype=torch.int64))
    assert drawn.shape == (200, 400)
    assert set(drawn.unique().tolist()) == set(range(len(WORLD.entities)))


def test_place_negatives_stood_in_this_place_and_reach_all_who_did() -> None:
    relation = torch.arange(2 * len(WORLD.relations)).repeat_interleave(100)
    drawn = draw("place", relation)
    for number, known in places().items():
        assert set(drawn[relation == number].unique().tolist()) == known


def test_mixed_negatives_come_from_both_about_equally() -> None:
    club_place = torch.zeros(100, dtype=torch.int64)
    fitting = places()[0]
    drawn = draw("mixed", club_place).flatten().tolist()
    share = sum(x in fitting for x in drawn) / len(drawn)
    by_chance = len(fitting) / len(WORLD.entities)
    assert share == pytest.approx(0.5 + 0.5 * by_chance, abs=0.02)


def test_a_relation_without_facts_gets_anyone() -> None:
    none = VisibleFacts.of(WORLD.select(WORLD.relation != 0))
    drawn = Negatives(none, "place").draw(
        torch.zeros(50, dtype=torch.int64), 200, torch.Generator().manual_seed(0)
    )
    assert len(drawn.unique()) > 0.9 * len(WORLD.entities)


def test_the_same_seed_draws_the_same() -> None:
    relation = torch.tensor([0, 1, 2])
    assert torch.equal(draw("mixed", relation), draw("mixed", relation))


def test_an_unknown_kind_is_told() -> None:
    with pytest.raises(UnknownNameError, match="uniform"):
        Negatives(VISIBLE, "uniformly")


def test_fixed_negatives_are_spread_evenly_and_depend_on_entity_and_ordinal_alone() -> None:
    entity, ordinal = torch.arange(400), torch.zeros(400, dtype=torch.int64)
    drawn = fixed_negatives(entity, ordinal, 50, 100)
    assert drawn.shape == (400, 50)
    counts = torch.bincount(drawn.flatten(), minlength=100)
    # 20,000 draws over 100 entities: 200 each, with a standard deviation of 14
    assert int(counts.min()) >= 140
    assert int(counts.max()) <= 260
    assert torch.equal(fixed_negatives(entity[7:9], ordinal[7:9], 50, 100), drawn[7:9])
    assert torch.equal(fixed_negatives(entity, ordinal, 20, 100), drawn[:, :20])
    assert not torch.equal(fixed_negatives(entity, ordinal + 1, 50, 100), drawn)
