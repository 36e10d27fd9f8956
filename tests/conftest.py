"""Shared fixtures: where the real datasets are, and the command line in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from command_line import Ran, Run
from metatkgr.cli import main

# How long an example takes says something about the machine, nothing about the code.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the published datasets; tests that need it are skipped where it is absent."""
    folder = os.environ.get("METATKGR_DATA")
    if not folder or not (Path(folder) / "YAGO").is_dir():
        pytest.skip("the published datasets are absent: set METATKGR_DATA to their folder")
    return Path(folder)


@pytest.fixture(scope="session", autouse=True)
def _own_place(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the program keeps for its user is kept apart from what it keeps for this one."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Test processes share the cores: more threads than cores wait for each other at every step."""
    torch.set_num_threads(1)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line as ``main`` would."""
    return _caller(main, "metatkgr", monkeypatch, capsys)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The same for ``python -m benchmarks``."""
    from benchmarks.__main__ import main as measure

    return _caller(measure, "benchmarks", monkeypatch, capsys)


def _caller(
    program: Callable[[], object],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        try:
            program()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call
