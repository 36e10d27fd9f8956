"""What is read near queries from a folder's index is what an index of the selection alone gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.data.ingest import append, ingest
from metatkgr.data.orders import DECAYS
from metatkgr.data.problem import Problem
from metatkgr.data.sources import load
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.graph import nearby
from metatkgr.graph.index import EntityFacts, TemporalIndex
from metatkgr.graph.nearby import NearbyIndex
from metatkgr.training.estimator import Estimator

SELECTIONS = ("train", "earlier", "known", "few_shot", "frozen", "frozen test", "random shots")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """An ingested world; some of its facts are of entities with themselves."""
    world = simulate(facts=1500, seed=4)
    columns = (world.subject, world.relation, world.object, world.time)
    rows = [tuple(row) for row in np.stack(columns, axis=1).tolist()]
    rows += [(s, r, s, t) for s, r, _, t in rows[::15]] + [
        (o, r, o, t) for _, r, o, t in rows[::31]
    ]
    lines = [f"e{s},r{r},e{o},{t}" for s, r, o, t in sorted(rows, key=lambda row: row[3])]
    path = tmp_path_factory.mktemp("world") / "facts.csv"
    path.write_text("\n".join(["s,r,o,t", *lines]) + "\n")
    ingest([path], path.with_suffix(""))
    return load(str(path.with_suffix("")))


def selected(facts: Facts, name: str) -> VisibleFacts:
    """What one may see in a training, or in an evaluation."""
    problem = Problem.of(facts, shots=2)
    if name == "known":
        return problem.known
    if name == "few_shot":
        return problem.few_shot
    if name == "earlier":
        return problem.earlier.visible
    if name == "frozen":
        return Problem.of(facts, shots=1, visibility="frozen").known
    if name == "frozen test":
        return Tasks.build(facts, visibility="frozen").visible
    if name == "random shots":
        return Problem.of(facts, shots="1-5", seed=3).known
    return problem.train.visible


def both(facts: Facts, name: str) -> tuple[NearbyIndex, TemporalIndex]:
    """An index that reads the folder's near what is asked, and one of the selection alone."""
    visible = selected(facts, name)
    assert visible.public is not None
    assert 0 < np.count_nonzero(visible.public) < len(facts)
    index = NearbyIndex.or_whole(visible)
    assert isinstance(index, NearbyIndex)
    assert NearbyIndex.or_whole(visible) is index
    # A copy is of no folder: its links are ordered in memory.
    whole = TemporalIndex.of(VisibleFacts.of(replace(facts), visible.public))
    assert (index.entities, index.relations, index.steps) == (
        whole.entities,
        whole.relations,
        whole.steps,
    )
    return index, whole


def asked(index: TemporalIndex, seed: int, count: int = 600) -> tuple[Tensor, Tensor, Tensor]:
    """Entities, relations and times at random; some entities and times again and again."""
    generator = torch.Generator().manual_seed(seed)
    high = (index.entities, index.relations, index.steps + 3)
    entity, relation, time = (torch.randint(size, (count,), generator=generator) for size in high)
    entity[::3] %= 7
    time[::5] = index.steps + 2
    return entity, relation, time


def same(one: object, other: object) -> None:
    """Whether all tensors are equal, to the last bit."""
    if isinstance(one, EntityFacts) or hasattr(one, "__dataclass_fields__"):
        one, other = tuple(vars(one).values()), tuple(vars(other).values())
    if isinstance(one, Tensor):
        assert isinstance(other, Tensor)
        assert torch.equal(one, other)
        return
    assert isinstance(one, tuple | list)
    assert isinstance(other, tuple | list)
    assert len(one) == len(other)
    for part, expected in zip(one, other, strict=True):
        same(part, expected)


@pytest.mark.parametrize("name", SELECTIONS)
def test_facts_and_steps_of_entities(facts: Facts, name: str) -> None:
    index, whole = both(facts, name)
    for seed in range(3):
        entity, _, time = asked(whole, seed)
        for most in (None, 3):
            same(index.facts_of(entity, time, most), whole.facts_of(entity, time, most))
        same(index.first_step_of(entity), whole.first_step_of(entity))
        same(index.last_step_of(entity, time), whole.last_step_of(entity, time))


@pytest.mark.parametrize("name", SELECTIONS)
def test_distinct_links(facts: Facts, name: str) -> None:
    index, whole = both(facts, name)
    for seed in range(3):
        entity, relation, time = asked(whole, seed)
        found = [one.pairs.of_slot(entity, relation) for one in (index, whole)]
        ((low, high),), ((first, end),) = found
        same(high - low, end - first)
        rows = [
            {
                pair
                for row, target in one.pairs.links_in(ranges, time, 50)
                for pair in zip(row.tolist(), target.tolist(), strict=True)
            }
            for one, ranges in zip((index, whole), found, strict=True)
        ]
        assert rows[0] == rows[1]
        for along in (relation, None):
            for most in (2, 10**6, torch.arange(len(entity)) % 4 + 1):
                latest = [
                    one.pairs.latest_links(entity, along, time, most) for one in (index, whole)
                ]
                same(*latest)


@pytest.mark.parametrize("name", SELECTIONS)
def test_slots(facts: Facts, name: str) -> None:
    index, whole = both(facts, name)
    for seed in range(3):
        entity, relation, time = asked(whole, seed)
        # Two at once: what is read later lies behind what was read before.
        for rows in (slice(0, 300), slice(200, 600)):
            some = entity[rows], relation[rows], time[rows]
            for decays in ((), DECAYS):
                same(index.slots.usage(*some, decays), whole.slots.usage(*some, decays))
        same(index.slots.facts_before(relation, time), whole.slots.facts_before(relation, time))
        same(index.slots.recent(relation, time, 9), whole.slots.recent(relation, time, 9))
        share = [
            one.co_occurrence.share(relation, relation.flip(0), time) for one in (index, whole)
        ]
        same(*share)


@pytest.mark.parametrize("name", SELECTIONS)
def test_neighbours(facts: Facts, name: str) -> None:
    index, whole = both(facts, name)
    for seed in range(3):
        entity, _, time = asked(whole, seed)
        for until in (time, None):
            ranges = [one.neighbours.before(entity, until) for one in (index, whole)]
            counts = [
                one.neighbours.count(found)
                for one, found in zip((index, whole), ranges, strict=True)
            ]
            same(*counts)
            same(index.neighbours.each(ranges[0]), whole.neighbours.each(ranges[1]))
        same(index.neighbours.degree(entity, time), whole.neighbours.degree(entity, time))
        late = torch.full_like(time, index.steps + 2)
        assert index.neighbours.all_before(late)
        assert not index.neighbours.all_before(torch.zeros_like(time))


def test_where_there_are_many_groups_they_are_searched(
    facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearby, "_DENSE", 0)
    monkeypatch.setattr(nearby, "_AT_ONCE", 7)
    test_slots(facts, "known")
    test_neighbours(facts, "few_shot")
    test_distinct_links(facts, "train")


def test_a_group_is_read_once(facts: Facts) -> None:
    index, _ = both(facts, "known")
    entity, _, time = asked(index, 0)
    index.last_step_of(entity, time)
    with patch.object(nearby.FactPool, "read", side_effect=AssertionError("read again")):
        index.last_step_of(entity.flip(0), time)
        index.first_step_of(entity[:9])


def test_nothing_is_there_for_who_goes_over_all_links(facts: Facts) -> None:
    """What is kept is not all: a look-up that takes it for all has to fail."""
    index, _ = both(facts, "known")
    relation = torch.zeros(1, dtype=torch.int64)
    for look in (
        lambda: index.by_time,
        lambda: index.facts_before(relation, relation),
        lambda: index.since(relation, relation),
        lambda: index.pairs.distinct(),
        lambda: index.pairs.exist(relation, relation),
        lambda: index.slots.above(relation, relation, relation),
        lambda: index.neighbours.expand(relation, relation),
        lambda: index.neighbours.pairs(),
    ):
        with pytest.raises(AttributeError):
            look()


def test_a_training_reads_near_its_queries_and_writes_no_links(facts: Facts) -> None:
    weights = []
    for number in range(2):
        estimator = Estimator("evidence", shots=2, device="cpu", epochs=1)
        with (
            patch("metatkgr.graph.layer._LARGE", 1),
            patch("metatkgr.data.index_writer.links_on_disk", side_effect=AssertionError("all")),
        ):
            model = estimator.fit(facts if number else replace(facts)).model_
        weights.append(list(model.state_dict().values()))
    same(*weights)


def test_facts_that_the_index_does_not_cover_are_read_as_before(
    facts: Facts, tmp_path: Path
) -> None:
    folder, more = tmp_path / "facts", tmp_path / "more.csv"
    lines = (",".join(facts.describe(row)) for row in range(len(facts)))
    (tmp_path / "facts.csv").write_text("\n".join(["s,r,o,t", *lines]) + "\n")
    ingest([tmp_path / "facts.csv"], folder)
    more.write_text("s,r,o,t\ne1,r0,new,10000\n")
    append([more], folder)
    grown = load(str(folder))
    assert not isinstance(NearbyIndex.or_whole(Problem.of(grown).known), NearbyIndex)
    assert np.array_equal(grown.emerged_at, replace(grown).emerged_at)
    assert np.array_equal(facts.emerged_at, replace(facts).emerged_at)
