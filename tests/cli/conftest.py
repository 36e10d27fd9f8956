"""Run the command line in this process, as ``main`` would."""

from __future__ import annotations

import sys

import pytest

from command_line import Ran, Run
from metatkgr.cli import main


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["metatkgr", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call
