"""The growth curves: every part runs, growth is read off right, the figure is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scale, scale_parts, scale_process
from command_line import Run
from metatkgr.data.world import WorldSettings
from metatkgr.data.world.simulation import write_world
from metatkgr.errors import MetaTKGRError, SettingsError


def results(cost: float, part: str, unit: str, units: int | None = None) -> list[dict[str, Any]]:
    """What a part would leave whose time per unit grows like facts^cost."""
    return [
        {
            "part": part,
            "facts": facts,
            "units": units or facts,
            "unit": unit,
            "seconds": 1.0,
            "cpu_seconds": (units or facts) * 1e-6 * facts**cost,
            "peak_megabytes": 100.0,
        }
        for facts in scale.sizes_up_to(10**8)
    ]


@pytest.mark.slow
def test_every_part_runs_on_what_the_ones_before_have_made(tmp_path: Path) -> None:
    write_world(tmp_path / "world.parquet", WorldSettings(facts=10_000))
    assert tuple(scale_parts.PARTS) == scale.PARTS == tuple(scale.EXPLAINED)
    for part in scale.PARTS:
        done = scale_process.run_part(part, tmp_path, 10_000)
        assert done.units >= 1
        assert done.seconds > 0
        assert done.peak_megabytes > 10


def test_growth_is_named() -> None:
    rows = scale.summary(
        [
            *results(0.0, "index", "fact"),
            *results(0.05, "sample", "neighbour", 500),
            *results(1.0, "evaluate", "question", 64),
            *results(0.5, "ingest", "fact"),
        ]
    )
    found = {row["part"]: (round(row["exponent"], 2), row["growth"], row["of"]) for row in rows}
    assert found == {
        "index": (1.0, "linear", "the whole graph"),
        "sample": (0.05, "constant or logarithmic", "one neighbour"),
        "evaluate": (1.0, "linear", "one question"),
        "ingest": (1.5, "worse than linear", "the whole graph"),
    }
    assert scale.growth([10**4], [1.0]) is None


def test_the_figure_is_drawn_twice(tmp_path: Path) -> None:
    figure = scale.draw(scale.summary(results(0.0, "index", "fact")))
    files = scale.save_figure(figure, tmp_path)
    assert [file.name for file in files] == ["scale.svg", "scale.png"]
    assert "peak memory" in files[0].read_text()


def test_the_page_shows_the_results() -> None:
    root = Path(__file__).parent.parent.parent
    results = json.loads((root / "results" / "bench" / "scale.json").read_text(encoding="utf-8"))
    rows = scale.summary(results["measurements"])
    assert rows == results["growth"]
    page = (root / "docs" / "scale.md").read_text(encoding="utf-8")
    assert scale.markdown(rows) in page
    for row in rows:
        assert row["why"] in " ".join(page.split()), (
            f"the page does not say why {row['part']} grows"
        )


def test_numbers_that_are_there_are_not_measured_again(tmp_path: Path) -> None:
    place = tmp_path / "world-10000"
    place.mkdir()
    for part in scale.PARTS:
        (place / f"{part}.json").write_text(json.dumps({"part": part}))
    assert [row["part"] for row in scale.measure([10_000], tmp_path)] == list(scale.PARTS)


@pytest.mark.slow
def test_a_part_that_fails_is_told(tmp_path: Path) -> None:
    place = tmp_path / "world-10000"
    place.mkdir()
    (place / "world.parquet").write_bytes(b"no world")
    with pytest.raises(MetaTKGRError, match="not a readable Parquet file"):
        scale.measure([10_000], tmp_path)


def test_what_cannot_be_measured_is_refused(bench: Run) -> None:
    with pytest.raises(SettingsError, match="at least 10,000"):
        scale.sizes_up_to(500)
    shown = bench("--scale", "--quick")
    assert shown.code == 2
    assert "leave out" in shown.err
