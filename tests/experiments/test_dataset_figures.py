from __future__ import annotations

import itertools
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metatkgr.data import catalog
from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.experiments.dataset_figures import (
    date_ticks,
    entities_over_time,
    facts_per_new_entity,
    plot_dataset,
)

pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra: plots)")


def growing(steps: int = 40, unit: str = "year", origin: int = 1980) -> Facts:
    """One new entity a step, linked to the first one and then twice to its predecessor."""
    first = [(0, 0, new + 1, origin + new) for new in range(steps)]
    again = [(new + 1, 1, new, origin + min(new + 1, steps - 1)) for new in range(1, steps)]
    return Facts.build(
        *np.array(first + again).T,
        entities=Vocabulary.numbered(steps + 1),
        relations=Vocabulary.numbered(2),
        unit=unit,
        name="growing",
    )


def texts(figure: Any) -> list[Any]:
    """Drawn, visible texts of a figure."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    # Ticks beyond the ends of an axis exist but are not drawn.
    undrawn = {
        id(tick.label1)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not axis.get_view_interval()[0] <= tick.get_loc() <= axis.get_view_interval()[1]
    }
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text() and id(text) not in undrawn
    ]


def overlapping(figure: Any) -> list[tuple[str, str]]:
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    return [
        (one, other)
        for (one, box), (other, second) in itertools.combinations(boxes, 2)
        if box.overlaps(second)
    ]


def outside(figure: Any) -> list[str]:
    page = figure.bbox
    return [
        text.get_text()
        for text in texts(figure)
        if not (
            page.x0 <= text.get_window_extent().x0
            and text.get_window_extent().x1 <= page.x1
            and page.y0 <= text.get_window_extent().y0
            and text.get_window_extent().y1 <= page.y1
        )
    ]


def test_both_figures_are_written_as_svg_and_png_and_nothing_else_is_left(tmp_path: Path) -> None:
    written = plot_dataset(growing(), tmp_path / "new" / "folder")
    assert [path.name for path in written] == [
        "entities_over_time.svg",
        "entities_over_time.png",
        "facts_per_new_entity.svg",
        "facts_per_new_entity.png",
    ]
    assert sorted(written) == sorted((tmp_path / "new" / "folder").iterdir())
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_drawing_twice_gives_the_same_files(tmp_path: Path) -> None:
    one = plot_dataset(growing(), tmp_path / "one")
    two = plot_dataset(growing(), tmp_path / "two")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_a_failed_write_leaves_the_old_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    plot_dataset(growing(), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(self: Figure, target: Path, **_: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(DataError, match="disk full"):
        plot_dataset(growing(steps=20), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_curve_is_the_number_of_entities_known_by_each_date() -> None:
    facts = growing()
    figure = entities_over_time(facts)
    curve = figure.axes[0].patches[-1]
    values = curve.get_data().values
    assert values.tolist() == [
        len(
            set(facts.subject[facts.time <= step].tolist())
            | set(facts.object[facts.time <= step].tolist())
        )
        for step in range(facts.steps)
    ]


def test_the_bars_are_the_shares_of_new_entities_by_number_of_facts() -> None:
    facts = growing()
    figure = facts_per_new_entity(facts)
    shares = sorted(
        (bar.get_x(), bar.get_height())
        for container in figure.axes[0].containers
        for bar in container
    )
    # The last entity has 2 facts, the 23 new ones before it have 3: linked by the first entity,
    # linking back, and linked by their successor.
    assert [round(share, 4) for _, share in shares][:4] == [
        0,
        round(1 / 24, 4),
        round(23 / 24, 4),
        0,
    ]
    assert sum(share for _, share in shares) == pytest.approx(1)


def test_titles_name_the_dataset_and_axes_carry_dates() -> None:
    figure = entities_over_time(growing())
    assert figure.get_suptitle() == "growing: entities over time"
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels[:2] == ["1980", "1985"]


@pytest.mark.parametrize(
    ("unit", "origin", "steps"),
    [
        ("year", 1980, 40),
        ("day", 17_532, 304),
        ("day", 17_532, 12),
        ("hour", 420_768, 100),
        ("month", 500, 90),
        ("week", 2_500, 200),
        ("step", 0, 1_000),
        ("step", 7, 4),
    ],
)
def test_no_two_labels_overlap_and_none_leaves_the_page(unit: str, origin: int, steps: int) -> None:
    facts = growing(steps, unit, origin)
    for figure in (entities_over_time(facts), facts_per_new_entity(facts)):
        assert overlapping(figure) == []
        assert outside(figure) == []


@pytest.mark.parametrize(
    ("calendar", "steps", "labels"),
    [
        (Calendar("year", 1830), 189, ["1840", "1860", "1880", "1900"]),
        (Calendar("day", 17_532), 304, ["2018-01", "2018-02", "2018-03", "2018-04"]),
        (Calendar("day", 17_532), 1_000, ["2018-01", "2018-07", "2019-01", "2019-07"]),
        (Calendar("day", 17_532), 4_000, ["2018", "2020", "2022", "2024"]),
        (
            Calendar("hour", 420_769),
            48,
            ["2018-01-01T12", "2018-01-02T00", "2018-01-02T12", "2018-01-03T00"],
        ),
        (Calendar("month", 500), 300, ["2015-01", "2020-01", "2025-01", "2030-01"]),
        (Calendar("step", 0), 10, ["0", "1", "2", "3"]),
        (Calendar("year", 2000), 1, ["2000"]),
    ],
)
def test_ticks_are_round_dates(calendar: Calendar, steps: int, labels: list[str]) -> None:
    ticks = date_ticks(calendar, steps)
    assert [label for _, label in ticks][:4] == labels
    assert all(0 <= position < steps for position, _ in ticks)
    assert len(ticks) <= 11


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MetaTKGRError, match=r"pip install 'metatkgr\[plots\]'"):
        plot_dataset(growing(), tmp_path / "out")


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["YAGO", "WIKI", "ICEWS18"])
def test_the_published_datasets_are_drawn_without_overlaps(name: str, real_data: Path) -> None:
    facts = catalog.load(name, fetch=False)
    for figure in (entities_over_time(facts), facts_per_new_entity(facts)):
        assert overlapping(figure) == []
        assert outside(figure) == []
        assert figure.get_suptitle().startswith(f"{name}: ")
