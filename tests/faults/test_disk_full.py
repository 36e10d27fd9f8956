"""No space left: one sentence, and what was there before is whole."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from metatkgr.data.index_writer import links_on_disk
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.files import write_json
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.store import FactStore, StoreError
from metatkgr.models.registry import trainable
from metatkgr.training.checkpoint import Position, Trace, load_checkpoint, save_checkpoint
from metatkgr.training.estimator import configure, learn


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Within it, the system lets this process write no file beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def checkpoint(path: Path, step: int) -> None:
    weight = torch.nn.Parameter(torch.zeros(2000, 4))
    state = {"entity": weight.detach()}
    optimiser = torch.optim.Adam([weight])
    save_checkpoint(path, Position(step=step), state, state, optimiser, torch.Generator())


def test_a_checkpoint_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint(path, 1)
    with no_file_beyond(10_000), pytest.raises(DataError, match="cannot write"):
        checkpoint(path, 2)
    assert load_checkpoint(path)[0].step == 1
    assert os.listdir(tmp_path) == [path.name]


def test_a_result_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_json(path, {"mrr": 0.5})
    with no_file_beyond(1000), pytest.raises(DataError, match="cannot write"):
        write_json(path, {"mrr": ["0.5"] * 1000})
    assert path.read_text() == '{\n  "mrr": 0.5\n}\n'
    assert os.listdir(tmp_path) == [path.name]


def test_a_line_of_the_trace_that_does_not_fit_is_told(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.jsonl")
    trace.write({"epoch": 1})
    with no_file_beyond(30), pytest.raises(DataError, match="cannot write"):
        trace.write({"epoch": 2, "loss": "x" * 100})
    assert (tmp_path / "trace.jsonl").read_text().startswith('{"epoch": 1}\n')


def test_a_training_on_a_full_disk_says_so_and_can_be_gone_on_with(tmp_path: Path) -> None:
    facts = simulate(facts=2000, seed=1)

    def fit(folder: Path) -> dict[str, torch.Tensor]:
        model = trainable("transe", {"dimension": 128, "epochs": 3, "patience": 0})
        config = configure(model, facts, shots=2)
        learn(model, facts, config, folder=folder, resume=folder.exists())
        return model.state_dict()

    folder = tmp_path / "run"
    with no_file_beyond(100_000), pytest.raises(MetaTKGRError, match="cannot write"):
        fit(folder)
    whole, resumed = fit(tmp_path / "whole"), fit(folder)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_store_on_a_full_disk_refuses_and_keeps_what_it_had(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite"
    with FactStore(path) as store:
        store.add([("Ann", "knows", "Bob", "1")])
        many = [(f"{'x' * 400} {number}", "knows", "Bob", "1") for number in range(2000)]
        with no_file_beyond(200_000), pytest.raises(StoreError):
            store.add(many)
        assert [row.fact.subject for row in store.since()] == ["Ann"]
        assert store.add(many).accepted == len(many)
    with FactStore(path) as again:
        assert len(again) == 1 + len(many)


def test_a_calibration_that_cannot_be_kept_does_not_stop_a_forecast(tmp_path: Path) -> None:
    from metatkgr.forecasting.calibration import KeptCalibration
    from metatkgr.models import create

    place = tmp_path / "calibration.json"
    facts = simulate(facts=1500, seed=1)
    forecaster = Forecaster(create("recurrency"), facts, kept=KeptCalibration(place, ""))
    with no_file_beyond(10):
        assert forecaster.predict(facts.entities[0], facts.relations[0]).forecasts
    assert not place.exists()
    Calibration().save(place)
    assert Calibration.load(place) == Calibration()


def test_an_index_that_a_training_cannot_write_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    facts = simulate(facts=3000, seed=1)
    visible = VisibleFacts.of(facts)
    with no_file_beyond(1000), pytest.raises(DataError, match=r"cannot write an index of 6,000 .*"):
        links_on_disk(visible)
    assert os.listdir(tmp_path / "temporary") == []
    assert links_on_disk(visible) is not None
