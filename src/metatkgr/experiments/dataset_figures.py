"""The two figures that show why few-shot forecasting matters for a dataset.

New entities keep arriving (``entities_over_time``), and most of them have few facts
(``facts_per_new_entity``). Both are drawn in greys and hatches, for print without colour.
matplotlib is imported only here, when something is drawn.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Facts
from metatkgr.data.periods import Period, Periods
from metatkgr.data.statistics import SHOTS, facts_per_entity, is_new
from metatkgr.errors import need
from metatkgr.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "STYLE",
    "date_ticks",
    "entities_over_time",
    "facts_per_new_entity",
    "load_matplotlib",
    "new_figure",
    "plot_dataset",
    "save_figure",
]

STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text: searchable, and small
    "svg.hashsalt": "metatkgr",  # the same data gives the same file
}
_BACKGROUND, _NEW, _EDGE = "0.45", "0.88", "0.15"
_BIN_ENDS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500)
"""Last number of facts of each bar; the first three bars are the paper's K."""


def plot_dataset(facts: Facts, out: Path) -> list[Path]:
    """Draw both figures into the folder ``out``, each as SVG and PNG.

    Returns:
        The files written.
    """
    figures = {
        "entities_over_time": entities_over_time(facts),
        "facts_per_new_entity": facts_per_new_entity(facts),
    }
    return [
        save_figure(figure, out / f"{name}.{kind}")
        for name, figure in figures.items()
        for kind in ("svg", "png")
    ]


def entities_over_time(facts: Facts) -> Figure:
    """How many entities have appeared by each date, with the four periods marked."""
    periods = Periods.of(facts)
    emerged = facts.emerged_at[facts.emerged_at >= 0]
    known = np.cumsum(np.bincount(emerged, minlength=facts.steps))
    old = np.minimum(known, known[periods.last_step[Period.BACKGROUND]])
    figure, (axes,) = new_figure(f"{facts.name or 'this graph'}: entities over time")
    # Stairs: a step lasts from its position to the next one, so that the last one is seen too.
    edges = np.arange(facts.steps + 1)
    axes.stairs(old, edges, fill=True, color=_BACKGROUND, label="background entities")
    with load_matplotlib().rc_context(STYLE):
        axes.stairs(
            known, edges, baseline=old, fill=True, fc=_NEW, ec="0.5", hatch="////", lw=0,
            label="new entities",
        )  # fmt: skip
    axes.stairs(known, edges, baseline=None, color=_EDGE, lw=1.4)
    axes.set_xlim(0, facts.steps)
    axes.set_ylim(0, known[-1] * 1.04)
    axes.locator_params(axis="y", integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _mark_periods(axes, periods)
    ticks = date_ticks(facts.calendar, facts.steps)
    axes.set_xticks([position for position, _ in ticks], [label for _, label in ticks])
    if facts.calendar.unit == "step":
        axes.set_xlabel("time step")
    axes.set_ylabel("entities that have appeared")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def facts_per_new_entity(facts: Facts) -> Figure:
    """Which share of the new entities has how many facts; at most K = 1, 2, 3 stand out."""
    counts = facts_per_entity(facts)[is_new(Periods.of(facts))]
    figure, (axes,) = new_figure(f"{facts.name or 'this graph'}: facts per new entity")
    ends = [*_BIN_ENDS, max(int(counts.max(initial=0)), _BIN_ENDS[-1] + 1)]
    bins = np.bincount(np.searchsorted(ends, counts), minlength=len(ends))
    shares = bins / max(len(counts), 1)
    few = np.arange(len(ends)) < len(SHOTS)
    bar = np.arange(len(ends))
    axes.bar(bar[few], shares[few], 0.8, color=_BACKGROUND, ec=_EDGE, label="K = 1, 2, 3 facts")
    axes.bar(bar[~few], shares[~few], 0.8, fc=_NEW, ec=_EDGE, hatch="////", label="more facts")
    highest = max(float(shares.max()), 0.01)
    for x in np.flatnonzero(bins).tolist():
        share = float(shares[x])
        axes.text(x, share + highest * 0.015, _percent(share), ha="center", va="bottom", size=9)
    axes.set_xticks(bar, _bin_names(ends), size=9)
    axes.set_xlim(-0.6, len(ends) - 0.4)
    axes.set_ylim(0, highest * 1.08)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("number of facts of the entity")
    axes.set_ylabel("share of new entities")
    summary = f"{len(counts):,} new entities"
    if len(counts):
        at_most = float((counts <= SHOTS[-1]).mean())
        summary += (
            f"; {_percent(at_most)} have at most {SHOTS[-1]} facts; median {np.median(counts):g}"
        )
    axes.set_title(summary, size=10)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def date_ticks(calendar: Calendar, steps: int) -> list[tuple[float, str]]:
    """Positions (in steps) and labels of round dates within ``steps`` steps, few enough to fit."""
    marks: list[tuple[int, str]] = []
    if calendar.unit in ("hour", "day", "week"):
        marks = _month_starts(calendar, steps)
    if len(marks) < 3:
        marks = _round_times(calendar, steps)
    return [((raw - calendar.origin) / calendar.stride, label) for raw, label in marks]


def _month_starts(calendar: Calendar, steps: int, most: int = 10) -> list[tuple[int, str]]:
    """First days of months (or of every second, third, … month) as raw times with labels."""
    try:
        begin, end = (dt.date.fromisoformat(calendar.label(s)[:10]) for s in (0, steps - 1))
    except ValueError:  # beyond the dates that Python knows
        return []
    low, high = (day.year * 12 + day.month - 1 for day in (begin, end))
    gap = next(gap for gap in _distances(12) if (high - low) // gap < most)
    starts = (dt.date(m // 12, m % 12 + 1, 1) for m in range(-(-low // gap) * gap, high + 1, gap))
    written = "%Y-%m" if gap % 12 else "%Y"
    marks = ((calendar.raw(day), f"{day:{written}}") for day in starts)
    return [mark for mark in marks if mark[0] >= calendar.origin]


def _round_times(calendar: Calendar, steps: int) -> list[tuple[int, str]]:
    """Raw times that are multiples of something round, with labels."""
    first, last = calendar.origin, calendar.origin + (steps - 1) * calendar.stride
    width = max(len(calendar.label(0)), len(calendar.label(steps - 1)))
    most = 11 if width < 6 else 8 if width < 9 else 5
    base = {"month": 12, "hour": 24}.get(calendar.unit, 10)
    gap = next(gap for gap in _distances(base) if (last - first) // gap < most)
    # A tick between two steps would carry a date that no fact has.
    gap = -(-gap // calendar.stride) * calendar.stride
    start = first if first % calendar.stride else -(-first // gap) * gap
    return [
        (raw, calendar.label((raw - first) // calendar.stride))
        for raw in range(start, last + 1, gap)
    ]


def _distances(base: int) -> Iterator[int]:
    """Ascending distances between ticks that people find round where ``base`` makes a unit."""
    yield from (size for size in ((1, 2, 5) if base == 10 else (1, 2, 3, 6, 12)) if size < base)
    for power in itertools.count():
        yield from (base * size * 10**power for size in (1, 2, 5))


def _mark_periods(axes: Axes, periods: Periods) -> None:
    """Vertical lines between the periods; name and number of new entities above each."""
    start = 0
    for period in Period:
        end = int(periods.last_step[period]) + 1
        if end == start:  # a graph of few steps has periods without one
            continue
        name = period.label.replace("meta-", "meta-\n")
        count = int((periods.of_entity == period).sum())
        axes.text(
            (start + end) / 2,
            1.01,
            f"{name}\n{count:,}",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            size=8.5,
        )
        if start:
            axes.axvline(start, color=_EDGE, lw=0.9, ls=(0, (4, 3)))
        start = end


def _bin_names(ends: list[int]) -> list[str]:
    names = []
    low = 1
    for end in ends[:-1]:
        names.append(str(end) if end == low else f"{low}–{end}")
        low = end + 1
    return [*names, f"> {low - 1}"]


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "< 0.1%"
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def new_figure(
    title: str, columns: int = 1, height: float = 4.5, width: float = 8.0
) -> tuple[Figure, list[Axes]]:
    """A figure with some panels side by side; sizes in inches."""
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
    figure.suptitle(title, size=12, weight="bold")
    return figure, list(axes)


def load_matplotlib() -> Any:
    """The module ``matplotlib``."""
    return need("matplotlib", "plots")


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format that the ending of its name says."""
    kind = path.suffix[1:]
    # Without the date, drawing the same data twice gives the same file.
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": "metatkgr"}
    with atomic_path(path) as temporary, load_matplotlib().rc_context(STYLE):
        figure.savefig(temporary, format=kind, metadata=metadata)
    return path
