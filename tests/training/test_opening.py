"""One way from a run, a name or facts to a model that can answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import metatkgr as mt
from metatkgr.data.facts import Facts
from metatkgr.errors import DataError, SettingsError, UnknownNameError
from metatkgr.files import write_signature
from metatkgr.training.opening import open_model
from metatkgr.training.runs import save_manifest


@pytest.fixture(scope="module")
def facts() -> Facts:
    return mt.simulate(facts=2000)


@pytest.fixture(scope="module")
def run(facts: Facts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opening") / "run"
    learner = mt.Estimator("transe", shots=2, seed=3, device="cpu", epochs=1, dimension=8)
    learner.fit(facts, folder=folder)
    return folder


def test_a_run_opens_with_its_own_protocol_unless_another_is_given(run: Path) -> None:
    opened = mt.open_model(run, device="cpu")
    assert (opened.model.name, opened.folder, opened.trained_shots) == ("transe", run, 2)
    assert opened.protocol == {"shots": 2, "visibility": "entity-split", "seed": 3}
    other = open_model(run, shots="1-3", visibility="frozen", seed=5, device="cpu")
    assert other.protocol == {"shots": "1-3", "visibility": "frozen", "seed": 5}
    assert other.trained_shots == 2


@pytest.mark.parametrize(
    "given", [{"model": "paths"}, {"settings": {"dimension": 9}}, {"reading": {"ids": True}}]
)
def test_what_a_run_has_chosen_cannot_be_chosen_again(run: Path, given: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="is a run: its model, settings and facts"):
        open_model(run, device="cpu", **given)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="its shots are chosen already"):
        mt.Forecaster.load(open_model(run, shots=1, device="cpu"))


def test_data_opens_by_name_and_by_facts_alike(facts: Facts) -> None:
    named, given = open_model("world:2000"), open_model(facts)
    for opened in (named, given):
        assert opened.protocol == {"shots": 3, "visibility": "entity-split", "seed": 0}
        assert (opened.model.name, opened.folder) == ("evidence", None)
    assert given.facts is facts
    one, two = (mt.evaluate(o.model, o.tasks()).ranks["time"] for o in (named, given))
    np.testing.assert_array_equal(one, two)


def test_a_mistake_is_told_before_the_data_is_read() -> None:
    with pytest.raises(SettingsError, match="has to be trained first: metatkgr train nowhere"):
        open_model("nowhere", model="transe")
    with pytest.raises(UnknownNameError, match="did you mean 'paths'"):
        open_model("nowhere", model="path")


def test_another_model_of_the_same_kind_answers_the_same(run: Path, facts: Facts) -> None:
    for opened in (open_model(run, device="cpu"), open_model(facts, model="recurrency")):
        again = opened.another()
        assert again is not opened.model
        tasks = opened.tasks()
        one, two = (mt.evaluate(m, tasks).ranks["static"] for m in (opened.model, again))
        np.testing.assert_array_equal(one, two)


def test_a_run_opens_with_the_key_it_was_signed_with_and_no_other(
    facts: Facts, tmp_path: Path
) -> None:
    folder, key, other = tmp_path / "run", tmp_path / "key", tmp_path / "other"
    key.write_text("k" * 40 + "\n")
    other.write_text("o" * 40)
    learner = mt.Estimator("transe", shots=2, seed=3, device="cpu", epochs=1, dimension=8)
    learner.fit(facts, folder=folder)
    with pytest.raises(DataError, match="is not signed"):
        open_model(folder, device="cpu", verify=key)
    write_signature(folder / "MANIFEST", key)
    assert open_model(folder, device="cpu", verify=key).verified
    assert not open_model(folder, device="cpu").verified
    with pytest.raises(DataError, match="was not signed with the key"):
        open_model(folder, device="cpu", verify=other)
    with pytest.raises(SettingsError, match="only a run can be verified"):
        open_model(facts, device="cpu", verify=key)
    other.write_text("short")
    with pytest.raises(DataError, match="at least 32 characters"):
        open_model(folder, device="cpu", verify=other)
    # Whoever forges a file can write down what it holds, but cannot sign that.
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("seed = 3", "seed = 4"))
    save_manifest(folder)
    assert open_model(folder, device="cpu").seed == 4
    with pytest.raises(DataError, match="or changed since"):
        open_model(folder, device="cpu", verify=key)


def test_what_lies_beside_a_signed_run_is_not_used(run: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 40)
    write_signature(run / "MANIFEST", key)
    forecaster = mt.Forecaster.load(open_model(run, device="cpu"))
    kept = forecaster.calibration  # kept in the folder now
    forged = json.loads((run / "calibration.json").read_text()) | {"scale": 0.5}
    (run / "calibration.json").write_text(json.dumps(forged))
    assert mt.Forecaster.load(open_model(run, device="cpu")).calibration.scale == 0.5
    verified = mt.Forecaster.load(open_model(run, device="cpu", verify=key))
    assert verified.calibration.scale == kept.scale
