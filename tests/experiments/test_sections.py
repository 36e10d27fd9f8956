"""A new table or figure is one file: what it adds is on the page, drawn, and can be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Run
from metatkgr.experiments import sections, suite

ADDED = """
from metatkgr.experiments.dataset_figures import new_figure
from metatkgr.experiments.sections import Drawing, figure, section
from metatkgr.experiments.sections.tables import number, pivot, table
from metatkgr.experiments.suite import EXPERIMENTS, grid

EXPERIMENTS["four-shot"] = lambda choice: grid(choice, ["paths"], (4,))


@section("four-shot", place=25)
def four_shot(results):
    rows = pivot(
        results.rows(4),
        results.datasets,
        lambda row, dataset: number(results.values(dataset, row, 4)[:, 0].mean()),
    )
    return ["", "## 4-shot", "", *table(["", *results.datasets], rows)] if rows else []


@figure(place=60)
def points(results):
    def draw():
        drawn, (axes,) = new_figure("Four shots")
        axes.plot([results.values(d, row, 4)[0, 0] for d in results.datasets for row in [*rows]])
        return drawn

    rows = results.rows(4)
    if rows:
        yield Drawing("four-shot", "MRR with four shots.", draw)
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone at its end."""
    sections.register_all()
    monkeypatch.setattr(sections, "_SECTIONS", dict(sections._SECTIONS))
    monkeypatch.setattr(sections, "_FIGURES", dict(sections._FIGURES))
    monkeypatch.setattr(suite, "EXPERIMENTS", dict(suite.EXPERIMENTS))


def test_another_package_adds_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_table.py").write_text(ADDED)
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[metatkgr.sections]\nfour = their_table\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "four-shot" not in suite.EXPERIMENTS
    sections.register_all()
    assert "four-shot" in suite.EXPERIMENTS
    assert "four-shot" in sections._SECTIONS


def test_a_file_adds_a_table_and_a_figure(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "four_shot.py").write_text(ADDED)
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path)])
    out = tmp_path / "out"
    shown = run("reproduce", "four-shot", "--datasets", "world:3000:1", "--out", out)
    assert shown.code == 0, shown.err
    page = (out / "results.md").read_text(encoding="utf-8")
    assert page.index("## What") < page.index("## 4-shot") < page.index("## In detail")
    row = page.partition("## 4-shot")[2].partition("##")[0].strip().splitlines()[2]
    assert row.startswith("| `paths` | .")
    assert "![MRR with four shots.](figures/four-shot.png)" in page
    assert (out / "figures" / "four-shot.svg").stat().st_size > 1000
