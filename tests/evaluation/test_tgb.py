"""Ways out to TGB 2.0: files, negative sets and scores; by py-tgb itself, where it is installed."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path

import numpy as np
import pytest

import metatkgr as mt
from metatkgr.data.extrapolation import TGB_SHARES, Extrapolation, first_steps
from metatkgr.data.facts import Facts
from metatkgr.evaluation.tgb import HEADER, negative_sets, tgb_queries, write_tgb

NEEDS = "py-tgb is not installed: pip install --no-deps py-tgb clint args"
DRAWN = [
    ("ann", "works for", "acme", 3),
    ("bob", "works for", "acme", 3),
    ("ann", "works for", "bolt", 4),
    ("bob", "leads", "acme", 5),
    ("ann", "works for", "acme", 6),
    ("ann", "works for", "bolt", 6),
]
"""The times 5 and 6, steps 2 and 3, are valid and test."""


@pytest.fixture(scope="module")
def world() -> Facts:
    return mt.load("world:2000")


def test_the_answers_of_a_time_are_no_negatives() -> None:
    facts = mt.read_facts(DRAWN)
    ann, bob, acme, bolt = (facts.entities.index(n) for n in ("ann", "bob", "acme", "bolt"))
    works, leads = (facts.relations.index(n) for n in ("works for", "leads"))
    found = negative_sets(facts, (2, 3))
    named = {
        part: {key: set(x.tolist()) for key, x in sets.items()} for part, sets in found.items()
    }
    assert named["val"] == {(5, bob, leads): {acme}, (5, acme, leads + 2): {bob}}
    assert named["test"] == {
        (6, ann, works): {acme, bolt},
        (6, acme, works + 2): {ann},
        (6, bolt, works + 2): {ann},
    }


def test_a_written_dataset_is_read_again_as_it_was(world: Facts, tmp_path: Path) -> None:
    edges, _, _, entities, relations = write_tgb(world, tmp_path / "new", "tkgl-world")
    with edges.open() as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == HEADER
    names, of_relations = (
        dict(list(csv.reader(path.open(encoding="utf-8")))[1:]) for path in (entities, relations)
    )
    raw = world.calendar.origin + np.asarray(world.time, np.int64) * world.calendar.stride
    expected = [
        (str(t), world.entities[s], world.entities[o], world.relations[r])
        for s, r, o, t in zip(world.subject, world.relation, world.object, raw, strict=True)
    ]
    assert [(t, names[s], names[o], of_relations[r]) for t, s, o, r in rows] == expected
    again = mt.read_facts(edges)
    assert len(again) == len(world)
    assert np.array_equal(again.time, world.time - world.time[0])
    assert first_steps(again, TGB_SHARES)[1] == first_steps(world, TGB_SHARES)[1] - world.time[0]


def test_entities_are_numbered_as_they_appear(world: Facts, tmp_path: Path) -> None:
    """py-tgb numbers them so when it reads: only then do the negative sets speak of the same."""
    edges, *_ = write_tgb(world, tmp_path)
    with edges.open() as file:
        ends = [int(end) for row in list(csv.reader(file))[1:] for end in row[1:3]]
    assert list(dict.fromkeys(ends)) == list(range(len(set(ends))))


@pytest.mark.parametrize("name", ["recurrency", "transe"])
def test_queries_hold_what_is_ranked(world: Facts, name: str) -> None:
    """The rank counted from a query's scores is the evaluator's, also where scores are dense."""
    tasks = Extrapolation.build(world, split=TGB_SHARES).sample(300)
    model = mt.create(name)
    if name == "transe":
        from metatkgr.training.opening import open_extrapolation

        settings = {"epochs": 1, "dimension": 8}
        model = open_extrapolation(world, model=name, settings=settings, device="cpu").model
    ranks = np.zeros(len(tasks.answers))
    for query in tgb_queries(model, tasks):
        question = tasks.answers.question[query.row]
        assert query.answer == tasks.answers.answer[query.row]
        assert query.entity == tasks.questions.entity[question]
        assert query.answer not in query.negatives
        above = (query.negative_scores > query.positive_score).sum()
        level = (query.negative_scores == query.positive_score).sum()
        ranks[query.row] = 1 + above + level / 2
    assert ranks == pytest.approx(mt.evaluate(model, tasks).ranks["time"])


def test_py_tgb_takes_the_negative_sets_and_ranks_alike(world: Facts, tmp_path: Path) -> None:
    """Its sampler reads the file and gives our negatives; its own generator gives the same."""
    sampling = pytest.importorskip("tgb.linkproppred.tkg_negative_sampler", reason=NEEDS)
    from studies.tgb import agreement, sampler_of

    edges, _, sets, entities, _ = write_tgb(world, tmp_path, "tkgl-yago")
    again = mt.read_facts(edges)
    order = np.argsort([int(name) for name in again.entities.names])
    tasks = Extrapolation.build(again, split=TGB_SHARES)
    last = len(entities.read_text(encoding="utf-8").splitlines()) - 2
    assert len(again.entities) == last + 1
    sampler = sampling.TKGNegativeEdgeSampler("tkgl-yago", 0, last)
    sampler.load_eval_set(str(sets), "test")
    relations = len(again.relations)
    for query in list(tgb_queries(mt.create("recurrency"), tasks))[:200]:
        inverse, plain = divmod(query.relation, relations)
        relation = int(again.relations[plain]) + inverse * relations
        raw = again.calendar.origin + query.time * again.calendar.stride
        edge = (int(again.entities[query.entity]), int(again.entities[query.answer]), raw, relation)
        (negatives,) = sampler.query_batch(*(np.array([value]) for value in edge), "test")
        assert np.array_equal(np.sort(order[negatives]), query.negatives)
    with sets.open("rb") as file:  # by the test: the package reads no pickle
        assert pickle.load(file)
    (tmp_path / "own").mkdir()
    own = sampler_of(tasks, tmp_path / "own")
    for name in ("recurrency", "pagerank"):
        found = agreement(mt.create(name), tasks, own)
        assert found["queries"] == len(tasks.answers)
        assert found["queries_that_differ"] == found["queries_with_other_negatives"] == 0


@pytest.mark.slow
@pytest.mark.real_data
def test_every_query_of_tkgl_yago_is_ranked_as_py_tgb_ranks_it(
    real_data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tgb", reason=NEEDS)
    from studies.tgb import agreement, sampler_of

    tasks = Extrapolation.build(mt.load("YAGO"), split=TGB_SHARES)
    found = agreement(mt.create("recurrency"), tasks, sampler_of(tasks, tmp_path))
    assert found["queries"] == 56_110
    assert found["queries_that_differ"] == found["queries_with_other_negatives"] == 0
