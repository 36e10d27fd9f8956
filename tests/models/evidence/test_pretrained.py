"""Weights learned on other graphs: their file, which of them is used, and what they are worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

import metatkgr as mt
from command_line import Run
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import DataError, SettingsError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.models.evidence import pretrained
from metatkgr.models.evidence.features import FEATURES
from metatkgr.models.evidence.model import EvidenceModel
from metatkgr.models.evidence.pretrained import FILES, SHARED, Graph, Pretrained, pretrained_for
from metatkgr.models.evidence.ranker import initial_weights
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.training.estimator import configure, learn
from metatkgr.training.pretraining import SETTINGS, fit, read_graph
from references import dense

QUICK = replace(SETTINGS, train_queries=60, earlier_queries=30, support_queries=10, epochs=1)


def world(seed: int = 3) -> Facts:
    return mt.simulate(facts=2000, seed=seed)


def some_weights(*graphs: Graph) -> Pretrained:
    made = initial_weights(EvidenceSettings(), 1, torch.Generator().manual_seed(0))
    return Pretrained({name: made[name] for name in SHARED}, list(graphs), {"seed": 0})


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    saved = some_weights(Graph("a", 7, "f"))
    saved.save(path)
    found = Pretrained.read(path)
    assert found.graphs == [Graph("a", 7, "f")]
    assert found.settings == {"seed": 0}
    assert all(torch.equal(found.weights[name], saved.weights[name]) for name in SHARED)


@pytest.mark.parametrize("fault", ["cut", "noise", "shape", "nan", "zero", "features", "missing"])
def test_a_file_that_is_none_is_refused(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    good = some_weights(Graph("a", 7, "f"))
    good.save(path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    weights = load(content)
    if fault == "shape":
        weights["bias"] = weights["bias"][:, 1:].contiguous()
    elif fault == "nan":
        weights["shared"][0, 0] = torch.nan
    elif fault == "zero":
        weights["deviation"][3] = 0
    elif fault == "missing":
        del weights["outer"]
    elif fault == "features":
        about = json.loads(metadata["about"])
        metadata["about"] = json.dumps(about | {"features": [*FEATURES[1:], "other"]})
    path.write_bytes(save(weights, metadata))
    if fault in ("cut", "noise"):
        path.write_bytes(content[:-9] if fault == "cut" else b"nothing of the kind")
    with pytest.raises(DataError, match=r"w\.safetensors"):
        Pretrained.read(path)


def test_weights_that_know_the_facts_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = world()
    seen, other = Graph.of(facts), Graph("other", len(facts), "0" * 64)
    some_weights(seen, other).save(tmp_path / "all.safetensors")
    some_weights(other).save(tmp_path / "without.safetensors")
    monkeypatch.setattr(pretrained, "FILES", tmp_path)
    pretrained._shipped.cache_clear()
    try:
        assert pretrained_for("pretrained", facts).graphs == [other]
        assert len(pretrained_for("pretrained", world(4)).graphs) == 2
        (tmp_path / "without.safetensors").unlink()
        pretrained._shipped.cache_clear()
        with pytest.raises(DataError, match="start=none"):
            pretrained_for("pretrained", facts)
    finally:
        pretrained._shipped.cache_clear()


def test_the_package_has_small_files_that_leave_out_each_published_dataset() -> None:
    files = sorted(FILES.glob("*.safetensors"))
    assert sum(path.stat().st_size for path in files) < 300_000
    named = {path.stem: {graph.name for graph in Pretrained.read(path).graphs} for path in files}
    for dataset in ("YAGO", "WIKI", "ICEWS18", "ICEWS14"):
        assert dataset in named["all"]
        assert named[f"without-{dataset.lower()}"] == named["all"] - {dataset}


def test_it_forecasts_a_graph_it_has_not_seen_better_than_the_rules() -> None:
    tasks = Tasks.build(mt.simulate(facts=5000, seed=77), shots=2, split="meta-validation")
    few = tasks.sample(400, seed=0)
    model = mt.open_model(tasks.facts, device="cpu").model
    assert model.name == "evidence"
    mrr = {
        name: evaluate(one, few).summary(resamples=0).mrr
        for name, one in {
            "evidence": model,
            **{rule: mt.create(rule) for rule in ("recurrency", "paths", "pagerank")},
        }.items()
    }
    assert max(mrr, key=lambda name: mrr[name] or 0) == "evidence", mrr


def test_a_training_starts_from_them() -> None:
    facts = world()
    model = EvidenceModel(EvidenceSettings(epochs=0))
    learn(model, facts, configure(model, facts))
    wanted = pretrained_for("pretrained", facts).weights
    assert all(
        torch.equal(model.evidence.state_dict()[name], value) for name, value in wanted.items()
    )
    none = EvidenceModel(EvidenceSettings(start="none", epochs=0))
    learn(none, facts, configure(none, facts))
    assert not torch.equal(none.evidence.shared, model.evidence.shared)


def test_other_sizes_need_another_start() -> None:
    with pytest.raises(SettingsError, match="start=none"):
        EvidenceModel(EvidenceSettings(hidden=8)).load_pretrained(world())


def test_a_model_without_such_weights_says_so() -> None:
    model = mt.create("transe")
    with pytest.raises(SettingsError, match="has to be trained"):
        model.load_pretrained(world())  # type: ignore[attr-defined]


def test_relations_that_came_later_are_answered_like_any_other() -> None:
    facts = world()
    model = EvidenceModel()
    model.load_pretrained(facts)
    tasks = Tasks.build(facts, shots=2)
    asked = tasks.questions[np.arange(20)]
    before = dense(model.prepare(tasks.visible).adapt(tasks.supports), asked)
    more = replace(facts, relations=Vocabulary([*facts.relations.names, "new", "newer"]))
    base = len(facts.relations)

    def moved(relation: np.ndarray) -> np.ndarray:
        return np.where(relation >= base, relation + 2, relation)

    visible = VisibleFacts.of(more, tasks.visible.public)
    supports = replace(tasks.supports, relation=moved(tasks.supports.relation))
    asked = replace(asked, relation=moved(asked.relation))
    after = dense(model.prepare(visible).adapt(supports), asked)
    torch.testing.assert_close(after, before)
    unseen = replace(asked, relation=np.full(len(asked), base))
    assert torch.isfinite(dense(model, unseen)).all()


def test_what_is_learned_does_not_hang_on_queries_to_come() -> None:
    facts = world()
    public = Problem.of(facts, shots=3).known.public
    assert public is not None
    hidden = np.flatnonzero(~public)
    assert len(hidden) > 100
    relation = facts.relation.copy()
    relation[hidden] = (relation[hidden] + 1) % len(facts.relations)
    read = [
        read_graph(graph, QUICK, shots=(3,)).examples
        for graph in (facts, replace(facts, relation=relation))
    ]
    assert all(torch.equal(one, other) for one, other in zip(*read, strict=True))


def test_the_same_seed_gives_the_same_weights_and_every_graph_counts() -> None:
    graphs = [read_graph(world(seed), QUICK, shots=(1, 3)) for seed in (1, 2)]
    one, other = (fit(graphs, QUICK, seed=5) for _ in range(2))
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in SHARED)
    assert [graph.name for graph in one.graphs] == [graph.graph.name for graph in graphs]
    alone = fit(graphs[:1], QUICK, seed=5)
    assert not torch.equal(alone.weights["shared"], one.weights["shared"])


def test_test_graphs_are_not_learned_from() -> None:
    with pytest.raises(DataError, match="set aside"):
        read_graph(replace(world(), name="test-rulers"))


def test_the_command_writes_a_file_that_train_and_evaluate_take(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    shown = run(
        "pretrain",
        "world:1500:1",
        "world:social:1500",
        "--shots",
        "1,2",
        "--epochs",
        1,
        "--device",
        "cpu",
        "--out",
        file,
    )
    assert shown.code == 0, shown.err
    assert all(graph.facts > 1000 for graph in Pretrained.read(file).graphs)
    words = ("--device", "cpu", "--split", "meta-validation", "--json", "-")
    found = run("evaluate", "world:1500:2", "--set", f"start={file}", *words)
    assert found.code == 0, found.err
    trained = run(
        "train", "world:1500:2", "--from", file, "--set", "epochs=1", "--out", tmp_path / "run"
    )
    assert trained.code == 0, trained.err
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())
