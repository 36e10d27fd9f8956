"""Grids, searches and evaluations on Ray, and what happens when a node dies."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import metatkgr as mt
from command_line import Run
from metatkgr.data.folder import FactFolder
from metatkgr.data.frames import to_pandas
from metatkgr.data.ingest import append, ingest
from metatkgr.errors import DataError, SettingsError
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.records import Record
from metatkgr.experiments.results import read_records
from metatkgr.experiments.runner import LOG, record_path, run_grid, work_through
from metatkgr.forecasting.newcomers import NodeForecasts
from metatkgr.forecasting.ranking import Question
from metatkgr.models.base import Part
from metatkgr.models.evidence.model import EvidenceModel
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.training.cluster import LOCAL, Connection, connected, evaluate_on
from metatkgr.training.distributed import answer_rows, join_shards, shard_rows
from metatkgr.training.estimator import configure, learn
from metatkgr.training.tuning import Search, tune

# One after another: "auto" finds the cluster that a test beside this one has started.
pytestmark = pytest.mark.xdist_group("ray")

ROOT = Path(__file__).parent.parent.parent
WORLD = "world:3000:1"
LONG = (("dimension", "16"), ("epochs", "80"), ("patience", "0"))


def until(condition: Callable[[], Any], seconds: float = 300) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited for {seconds} s")


def parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


@pytest.fixture
def nodes() -> Iterator[tuple[str, list[Any], Callable[[Any], None]]]:
    """The address of a cluster with two nodes of one CPU each, the nodes, and what kills one."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'metatkgr[cluster]'")
    from ray.cluster_utils import Cluster

    quickly = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000}
    quickly |= {"health_check_timeout_ms": 10_000, "health_check_failure_threshold": 3}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": quickly}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        workers = [cluster.add_node(num_cpus=1, wait=False) for _ in range(2)]
        yield cluster.address, workers, lambda n: cluster.remove_node(n, allow_graceful=False)
    finally:
        cluster.shutdown()


@pytest.mark.skipif(sys.platform != "linux", reason="finds a node's process in /proc")
def test_a_node_dies_and_every_cell_is_computed_once(nodes: Any, tmp_path: Path) -> None:
    address, workers, kill = nodes
    long = Cell(WORLD, "transe", 3, settings=LONG)
    cells = [long, *(Cell(WORLD, rule, k) for k in (1, 2, 3) for rule in ("recurrency", "paths"))]
    lease = tmp_path / "leases" / long.name / "0"
    checkpoint = tmp_path / "work" / long.name / "checkpoint.safetensors"
    said: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        where = {"cluster": address, "device": "cpu"}
        grid = pool.submit(run_grid, tmp_path, cells, say=said.append, **where)
        until(lambda: checkpoint.exists() or grid.done())
        assert not grid.done(), said
        worker = json.loads(lease.read_text())["pid"]
        owner = parent(worker)
        (unlucky,) = (n for n in workers if n.all_processes["raylet"][0].process.pid == owner)
        # A machine that dies takes its processes along at once. Here Ray's node alone dies, and
        # what it had begun lives on until it notices: long enough to finish.
        os.kill(worker, signal.SIGSTOP)
        kill(unlucky)
        os.kill(worker, signal.SIGKILL)
        assert not record_path(tmp_path, long).exists(), "killed too late to tell anything"
        grid.result(timeout=300)
    assert len(read_records(tmp_path / "cells")) == len(cells)
    log = (tmp_path / LOG).read_text().splitlines()
    done = Counter(line.split()[5].rstrip(":") for line in log if line.split()[4] == "done")
    assert done == Counter(cell.name for cell in cells)
    assert [text.split()[1].rstrip(":") for text in said if text.startswith("lost")] == [long.name]
    # What the dead node had learned was gone on with, to the result of an undisturbed training.
    work_through(tmp_path / "alone", [long], say=said.append)
    resumed, whole = (Record.read(record_path(o, long)) for o in (tmp_path, tmp_path / "alone"))
    assert resumed.result["metrics"] == whole.result["metrics"]
    assert resumed.training["epochs"] == 80


def test_two_nodes_forecast_for_all_newcomers_as_one_process(
    nodes: Any, run: Run, tmp_path: Path
) -> None:
    data = tmp_path / "events"
    assert run("data", "simulate", "--facts", 3000, "--out", tmp_path / "e.csv").code == 0
    assert run("data", "ingest", tmp_path / "e.csv", "--out", data).code == 0
    words = ("predict", data, "--newcomers", "--since", "104w", "--top", 3, "--device", "cpu")
    alone, shared = tmp_path / "alone.csv", tmp_path / "shared.csv"
    assert run(*words, "--out", alone).code == 0
    shown = run(*words, "--out", shared, "--cluster", nodes[0])
    assert shown.code == 0, shown.err
    assert alone.read_bytes() == shared.read_bytes()
    assert len(alone.read_text().splitlines()) > 3 * 64, "one piece of work shares nothing out"


def test_two_nodes_read_the_examples_of_evidence_as_one_process(
    nodes: Any, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", WORLD, "--set", "epochs=2", "--device", "cpu")
    assert run(*words, "--out", tmp_path / "alone").code == 0
    pieces: list[Any] = []
    share_out = Connection.map

    def counted(self: Connection, function: Any, some: Any) -> Iterator[Any]:
        pieces.extend(some)
        return share_out(self, function, some)

    monkeypatch.setattr(Connection, "map", counted)
    shown = run(*words, "--out", tmp_path / "shared", "--cluster", nodes[0])
    assert shown.code == 0, shown.err
    alone, shared = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("alone", "shared")
    )
    assert alone == shared
    assert len(pieces) > 2


@pytest.mark.parametrize("dimension", [0, 4])
def test_what_reads_examples_travels(dimension: int) -> None:
    facts = mt.simulate(facts=2000)

    def sent(function: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterator[Any]:
        for piece in pieces:
            yield pickle.loads(pickle.dumps(function))(piece)

    weights = []
    for share_out in (map, sent):
        model = EvidenceModel(EvidenceSettings(epochs=1, dimension=dimension, train_queries=300))
        model.share_out = share_out
        learn(model, facts, configure(model, facts))
        weights.append(model.state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_other_models_say_how_they_are_trained_by_several(run: Run, tmp_path: Path) -> None:
    shown = run("train", WORLD, "--model", "transe", "--cluster", LOCAL, "--out", tmp_path / "r")
    assert shown.code == 2
    assert "torchrun" in shown.err


def test_a_node_that_sees_other_facts_is_told(tmp_path: Path) -> None:
    facts = mt.simulate(facts=2000)
    calibration = mt.Forecaster.of(facts, "recurrency").calibration
    opening = partial(mt.open_model, "world:2000:2", model="recurrency")
    size = (len(facts), len(facts.entities), int(facts.time[-1]))
    with pytest.raises(DataError, match="all nodes must share it"):
        NodeForecasts(opening, calibration, size, "cpu", Question(""))([0])
    opening = partial(mt.open_model, str(tmp_path / "gone"), model="recurrency")
    with pytest.raises(DataError, match=f"the node .*{tmp_path.name}"):
        NodeForecasts(opening, calibration, size, "cpu", Question(""))([0])


@pytest.mark.slow
def test_the_pieces_of_a_node_that_dies_are_computed_by_another(nodes: Any) -> None:
    address, workers, kill = nodes

    def squared(number: int) -> int:
        time.sleep(0.5)
        return number * number

    with connected(address, device="cpu") as cluster:
        until(lambda: cluster.ray.cluster_resources().get("CPU", 0) >= 2)
        found = []
        for result in replace(cluster, slots=2).map(squared, range(12)):
            found.append(result)
            if len(found) == 3:
                kill(workers[0])
    assert found == [number * number for number in range(12)]


@pytest.mark.slow
def test_the_documented_commands_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'metatkgr[cluster]'")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```shell\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert {line.split()[1] for line in commands} == {
        "reproduce",
        "evaluate",
        "tune",
        "predict",
        "train",
    }
    for command in commands:
        shown = run(*shlex.split(command)[1:])
        assert shown.code == 0, f"{command}\n{shown.err}"
    assert len(read_records(tmp_path / "runs" / "ray" / "cells")) == 2


@pytest.mark.slow
def test_a_run_is_evaluated_on_ray_as_anywhere(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'metatkgr[cluster]'")
    trained = run("train", WORLD, "--model", "transe", "--set", "epochs=2", "--out", tmp_path / "r")
    assert trained.code == 0, trained.err
    alone = run("evaluate", tmp_path / "r", "--json", "-")
    shared = run("evaluate", tmp_path / "r", "--cluster", LOCAL, "--json", "-")
    assert shared.code == 0, shared.err
    found = [json.loads(shown.out) | {"seconds": None} for shown in (alone, shared)]
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_search_on_ray_is_a_search(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'metatkgr[cluster]'")
    search = Search(
        "transe",
        f"sqlite:///{tmp_path / 'study.db'}",
        trials=4,
        fixed={"epochs": 3, "dimension": 8, "validate_every": 1},
        device="cpu",
    )
    told: list[int] = []
    facts = mt.simulate(facts=2000)
    found = tune(
        search, facts, workers=2, cluster=LOCAL, progress=lambda trial: told.append(trial.number)
    )
    assert found["trials"]["complete"] + found["trials"]["pruned"] >= 4
    assert sorted(told) == [trial["trial"] for trial in found["all"]]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_parts_of_an_evaluation_are_the_evaluation(count: int) -> None:
    facts = mt.simulate(facts=2000)
    tasks = mt.Tasks.build(facts, shots=2, split="meta-validation")
    model = mt.create("paths")
    whole = mt.evaluate(model, tasks)
    rows = [shard_rows(tasks, Part(number, count)) for number in range(count)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(tasks.questions)))
    sizes = [len(some) for some in rows]
    assert max(sizes) <= 2 * len(tasks.questions) / count
    for some in rows:
        asked = tasks.answers.question[answer_rows(tasks, some)]
        assert set(asked.tolist()) == set(some.tolist())
    joined = join_shards(tasks, [(some, mt.evaluate(model, tasks.only(some))) for some in rows])
    for name, ranks in whole.ranks.items():
        assert np.array_equal(joined.ranks[name], ranks)
    assert np.array_equal(joined.novel, whole.novel)


@pytest.mark.parametrize("ingested", [False, True])
def test_tasks_travel_to_another_process(tmp_path: Path, ingested: bool) -> None:
    facts = mt.simulate(facts=2000)
    if ingested:
        to_pandas(facts).to_csv(tmp_path / "events.csv", index=False)
        ingest([tmp_path / "events.csv"], tmp_path / "events")
        facts = FactFolder(tmp_path / "events").facts()
    tasks = mt.Tasks.build(facts, shots=2)
    there = pickle.loads(pickle.dumps(tasks))
    assert there.facts is there.visible.base
    assert there.facts.fingerprint == facts.fingerprint
    whole, elsewhere = (mt.evaluate(mt.create("paths"), some) for some in (tasks, there))
    assert all(np.array_equal(elsewhere.ranks[name], whole.ranks[name]) for name in whole.ranks)
    if ingested:
        assert len(pickle.dumps(facts)) < 10_000, "the columns travelled, not the path"
        sent = pickle.dumps(facts)
        (tmp_path / "more.csv").write_text("s,r,o,t\nA,plays for,B,2030-01-07\n")
        append([tmp_path / "more.csv"], tmp_path / "events")
        with pytest.raises(DataError, match="all machines must share it"):
            pickle.loads(sent)


def test_without_ray_one_is_told_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    line = ("reproduce", "3-shot", "--quick", "--cluster", LOCAL, "--out", tmp_path)
    shown = run(*line)
    assert shown.code == 2
    assert "metatkgr[cluster]" in shown.err


def test_an_oracle_does_not_travel() -> None:
    facts = mt.simulate(facts=2000)
    with pytest.raises(SettingsError, match="does not travel"):
        evaluate_on(LOCAL, mt.create("oracle"), mt.Tasks.build(facts, shots=2))


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere", "localhost:none"])
def test_an_address_where_nothing_is(address: str) -> None:
    """In a process of its own: Ray remembers clusters that it has found, and tries for minutes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'metatkgr[cluster]'")
    assert "RAY_ADDRESS" not in os.environ
    line = ("evaluate", WORLD, "--model", "paths", "--cluster", address)
    command = [sys.executable, "-m", "metatkgr", *line]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100)
    _says_that_nothing_is_at(address, shown.returncode, shown.stderr)


def test_no_cluster_on_this_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray says it: one that a killed test has left behind, or another user's, would be found."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'metatkgr[cluster]'")

    def none_found(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", none_found)
    shown = run("evaluate", WORLD, "--model", "paths", "--cluster", "auto")
    _says_that_nothing_is_at("auto", shown.code, shown.err)


def _says_that_nothing_is_at(address: str, code: int | None, err: str) -> None:
    assert code == 2
    assert f"no Ray cluster answers at '{address}'" in " ".join(err.split())
    assert "ray start --head" in err
