"""A period replayed: what was forecast beside what happened, and no look ahead."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import metatkgr as mt
from command_line import Run
from metatkgr.data.facts import Facts
from metatkgr.errors import DataError
from metatkgr.forecasting.backtest import Backtest, Replayed, backtest
from metatkgr.forecasting.forecaster import Forecaster


@pytest.fixture(scope="module")
def world() -> Facts:
    return mt.load("world:3000:1")


@pytest.fixture(scope="module")
def replayed(world: Facts) -> Backtest:
    return backtest(Forecaster.of(world, "recurrency"), world.steps - 8, questions=60)


def test_every_answer_is_what_a_forecaster_of_that_day_would_have_said(
    world: Facts, replayed: Backtest
) -> None:
    """A literal reference: a forecaster of the facts before the day, told those of the period."""
    forecaster = Forecaster.of(world, "recurrency")
    began = forecaster.at(world.steps - 9)
    for row in replayed.rows[::9]:
        past = began.anew(began.facts)
        step = world.calendar.step(row.at)
        between = np.flatnonzero((world.time >= world.steps - 8) & (world.time < step))
        past.observe([world.describe(number) for number in between.tolist()])
        found = past.predict(row.entity, row.relation, at=row.at, side=row.side, top=100)
        assert [(f.label, f.probability) for f in found][:3] == list(row.forecasts)
        same = [f for f in found if f.entity == row.happened]
        assert row.probability == (same[0].probability if same else None)
        assert (row.rank is None) == (not same)
        if row.rank is not None:
            assert row.rank <= same[0].rank


def test_what_happens_after_the_period_changes_nothing(world: Facts, replayed: Backtest) -> None:
    middle = world.steps - 5
    short = backtest(Forecaster.of(world, "recurrency"), world.steps - 8, middle, questions=200)
    until = world.select(world.time <= middle)
    alone = backtest(Forecaster.of(until, "recurrency"), world.steps - 8, questions=200)
    assert short.rows == alone.rows
    assert len(short.rows) > 50
    assert replayed.facts > short.facts


def test_what_nobody_had_heard_of_is_counted_and_not_asked(world: Facts) -> None:
    rows = [world.describe(number) for number in range(len(world))]
    rows.append((*rows[-1][:1], "a new relation", *rows[-1][2:]))
    rows.append(("Nobody Yet", *rows[-2][1:]))
    facts = mt.read_facts(rows)
    done = backtest(Forecaster.of(facts, "recurrency"), facts.steps - 1, questions=10_000)
    assert done.unaskable >= 3
    assert "Nobody Yet" not in {row.entity for row in done.rows}
    assert len(done.rows) + done.unaskable == 2 * done.facts


def test_the_numbers_are_those_of_the_rows(replayed: Backtest) -> None:
    row = replayed.rows[0]
    some = [replace(row, rank=1), replace(row, rank=4, at="later"), replace(row, rank=None)]
    done = replace(replayed, rows=tuple(some), said=((0.6, True), (0.6, False), (0.01, False)))
    assert done.metrics() == {
        "mrr": pytest.approx(1.25 / 3),
        "hits@1": pytest.approx(1 / 3),
        "hits@3": pytest.approx(1 / 3),
        "hits@10": pytest.approx(2 / 3),
    }
    low, high = done.reliability()
    assert (low["forecasts"], low["happened"]) == (1, 0)
    assert (high["said"], high["happened"]) == (pytest.approx(0.6), 0.5)
    assert [step["questions"] for step in done.by_step()] == [2, 1]
    assert replace(replayed, rows=(), said=()).to_json()["metrics"]["mrr"] is None


def test_of_several_answers_on_a_day_each_is_a_question_of_its_own() -> None:
    """Four partners every day: each is said to be the answer in a quarter, and is.

    Before, all four counted as right, as if their probabilities had been far too low.
    """
    rows = [("a", "meets", name, day) for day in range(60) for name in "bcde"]
    rows += [(f"n{day}", "meets", "b", day) for day in range(60)]
    forecaster = Forecaster.of(mt.read_facts(rows), "paths")
    done = backtest(forecaster, 30, questions=300)
    asked = [row for row in done.rows if (row.entity, row.side) == ("a", "object")]
    assert len(asked) > 50
    said = sum(chance for chance, _ in done.said) / len(done.rows)
    right = sum(was for _, was in done.said) / len(done.rows)
    assert right <= 1
    assert said == pytest.approx(right, abs=0.15)


def test_a_period_without_facts_is_told(world: Facts) -> None:
    forecaster = Forecaster.of(world, "recurrency")
    with pytest.raises(DataError, match="nothing happened from"):
        backtest(forecaster, world.steps + 5)
    with pytest.raises(DataError, match="begin later"):
        backtest(forecaster, 0)


def test_the_command_gives_a_table_a_figure_and_json(run: Run, tmp_path: Path) -> None:
    figure = tmp_path / "backtest.svg"
    shown = run("backtest", "world:3000:1", "--model", "recurrency", "--from", "2017-07-10",
                "--questions", "30", "--show", "2", "--figure", figure, "--json", "-")  # fmt: skip
    done = json.loads(shown.out)
    assert done["questions"] + done["unaskable"] == 30
    assert done["questions"] == len(done["rows"])
    assert set(done["rows"][0]) == set(Replayed.__dataclass_fields__)
    assert "What was forecast, and what happened" in shown.err
    assert figure.read_text().startswith("<?xml")


def test_predict_as_of_a_date_knows_nothing_later(run: Run, world: Facts) -> None:
    step = world.steps - 20
    late = world.entities[int(np.flatnonzero(world.emerged_at > step)[0])]
    words = ("predict", "world:3000:1", "--model", "recurrency", "--as-of", "2017-03-20")
    assert "unknown entity" in run(*words, "--entity", late).err
    shown = run(*words, "--entity", world.entities[0], "--json", "-")
    assert json.loads(shown.out)["query"]["at"] == "2017-03-27"
