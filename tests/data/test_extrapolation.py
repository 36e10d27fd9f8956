"""The field's standard protocol: who is asked what, what is seen, and ranks as TGB 2.0 has them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import metatkgr as mt
from command_line import Run
from metatkgr.data.extrapolation import (
    HISTORIES,
    PARTS,
    TGB_SHARES,
    Extrapolation,
    ExtrapolationProblem,
    first_steps,
)
from metatkgr.data.facts import Facts
from metatkgr.errors import SettingsError, UnknownNameError
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.evidence.reader import Reader
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.training import ExampleReader, example_sets
from metatkgr.training.opening import open_extrapolation
from references import dense


@pytest.fixture(scope="module")
def world() -> Facts:
    return mt.load("world:2000")


def literal_queries(facts: Facts, begin: int, end: int) -> set[tuple[int, int, int, int]]:
    """(entity, directed relation, time, answer) of each fact of some steps, from both ends."""
    found = set()
    relations = len(facts.relations)
    for row in range(len(facts)):
        s, r, o, t = (
            int(column[row]) for column in (facts.subject, facts.relation, facts.object, facts.time)
        )
        if begin <= t < end:
            found |= {(s, r, t, o), (o, r + relations, t, s)}
    return found


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("history", HISTORIES)
def test_every_fact_of_a_part_is_asked_about_from_both_ends(
    world: Facts, part: str, history: str
) -> None:
    tasks = Extrapolation.build(world, part=part, history=history)
    valid, test = first_steps(world)
    early = np.sort(world.time[world.time < valid])
    quarter = int(np.quantile(early, 0.75)) + 1
    begin, end = {
        "train": (quarter, valid),
        "valid": (valid, test),
        "test": (test, world.steps),
    }[part]
    asked, answers = tasks.questions, tasks.answers
    row = answers.question
    found = list(
        zip(
            asked.entity[row].tolist(),
            asked.relation[row].tolist(),
            asked.time[row].tolist(),
            answers.answer.tolist(),
            strict=True,
        )
    )
    assert set(found) == literal_queries(world, begin, end)
    assert len(found) == 2 * int(((world.time >= begin) & (world.time < end)).sum())
    assert answers.later.all()
    assert len(tasks.supports) == 0
    seen = tasks.visible.time
    if history == "multi-step":
        assert seen.max() < begin
    elif part == "train":
        assert seen.max() < valid
    else:
        assert len(seen) == 2 * len(world)


def test_facts_are_cut_as_tgb_cuts_them(world: Facts) -> None:
    valid_time, test_time = np.quantile(world.time, [0.7, 0.85])
    valid, test = first_steps(world, TGB_SHARES)
    assert np.array_equal(world.time >= valid, world.time > valid_time)
    assert np.array_equal(world.time >= test, world.time > test_time)
    for split in ((0.0, 0.1), (0.8, 0.2), (0.8, -0.1)):
        with pytest.raises(SettingsError, match="shares of train and valid"):
            first_steps(world, split)
    assert first_steps(world, (50, 60)) == (50, 60)
    for split in ((60, 50), (50, 10**6), (50.5, 60)):
        with pytest.raises(SettingsError, match="not the first steps of valid and test"):
            first_steps(world, split)
    with pytest.raises(SettingsError, match="steps are too few"):
        first_steps(mt.read_facts([("a", "r", "b", 1), ("b", "r", "a", 2)]))
    with pytest.raises(UnknownNameError, match="history"):
        Extrapolation.build(world, history="multistep")
    with pytest.raises(UnknownNameError, match="split"):
        Extrapolation.build(world, part="meta-test")


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("name", ["recurrency", "paths"])
def test_scores_do_not_depend_on_what_is_not_seen(world: Facts, name: str, history: str) -> None:
    """Objects are drawn anew from the queries' step on, or from the beginning of the part on."""
    tasks = Extrapolation.build(world, history=history)
    test = first_steps(world)[1]
    latest = int(tasks.questions.time.max())
    hidden = world.time >= (latest if history == "single-step" else test)
    other = world.object.copy()
    other[hidden] = np.random.default_rng(0).integers(len(world.entities), size=hidden.sum())
    changed = Extrapolation.build(replace(world, object=other), history=history)
    asked = tasks.questions[np.flatnonzero(tasks.questions.time == latest)]
    scores = [
        dense(mt.create(name).prepare(some.visible).adapt(some.supports), asked)
        for some in (tasks, changed)
    ]
    assert scores[0].equal(scores[1])


def reciprocal_ranks(tasks: Extrapolation, name: str, score) -> list[float]:
    """As TGB 2.0: one positive against all entities that are no answer at the time."""
    facts = tasks.facts
    true: dict[tuple[int, int, int], set[int]] = {}
    for entity, relation, time, answer in literal_queries(facts, 0, facts.steps):
        true.setdefault((entity, relation, time), set()).add(answer)
    model = mt.create(name).prepare(tasks.visible).adapt(tasks.supports)
    scores = dense(model, tasks.questions).numpy()
    found = []
    for row, answer in zip(tasks.answers.question, tasks.answers.answer, strict=True):
        asked = tasks.questions
        key = int(asked.entity[row]), int(asked.relation[row]), int(asked.time[row])
        negative = np.delete(scores[row], sorted(true[key]))
        found.append(score(scores[row][[answer]], negative))
    return found


@pytest.mark.parametrize("history", HISTORIES)
def test_ranks_under_the_time_filter_are_those_of_tgb(world: Facts, history: str) -> None:
    tasks = Extrapolation.build(world, split=TGB_SHARES, history=history).sample(300)

    def score(positive: np.ndarray, negative: np.ndarray) -> float:
        better, as_good = (negative > positive).sum(), (negative >= positive).sum()
        return float(1 / (0.5 * (better + as_good) + 1))

    found = 1 / mt.evaluate(mt.create("recurrency"), tasks).ranks["time"]
    assert found == pytest.approx(reciprocal_ranks(tasks, "recurrency", score))


def test_the_evaluator_of_tgb_agrees_query_by_query(world: Facts) -> None:
    tgb = pytest.importorskip("tgb.linkproppred.evaluate", reason="py-tgb is not installed")
    evaluator = tgb.Evaluator("tkgl-yago")
    tasks = Extrapolation.build(world, split=TGB_SHARES).sample(300)

    def score(positive: np.ndarray, negative: np.ndarray) -> float:
        told = {"y_pred_pos": positive, "y_pred_neg": negative[None], "eval_metric": ["mrr"]}
        return float(evaluator.eval(told)["mrr"])

    for name in ("recurrency", "paths"):
        found = 1 / mt.evaluate(mt.create(name), tasks).ranks["time"]
        assert found == pytest.approx(reciprocal_ranks(tasks, name, score), rel=1e-6)


@pytest.mark.real_data
def test_tkgl_yago_is_rebuilt_from_yago(real_data: Path) -> None:
    facts = mt.load("YAGO")
    tasks = Extrapolation.build(facts, split=TGB_SHARES)
    assert len(tasks.answers) == 56_110
    found = mt.evaluate(mt.create("recurrency"), tasks.sample(2000))
    assert found.summary("time", "all", resamples=0).mrr > 0.85


def test_the_command_evaluates_under_the_standard_protocol(run: Run, world: Facts) -> None:
    words = ["evaluate", "world:2000", "--model", "recurrency", "--protocol", "extrapolation"]
    told = run(*words, "--history", "multi-step", "--shares", "0.7,0.15", "--json", "-")
    result = json.loads(told.out)
    tasks = Extrapolation.build(world, split=TGB_SHARES, history="multi-step")
    expected = mt.evaluate(mt.create("recurrency"), tasks).summary("time", "all").mrr
    assert result["metrics"]["time"]["all"]["mrr"] == pytest.approx(expected)
    assert (result["protocol"], result["history"], result["split"]) == (
        "extrapolation",
        "multi-step",
        "test",
    )
    assert "extrapolation, single-step, valid" in run(*words, "--split", "valid").out
    for more, message in (
        (["--shots", "3"], "only of the few-shot protocol"),
        (["--shares", "0.8"], "takes TRAIN,VALID"),
        (["--history", "none"], "unknown history"),
    ):
        assert message in run(*words, *more).err
    more = ["--set", "train_queries=100", "--set", "epochs=2", "--questions", "100", "--json", "-"]
    told = json.loads(run(*words[:2], "--model", "evidence", *words[4:], *more).out)
    assert told["settings"]["repeats_first"] is False
    assert told["metrics"]["time"]["all"]["mrr"] > 0.2
    assert "unknown protocol" in run("evaluate", "world:2000", "--protocol", "standard").err


# Learning ---------------------------------------------------------------------------------------

SMALL = {
    "evidence": {"train_queries": 150, "members": 1, "epochs": 2},
    "regcn": {"epochs": 1, "dimension": 8},
    "renet": {"epochs": 1, "dimension": 8},
    "transe": {"epochs": 1, "dimension": 8},
}


@pytest.mark.parametrize("name", SMALL)
def test_a_model_learns_from_train_and_from_nothing_after_it(world: Facts, name: str) -> None:
    """What happens from valid on is drawn anew: the weights stay the same to the bit."""
    valid, _ = first_steps(world)
    hidden = world.time >= valid
    other = world.object.copy()
    other[hidden] = np.random.default_rng(0).integers(len(world.entities), size=hidden.sum())
    weights = [
        open_extrapolation(facts, model=name, settings=SMALL[name], device="cpu").model.state_dict()
        for facts in (world, replace(world, object=other))
    ]
    assert weights[0].keys() == weights[1].keys()
    for key, value in weights[0].items():
        assert torch.equal(value, weights[1][key]), key


def test_examples_leave_out_what_is_true_at_the_time_and_nothing_else(world: Facts) -> None:
    problem = ExtrapolationProblem(world)
    settings = EvidenceSettings(repeats_first=False, train_queries=60)
    (examples,) = example_sets(problem, settings, 0)
    valid, _ = first_steps(world)
    true: dict[tuple[int, int, int], set[int]] = {}
    for entity, relation, time, answer in literal_queries(world, 0, valid):
        true.setdefault((entity, relation, time), set()).add(answer)
    read = ExampleReader([examples], problem.known, settings, torch.device("cpu"), timed=True)
    (piece,) = read.pieces()
    taught = read(piece)
    index = TemporalIndex.of(examples.visible)
    reader = Reader(index, examples.supports, settings)
    answer = torch.from_numpy(examples.answer)
    candidates = reader.read(examples.queries, None, answer)
    sizes = []
    for row in range(len(answer)):
        mine = candidates.entity[candidates.query == row].tolist()
        gold = int(answer[row])
        covered = candidates.covered[candidates.query == row][mine.index(gold)]
        asked = examples.queries
        key = int(asked.entity[row]), int(asked.relation[row]), int(asked.time[row])
        assert gold in true[key]
        if bool(covered):  # one that nothing speaks for teaches nothing
            sizes.append(sum(one == gold or one not in true[key] for one in mine))
    assert taught.start.diff().tolist() == sizes


def test_a_run_is_not_asked_about_facts_it_may_have_seen(run: Run, tmp_path: Path) -> None:
    words = ["train", "world:2000", "--model", "transe", "--set", "epochs=1"]
    assert run(*words, "--out", tmp_path / "run").code == 0
    told = run("evaluate", tmp_path / "run", "--protocol", "extrapolation")
    assert told.code == 2
    assert "learns from train first" in told.err
