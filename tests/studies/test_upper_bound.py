"""Ceilings: what is visible of novel answers, and weights fitted on them."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from metatkgr.data.answers import novel_answers
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Tasks
from metatkgr.data.world import simulate
from metatkgr.errors import DataError
from metatkgr.experiments.results import Results
from metatkgr.models.evidence.features import FEATURES
from metatkgr.models.evidence.ranker import Ranker, initial_weights
from metatkgr.models.evidence.settings import EvidenceSettings
from studies.upper_bound import measure
from studies.upper_bound.fit import halves, judged, ranks_by, rule_ranks
from studies.upper_bound.measure import WARNING, main, upper_bound
from studies.upper_bound.queries import Novel, NovelEvidence, draw_novel, read_evidence
from studies.upper_bound.tables import read_upper_bounds, tables

ROOT = Path(__file__).parent.parent.parent
FEW = EvidenceSettings(recent=2, near=6, frequent=2, hidden=4, members=2, start="none")
FACTS = simulate(facts=2500, seed=3)


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    return Tasks.build(FACTS, shots=2)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem.of(FACTS, shots=2)


@pytest.fixture(scope="module")
def novel(tasks: Tasks) -> Novel:
    return draw_novel(tasks, 10_000)


@pytest.fixture(scope="module")
def evidence(tasks: Tasks, problem: Problem, novel: Novel) -> NovelEvidence:
    return read_evidence(tasks, problem, novel, FEW, torch.device("cpu"))


def links_of(novel: Novel) -> list[tuple[int, int, int]]:
    queries = novel.queries
    columns = (queries.entity, queries.relation, novel.answer)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_three_questions_of_a_link_stand_for_all_of_them(tasks: Tasks, novel: Novel) -> None:
    new = novel_answers(tasks)
    whole = tasks.questions[tasks.answers.question[new]]
    answer = tasks.answers.answer[new]
    columns = (whole.entity.tolist(), whole.relation.tolist(), answer.tolist())
    expected = Counter(zip(*columns, strict=True))
    drawn = Counter(links_of(novel))
    assert drawn == {link: min(count, 3) for link, count in expected.items()}
    stands_for: Counter[tuple[int, int, int]] = Counter()
    for link, weight in zip(links_of(novel), novel.weight.tolist(), strict=True):
        stands_for[link] += weight
    assert all(np.isclose(stands_for[link], count) for link, count in expected.items())
    assert novel.share == new.mean()

    fewer = draw_novel(tasks, 20)
    assert len(fewer.answer) == 20
    assert max(Counter(links_of(fewer)).values()) <= 3


def test_paths_and_places_are_those_of_a_search_by_hand(
    tasks: Tasks, novel: Novel, evidence: NovelEvidence
) -> None:
    visible, queries = tasks.visible, novel.queries
    facts = list(zip(visible.source, visible.relation, visible.target, visible.time, strict=True))
    for row in range(0, len(novel.answer), 7):
        e, r, t = (int(c[row]) for c in (queries.entity, queries.relation, queries.time))
        x = int(novel.answer[row])
        before = [fact for fact in facts if fact[3] < t]
        own = tasks.supports.of(e)
        neighbours: dict[int, set[int]] = {}
        for source, _, target, _ in before:
            neighbours.setdefault(int(source), set()).add(int(target))
        reached = {e}
        at = neighbours.get(e, set()) | set(own.other.tolist())
        for steps in (1, 2, 3):
            reached = reached | at
            assert evidence.pointed[f"path{steps}"][row] == (x in reached), (row, steps)
            at = set().union(*(neighbours.get(y, set()) for y in at))
        stood = any(relation == r and target == x for _, relation, target, _ in before)
        assert evidence.pointed["place"][row] == stood
        known = any(target == x for _, _, target, _ in before) or x in own.other.tolist()
        assert evidence.pointed["seen"][row] == known


def test_counted_candidates_are_neither_other_true_answers_nor_counted_twice(
    novel: Novel, evidence: NovelEvidence
) -> None:
    assert evidence.mask[:, 0].all()
    assert 0 < evidence.reached.float().mean() < 1
    assert evidence.mask.sum(1).max() <= 1 + FEW.recent + FEW.near + FEW.near // 2 + FEW.frequent
    # An answer that was found is not its own rival.
    weights = initial_weights(FEW, 2 * len(FACTS.relations), torch.Generator().manual_seed(0))
    same = Ranker({name: torch.zeros_like(value) for name, value in weights.items()})
    same.deviation.fill_(1.0)
    rows = np.arange(len(novel.answer))
    ranks = ranks_by(same, evidence, rows, 0.0)
    others = evidence.mask.sum(1).numpy() - 1
    expected = np.where(evidence.reached.numpy(), 1 + others / 2, 1 + others)
    assert np.array_equal(ranks, expected)
    assert (rule_ranks(evidence, rows) >= 1).all()


def test_vectors_are_learned_first_where_they_are_evidence(
    tasks: Tasks, problem: Problem, novel: Novel, evidence: NovelEvidence
) -> None:
    column = FEATURES.index("similar")
    assert not evidence.features[..., column].any()
    some = dataclasses.replace(FEW, dimension=4, translation_epochs=2)
    found = read_evidence(tasks, problem, novel, some, torch.device("cpu"))
    similar = found.features[..., column]
    assert (similar[found.mask] <= 0).all()
    random = dataclasses.replace(some, translation_rate=1e-9)
    start = read_evidence(tasks, problem, novel, random, torch.device("cpu"))
    # What was learned puts the answers, the first candidates, higher than chance does.
    assert similar[:, 0].mean() > start.features[:, 0, column].mean()


def test_halves_share_no_entity(evidence: NovelEvidence) -> None:
    one, other = halves(evidence, np.arange(len(evidence.entity)))
    assert not set(evidence.entity[one]) & set(evidence.entity[other])
    assert len(one) + len(other) == len(evidence.entity)


def test_metrics_weigh_each_query_by_what_it_stands_for(evidence: NovelEvidence) -> None:
    two = dataclasses.replace(evidence, entity=np.array([4, 9]), weight=np.array([3.0, 1.0]))
    found = judged(np.array([1.0, 20.0]), two, np.arange(2), 0.5)
    assert found["novel"]["mrr"]["value"] == round((3 + 1 / 20) / 4, 4)
    assert found["novel"]["hits@10"]["value"] == 0.75
    assert found["all"]["hits@10"] == 0.875
    low, high = found["novel"]["hits@10"]["ci95"]
    assert low == 0.0
    assert high == 1.0


def test_an_upper_bound_is_marked_as_such_and_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "MARKS", (4, 8))
    monkeypatch.setattr(
        measure,
        "EvidenceSettings",
        lambda dimension: dataclasses.replace(FEW, dimension=dimension),
    )
    out = tmp_path / "world.json"
    arguments = ["world:2500:3", "--shots", "2", "--questions", "60"]
    told = main([*arguments, "--quarter", "--out", str(out)])
    assert WARNING.upper() in told
    found = json.loads(out.read_text())
    assert found["warning"] == WARNING
    assert found["questions"] == 60
    share = {kind: value["share"] for kind, value in found["pointed_at"].items()}
    assert share["path1"] <= share["path2"] <= share["path3"] <= share["path12"] <= 1
    assert share["first10"] <= share["first50"] <= share["place"] <= share["seen"]
    for told_of in found["pointed_at"].values():
        assert told_of["bound"] >= 1 - found["novel_share"]
    assert len(found["fits"]) == 12  # two kinds of weights, two priors, three ways to judge
    with pytest.raises(DataError, match="there is no result"):
        Results.read(tmp_path)
    (one,) = read_upper_bounds(tmp_path)
    assert "| | world, 2-shot |" in tables([one])
    assert "| wanted | – |" in tables([one])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(DataError, match="holds no upper bound"):
        read_upper_bounds(tmp_path)


def test_fits_judged_on_the_same_questions_are_the_higher_ones(
    tasks: Tasks, problem: Problem
) -> None:
    found = upper_bound(tasks, problem, questions=60, marks=(60,), settings=FEW)
    value = {
        (fit["weights"], fit["prior"], fit["fitted_on"]): fit["novel"]["mrr"]["value"]
        for fit in found["fits"]
    }
    for kind in ("linear", "hidden"):
        assert value[kind, 0.0, "all"] > value[kind, 0.0, "half of the entities"]


def test_the_log_tells_the_upper_bounds_that_were_measured() -> None:
    log = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert tables(read_upper_bounds(ROOT / "results" / "ceilings")) in log
