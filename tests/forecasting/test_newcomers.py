"""Forecasts for all newcomers of a graph."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import metatkgr as mt
from command_line import Run
from metatkgr.errors import DataError
from metatkgr.forecasting.newcomers import NewcomerForecast, forecast_newcomers, newcomers_since
from metatkgr.forecasting.ranking import Question


@pytest.fixture(scope="module")
def forecaster() -> mt.Forecaster:
    return mt.Forecaster.of(mt.simulate(facts=3000), "paths")


def test_every_newcomer_has_the_rows_it_would_have_alone(
    forecaster: mt.Forecaster, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    asked = Question("", top=3)
    out = tmp_path / "forecasts.jsonl"
    done = forecast_newcomers(
        forecaster,
        out,
        since="90d",
        question=asked,
        progress=lambda count, total: told.append((count, total)),
    )
    rows = [NewcomerForecast(**json.loads(line)) for line in out.read_text().splitlines()]
    facts = forecaster.facts
    first = facts.emerged_at
    emerged = np.flatnonzero(first > facts.time[-1] - 90 / facts.calendar.stride)
    names = [facts.entities[int(number)] for number in emerged]
    assert 5 < len(names) < len(facts.entities)
    assert done == (len(names), 3 * len(names))
    assert [row.entity for row in rows] == [name for name in names for _ in range(3)]
    assert sum(count for count, _ in told) == len(names) == told[-1][1]
    # Some are known by a fact or two only.
    counts = np.bincount(np.concatenate([facts.subject, facts.object]))
    assert counts[emerged].min() <= 2
    for begin in range(0, len(rows), 3):
        alone = forecaster.predict(rows[begin].entity, top=3)
        for row, one in zip(rows[begin : begin + 3], alone, strict=True):
            assert row[1:6] == (one.rank, one.relation, one.side, one.entity, one.at)
            assert row[6:] == pytest.approx((one.probability, one.score))


def test_the_formats_hold_the_same(run: Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    words = ("predict", "world:3000:1", "--newcomers", "--top", 2, "-r", "plays for", "--json", "-")
    found = {}
    for suffix in ("parquet", "jsonl", "csv"):
        shown = run(*words, "--out", tmp_path / f"f.{suffix}")
        assert shown.code == 0, shown.err
        found[suffix] = json.loads(shown.out)
    rows = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert len(rows) == found["csv"]["forecasts"] == 2 * found["csv"]["newcomers"] > 0
    assert parquet.read_table(tmp_path / "f.parquet").to_pylist() == rows
    with (tmp_path / "f.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == [
            {name: str(value) for name, value in row.items()} for row in rows
        ]
    assert {row["relation"] for row in rows} == {"plays for"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.csv", "f.jsonl", "f.parquet"]


def test_since_when(forecaster: mt.Forecaster) -> None:
    snapshot = forecaster.snapshot()
    calendar, last = snapshot.first.calendar, snapshot.last_step
    usual = newcomers_since(snapshot)
    assert 0 < len(usual) < len(snapshot.entities)
    assert newcomers_since(snapshot, "2w") == newcomers_since(snapshot, "14d")
    since = last - 20
    by_date = newcomers_since(snapshot, calendar.label(since))
    assert by_date == newcomers_since(snapshot, f"{21 * calendar.stride}d")
    assert all(snapshot.seen([number])[0][1] >= since for number in by_date)
    with pytest.raises(DataError, match="counts time in days: write 30d or 30w, not 3y"):
        newcomers_since(snapshot, "3y")
    with pytest.raises(DataError, match="'soon' is not a date"):
        newcomers_since(snapshot, "soon")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--entity NAME, or --newcomers"),
        (("--newcomers", "-e", "Ann"), "--entity NAME, or --newcomers"),
        (("--newcomers",), "--out forecasts.parquet"),
        (("--newcomers", "--out", "f.xlsx"), "not 'f.xlsx'"),
        (("--newcomers", "--out", "f.csv", "--explain"), "no reasons"),
        (("--newcomers", "--out", "f.csv", "-r", "nonsense"), "unknown relation"),
        (("--newcomers", "--out", "f.csv", "--cluster", "local", "--facts", "x"), "--append"),
        (("-e", "Ann", "--out", "f.csv"), "are for --newcomers"),
    ],
)
def test_what_does_not_go_together_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run("predict", "world:2000:1", *words)
    assert shown.code == 2
    assert said in " ".join(shown.err.split())
    assert not list(tmp_path.iterdir())
