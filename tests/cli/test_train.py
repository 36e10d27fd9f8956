"""Training from the command line: a run is made, evaluated, resumed, and protected."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import Run, lines_of

QUICK = ("--model", "transe", "--set", "epochs=3", "--set", "dimension=16")


def test_a_trained_run_is_evaluated_by_its_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained = run("train", "world:3000", *QUICK, "--shots", 2, "--out", folder, "--json", "-")
    assert trained.code == 0, trained.err
    assert json.loads(trained.out)["split"] == "meta-validation"
    assert "translation 3/3" in trained.err
    for name in (
        "config.toml",
        "model.safetensors",
        "graph.safetensors",
        "trace.jsonl",
        "CARD.md",
        "MANIFEST",
    ):
        assert (folder / name).stat().st_size > 0
    # Who may read them, the umask says: of all alike.
    assert len({path.stat().st_mode for path in folder.iterdir() if path.is_file()}) == 1
    shown = run("evaluate", folder, "--json", "-")
    assert shown.code == 0, shown.err
    result = json.loads(shown.out)
    assert (result["model"], result["shots"], result["split"]) == ("transe", 2, "meta-test")
    one = json.loads(run("evaluate", folder, "--shots", 1, "--json", "-").out)
    assert one["shots"] == 1


def test_a_run_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    assert run("train", "world:3000", *QUICK, "--out", tmp_path).code == 0
    again = run("train", "world:3000", *QUICK, "--out", tmp_path)
    assert again.code == 2
    assert "already holds a run" in again.err
    other = run("train", "world:3000", *QUICK, "--seed", 5, "--out", tmp_path, "--resume")
    assert other.code == 2
    assert "other settings" in other.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "world", "--model", "paths", "--out", "x"], "needs no training"),
        (["train", "world", "--model", "transe", "--out", "x", "--set", "epochs=0"], "at least 1"),
        (["evaluate", "world", "--model", "transe"], "has to be trained first"),
    ],
)
def test_mistakes_about_training_are_told(run: Run, words: list[str], told: str) -> None:
    shown = run(*words)
    assert shown.code == 2
    assert told in shown.err


def test_a_damaged_run_is_told_and_runs_no_code(run: Run, tmp_path: Path) -> None:
    run("train", "world:3000", *QUICK, "--out", tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    shown = run("evaluate", tmp_path)
    assert shown.code == 2
    assert "model.safetensors is damaged" in " ".join(shown.err.split())
    (tmp_path / "config.toml").write_text("format = 99\n")
    assert "not written by this version" in run("evaluate", tmp_path).err


def test_a_killed_training_resumes_to_the_same_weights(run: Run, tmp_path: Path) -> None:
    words = ["train", "world:3000", "--model", "transe", "--set", "epochs=40"]
    words += ["--set", "patience=0", "--device", "cpu"]
    assert run(*words, "--out", tmp_path / "whole").code == 0
    cut = tmp_path / "cut"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "metatkgr", *words, "--out", str(cut)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    trace = cut / "trace.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if trace.exists() and trace.read_text().count("\n") >= 3:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 3 <= trace.read_text().count("\n") < 40, "the training was not cut in the middle"
    assert not (cut / "model.safetensors").exists()
    resumed = run(*words, "--out", cut, "--resume")
    assert resumed.code == 0, resumed.err
    whole = tmp_path / "whole" / "model.safetensors"
    assert (cut / "model.safetensors").read_bytes() == whole.read_bytes()
    losses = [json.loads(line)["loss"] for line in trace.read_text().splitlines()]
    assert len(losses) == 40


def test_a_training_goes_on_with_the_facts_it_was_begun_with_and_no_others(
    run: Run, tmp_path: Path
) -> None:
    facts, out = tmp_path / "facts.csv", tmp_path / "run"
    rows = [f"e{n // 12},r{n % 3},e{n * 7 % (n // 12 + 3)},{n // 4}\n" for n in range(1200)]
    facts.write_text("".join(rows))
    words = ["train", facts, "--model", "transe", "--set", "epochs=2", "--set", "dimension=4"]
    words += ["--device", "cpu", "--out", out]
    assert run(*words).code == 0
    before = (out / "model.safetensors").read_bytes()
    facts.write_text("".join(rows[1::2] + rows[::2]))
    other = run(*words, "--resume")
    assert other.code == 2
    assert "was begun with other facts" in other.err
    assert (out / "model.safetensors").read_bytes() == before
    facts.write_text("".join(rows))
    assert run(*words, "--resume").code == 0
    assert (out / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("left", [None, b"", b'{"phase": "tri'])
def test_a_trace_that_was_lost_or_cut_is_whole_again_after_a_resume(
    run: Run, tmp_path: Path, left: bytes | None
) -> None:
    words = ("train", "world:2000", *QUICK, "--out", tmp_path)
    assert run(*words).code == 0
    trace = tmp_path / "trace.jsonl"
    before = lines_of(trace)
    assert before
    if left is None:
        trace.unlink()
    else:
        trace.write_bytes(left)
    again = run(*words, "--resume")
    assert again.code == 0, again.err
    assert lines_of(trace) == before


def test_runs_on_the_same_queries_are_compared(run: Run, tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    run("train", "world:3000", *QUICK, "--out", short)
    words = ("--model", "transe", "--set", "epochs=15", "--set", "dimension=16")
    run("train", "world:3000", *words, "--out", long)
    shown = run("compare", long, short, "--json", "-")
    assert shown.code == 0, shown.err
    first, second = json.loads(shown.out)
    assert first["first_minus_this"] is None
    difference, low, high = second["first_minus_this"]
    assert difference == pytest.approx(first["mrr"] - second["mrr"])
    assert low <= difference <= high
    beside = run("compare", long, "recurrency", "--json", "-")
    rule = json.loads(beside.out)[1]
    alone = run("evaluate", "world:3000", "--model", "recurrency", "--json", "-")
    assert rule["model"] == "recurrency"
    assert rule["mrr"] == json.loads(alone.out)["metrics"]["static"]["all"]["mrr"]
    run("train", "world:3000", *QUICK, "--shots", 1, "--out", tmp_path / "one")
    refused = run("compare", long, tmp_path / "one")
    assert refused.code == 2
    assert "other queries" in refused.err


def test_a_signed_run_is_verified_by_whoever_uses_it(run: Run, tmp_path: Path) -> None:
    key, out = tmp_path / "key", tmp_path / "run"
    key.write_text("short")
    words = ("train", "world:2000", *QUICK, "--out", out, "--sign", key)
    assert "at least 32 characters" in run(*words).err
    assert not out.exists()
    key.write_text("k" * 40)
    assert run(*words).code == 0
    assert run("evaluate", out, "--verify", key, "--questions", 20).code == 0
    (out / "MANIFEST.hmac").unlink()
    refused = run("evaluate", out, "--verify", key)
    assert refused.code == 2
    assert "is not signed" in refused.err
