"""Training from Python: what is stored, what is learned, what is saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import metatkgr as mt
from command_line import Run
from metatkgr.errors import MetaTKGRError, SettingsError
from metatkgr.models.metatkgr.model import MetaTKGR as Network
from metatkgr.training.runs import load_run

SMALL = {"dimension": 8, "translation_epochs": 2, "epochs": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def world() -> mt.Facts:
    return mt.simulate(facts=2000)


@pytest.fixture(scope="module")
def fitted(world: mt.Facts) -> mt.MetaTKGR:
    return mt.MetaTKGR(shots=2, **SMALL).fit(world)


def test_the_constructor_stores_and_fit_returns_self(world: mt.Facts) -> None:
    model = mt.MetaTKGR(shots=2, variant="fine-tuning", **SMALL)
    assert (model.shots, model.settings["variant"]) == (2, "fine-tuning")
    assert not [name for name in vars(model) if name.endswith("_")]
    assert model.fit(world) is model
    assert isinstance(model.model_, Network)
    assert model.model_.settings.dimension == 8
    assert {line["phase"] for line in model.trace_} == {"translation"}
    assert isinstance(mt.create("metatkgr"), Network)


def test_fitted_means_it_scores_and_is_evaluated(fitted: mt.MetaTKGR, world: mt.Facts) -> None:
    tasks = fitted.tasks()
    assert tasks.shots == 2
    some = tasks.questions[:7]
    scores = fitted.score(some)
    assert scores.shape == (7, len(world.entities))
    found = fitted.evaluate()
    assert found.summary().mrr == mt.evaluate(fitted.model_, tasks).summary().mrr
    assert fitted.evaluate("meta-validation", shots=1).tasks.shots == 1
    assert torch.equal(fitted.score(some), scores), "an evaluation between changed the scores"


def test_a_saved_estimator_is_a_run(fitted: mt.MetaTKGR, run: Run, tmp_path: Path) -> None:
    folder = fitted.save(tmp_path / "run")
    loaded = load_run(folder)
    for name, value in fitted.model_.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value)
    assert run("evaluate", folder).code == 0
    with pytest.raises(SettingsError, match="already holds a run"):
        fitted.save(folder)


def test_python_and_the_command_line_learn_the_same(
    world: mt.Facts, run: Run, tmp_path: Path
) -> None:
    words = ("--model", "transe", "--set", "epochs=3", "--set", "dimension=8", "--device", "cpu")
    shown = run("train", "world:2000", *words, "--out", tmp_path / "line")
    assert shown.code == 0, shown.err
    model = mt.Estimator("transe", epochs=3, dimension=8, device="cpu")
    model.fit(world, folder=tmp_path / "python")
    one, two = (tmp_path / name / "model.safetensors" for name in ("line", "python"))
    assert one.read_bytes() == two.read_bytes()
    names = ("config.toml", "CARD.md", "metrics.json", "vocabulary.json")
    for name in names[:1]:
        assert (tmp_path / "line" / name).read_text() == (tmp_path / "python" / name).read_text()
    assert all((tmp_path / "python" / name).exists() for name in names)


def test_mistakes_are_told(world: mt.Facts) -> None:
    with pytest.raises(MetaTKGRError, match="has learned nothing yet"):
        mt.MetaTKGR().evaluate()
    with pytest.raises(SettingsError, match="did you mean dimension"):
        mt.MetaTKGR(dimensions=8).fit(world)
    with pytest.raises(SettingsError, match="needs no training"):
        mt.Estimator("paths").fit(world)
    with pytest.raises(SettingsError, match="no settings of transe were tuned on world"):
        mt.Estimator("transe", preset="tuned").fit(world)


def test_an_estimator_can_be_cloned_and_changed() -> None:
    sklearn = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed")
    for estimator in (
        mt.Estimator("transe", shots=1, epochs=5, seed=3),
        mt.MetaTKGR(shots="2-4", visibility="streaming", dimension=16),
    ):
        again = sklearn.clone(estimator)
        assert type(again) is type(estimator)
        assert again is not estimator
        assert again.get_params() == estimator.get_params()
        assert not hasattr(again, "model_")
        changed = again.set_params(shots=5, epochs=7)
        assert (changed.shots, changed.settings["epochs"]) == (5, 7)
        assert estimator.shots != 5
        assert estimator.settings.get("epochs") != 7
