"""A process of a training is killed; `torchrun` starts all anew, and they go on."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from metatkgr.training.distributed import file_of_the_first, was_restarted

EPOCHS = 60
SETTINGS = {"dimension": 32, "epochs": EPOCHS, "patience": 6, "validate_every": 10}
WORDS = ["world:3000", "--model", "transe", "--device", "cpu"]
WORDS += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
ROOT = Path(__file__).parent.parent.parent


def train(out: Path, *launcher: str) -> subprocess.Popen[str]:
    command = [sys.executable, *launcher, "-m", "metatkgr", "train", *WORDS, "--out", str(out)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def worker(launcher: int, rank: int) -> int:
    """The process id of one of the workers that ``torchrun`` has started."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher and f"RANK={rank}".encode() in variables:
            return int(folder.name)
    raise AssertionError(f"no worker of rank {rank}")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds a worker in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_after_a_lost_worker_training_goes_on_from_the_checkpoint(
    rank: int, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 2"
    process = train(killed, *launcher.split())
    trace = killed / "trace.jsonl"
    try:
        for _ in range(2400):
            done = trace.read_text().count("\n") if trace.exists() else 0
            if done >= 5:
                break
            assert process.poll() is None, process.communicate()[0][-3000:]
            time.sleep(0.05)
        assert done < EPOCHS, "killed too late to tell anything"
        os.kill(worker(process.pid, rank), signal.SIGKILL)
        said, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0, said[-3000:]

    alone = train(whole)
    text, _ = alone.communicate(timeout=300)
    assert alone.returncode == 0, text[-3000:]
    expected, found = (load_file(out / "model.safetensors") for out in (whole, killed))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4)
    epochs = [json.loads(line)["epoch"] for line in trace.read_text().splitlines()]
    assert epochs == list(range(1, len(epochs) + 1)), "each epoch counts once"
    assert len(epochs) == (whole / "trace.jsonl").read_text().count("\n")


@pytest.mark.slow
def test_the_documented_torchrun_of_one_machine_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    ours = [line for line in lines if line.startswith("torchrun ") and "--nnodes" not in line]
    assert ours
    for line in ours:
        words = shlex.split(line, comments=True)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *words],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr[-3000:]}"


def test_alone_a_process_reads_its_own_checkpoint(tmp_path: Path) -> None:
    with file_of_the_first(tmp_path / "checkpoint") as path:
        assert path is None
    (tmp_path / "checkpoint").write_bytes(b"here")
    with file_of_the_first(tmp_path / "checkpoint") as path:
        assert path == tmp_path / "checkpoint"


def test_a_restart_is_told_from_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    assert not was_restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert not was_restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert was_restarted()
