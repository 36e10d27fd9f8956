"""The simulated world: what it looks like, that it repeats itself, and that it can be written."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from metatkgr.data.facts import Facts
from metatkgr.data.periods import Periods
from metatkgr.data.tasks import Tasks
from metatkgr.data.world import WorldSettings, simulate
from metatkgr.data.world.kinds import CAREERS, KINDS
from metatkgr.data.world.names import entity_names
from metatkgr.data.world.plan import ENDORSES, PLAYER, PLAYS_FOR, Plan
from metatkgr.data.world.simulation import world_settings_from_metadata, write_world
from metatkgr.errors import DataError, SettingsError


@pytest.fixture(scope="module")
def world() -> Facts:
    return simulate()


def test_the_world_has_exactly_as_many_facts_as_asked_for(world: Facts) -> None:
    assert len(world) == 20_000
    for facts in (200, 777, 2_000, 5_001):
        assert len(simulate(facts=facts)) == facts


def test_every_fact_joins_entities_of_the_right_kinds(world: Facts) -> None:
    types = world.law.type_of
    for relation, (subject, object_) in enumerate(CAREERS.slot_types):
        rows = world.relation == relation
        assert (types[world.subject[rows]] == subject).all()
        assert (types[world.object[rows]] == object_).all()


def test_entities_are_numbered_by_birth_and_all_of_them_appear(world: Facts) -> None:
    assert (np.diff(world.emerged_at) >= 0).all()
    assert world.emerged_at[0] == 0


def test_names_are_readable_and_unique(world: Facts) -> None:
    assert len(set(world.entities)) == len(world.entities)
    assert all(name.replace(" ", "").isalpha() for name in world.entities)
    assert {world.calendar.label(0), world.calendar.label(1)} == {"2015-01-05", "2015-01-12"}


def test_names_stay_unique_beyond_their_combinations_and_across_kinds() -> None:
    numbers = np.arange(80_000)
    for kind in KINDS.values():
        names = np.concatenate([entity_names(type_.naming, numbers) for type_ in kind.types])
        assert len(np.unique(names)) == len(names)


def test_a_step_is_a_week_and_the_default_world_has_about_two_hundred(world: Facts) -> None:
    assert world.calendar.stride == 7
    assert 150 <= world.steps <= 250


def test_entities_emerge_in_all_periods_and_at_nearly_all_steps(world: Facts) -> None:
    counts = np.bincount(Periods.of(world).of_entity, minlength=4)
    assert counts.min() >= 50
    assert len(np.unique(world.emerged_at)) > 0.9 * world.steps


def test_meta_test_has_enough_tasks_and_queries(world: Facts) -> None:
    tasks = Tasks.build(world)
    assert tasks.count >= 100
    assert len(tasks.answers) >= 1_000


def test_most_new_entities_have_few_facts(world: Facts) -> None:
    new = np.flatnonzero(Periods.of(world).of_entity == 3)
    degree = np.bincount(np.concatenate([world.subject, world.object]))[new]
    assert np.median(degree) <= 15
    assert degree.max() >= 4 * np.median(degree)


def test_one_relation_becomes_common_only_late(world: Facts) -> None:
    late = world.time >= 0.7 * world.law.plan.steps
    share = [np.mean(world.relation[rows] == ENDORSES) for rows in (~late, late)]
    assert share[0] < 0.03
    assert share[1] > 0.2


def test_facts_recur(world: Facts) -> None:
    seen: set[tuple[int, int, int]] = set()
    again = 0
    for fact in zip(world.subject, world.relation, world.object, strict=True):
        again += fact in seen
        seen.add(fact)
    assert 0.5 < again / len(world) < 0.9


def test_players_move_along_shared_neighbours_far_more_often_than_by_chance(world: Facts) -> None:
    """New clubs are reached by walks player - club - mate - club over earlier facts."""
    rows = np.flatnonzero(world.relation == PLAYS_FOR)
    clubs, columns = np.unique(world.object[rows], return_inverse=True)
    links = np.zeros((len(world.entities), len(clubs)), np.float32)
    reached, expected, moves = 0.0, 0.0, 0
    for player, club in zip(world.subject[rows], columns, strict=True):
        before = links[player].copy()
        if before.any() and not before[club]:
            walks = links @ before @ links  # (C,)
            share = walks / max(walks[before == 0].sum(), 1)
            reached += share[club]
            expected += share[before == 0].mean()
            moves += 1
        links[player, club] = 1
    assert moves >= 400
    assert reached > 4 * expected


def test_the_same_settings_give_the_same_facts_and_another_seed_gives_others() -> None:
    one, two, other = simulate(facts=3_000), simulate(facts=3_000), simulate(facts=3_000, seed=1)
    for column in ("subject", "relation", "object", "time"):
        np.testing.assert_array_equal(getattr(one, column), getattr(two, column))
    assert one.entities.names == two.entities.names
    assert not np.array_equal(one.object, other.object)


def test_entities_grow_with_the_facts_and_steps_only_mildly() -> None:
    small, large = simulate(facts=20_000, seed=1), simulate(facts=200_000, seed=1)
    assert 6 < len(large.entities) / len(small.entities) < 12
    assert 1 < large.steps / small.steps < 2


@pytest.mark.parametrize("facts", [2_000, 20_000, 200_000])
def test_worlds_last_about_as_long_as_planned(facts: int) -> None:
    world = simulate(facts=facts, seed=5)
    assert 0.75 < world.steps / Plan.of(WorldSettings(facts=facts)).steps < 1.25


def test_two_thousand_facts_come_in_a_blink() -> None:
    simulate(facts=2_000)
    spent = []
    for seed in range(3):
        begin = time.process_time()
        simulate(facts=2_000, seed=seed)
        spent.append(time.process_time() - begin)
    assert min(spent) < 0.2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"facts": 10}, "at least 200 facts"),
        ({"facts": 1e4}, "whole number"),
        ({"seed": -1}, "must not be negative"),
        ({"follow": 1.5}, "between 0 and 1"),
        ({"moves": float("nan")}, "between 0 and 1"),
    ],
)
def test_settings_out_of_range_are_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        WorldSettings(**given)  # type: ignore[arg-type]


def test_settings_and_single_values_cannot_be_given_together() -> None:
    with pytest.raises(TypeError, match="either settings"):
        simulate(WorldSettings(), facts=2_000)


def rows_of(table: pa.Table) -> list[tuple[str, ...]]:
    columns = [table[name].to_pylist() for name in ("subject", "relation", "object")]
    return list(zip(*columns, map(str, table["date"].to_pylist()), strict=True))


@pytest.mark.parametrize("row_group", [1_000_000, 700])
def test_a_written_world_reads_back_as_the_simulated_one(tmp_path, row_group: int) -> None:
    settings = WorldSettings(facts=3_000, seed=4)
    facts = simulate(settings)
    written: list[int] = []
    path = tmp_path / "deep" / "world.parquet"
    summary = write_world(path, settings, written.append, row_group=row_group)
    table = pq.read_table(path)
    assert rows_of(table) == [facts.describe(row) for row in range(len(facts))]
    assert table.schema.field("subject").type == pa.dictionary(pa.int32(), pa.string())
    assert sum(written) == 3_000
    assert pq.ParquetFile(path).num_row_groups == len(written)
    assert (summary.facts, summary.entities) == (3_000, len(facts.entities))
    assert (summary.steps, summary.bytes) == (facts.steps, path.stat().st_size)
    assert [entry.name for entry in path.parent.iterdir()] == ["world.parquet"]


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_a_small_world_can_be_written_as_text(tmp_path, suffix: str, delimiter: str) -> None:
    settings = WorldSettings(facts=500)
    path = tmp_path / f"world{suffix}"
    write_world(path, settings)
    options = pyarrow.csv.ParseOptions(delimiter=delimiter)
    facts = simulate(settings)
    table = pyarrow.csv.read_csv(path, parse_options=options)
    assert rows_of(table) == [facts.describe(row) for row in range(len(facts))]


def test_a_parquet_file_knows_the_settings_of_its_world(tmp_path) -> None:
    settings = WorldSettings(facts=300, seed=9, moves=0.1)
    write_world(tmp_path / "world.parquet", settings)
    assert world_settings_from_metadata(tmp_path / "world.parquet") == settings
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    assert world_settings_from_metadata(tmp_path / "other.parquet") is None
    (tmp_path / "text.parquet").write_text("no parquet")
    assert world_settings_from_metadata(tmp_path / "text.parquet") is None
    assert world_settings_from_metadata(tmp_path / "absent.parquet") is None


def test_a_broken_off_write_leaves_the_old_file_and_nothing_else(tmp_path) -> None:
    path = tmp_path / "world.parquet"
    path.write_text("old")

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_world(path, WorldSettings(facts=500), stop)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["world.parquet"]


def test_a_world_is_not_written_to_an_unknown_kind_of_file_or_an_impossible_place(tmp_path) -> None:
    with pytest.raises(DataError, match=r"ends in \.parquet, \.csv, \.tsv"):
        write_world(tmp_path / "world.xlsx", WorldSettings(facts=300))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        write_world(tmp_path / "file" / "world.parquet", WorldSettings(facts=300))


def test_the_number_of_living_players_does_not_grow_with_the_number_ever_born(world: Facts) -> None:
    state = world.law.before(world.steps)
    assert len(state.player_id) < np.count_nonzero(world.law.type_of == PLAYER) / 2
