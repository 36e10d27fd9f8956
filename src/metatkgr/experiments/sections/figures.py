"""Figures of the results, in greys, line styles, markers and hatches: for print without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from metatkgr.experiments.cells import RULES, Row
from metatkgr.experiments.dataset_figures import new_figure
from metatkgr.experiments.records import FloatArray, Record
from metatkgr.experiments.results import METATKGR, Results, values_of
from metatkgr.experiments.sections import Drawing, drawings, figure, section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bound_curve"]

OVER_TIME = ("YAGO", "ICEWS18")
_BINS = 12
_OF_DATASETS = {
    "entities_over_time": "entities over time",
    "facts_per_new_entity": "facts per new entity",
}
_LINES: tuple[tuple[str, Any, str], ...] = (
    ("0.0", "-", "o"),
    ("0.0", (0, (5, 2)), "s"),
    ("0.45", "-", "^"),
    ("0.45", (0, (1, 1)), "D"),
    ("0.25", (0, (6, 2, 1, 2)), "v"),
    ("0.6", (0, (3, 1, 1, 1, 1, 1)), "P"),
    ("0.6", "-", "X"),
)
"""Grey, dashes and marker of each line; no two alike in two of the three."""
_MARKERS = "os^DvPX*<>ph8d"


@section("figures", place=130, page="runs")
def _shown_figures(results: Results) -> list[str]:
    """All figures with their captions; those of datasets are drawn from the facts themselves."""
    shown = [(drawing.name, drawing.caption) for drawing in drawings(results)]
    for statistics in results.statistics:
        name = statistics["name"]
        shown += [(f"{name}-{file}", f"{name}: {what}.") for file, what in _OF_DATASETS.items()]
    lines: list[str] = []
    for file, caption in shown:
        lines += ["", f"![{caption.replace('`', '')}](figures/{file}.png)", "", caption]
    return ["", "## Figures", *lines] if lines else []


@figure(place=10)
def _all_over_time(results: Results) -> Iterator[Drawing]:
    for dataset in [d for d in OVER_TIME if d in results.datasets] or results.datasets:
        if lines := _over_time(results, dataset):
            yield Drawing(
                f"over-time-{_file(dataset)}",
                f"{dataset}: H@10 over time, 3-shot, `entity-split`, filter `static`; mean over "
                "seeds, steps put together into parts of about equally many queries.",
                partial(_draw_over_time, dataset, lines),
            )


@figure(place=30)
def _training_time(results: Results) -> Iterator[Drawing]:
    for dataset in [d for d in ("YAGO",) if d in results.datasets] or results.datasets[:1]:
        if points := _training_times(results, dataset):
            yield Drawing(
                f"training-time-{_file(dataset)}",
                f"{dataset}: MRR against seconds of training, validation included, 3-shot; means "
                "over seeds. The rules are not trained: lines. As the cells were run: their "
                "hardware, which many share at a time, is told below.",
                partial(_draw_training_time, results, dataset, points),
            )


def _file(dataset: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in dataset)


def _shown(results: Results, dataset: str, most: int = len(_LINES)) -> list[Row]:
    """MetaTKGR, the rules, and the best of the others."""
    first = [METATKGR, *(Row(rule) for rule in reversed(RULES))]
    means = results.mrr(dataset, 3)
    others = sorted((row for row in means if row not in first), key=lambda row: -means[row])
    return [row for row in first if row in means] + others[: most - len(first)]


def _over_time(results: Results, dataset: str) -> dict[str, tuple[list[str], FloatArray]]:
    """For each row: the first step of each part, and H@10 in it."""
    lines = {}
    for row in _shown(results, dataset):
        kept = [r.result["per_step"] for r in results.of(dataset, row, 3) if "per_step" in r.result]
        if kept:
            lines[row.plain] = _binned(kept)
    return lines


def _binned(kept: Sequence[dict[str, Any]]) -> tuple[list[str], FloatArray]:
    queries = np.array(kept[0]["queries"], np.float64)
    hits = np.mean([step["hits@10_static"] for step in kept], axis=0)
    part = np.minimum((np.cumsum(queries) - queries) * _BINS // queries.sum(), _BINS - 1)
    _, group = np.unique(part, return_inverse=True)
    first = np.unique(group, return_index=True)[1]
    shares = np.bincount(group, weights=hits) / np.bincount(group, weights=queries)
    return [str(kept[0]["step"][row]) for row in first], shares


def _draw_over_time(dataset: str, lines: dict[str, tuple[list[str], FloatArray]]) -> Figure:
    figure, (axes,) = new_figure(f"{dataset}: H@10 over time")
    labels: list[str] = []
    for (name, (steps, shares)), (grey, dashes, marker) in zip(lines.items(), _LINES, strict=False):
        labels = steps if len(steps) > len(labels) else labels
        axes.plot(
            range(len(shares)), shares, color=grey, ls=dashes, marker=marker, ms=5, lw=1.4,
            mfc="white", label=name,
        )  # fmt: skip
    long = any(len(label) > 6 for label in labels)
    axes.set_xticks(
        range(len(labels)), labels, rotation=35 if long else 0, ha="right" if long else "center"
    )
    axes.set_xlabel("from this step on")
    axes.set_ylabel("H@10")
    # Not from zero: the lines of good models lie close together.
    axes.margins(y=0.08)
    axes.grid(axis="y", color="0.9", lw=0.6)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _training_times(results: Results, dataset: str) -> dict[str, tuple[float, float]]:
    """Mean seconds and mean MRR of each trained row; where hardware differs, the name tells it."""
    points = {}
    trained = {
        row: [run for run in results.of(dataset, row, 3) if run.training.get("seconds")]
        for row in results.rows(3)
    }
    differs = len({_hardware(run) for runs in trained.values() for run in runs}) > 1
    for row, runs in trained.items():
        values = values_of(runs)
        if values is not None:
            seconds = float(np.mean([run.training["seconds"] for run in runs]))
            where = f" ({', '.join(sorted({_hardware(run) for run in runs}))})" if differs else ""
            points[row.plain + where] = (seconds, float(values[:, 0].mean()))
    return points


def _hardware(record: Record) -> str:
    """A short name: 'CPU', or the GPU's."""
    name = record.hardware or "?"
    return "CPU" if name.endswith("cores") else name.removeprefix("NVIDIA ")


def _draw_training_time(
    results: Results, dataset: str, points: dict[str, tuple[float, float]]
) -> Figure:
    figure, (axes,) = new_figure(f"{dataset}: MRR against training time")
    from matplotlib.ticker import LogLocator, NullFormatter

    ordered = sorted(points.items(), key=lambda item: -item[1][1])
    for number, (name, (seconds, mrr)) in enumerate(ordered):
        filled = "0.2" if number % 2 == 0 else "white"
        marker = _MARKERS[number % len(_MARKERS)]
        axes.plot([seconds], [mrr], ls="", marker=marker, ms=9, mfc=filled, mec="0.1", label=name)
    for rule, dashes in zip(RULES, ((0, (1, 2)), (0, (5, 3)), (0, (8, 2, 1, 2))), strict=True):
        values = results.values(dataset, Row(rule), 3)
        if values is not None:
            axes.axhline(values[0, 0], color="0.4", ls=dashes, lw=1.2, label=f"{rule} (untrained)")
    axes.set_xscale("log")
    every = [seconds for seconds, _ in points.values()]
    axes.set_xlim(min(every) / 2, max(every) * 2)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(y=0.1)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("MRR")
    axes.grid(color="0.92", lw=0.6)
    # Names at the points would lie upon each other.
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


@figure(place=50)
def _bound(results: Results) -> Iterator[Drawing]:
    curves = {d: curve for d in results.datasets if (curve := bound_curve(results, d))}
    if curves:
        yield Drawing(
            "bound",
            "The regulariser's bound and the losses over meta-training (first seed): the empirical "
            "loss is that of meta-train tasks, the true one that of meta-validation tasks, whose "
            "entities emerge later.",
            lambda: _draw_bound(curves),
        )


def bound_curve(results: Results, dataset: str) -> dict[str, list[Any]] | None:
    """The curve of the phase that has a bound, of the first run that measured the true loss."""
    for run in results.of(dataset, METATKGR, 3):
        for curve in run.training.get("curve", []):
            if "bound" in curve and "true_loss" in curve:
                return dict(curve)
    return None


def _draw_bound(curves: dict[str, dict[str, list[Any]]]) -> Figure:
    """A panel for each dataset."""
    title = "The bound and the losses over meta-training"
    figure, panels = new_figure(title, len(curves), 3.8, max(4.6, 3.6 * len(curves)))
    named = {
        "bound": "bound",
        "true_loss": "true loss (meta-validation)",
        "empirical": "empirical loss (meta-train)",
    }
    for axes, (dataset, curve) in zip(panels, curves.items(), strict=True):
        styles = (_LINES[0], _LINES[1], _LINES[3])
        for (key, name), (grey, dashes, marker) in zip(named.items(), styles, strict=True):
            values = [np.nan if value is None else value for value in curve[key]]
            axes.plot(
                curve["epoch"], values, color=grey, ls=dashes, marker=marker, ms=5, lw=1.4,
                mfc="white", label=name,
            )  # fmt: skip
        axes.set_title(dataset, size=10)
        axes.set_xlabel("epoch")
        axes.locator_params(axis="x", integer=True, nbins=6)
    panels[0].set_ylabel("loss")
    handles, labels = panels[0].get_legend_handles_labels()
    ncols = 3 if len(curves) > 1 else 1
    figure.legend(
        handles, labels, loc="outside lower center", ncols=ncols, frameon=False, fontsize=9
    )
    return figure
