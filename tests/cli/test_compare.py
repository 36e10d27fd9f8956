"""Models beside each other, and which there are."""

from __future__ import annotations

import itertools
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import metatkgr as mt
from command_line import Run
from metatkgr.errors import SettingsError
from metatkgr.models import DEFAULT_MODEL, available
from metatkgr.training.comparing import paired_p_value


def test_rules_are_compared_on_data_with_p_values_in_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("compare", "recurrency", "paths", "--data", "world:2000", "--json", "-")
    assert shown.code == 0, shown.err
    first, second = json.loads(shown.out)
    assert (first["model"], second["model"]) == ("recurrency", "paths")
    assert first["p_value"] is None
    assert 0 < second["p_value"] <= 1
    lines = shown.err.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if "recurrency" in line or "paths" in line]
    assert len(rows) == 2, "no row is broken in two"
    assert "+" in rows[1] or "-" in rows[1]
    refused = run("compare", "recurrency", "paths")
    assert refused.code == 2
    assert "--data" in refused.err


def test_in_python_models_are_compared_as_the_command_does(run: Run) -> None:
    shown = run("compare", "recurrency", "paths", "--data", "world:2000", "--json", "-")
    facts = mt.load("world:2000")
    found = mt.compare(mt.create("recurrency"), "paths", data=facts)
    told = json.loads(shown.out)
    assert json.loads(json.dumps(found.to_json())) == told
    assert found.title() == "world: 3-shot, meta-test, visibility entity-split, filter static"
    assert [row.name for row in found.rows] == ["recurrency", "paths"]
    with pytest.raises(SettingsError, match="other queries"):
        mt.compare("paths", mt.open_model(facts, model="recurrency", shots=1), data=facts)
    with pytest.raises(SettingsError, match="--data"):
        mt.compare(mt.create("paths"))


def test_a_p_value_is_the_share_of_signs_that_reach_the_difference() -> None:
    """All signs of six entities, one after another."""
    rng = np.random.default_rng(3)
    entity = np.repeat(np.arange(6), [1, 2, 3, 1, 4, 2])
    one, other = rng.integers(1, 9, (2, len(entity))).astype(float)
    gain = np.bincount(entity, weights=1 / one - 1 / other)
    signs = np.array(list(itertools.product([-1, 1], repeat=6)))
    exact = (np.abs(signs @ gain) >= abs(gain.sum()) - 1e-12).mean()
    assert paired_p_value(one, other, entity) == pytest.approx(exact, abs=0.02)
    assert paired_p_value(one, one, entity) == 1


def test_models_are_listed_with_what_they_need(run: Run) -> None:
    shown = run("models", "--json", "-")
    rows = json.loads(shown.out)
    assert [row["model"] for row in rows] == list(available())
    assert [row["model"] for row in rows if row["default"]] == [DEFAULT_MODEL]
    assert not next(row for row in rows if row["model"] == "recurrency")["trained"]
    assert next(row for row in rows if row["model"] == "transe")["trained"]
    assert all(row["about"] for row in rows)


def test_an_ingested_folder_is_as_readable_as_the_umask_says(run: Run, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("subject,relation,object,time\na,r,b,2018-01-01\n")
    before = os.umask(0o027)
    try:
        shown = run("data", "ingest", tmp_path / "events.csv", "--out", tmp_path / "events")
    finally:
        os.umask(before)
    assert shown.code == 0, shown.err
    assert stat.S_IMODE((tmp_path / "events").stat().st_mode) == 0o750
    modes = {stat.S_IMODE(p.stat().st_mode) & 0o037 for p in (tmp_path / "events").rglob("*")}
    assert modes <= {0o010 & 0o037, 0o000}, "nobody else, and no writing for the group"
