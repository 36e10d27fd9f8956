"""What the fuzzers have found, one test each; all of these were tracebacks or went unnoticed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fuzz import records
from metatkgr.data import sources
from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.periods import Shots
from metatkgr.data.world import simulate
from metatkgr.errors import DataError, MetaTKGRError, SettingsError, nearest
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.records import Record
from metatkgr.experiments.results import best_baselines, collected, read_records
from metatkgr.files import read_json, read_toml
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.store import FactStore, StoreError
from metatkgr.models import create
from metatkgr.models.registry import tuned_settings
from metatkgr.serving.limits import Limits
from metatkgr.training.checkpoint import check_fit, check_optimiser, read_tensors, write_tensors
from metatkgr.training.runs import load_config
from studies.collect import collect


@pytest.mark.parametrize("value", [[], {}, None, True, 2.5, math.nan, math.inf, 10**400, "inf"])
def test_a_whole_number_is_nothing_else(value: Any) -> None:
    with pytest.raises(SettingsError, match="epochs takes int"):
        create("transe", {"epochs": value})


@pytest.mark.parametrize("value", ["inf", "nan", "1e400", math.inf, [], None, False, 10**400])
def test_a_setting_is_a_finite_number(value: Any) -> None:
    with pytest.raises(SettingsError, match="learning_rate takes float"):
        create("transe", {"learning_rate": value})


def test_a_switch_takes_no_number_from_a_file() -> None:
    with pytest.raises(SettingsError, match="second_order takes bool"):
        create("metatkgr", {"second_order": []})
    assert create("transe", {"epochs": 3.0}).settings.epochs == 3


@pytest.mark.parametrize("value", [None, 2.5, [], {}, True, "9" * 5000])
def test_shots_of_no_kind_are_refused(value: Any) -> None:
    with pytest.raises(SettingsError):
        Shots.parse(value)


def test_a_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(SettingsError):
        Limits(steps_ahead=math.nan)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "~nobody-here/x"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(MetaTKGRError):
        sources.load(name)


def test_names_like_a_very_long_one_are_not_looked_for() -> None:
    assert nearest("x" * 100_000, ["x" * 50]) == []


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "x = " + "9" * 5000, "x = 1e9999999999999"])
def test_toml_that_python_chokes_on_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    for read in (
        lambda: tuned_settings("transe", "YAGO", tmp_path / "config.toml"),
        lambda: load_config(tmp_path),
    ):
        with pytest.raises(MetaTKGRError):
            read()
    if "e" not in text:
        with pytest.raises(DataError, match="not TOML"):
            read_toml(tmp_path / "config.toml")


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "", "nul", "\ud800"])
def test_json_that_python_chokes_on_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for read in (read_json, Record.read, Calibration.load):
        with pytest.raises(DataError):
            read(path)


@pytest.mark.parametrize("key", ["dataset", "model", "shots", "seed", "visibility", "settings"])
@pytest.mark.parametrize("value", [None, [], ["x", 1], 2.5, "x", 10**400])
def test_a_cell_of_the_wrong_types_is_refused(key: str, value: Any) -> None:
    content: dict[str, Any] = {"dataset": "YAGO", "model": "lan"}
    if (key in ("dataset", "model") and value == "x") or (key == "settings" and value == []):
        return
    with pytest.raises(MetaTKGRError):
        Cell.from_json({**content, key: value})


def damaged(*path: str, value: Any = ...) -> dict[str, Any]:
    """A record with something replaced or, without a value, taken out."""
    record = json.loads(json.dumps(records._record()))
    place = record
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return record


RECORDS = [
    damaged("cell"),
    damaged("training"),
    damaged("training", value=[1]),
    damaged("training", "validation_mrr", value="0.5"),
    damaged("result"),
    damaged("result", "dataset"),
    damaged("result", "dataset", value={}),
    damaged("result", "metrics", "time"),
    damaged("result", "metrics", "static", "all"),
    damaged("result", "metrics", "static", "all", "mrr", value="high"),
    damaged("result", "metrics", "static", "novel", "hits@3"),
    damaged("result", "per_entity", "static", value=[1]),
    damaged("result", "per_entity", "time"),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_without_what_tables_need_is_refused(tmp_path: Path, record: Any) -> None:
    path = tmp_path / "cell.json"
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"cell\.json"):
        read_records(tmp_path)
    with pytest.raises(MetaTKGRError):
        Record.from_json(record)


@pytest.mark.parametrize("content", [None, 3, [3], {"records": 5}, {"records": [None]}])
def test_a_file_of_something_else_is_no_result(tmp_path: Path, content: Any) -> None:
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(DataError):
        read_records(tmp_path)
    with pytest.raises(DataError):
        collected(tmp_path / "x.json")


def test_an_evaluation_without_its_cell_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(records._record()["result"]))
    with pytest.raises(DataError, match=r"x\.json is not the record of a cell: cell is no object"):
        read_records(tmp_path)


def test_a_baseline_that_was_never_validated_is_not_among_the_best() -> None:
    assert best_baselines([Record.from_json(damaged("training", "validation_mrr"))]) == ()


def test_a_record_without_numbers_by_entity_is_collected(tmp_path: Path) -> None:
    assert collect([Record.from_json(damaged("result", "per_entity", value=None))], tmp_path)


@pytest.mark.parametrize("name", ["\ud800", "x" * 300])
def test_a_model_whose_name_no_file_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MetaTKGRError, match="name of the cell"):
        Record.from_json(damaged("cell", "model", value=name))


def test_a_number_that_is_not_finite_is_not_collected(tmp_path: Path) -> None:
    record = damaged("result", "seconds", value=math.inf)
    with pytest.raises(DataError, match="not finite"):
        collect([Record.from_json(record)], tmp_path)


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.arange(5.0), "b": torch.zeros(0)}, {"key": "value"})
    assert read_tensors(path)[1] == {"key": "value"}
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        read_tensors(path)
    save_file({"a": torch.arange(5.0)}, path)
    with pytest.raises(DataError, match="no checksum"):
        read_tensors(path)


def test_weights_that_do_not_fit_are_refused() -> None:
    one = {"a": torch.zeros(2, 3)}
    for other in ({"a": torch.zeros(3, 2)}, {"b": torch.zeros(2, 3)}, {"a": one["a"].double()}, {}):
        with pytest.raises(DataError):
            check_fit("x", other, one)
    with pytest.raises(DataError, match="not finite"):
        check_fit("x", {"a": torch.full((2, 3), math.nan)}, one)


def test_the_state_of_another_optimiser_is_refused() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    good = {"step": torch.ones(()), "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
    check_optimiser({0: good}, [weight])
    for bad in ({1: good}, {-1: good}, {0: {**good, "exp_avg": torch.zeros(3)}}, {0: {}}):
        with pytest.raises(DataError, match="another training"):
            check_optimiser(bad, [weight])


def test_facts_of_a_stranger_are_checked() -> None:
    facts = simulate(facts=400, seed=1)
    facts.check()
    for change in (
        {"subject": facts.subject + 10**6},
        {"relation": -facts.relation - 1},
        {"time": facts.time[::-1].copy()},
        {"object": facts.object[:-1]},
        {"time": facts.time.astype("float32")},
        {"entities": Vocabulary(["same"] * len(facts.entities))},
        {"relations": Vocabulary(facts.relations.names, {99: "x"})},
        {"relations": Vocabulary(facts.relations.names, None, {"x": True})},
    ):
        with pytest.raises(DataError):
            Facts(**{**vars(facts), **change}).check()


@pytest.mark.parametrize("origin", ["0", None, 2.5, True, 10**30])
def test_a_calendar_begins_at_a_whole_number(origin: Any) -> None:
    with pytest.raises(DataError, match="whole number"):
        Calendar("day", origin)


def test_a_calibration_of_other_features_is_told(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    for change in ({"scale": 0}, {"traits": [[0.5]]}, {"ece": 2}, {"whole": [[1e9] * 9] * 5}):
        Calibration().save(path)
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(DataError, match="made anew"):
            Calibration.load(path)


@pytest.mark.parametrize("fact", [None, 3, "abcd", {1, 2, 3, 4}])
def test_a_fact_of_no_kind_is_refused(tmp_path: Path, fact: Any) -> None:
    with FactStore(tmp_path / "facts.sqlite") as store:
        with pytest.raises(DataError, match="a fact is"):
            store.add([("a", "b", "c", "d"), fact])
        assert len(store) == 0


def test_a_store_with_numbers_for_names_is_damaged(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "facts.sqlite"
    with FactStore(path) as store:
        store.add([("a", "b", "c", "d")])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE metatkgr_fact SET subject = x'00ff'")
    connection.close()
    with FactStore(path) as store, pytest.raises(StoreError):
        store.since()


def test_a_store_that_could_not_be_opened_is_let_go_of(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "facts.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE metatkgr_store (version INTEGER NOT NULL)")
        connection.execute("INSERT INTO metatkgr_store VALUES (99)")
    connection.close()
    for _ in range(3):
        with pytest.raises(StoreError, match="version 99"):
            FactStore(path)
    held = [link for link in Path("/proc/self/fd").glob("*") if _leads_to(link, path)]
    assert held == []


def _leads_to(link: Path, path: Path) -> bool:
    try:
        return link.resolve() == path
    except OSError:
        return False
