"""The kinds of simulated worlds: what they look like, and that their laws are exact."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from metatkgr.data.facts import Facts
from metatkgr.data.periods import Periods
from metatkgr.data.sources import load
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.world import KINDS, WorldSettings, simulate
from metatkgr.data.world.choice import choice, paths_of
from metatkgr.data.world.kinds import Tie
from metatkgr.data.world.law import Law, begin
from metatkgr.data.world.plan import Plan
from metatkgr.data.world.simulation import write_world
from metatkgr.data.world.state import streams_of
from metatkgr.data.world.ties import Ties
from metatkgr.errors import MetaTKGRError, SettingsError, UnknownNameError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.models.registry import create

OF_TIES = [name for name, kind in KINDS.items() if kind.ties]
REPEATS = {
    "careers": (0.65, 0.85),
    "trade": (0.9, 0.99),
    "conflict": (0.4, 0.65),
    "contracts": (0.25, 0.5),
    "social": (0.02, 0.12),
    "letters": (0.65, 0.85),
}


@pytest.fixture(scope="module")
def worlds() -> dict[str, Facts]:
    return {name: simulate(facts=5_000, kind=name) for name in KINDS}


def columns_of(facts: Facts) -> list[np.ndarray]:
    return [facts.subject, facts.relation, facts.object, facts.time]


def everything(law: Law, steps: range, relation: int) -> Queries:
    """Queries about all entities of the type of a directed relation, at all ``steps``."""
    inverse, base = divmod(relation, len(law.relations))
    type_ = law.plan.kind.slot_types[base][1 if inverse else 0]
    entity = np.flatnonzero(law.type_of == type_)
    count = len(steps)
    return Queries(
        np.tile(entity, count),
        np.full(len(entity) * count, relation),
        np.repeat(np.array(steps), len(entity)),
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (WorldSettings(facts=5_000, seed=3), "e7bafd8751300cc9"),
        (WorldSettings(facts=700, seed=1, moves=0.2, follow=0.3, shift=0.4), "ab11dc3b8aa3f1ad"),
    ],
)
def test_the_world_of_careers_stays_the_same_to_the_bit(
    settings: WorldSettings, expected: str
) -> None:
    facts = simulate(settings)
    digest = hashlib.sha256()
    for column in columns_of(facts):
        digest.update(np.ascontiguousarray(column, dtype=np.int64).tobytes())
    digest.update("\n".join(facts.entities).encode())
    assert digest.hexdigest().startswith(expected)


@pytest.mark.parametrize("name", KINDS)
def test_a_world_of_any_kind_has_its_facts_types_names_and_newcomers(
    name: str, worlds: dict[str, Facts]
) -> None:
    world, kind = worlds[name], KINDS[name]
    assert len(world) == 5_000
    assert world.name == ("world" if name == "careers" else f"world:{name}")
    assert tuple(world.relations) == kind.relations
    assert (np.bincount(world.relation, minlength=len(kind.relations)) > 0).all()
    for relation, (subject, object_) in enumerate(kind.slot_types):
        rows = world.relation == relation
        assert (world.law.type_of[world.subject[rows]] == subject).all()
        assert (world.law.type_of[world.object[rows]] == object_).all()
    assert (world.subject != world.object).all()
    assert (np.diff(world.emerged_at) >= 0).all()
    assert world.calendar.unit == kind.unit
    assert world.calendar.stride == kind.stride
    assert np.bincount(Periods.of(world).of_entity, minlength=4).min() >= 6
    assert 0.7 < world.steps / world.law.plan.steps < 1.4


@pytest.mark.parametrize("name", KINDS)
def test_kinds_differ_in_how_much_repeats(name: str) -> None:
    world = simulate(facts=20_000, kind=name)
    facts = np.stack(columns_of(world)[:3])
    low, high = REPEATS[name]
    assert low < 1 - np.unique(facts, axis=1).shape[1] / len(world) < high


@pytest.mark.parametrize("name", OF_TIES)
def test_the_same_settings_give_the_same_facts(name: str, worlds: dict[str, Facts]) -> None:
    again, other = simulate(facts=5_000, kind=name), simulate(facts=5_000, kind=name, seed=1)
    for one, two in zip(columns_of(worlds[name]), columns_of(again), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(worlds[name].object, other.object)


def test_a_hundred_thousand_facts_take_a_few_seconds() -> None:
    begin = time.process_time()
    assert len(simulate(facts=100_000, kind="social")) == 100_000
    assert time.process_time() - begin < 6


@pytest.mark.parametrize("name", OF_TIES)
@pytest.mark.parametrize("step", [0, 25])
def test_chances_are_the_frequencies_of_many_draws_from_the_same_state(
    name: str, step: int
) -> None:
    settings = WorldSettings(facts=1_200, kind=name)
    state = begin(Plan.of(settings))
    while state.step < step:
        state.advance()
    total = state.plan.entities_before(step + 1)
    relations = len(KINDS[name].relations)
    draws = 500
    seen = np.zeros((relations, total, total))
    for seed in range(draws):
        again = state.copy()
        again.streams = streams_of(1_000 + seed)
        facts = again.advance()
        np.add.at(seen, (facts.relation, facts.subject, facts.object), 1)
    assert seen.max() <= draws  # nothing is told twice at one step
    law = Law(settings, total, last_step=step)
    for relation in range(relations):
        queries = everything(law, range(step, step + 1), relation)
        chance = law.chances(queries)
        count = seen[relation, queries.entity]
        assert count[chance == 0].sum() == 0
        sure = chance > 1 - 1e-12
        assert (count[sure] == draws).all()
        deviation = (count - draws * chance) / np.sqrt(draws * chance * (1 - chance) + 1e-9)
        usual = (draws * chance > 8) & ~sure
        assert np.abs(deviation[usual]).max(initial=0) < 5.5
        expected = draws * chance.sum()
        assert abs(count.sum() - expected) <= 5 * np.sqrt(expected) + 1e-6


@pytest.mark.parametrize("name", OF_TIES)
def test_chances_are_calibrated_over_a_whole_world(name: str, worlds: dict[str, Facts]) -> None:
    world = worlds[name]
    edges = np.array([0, 0.003, 0.01, 0.05, 0.1, 0.3, 1.01])
    relations, size = len(world.relations), len(edges) - 1
    predicted, found, spread = np.zeros((3, relations, size))
    told = {(s, r, o, t) for s, r, o, t in zip(*columns_of(world), strict=True)}
    for relation in range(relations):
        queries = everything(world.law, range(3, world.steps - 1, 5), relation)
        chance = world.law.chances(queries)
        real = np.zeros(chance.shape, bool)
        row = {
            (e, t): at for at, (e, t) in enumerate(zip(queries.entity, queries.time, strict=True))
        }
        for s, r, o, t in told:
            if r == relation and (s, t) in row:
                real[row[s, t], o] = True
        assert not real[chance == 0].any()
        bin_ = np.digitize(chance.reshape(-1), edges) - 1
        predicted[relation] += np.bincount(bin_, chance.reshape(-1), size)
        found[relation] += np.bincount(bin_, real.reshape(-1), size)
        spread[relation] += np.bincount(bin_, (chance * (1 - chance)).reshape(-1), size)
    deviation = (found - predicted) / np.sqrt(np.maximum(spread, 1))
    assert np.abs(deviation).max() < 4.5
    np.testing.assert_allclose(predicted.sum(), found.sum(), rtol=0.06)


@pytest.mark.parametrize("name", OF_TIES)
def test_who_is_chosen_is_as_likely_as_a_literal_count_says(
    name: str, worlds: dict[str, Facts]
) -> None:
    state = worlds[name].law.before(20)
    assert isinstance(state, Ties)
    for j, tie in enumerate(KINDS[name].ties):
        subject, other = state.ends[j]
        subjects = np.flatnonzero(state.alive[subject])[::9][:6]
        objects = np.arange(len(state.id[other]))
        found = choice(state, j, subjects, objects[state.alive[other]])
        for row, actor in zip(found, subjects, strict=True):
            expected = literal_choice(state, j, tie, int(actor))
            np.testing.assert_allclose(row, expected[state.alive[other]], atol=1e-12)


def literal_choice(state: Ties, j: int, tie: Tie, actor: int) -> np.ndarray:
    """The same, walk by walk."""
    subject, other = state.ends[j]
    out = np.zeros(len(state.id[other]))
    alone = 1.0

    def reached(place: int, goal: int) -> int | None:
        back = goal == subject and place == actor
        return None if place < 0 or back or not state.alive[goal][place] else place

    def go(here: int, path: tuple, weight: float) -> None:
        nonlocal alone
        if not path:
            out[here] += weight
            alone -= weight
            return
        step = path[0]
        memory = (state.caller if step.inverse else state.partner)[step.tie][here]
        for place in memory:
            there = reached(int(place), step.goal)
            if there is not None:
                go(there, path[1:], weight / len(memory))

    for path, share in paths_of(state.plan.kind, tie):
        go(actor, path, share)
    living = np.flatnonzero(state.alive[subject])
    for one in living:
        for place in state.partner[j][one]:
            goal = reached(int(place), other)
            if goal is not None:
                out[goal] += tie.popular / len(living) / tie.keeps
                alone -= tie.popular / len(living) / tie.keeps
    near = state.alive[other] & (state.community[other] == state.community[subject][actor])
    all_ = state.alive[other]
    share = tie.community if near.any() else 0.0
    out += alone * share * near / max(near.sum(), 1) + alone * (1 - share) * all_ / all_.sum()
    if subject == other:
        out[actor] = 0
    return out


@pytest.mark.parametrize("name", OF_TIES)
def test_both_directions_agree_and_nothing_at_or_after_a_query_matters(
    name: str, worlds: dict[str, Facts]
) -> None:
    world, step = worlds[name], worlds[name].steps // 2
    settings, count = world.law.settings, len(world.relations)
    usual, elsewhere = streams_of(settings.seed), streams_of(12_345)
    other = Law(settings, len(world.entities), last_step=world.steps - 1)
    for state in (other._latest, *other._kept.values()):
        state.streams = lambda now: usual(now) if now < step else elsewhere(now)
    for relation in range(count):
        forward = everything(world.law, range(step, step + 1), relation)
        inverse = everything(world.law, range(step, step + 1), relation + count)
        chances = world.law.chances(forward)
        np.testing.assert_array_equal(other.chances(forward), chances)
        np.testing.assert_allclose(
            chances[:, inverse.entity], world.law.chances(inverse)[:, forward.entity].T, atol=1e-14
        )
    later = everything(world.law, range(step + 1, step + 2), 0)
    assert not np.array_equal(other.chances(later), world.law.chances(later))


@pytest.mark.parametrize("name", OF_TIES)
def test_no_rule_beats_the_oracle(name: str, worlds: dict[str, Facts]) -> None:
    tasks = Tasks.build(worlds[name])
    mrr = {
        model: evaluate(create(model), tasks).summary(resamples=0).to_json()["mrr"]
        for model in ("oracle", "recurrency", "paths", "pagerank")
    }
    best = max(mrr[model] for model in mrr if model != "oracle")
    assert mrr["oracle"] > best + 0.01, mrr
    probability = worlds[name].law.probabilities(tasks.questions)
    np.testing.assert_allclose(probability.sum(axis=1), 1)


@pytest.mark.parametrize("name", ["trade", "contracts", "social"])
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_written_world_reads_back_with_its_dates_and_its_law(
    tmp_path: Path, name: str, suffix: str
) -> None:
    settings = WorldSettings(facts=600, seed=2, kind=name)
    facts = simulate(settings)
    path = tmp_path / f"world{suffix}"
    summary = write_world(path, settings, row_group=250)
    assert (summary.relations, summary.steps) == (len(facts.relations), facts.steps)
    read = load(str(path))
    assert sorted(map(read.describe, range(600))) == sorted(map(facts.describe, range(600)))
    # A column of years is one of plain numbers.
    assert replace(read.calendar, unit=facts.calendar.unit) == facts.calendar
    if suffix == ".parquet":
        relation = read.relations.id(facts.relations[0])
        entity = np.array([read.entities.id(facts.entities[i]) for i in facts.subject[:40]])
        queries = Queries(facts.subject[:40], np.zeros(40, int), np.full(40, 9))
        asked = Queries(entity, np.full(40, relation), np.full(40, 9))
        column = [read.entities.id(name) for name in facts.entities]
        np.testing.assert_allclose(
            read.law.chances(asked)[:, column], facts.law.chances(queries), atol=1e-15
        )
        coarser = load(str(path), unit="year") if name == "trade" else None
        assert coarser is None or coarser.law is None  # in other steps the law says nothing


def test_worlds_are_named_by_kind_size_and_seed() -> None:
    named, made = load("world:Trade:700:3"), simulate(facts=700, seed=3, kind="trade")
    for one, two in zip(columns_of(named), columns_of(made), strict=True):
        np.testing.assert_array_equal(one, two)
    assert load("world:careers:500").name == load("world:500").name == "world"
    with pytest.raises(UnknownNameError, match="trade"):
        load("world:trad")
    for bad in ("world:trade:much", "world:1:2:3", "world:trade:1:2:3", "world:500:trade"):
        with pytest.raises(MetaTKGRError, match="world"):
            load(bad)
    with pytest.raises(SettingsError, match="moves is a setting of careers"):
        WorldSettings(kind="trade", moves=0.2)


def test_a_path_must_lead_from_the_subjects_to_the_objects_of_its_tie() -> None:
    kind = KINDS["trade"]
    ships = next(tie for tie in kind.ties if tie.starts == "ships to")
    for path, reason in (("exports to", "breaks"), ("is based in > produces", "leads to a good")):
        with pytest.raises(ValueError, match=reason):
            paths_of(kind, replace(ships, follow=((path, 0.5),)))
    for kind in KINDS.values():
        for tie in kind.ties:
            paths_of(kind, tie)
            assert sum(share for _, share in tie.follow) + tie.popular <= 1
