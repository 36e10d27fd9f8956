"""K as a number, a range, or drawn for each entity; another K in the test than in training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import metatkgr as mt
from command_line import Run
from metatkgr.data.periods import Period, Shots
from metatkgr.data.problem import Problem
from metatkgr.errors import SettingsError
from metatkgr.training.runs import load_config


@pytest.fixture(scope="module")
def world() -> mt.Facts:
    return mt.simulate(facts=3000)


@pytest.mark.parametrize(
    ("text", "low", "high", "label"),
    [
        (3, 3, 3, 3),
        ("2", 2, 2, 2),
        ("random", 1, 5, "random"),
        ("1-5", 1, 5, "random"),
        ("2-4", 2, 4, "2-4"),
        (" Random ", 1, 5, "random"),
        ("3-3", 3, 3, 3),
    ],
)
def test_shots_are_read(text: int | str, low: int, high: int, label: int | str) -> None:
    shots = Shots.parse(text)
    assert (shots.low, shots.high, shots.label) == (low, high, label)
    assert Shots.parse(shots.label) == shots


@pytest.mark.parametrize("text", ["0", 0, "5-1", "0-3", "few", "", "-2", "1-2-3"])
def test_shots_that_are_none_are_told(text: int | str, world: mt.Facts) -> None:
    with pytest.raises(SettingsError, match="shots"):
        mt.Tasks.build(world, shots=text)


def test_each_entity_draws_its_own_shots_by_the_seed(world: mt.Facts) -> None:
    drawn = Shots.parse("random").of_entities(len(world.entities), seed=4)
    assert set(np.unique(drawn)) == {1, 2, 3, 4, 5}
    tasks = mt.Tasks.build(world, shots="random", seed=4)
    given = mt.Tasks.build(world, shots=drawn)
    assert tasks.shots == given.shots == "random"
    assert np.array_equal(tasks.support_facts, given.support_facts)
    assert np.array_equal(tasks.questions.time, given.questions.time)
    for entity in np.unique(tasks.questions.entity):
        # Who is asked about has more facts than K, so all K are in the support.
        owned = tasks.supports.of(int(entity))
        assert len(owned) == drawn[entity]
    other = mt.Tasks.build(world, shots="random", seed=5)
    assert not np.array_equal(tasks.support_facts, other.support_facts)


def test_a_problem_with_other_test_shots_learns_from_their_supports(world: mt.Facts) -> None:
    three, one = Problem.of(world, shots=3), Problem.of(world, shots=1)
    mixed = Problem.of(world, shots=3, test_shots=1)
    assert np.array_equal(mixed.train.support_facts, three.train.support_facts)
    assert np.array_equal(mixed.validation.support_facts, one.validation.support_facts)
    assert len(one.known) == len(mixed.known) < len(three.known)
    # What is asked at test is not among the facts that were learned from.
    tasks = mt.Tasks.build(world, shots=1, split=Period.META_TEST)
    asked = set(tasks.answers.fact.tolist())
    rows = [world.subject, world.relation, world.object, world.time]
    table = np.stack(rows, axis=1)
    known = mixed.known
    forward = known.relation < len(world.relations)
    columns = (known.source, known.relation, known.target, known.time)
    learned = set(zip(*(c[forward].tolist() for c in columns), strict=True))
    assert not learned & {tuple(table[row].tolist()) for row in asked}


def test_a_run_is_trained_and_tested_with_any_shots(run: Run, tmp_path: Path) -> None:
    words = ("--model", "transe", "--set", "epochs=2", "--set", "dimension=8")
    shown = run("train", "world:3000", *words, "--shots", "random", "--seed", 3, "--out", tmp_path)
    assert shown.code == 0, shown.err
    assert load_config(tmp_path).shots == "random"
    own = json.loads(run("evaluate", tmp_path, "--json", "-").out)
    assert (own["shots"], own["trained_shots"], own["seed"]) == ("random", "random", 3)
    expected = mt.Tasks.build(mt.load("world:3000"), shots="random", seed=3)
    assert own["queries"] == len(expected.answers)
    five = run("evaluate", tmp_path, "--shots", 5, "--json", "-")
    assert five.code == 0, five.err
    assert (json.loads(five.out)["shots"], "see 'Shots'" in five.err) == (5, True)
    rule = run("evaluate", "world:3000", "--model", "paths", "--shots", "2-3", "--json", "-")
    assert json.loads(rule.out)["shots"] == "2-3"
    assert run("evaluate", "world:3000", "--shots", "many").code == 2


def test_test_shots_are_those_of_the_evaluation(run: Run, tmp_path: Path) -> None:
    words = ("--model", "transe", "--set", "epochs=2", "--set", "dimension=8")
    words += ("--shots", "3", "--test-shots", "1")
    shown = run("train", "world:3000", *words, "--out", tmp_path, "--json", "-")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["shots"] == 1
    assert json.loads(run("evaluate", tmp_path, "--json", "-").out)["shots"] == 1
