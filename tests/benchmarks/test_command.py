"""The benchmarks' command: everything runs, and what is wrong is told in one message."""

from __future__ import annotations

import json
import sys

import pytest

from command_line import Run


def test_bench_runs_everything_quickly(bench: Run) -> None:
    shown = bench("--quick", "--repeats", 1, "--json", "-")
    assert shown.code == 0, shown.err
    names = [m["name"] for m in json.loads(shown.out)["measurements"]]
    assert "read CSV with names" in names
    assert "filter and rank" in names
    assert "peak memory of evaluate" in names


def test_sampling_is_compared_with_tgm_lib_where_it_is_installed(
    bench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tgm", reason="tgm-lib is not installed")

    def measured() -> list[dict[str, object]]:
        shown = bench("sample", "--quick", "--repeats", 1, "--json", "-")
        assert shown.code == 0, shown.err
        rows = json.loads(shown.out)["measurements"]
        return [row for row in rows if row["name"].startswith("sample recent")]

    # The benchmark itself demands the same neighbours of both.
    assert all("tgm-lib" in str(row["against"]) and row["ratio"] for row in measured())
    monkeypatch.setitem(sys.modules, "tgm", None)
    (alone,) = measured()
    assert alone["ratio"] is None
    assert "tgm-lib is not installed" in str(alone["note"])


def test_an_unknown_benchmark_is_told_in_one_message(bench: Run) -> None:
    shown = bench("reed-csv")
    assert shown.code == 2
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert "did you mean 'read-csv'" in shown.err
