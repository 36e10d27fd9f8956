"""The samplers collect what the literal algorithm collects, and never what lies in the future."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import metatkgr.graph.sampler as sampler_module
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.errors import SettingsError, UnknownNameError
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import (
    SAMPLERS,
    BreadthFirstSampler,
    Neighbours,
    RecentSampler,
    Sampler,
    UniformSampler,
    create_sampler,
)
from references import ENTITIES, RELATIONS, Fact, LiteralProtocol, graphs, tuples

Neighbour = tuple[int, int, int]
visibilities = st.sampled_from(["entity-split", "frozen", "streaming"])
windows = st.one_of(st.none(), st.integers(1, 20))


def links_of(
    entity: int, visible: list[Fact], relations: int, after: float
) -> list[tuple[Fact, Neighbour]]:
    """Every visible fact of an entity and the neighbour it gives, the most recent first."""
    result = []
    for fact in reversed(visible):  # chronological, ties in file order
        s, r, o, t = fact
        if t <= after:
            continue
        if s == entity:
            result.append((fact, (o, r, t)))
        elif o == entity:
            result.append((fact, (s, r + relations, t)))
    return result


def literal_neighbours(
    root: int, time: int, visible: list[Fact], relations: int, budget: int, window: int | None
) -> list[Neighbour]:
    """Algorithm 1 with METHOD's correction: the other end is the neighbour and is enqueued once."""
    after = float("-inf") if window is None else time - window
    queue, ever_enqueued = deque([root]), {root}
    collected: dict[Fact, Neighbour] = {}
    while queue and len(collected) < budget:
        entity = queue.popleft()
        for fact, neighbour in links_of(entity, visible, relations, after):
            if fact in collected:
                continue
            if len(collected) == budget:
                break
            collected[fact] = neighbour
            if neighbour[0] not in ever_enqueued:
                ever_enqueued.add(neighbour[0])
                queue.append(neighbour[0])
    return list(collected.values())


def as_lists(found: Neighbours) -> list[list[Neighbour]]:
    """The neighbours of each root; checks that empty slots come last and hold zeros."""
    columns = (found.entity, found.relation, found.time)
    for column in columns:
        assert column.dtype == torch.int64
        assert not column[~found.mask].any()
    assert not (found.mask[:, 1:] & ~found.mask[:, :-1]).any()
    table = torch.stack(columns, 2).tolist()
    return [
        [tuple(row) for row in rows[:count]]
        for rows, count in zip(table, found.mask.sum(1).tolist(), strict=True)
    ]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def make(name: str, tasks: Tasks, budget: int = 16, window: int | None = None) -> Sampler:
    index = TemporalIndex.of(tasks.visible)
    return create_sampler(
        name, index, tasks.supports, budget=budget, window=window, generator=seeded()
    )


def all_roots(entities: int, steps: int) -> tuple[Tensor, Tensor]:
    """Every entity before the first step, at every step, and long after the last."""
    times = torch.tensor([-1, *range(steps + 1), steps + 100])
    return torch.arange(entities).repeat_interleave(len(times)), times.repeat(entities)


@given(
    facts=graphs(max_facts=60),
    visibility=visibilities,
    shots=st.integers(1, 4),
    budget=st.integers(1, 20),
    window=windows,
)
@settings(max_examples=80, deadline=None)
def test_breadth_first_equals_the_literal_algorithm_neighbour_for_neighbour(
    facts: Facts, visibility: str, shots: int, budget: int, window: int | None
) -> None:
    tasks = Tasks.build(facts, shots=shots, visibility=visibility)
    literal = LiteralProtocol(tuples(facts), RELATIONS, shots=shots, visibility=visibility, split=3)
    entity, time = all_roots(ENTITIES, facts.steps)
    found = as_lists(make("bfs", tasks, budget, window).sample(entity, time))
    for e, t, neighbours in zip(entity.tolist(), time.tolist(), found, strict=True):
        visible = literal.visible(e, t)
        assert neighbours == literal_neighbours(e, t, visible, RELATIONS, budget, window)


@given(
    facts=graphs(),
    visibility=visibilities,
    shots=st.integers(1, 4),
    budget=st.integers(1, 6),
    window=windows,
)
@settings(max_examples=40, deadline=None)
def test_one_hop_samplers_give_the_most_recent_links_or_a_part_of_all(
    facts: Facts, visibility: str, shots: int, budget: int, window: int | None
) -> None:
    tasks = Tasks.build(facts, shots=shots, visibility=visibility)
    literal = LiteralProtocol(tuples(facts), RELATIONS, shots=shots, visibility=visibility, split=3)
    entity, time = all_roots(ENTITIES, facts.steps)
    recent = as_lists(make("recent", tasks, budget, window).sample(entity, time))
    uniform = as_lists(make("uniform", tasks, budget, window).sample(entity, time))
    for row, (e, t) in enumerate(zip(entity.tolist(), time.tolist(), strict=True)):
        after = float("-inf") if window is None else t - window
        links = [link for _, link in links_of(e, literal.visible(e, t), RELATIONS, after)]
        assert recent[row] == links[:budget]
        assert len(uniform[row]) == min(budget, len(links))
        # A part of all links, none twice, in their order.
        rest = iter(links)
        assert all(link in rest for link in uniform[row])


@lru_cache(maxsize=1)
def world() -> Facts:
    return simulate(facts=3000, seed=11)


@lru_cache(maxsize=3)
def tasks_of(visibility: str) -> Tasks:
    return Tasks.build(world(), shots=3, visibility=visibility)


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("visibility", ["entity-split", "frozen", "streaming"])
def test_breadth_first_equals_the_literal_algorithm_on_the_simulated_world(
    visibility: str, window: int | None
) -> None:
    tasks, facts = tasks_of(visibility), world()
    relations = len(facts.relations)
    literal = LiteralProtocol(
        tuples(facts), relations, shots=3, visibility=visibility, split=int(tasks.split)
    )
    generator = np.random.default_rng(0)
    asked = generator.choice(len(tasks.questions), 40, replace=False)
    anyone = generator.integers(0, len(facts.entities), 20)
    anytime = generator.integers(0, facts.steps + 1, 20)
    # New entities before their supports: these are still to come, and visible all the same.
    early = generator.choice(len(tasks.supports), 20, replace=False)
    entity = [tasks.questions.entity[asked], anyone, tasks.supports.entity[early]]
    time = [tasks.questions.time[asked], anytime, tasks.supports.time[early]]
    entity, time = (torch.from_numpy(np.concatenate(parts)) for parts in (entity, time))
    found = as_lists(make("bfs", tasks, window=window).sample(entity, time))
    for e, t, neighbours in zip(entity.tolist(), time.tolist(), found, strict=True):
        visible = literal.visible(e, t)
        assert neighbours == literal_neighbours(e, t, visible, relations, 16, window)
    assert sum(map(len, found)) > 400


def small(rows: list[Fact], supports: Sequence[Fact] = ()) -> Tasks:
    """A graph of the given facts in time order, all public; entities 0..9, relations 0 and 1."""
    columns = np.array(rows, np.int64).T
    facts = Facts(*columns, Vocabulary.numbered(10), Vocabulary.numbered(2))
    owned = np.array(supports, np.int64).reshape(-1, 4).T
    names = ("entity", "relation", "other", "time")
    tasks = Tasks.build(facts, visibility="streaming")
    own = replace(tasks.supports, **dict(zip(names, owned, strict=True)))
    return replace(tasks, supports=own)


def neighbours_of(
    tasks: Tasks, entity: int, time: int, name: str = "bfs", **options: int
) -> list[Neighbour]:
    sampler = make(name, tasks, **options)
    return as_lists(sampler.sample(torch.tensor([entity]), torch.tensor([time])))[0]


def test_a_fact_is_collected_once_and_an_entity_enqueued_once() -> None:
    #   0 --0 (t=0)--> 1 --1 (t=1)--> 2 --0 (t=2)--> 0      and 1 --0 (t=3)--> 1
    tasks = small([(0, 0, 1, 0), (1, 1, 2, 1), (2, 0, 0, 2), (1, 0, 1, 3)])
    # From 0: its two facts, the later one first; from 2 the fact with 1; from 1 its self-link.
    assert neighbours_of(tasks, 0, 9) == [(2, 2, 2), (1, 0, 0), (1, 3, 1), (1, 0, 3)]


def test_of_two_facts_at_one_time_the_later_row_comes_first() -> None:
    tasks = small([(0, 0, 1, 0), (2, 1, 0, 5), (0, 0, 3, 5), (0, 1, 4, 5)])
    expected = [(4, 1, 5), (3, 0, 5), (2, 3, 5), (1, 0, 0)]
    assert neighbours_of(tasks, 0, 6) == expected
    assert neighbours_of(tasks, 0, 6, "recent") == expected


def test_the_window_is_open_on_both_sides_and_counts_from_the_root() -> None:
    tasks = small([(0, 0, 1, 0), (0, 0, 2, 4), (1, 0, 3, 5), (2, 0, 3, 6), (2, 0, 4, 7)])
    assert neighbours_of(tasks, 0, 7, window=3) == []
    assert neighbours_of(tasks, 0, 7, window=4) == [(2, 0, 4), (3, 0, 6), (1, 2, 5)]
    assert neighbours_of(tasks, 0, 8, window=8) == [
        *[(2, 0, 4), (4, 0, 7), (3, 0, 6)],  # 0's link at step 0 is just outside
        (1, 2, 5),
    ]
    assert neighbours_of(tasks, 0, 8, window=9)[:2] == [(2, 0, 4), (1, 0, 0)]


def test_own_support_is_seen_before_its_time_by_its_owner_alone() -> None:
    # Entity 5's support: with 0 at step 1 and, later than the question, with 6 at step 8.
    rows = [(0, 1, 1, 0), (5, 0, 0, 1), (6, 1, 7, 2), (5, 1, 6, 8)]
    tasks = small(rows, [(5, 0, 0, 1), (5, 1, 6, 8)])
    assert neighbours_of(tasks, 5, 3) == [(6, 1, 8), (0, 0, 1), (7, 1, 2), (1, 1, 0)]
    assert neighbours_of(tasks, 6, 3) == [(7, 1, 2)]
    # A candidate is not the one asked about: its own support counts once its time has passed.
    sampler = make("bfs", tasks)
    candidate = sampler.sample(torch.tensor([5]), torch.tensor([3]), own=False)
    assert as_lists(candidate)[0] == [(0, 0, 1), (1, 1, 0)]
    # The window cuts off old support facts, never late ones.
    assert neighbours_of(tasks, 5, 3, window=1) == [(6, 1, 8)]


@pytest.mark.parametrize("name", ["bfs", "recent"])
def test_roots_that_see_their_supports_and_others_can_be_sampled_together(name: str) -> None:
    tasks = tasks_of("entity-split")
    entity = torch.from_numpy(tasks.questions.entity[:80])
    time = torch.from_numpy(tasks.supports.time.min() + np.arange(80) % 9)
    sampler = make(name, tasks, budget=4)
    apart = [as_lists(sampler.sample(entity, time, own=own)) for own in (False, True)]
    assert apart[0] != apart[1]
    own = torch.arange(80) % 3 == 0
    together = as_lists(sampler.sample(entity, time, own=own))
    assert together == [apart[int(asked)][row] for row, asked in enumerate(own.tolist())]


def test_an_own_fact_with_itself_counts_once() -> None:
    tasks = small([(1, 0, 2, 0), (5, 1, 5, 4)], [(5, 1, 5, 4), (5, 3, 5, 4)])
    for time in (3, 4, 5):
        assert neighbours_of(tasks, 5, time) == [(5, 1, 4)]


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_roots_in_small_blocks_or_none_at_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tasks_of("streaming")
    entity = torch.from_numpy(tasks.questions.entity[:50])
    time = torch.from_numpy(tasks.questions.time[:50])
    whole = make(name, tasks).sample(entity, time)
    monkeypatch.setattr(sampler_module, "_SLOTS_AT_ONCE", {"cpu": 3 * 16})
    assert as_lists(make(name, tasks).sample(entity, time)) == as_lists(whole)
    nothing = make(name, tasks).sample(entity[:0], time[:0])
    assert nothing.entity.shape == nothing.mask.shape == (0, 16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("name", ["bfs", "recent"])
def test_a_gpu_finds_the_same_neighbours(name: str, window: int | None) -> None:
    tasks = tasks_of("entity-split")
    entity, time = all_roots(len(tasks.facts.entities), 40)
    time = time * (tasks.facts.steps // 40)
    on_gpu = create_sampler(
        name, TemporalIndex.of(tasks.visible, device="cuda"), tasks.supports, window=window
    ).sample(entity, time)
    assert on_gpu.entity.device.type == "cuda"
    assert as_lists(on_gpu) == as_lists(make(name, tasks, window=window).sample(entity, time))


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_an_empty_graph_has_no_neighbours(name: str) -> None:
    tasks = small([(0, 0, 1, 0)])
    empty = VisibleFacts.of(tasks.facts, np.zeros(len(tasks.facts), bool))
    sampler = create_sampler(name, TemporalIndex.of(empty), tasks.supports, generator=seeded())
    assert not sampler.sample(torch.arange(10), torch.arange(10)).mask.any()


def test_uniform_draws_every_subset_equally_often() -> None:
    rows = [(0, 0, other, other) for other in range(1, 6)]
    sampler = make("uniform", small(rows), budget=2)
    draws = 6000
    drawn = sampler.sample(torch.zeros(draws, dtype=torch.int64), torch.full((draws,), 9))
    counts = Counter(tuple(sorted(row)) for row in drawn.entity.tolist())
    assert len(counts) == 10
    # Ten subsets, 600 expected of each, standard deviation 23.
    assert all(abs(count - 600) < 120 for count in counts.values())


def test_uniform_without_a_generator_is_refused() -> None:
    tasks = small([(0, 0, 1, 0)])
    sampler = UniformSampler(TemporalIndex.of(tasks.visible), tasks.supports)
    with pytest.raises(SettingsError, match="Generator"):
        sampler.sample(torch.tensor([0]), torch.tensor([1]))


def test_unfit_settings_and_unknown_names_are_refused() -> None:
    tasks = small([(0, 0, 1, 0)])
    index = TemporalIndex.of(tasks.visible)
    with pytest.raises(SettingsError, match="budget is 0"):
        BreadthFirstSampler(index, tasks.supports, budget=0)
    with pytest.raises(SettingsError, match="window is 0"):
        RecentSampler(index, tasks.supports, window=0)
    with pytest.raises(UnknownNameError, match="did you mean 'uniform'"):
        create_sampler("unifrom", index, tasks.supports)


def with_another_future(
    tasks: Tasks, t: int, asked: np.ndarray, generator: np.random.Generator
) -> tuple[VisibleFacts, Supports]:
    """Public facts and others' supports at or after t replaced, some of the facts removed."""
    people, kinds = len(tasks.facts.entities), len(tasks.facts.relations)
    links = tasks.visible
    forward = links.relation < kinds
    past = links.time[forward] < t
    columns = [c[forward] for c in (links.source, links.relation, links.target, links.time)]
    for column, size in zip(columns, (people, kinds, people), strict=False):
        column[~past] = generator.integers(0, size, int((~past).sum()))
    keep = past | (generator.random(len(past)) < 0.7)
    subject, relation, object, time = (column[keep] for column in columns)
    visible = VisibleFacts.of(
        replace(tasks.facts, subject=subject, relation=relation, object=object, time=time)
    )
    supports = tasks.supports
    strangers = ~np.isin(supports.entity, asked) & (supports.time >= t)
    kind, other = supports.relation.copy(), supports.other.copy()
    kind[strangers] = generator.integers(0, 2 * kinds, int(strangers.sum()))
    other[strangers] = generator.integers(0, people, int(strangers.sum()))
    return visible, replace(supports, relation=kind, other=other)


def changes_with_the_future(sampler_type: type[Sampler], visibility: str) -> bool:
    """Whether another future changes any neighbour of any root."""
    tasks = tasks_of(visibility)
    generator = np.random.default_rng(5)
    for t in np.unique(tasks.questions.time)[::7].tolist():
        asked = tasks.questions.entity[tasks.questions.time == t][:8]
        strangers = np.setdiff1d(generator.integers(0, len(tasks.facts.entities), 8), asked)
        answers = []
        for visible, supports in (
            (tasks.visible, tasks.supports),
            with_another_future(tasks, t, asked, generator),
        ):
            sampler = sampler_type(TemporalIndex.of(visible), supports, generator=seeded())
            for roots, own in ((asked, True), (strangers, False)):
                times = torch.full((len(roots),), t)
                answers.append(as_lists(sampler.sample(torch.from_numpy(roots), times, own=own)))
        if answers[:2] != answers[2:]:
            return True
    return False


@pytest.mark.parametrize("visibility", ["entity-split", "frozen", "streaming"])
@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_never_looks_into_the_future(name: str, visibility: str) -> None:
    assert not changes_with_the_future(SAMPLERS[name], visibility)


@pytest.mark.parametrize("visibility", ["entity-split", "streaming"])
def test_the_future_test_would_notice_a_sampler_that_peeks(visibility: str) -> None:
    class OneStepTooFar(BreadthFirstSampler):
        def sample(self, entity: Tensor, time: Tensor, *, own: bool = True) -> Neighbours:
            return super().sample(entity, time + 1, own=own)

    class EverySupport(RecentSampler):
        def sample(self, entity: Tensor, time: Tensor, *, own: bool = True) -> Neighbours:
            return super().sample(entity, time, own=True)

    assert changes_with_the_future(OneStepTooFar, visibility)
    assert changes_with_the_future(EverySupport, visibility)
