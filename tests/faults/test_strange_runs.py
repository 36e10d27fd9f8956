"""A run folder from anyone loads without executing anything, or is refused."""

from __future__ import annotations

import os
import pickle
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import metatkgr.training.checkpoint as tensor_files
from local_service import Command
from metatkgr.cli.serve import _quality_of
from metatkgr.data.world import simulate
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.files import write_json
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.store import FactStore
from metatkgr.models import available, create
from metatkgr.models.base import TrainableModel
from metatkgr.serving.quality import Quality
from metatkgr.training.checkpoint import expected_state
from metatkgr.training.estimator import configure
from metatkgr.training.opening import open_model
from metatkgr.training.runs import load_run, save_graph, save_manifest, save_model

FACTS = simulate(facts=400, seed=1)
FILES = ("config.toml", "model.safetensors", "graph.safetensors", "vocabulary.json")


@contextmanager
def no_memory_beyond(size: int) -> Iterator[None]:
    """Within it, this process gets no more than ``size`` bytes besides those it has."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Payload:
    """Would make a file when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


def made(folder: Path, **settings: object) -> Path:
    model = create("transe", {"dimension": 4, **settings})
    assert isinstance(model, TrainableModel)
    model.build(len(FACTS.entities), len(FACTS.relations), torch.Generator().manual_seed(0))
    save_graph(folder, configure(model, FACTS), FACTS)
    save_model(folder, model)
    return folder


def test_the_payload_would_work(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


def test_a_folder_full_of_code_runs_none_of_it(tmp_path: Path) -> None:
    mark, folder = tmp_path / "mark", made(tmp_path / "run")
    bad = pickle.dumps(Payload(mark))
    python = f"import os; os.system(\"touch '{mark}'\")\n"
    others = ("model.pt", "model.pkl", "checkpoint.pt", "pytorch_model.bin", "calibration.pkl")
    for name in others:
        (folder / name).write_bytes(bad)
    for name in ("__init__.py", "model.py", "conftest.py", "sitecustomize.py", "metatkgr.py"):
        (folder / name).write_text(python)
    before = os.getcwd()
    os.chdir(folder)
    try:
        forecaster = Forecaster.load(".", device="cpu")
        assert forecaster.predict(FACTS.entities[0], FACTS.relations[0]).forecasts
    finally:
        os.chdir(before)
    assert not mark.exists()


@pytest.mark.parametrize("name", [*FILES, "calibration.json", "checkpoint.safetensors"])
def test_a_file_that_is_really_a_pickle_is_refused(tmp_path: Path, name: str) -> None:
    mark, folder = tmp_path / "mark", made(tmp_path / "run")
    for data in (pickle.dumps(Payload(mark)), pickle.dumps(Payload(mark), 0)):
        (folder / name).write_bytes(data)
        save_manifest(folder)  # whoever forges a file can write down what it holds
        if name == "checkpoint.safetensors":
            with pytest.raises(DataError):
                tensor_files.read_tensors(folder / name)
        else:
            with pytest.raises(MetaTKGRError):
                Forecaster.load(folder, device="cpu")
    torch.save({"entity": Payload(mark)}, folder / "model.safetensors")
    save_manifest(folder)
    with pytest.raises(MetaTKGRError):
        load_run(folder)
    assert not mark.exists()


def test_names_and_paths_in_a_run_lead_nowhere(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    config = folder / "config.toml"
    text = config.read_text()
    for name in ("os.system", "../../x", "/etc/passwd", "metatkgr.models.base"):
        config.write_text(text.replace('model = "transe"', f'model = "{name}"'))
        save_manifest(folder)
        with pytest.raises(MetaTKGRError, match="unknown model"):
            load_run(folder)
    config.write_text(text.replace('dataset = "', 'dataset = "../../../etc/passwd'))
    save_manifest(folder)
    assert load_run(folder).facts.name == FACTS.name


def test_a_setting_that_is_gone_is_told_with_its_file(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("dimension = 4", "dimensions = 4"))
    save_manifest(folder)
    with pytest.raises(DataError, match=r"config\.toml: .*'dimensions'.* train again"):
        load_run(folder)


def test_settings_that_ask_for_all_the_memory_are_refused_before_it_is_taken(
    tmp_path: Path,
) -> None:
    folder = made(tmp_path / "run")
    config = folder / "config.toml"
    text = config.read_text()
    for dimension, told in (
        (10**6, "another model, setting or graph"),
        (10**18, "must be at most"),
    ):
        config.write_text(text.replace("dimension = 4", f"dimension = {dimension}"))
        save_manifest(folder)
        with pytest.raises(DataError, match=told):
            load_run(folder)
    model = create("transe")
    assert isinstance(model, TrainableModel)
    with pytest.raises(DataError, match="such settings"):
        expected_state(model, 10**18, 4)


@pytest.mark.parametrize("name", FILES)
def test_pipes_and_devices_are_not_read(tmp_path: Path, name: str) -> None:
    folder = made(tmp_path / "run")
    for place in (lambda path: os.mkfifo(path), lambda path: path.symlink_to("/dev/zero")):
        (folder / name).unlink()
        place(folder / name)
        with pytest.raises(DataError):
            load_run(folder)


def test_what_a_run_says_about_its_own_quality_is_not_shown(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")

    def opened() -> Quality:
        return _quality_of(open_model(folder, device="cpu"), tmp_path, 0)

    quality = opened()
    report = {"status": "ready", "models": [{"name": "transe", "mrr": 0.999}]}
    write_json(folder / "quality.json", {"key": quality._key(), "report": report})
    assert opened()._kept() is None


@pytest.mark.parametrize("kind", ["pipe", "device", "brackets", "list", "bytes"])
def test_a_strange_file_of_qualities_is_measured_anew_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "quality.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes({"brackets": b"[" * 10**6, "list": b"[1]", "bytes": b"\xff"}[kind])
    told: list[object] = []
    quality = Quality({}, FACTS, cache=path)
    # In a thread: a pipe that is waited for would be waited for by the tests.
    with no_memory_beyond(1 << 30):
        asker = threading.Thread(target=lambda: told.append(quality._kept()), daemon=True)
        asker.start()
        asker.join(timeout=10)
    assert told == [None]


def test_a_service_keeps_facts_outside_the_folder_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "mine"))
    opened = open_model(made(tmp_path / "run"), device="cpu")
    assert opened.store.parent == tmp_path / "mine" / "metatkgr" / "observed"
    assert opened.store.parent.stat().st_mode & 0o077 == 0
    assert opened.store == open_model(FACTS, device="cpu").store
    assert opened.store != open_model(simulate(facts=400, seed=2), device="cpu").store
    grows = tmp_path / "facts.csv"
    grows.write_text("a,r,b,2016-01-04\n")
    before = open_model(grows, device="cpu").store
    grows.write_text("a,r,b,2016-01-04\na,r,c,2016-01-05\n")
    assert open_model(grows, device="cpu").store == before
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert opened.store.is_relative_to(tmp_path / "home" / ".local" / "share")
    monkeypatch.setenv("HOME", "/dev/null")
    with pytest.raises(DataError, match="XDG_DATA_HOME"):
        _ = opened.store
    assert opened.quality_file is None


def test_a_store_planted_in_a_run_is_named_and_not_opened(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    with FactStore(folder / "observed.sqlite") as planted:
        planted.add([(FACTS.entities[0], FACTS.relations[0], "Planted", "2016-02-01")])
    with Command(folder, "--no-quality", folder=tmp_path) as service:
        assert "0 observed facts in sqlite:" in service.said
        assert f"are in {folder / 'observed.sqlite'}: --store opens it." in service.said


def test_going_on_does_not_write_through_a_link(tmp_path: Path) -> None:
    from metatkgr.training.checkpoint import Trace

    other = tmp_path / "precious"
    other.write_text("mine")
    (tmp_path / "trace.jsonl").symlink_to(other)
    Trace(tmp_path / "trace.jsonl").write({"epoch": 1})
    assert other.read_text() == "mine"


@pytest.mark.parametrize("name", sorted(available()))
def test_the_expected_shapes_are_those_of_the_weights(name: str) -> None:
    model = create(name)
    if not isinstance(model, TrainableModel):
        pytest.skip("it has no weights")
    expected = expected_state(model, 30, 4)
    model.build(30, 4, torch.Generator().manual_seed(0))
    found = model.state_dict()
    assert {key: (w.shape, w.dtype) for key, w in found.items()} == {
        key: (w.shape, w.dtype) for key, w in expected.items()
    }
