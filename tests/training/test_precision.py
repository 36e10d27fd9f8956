"""Losses in bfloat16: a training runs, stays finite, and learns what it learns in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import metatkgr as mt
from command_line import Run
from metatkgr.errors import SettingsError
from metatkgr.training.loop import choose_precision, fast_products, train
from metatkgr.training.runs import load_config

MODELS = {
    "transe": {"dimension": 32, "epochs": 5, "patience": 0},
    "metatkgr": {"dimension": 32, "translation_epochs": 5, "epochs": 2, "batch_size": 32},
}


@pytest.fixture(scope="module")
def world() -> mt.Facts:
    return mt.simulate(facts=2000)


@pytest.mark.parametrize("model", list(MODELS))
def test_a_training_in_bfloat16_comes_near_the_one_in_float32(model: str, world: mt.Facts) -> None:
    plain, half = (
        mt.Estimator(model, device="cpu", precision=precision, **MODELS[model]).fit(world)
        for precision in ("float32", "bfloat16")
    )
    for name, value in half.model_.state_dict().items():
        assert value.dtype == torch.float32, name
        assert bool(value.isfinite().all()), name
    assert any(
        not torch.equal(value, half.model_.state_dict()[name])
        for name, value in plain.model_.state_dict().items()
    ), "bfloat16 changed nothing"
    last = plain.trace_[-1]["loss"]
    assert half.trace_[-1]["loss"] == pytest.approx(last, rel=0.03)
    assert half.evaluate().summary().mrr == pytest.approx(plain.evaluate().summary().mrr, abs=0.05)


def test_validation_is_not_computed_in_bfloat16(world: mt.Facts) -> None:
    seen = []

    def validate(model: object) -> float:
        seen.append(torch.is_autocast_enabled("cpu"))
        return 0.1

    model = mt.create("transe", {"epochs": 1, "validate_every": 1, "dimension": 8})
    from metatkgr.data.problem import Problem

    train(model, Problem.of(world), validate=validate, precision="bfloat16")  # type: ignore[arg-type]
    assert seen == [False]


def test_the_precision_is_stored_and_must_be_repeated(run: Run, tmp_path: Path) -> None:
    words = ["train", "world:2000", "--model", "transe", "--out", tmp_path, "--device", "cpu"]
    words += ["--set", "epochs=2", "--set", "dimension=8"]
    assert run(*words, "--precision", "bfloat16").code == 0
    assert load_config(tmp_path).precision == "bfloat16"
    other = run(*words, "--resume")
    assert other.code == 2
    assert "other settings" in other.err
    assert run(*words, "--precision", "bfloat16", "--resume").code == 0


def test_auto_follows_the_device_and_nonsense_is_told() -> None:
    assert choose_precision("auto") == "float32"
    assert choose_precision("auto", "cuda:0") == "tf32"
    assert choose_precision("float32", "cuda") == "float32"
    with pytest.raises(SettingsError, match="not 'half'"):
        choose_precision("half")


def test_tf32_changes_nothing_on_a_cpu_and_leaves_the_setting_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    with fast_products("tf32", torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before
    with fast_products("tf32", torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
