"""Two processes train what one process trains."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from command_line import lines_of
from metatkgr.models.base import Part

COMMON = ["world:2000", "--shots", "2", "--device", "cpu", "--set", "dimension=16"]
MODELS = {
    "transe": ["--set", "epochs=4", "--set", "negatives=50"],
    "metatkgr": [
        *("--set", "epochs=2"),
        *("--set", "translation_epochs=2"),
        *("--set", "background_epochs=1"),
        *("--set", "background_steps=4"),
        *("--set", "batch_size=7"),
        *("--set", "negatives=4"),
    ],
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(words: list[str], count: int) -> None:
    command = [sys.executable, "-m", "metatkgr", "train", *words]
    if count > 1:
        command[1:2] = [
            *("-m", "torch.distributed.run"),
            *("--nproc-per-node", str(count)),
            *("--master-addr", "127.0.0.1", "--master-port", str(free_port())),
            "-m",
        ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("model", list(MODELS))
def test_two_processes_learn_the_weights_of_one(model: str, tmp_path: Path) -> None:
    words = [*COMMON, "--model", model, *MODELS[model]]
    launch([*words, "--out", str(tmp_path / "one")], 1)
    launch([*words, "--out", str(tmp_path / "two")], 2)
    one = load_file(tmp_path / "one" / "model.safetensors")
    two = load_file(tmp_path / "two" / "model.safetensors")
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-4)
    traces = [lines_of(tmp_path / run / "trace.jsonl") for run in ("one", "two")]
    assert len(traces[0]) == len(traces[1]) > 0
    for alone, together in zip(*traces, strict=True):
        for key in ("loss", "validation_mrr"):
            assert together.get(key, 0) == pytest.approx(alone.get(key, 0), rel=1e-3), key
    assert any("validation_mrr" in line for line in traces[1])


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_the_parts_of_a_batch_are_the_batch(count: int, size: int) -> None:
    rows = torch.arange(size)
    parts = [Part(number, count) for number in range(count)]
    found = torch.cat([rows[part.of(size)] for part in parts])
    assert sorted(found.tolist()) == rows.tolist()
    assert sum(part.share(size) for part in parts) == pytest.approx(1.0)
    for part in parts:
        assert part.share(size) == len(rows[part.of(size)]) / size
