"""Figures of the results, in greys, line styles, markers and hatches: for print without colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metatkgr.experiments.curve_figures import (
    bound_curve,
    draw_bound,
    draw_learning,
    learning_curves,
)
from metatkgr.experiments.dataset_figures import _STYLE, _matplotlib, _save
from metatkgr.experiments.figure_style import LINES, MARKERS, new_figure
from metatkgr.experiments.outcomes import FloatArray, Outcome, Row
from metatkgr.experiments.special_tables import ablation_rows
from metatkgr.experiments.suite import RULES
from metatkgr.experiments.tables import METATKGR, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["drawable", "write_figures"]

_HATCHES = (("0.6", ""), ("0.85", "////"), ("1.0", ""), ("0.7", "----"), ("0.9", "xxxx"))
OVER_TIME = ("YAGO", "ICEWS18")
_BINS = 12


def drawable(runs: Runs) -> dict[str, tuple[str, Callable[[], Figure]]]:
    """The figures that can be made from these runs: name to caption and a function that draws."""
    found: dict[str, tuple[str, Callable[[], Figure]]] = {}
    usual = [d for d in OVER_TIME if d in runs.datasets] or runs.datasets
    for dataset in usual:
        if lines := _over_time(runs, dataset):
            found[f"over-time-{_file(dataset)}"] = (
                f"{dataset}: H@10 over time, 3-shot, `entity-split`, filter `static`; mean over "
                "seeds, steps put together into parts of about equally many queries.",
                partial(_draw_over_time, dataset, lines),
            )
    ablations = [d for d in runs.datasets if len(_ablated(runs, d)) > 1]
    if ablations:
        found["ablations"] = (
            "MetaTKGR and its ablations: H@10, 3-shot, `entity-split`, filter `static`; mean, and "
            "standard deviation over seeds.",
            lambda: _draw_ablations(runs, ablations),
        )
    for dataset in [d for d in ("YAGO",) if d in runs.datasets] or runs.datasets[:1]:
        if points := _training_times(runs, dataset):
            found[f"training-time-{_file(dataset)}"] = (
                f"{dataset}: MRR against seconds of training, validation included, 3-shot; means "
                "over seeds. The rules are not trained: lines. As the cells were run: their "
                "hardware, which many share at a time, is told below.",
                partial(_draw_training_time, runs, dataset, points),
            )
    learning = {d: drawn for d in runs.datasets if (drawn := learning_curves(runs, d))}
    if learning:
        found["learning"] = (
            "The loss of each model over the last phase of its training, 3-shot, first seed, "
            "against that of the first epoch that was kept.",
            lambda: draw_learning(learning),
        )
    curves = {d: curve for d in runs.datasets if (curve := bound_curve(runs, d))}
    if curves:
        found["bound"] = (
            "The regulariser's bound and the losses over meta-training (first seed): the empirical "
            "loss is that of meta-train tasks, the true one that of meta-validation tasks, whose "
            "entities emerge later.",
            lambda: draw_bound(curves),
        )
    return found


def write_figures(runs: Runs, folder: Path) -> list[Path]:
    """Draw all that can be drawn, each as SVG and PNG; returns the files."""
    written = []
    for name, (_, draw) in drawable(runs).items():
        figure = draw()
        written += [_save(figure, folder / f"{name}.{kind}") for kind in ("svg", "png")]
    return written


def _file(dataset: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in dataset)


def _shown(runs: Runs, dataset: str, most: int = len(LINES)) -> list[Row]:
    """MetaTKGR, the rules, and the best of the others."""
    first = [METATKGR, *(Row(rule) for rule in reversed(RULES))]
    means = {
        row: float(values[:, 0].mean())
        for row in runs.rows(3)
        if (values := runs.values(runs.of(dataset, row, 3))) is not None
    }
    others = sorted((row for row in means if row not in first), key=lambda row: -means[row])
    return [row for row in first if row in means] + others[: most - len(first)]


def _over_time(runs: Runs, dataset: str) -> dict[str, tuple[list[str], FloatArray]]:
    """For each row: the first step of each part, and H@10 in it."""
    lines = {}
    for row in _shown(runs, dataset):
        kept = [r.result["per_step"] for r in runs.of(dataset, row, 3) if "per_step" in r.result]
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
    return [str(kept[0]["step"][place]) for place in first], shares


def _draw_over_time(dataset: str, lines: dict[str, tuple[list[str], FloatArray]]) -> Figure:
    figure, (axes,) = new_figure()
    figure.suptitle(f"{dataset}: H@10 over time", size=12, weight="bold")
    labels: list[str] = []
    for (name, (steps, shares)), (grey, dashes, marker) in zip(lines.items(), LINES, strict=False):
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


def _ablated(runs: Runs, dataset: str) -> list[tuple[str, FloatArray]]:
    """H@10 of each seed, whole and ablated."""
    return [
        (name, values[:, 3])
        for name, row in ablation_rows(runs)
        if (values := runs.values(runs.of(dataset, row, 3))) is not None
    ]


def _draw_ablations(runs: Runs, datasets: Sequence[str]) -> Figure:
    figure, (axes,) = new_figure()
    figure.suptitle("MetaTKGR and its ablations", size=12, weight="bold")
    names = [name for name, _ in ablation_rows(runs)]
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        grey, hatch = _HATCHES[number % len(_HATCHES)]
        for place, dataset in enumerate(datasets):
            hits = dict(_ablated(runs, dataset)).get(name)
            if hits is None:
                continue
            spread = float(hits.std(ddof=1)) if len(hits) > 1 else 0.0
            with _matplotlib().rc_context(_STYLE):
                bar = axes.bar(
                    place + (number - (len(names) - 1) / 2) * width, hits.mean(), width * 0.92,
                    fc=grey, ec="0.1", lw=0.8, hatch=hatch, yerr=spread, capsize=3,
                    error_kw={"ecolor": "0.0", "elinewidth": 1.4}, label=name,
                )  # fmt: skip
            axes.bar_label(bar, [f"{hits.mean():.3f}".removeprefix("0")], padding=3, size=8)
    handles = {text: handle for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    axes.set_xticks(range(len(datasets)), datasets)
    axes.set_ylabel("H@10")
    axes.margins(y=0.1)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False
    )
    return figure


def _training_times(runs: Runs, dataset: str) -> dict[str, tuple[float, float]]:
    """Mean seconds and mean MRR of each trained row; where hardware differs, the name tells it."""
    points = {}
    trained = {
        row: [run for run in runs.of(dataset, row, 3) if run.training.get("seconds")]
        for row in runs.rows(3)
    }
    differs = len({_hardware(run) for found in trained.values() for run in found}) > 1
    for row, found in trained.items():
        values = runs.values(found)
        if values is not None:
            seconds = float(np.mean([run.training["seconds"] for run in found]))
            where = f" ({', '.join(sorted({_hardware(run) for run in found}))})" if differs else ""
            points[row.plain + where] = (seconds, float(values[:, 0].mean()))
    return points


def _hardware(outcome: Outcome) -> str:
    """A short name: 'CPU', or the GPU's."""
    name = str((outcome.record or {}).get("hardware", "?"))
    return "CPU" if name.endswith("cores") else name.removeprefix("NVIDIA ")


def _draw_training_time(runs: Runs, dataset: str, points: dict[str, tuple[float, float]]) -> Figure:
    figure, (axes,) = new_figure()
    from matplotlib.ticker import LogLocator, NullFormatter

    figure.suptitle(f"{dataset}: MRR against training time", size=12, weight="bold")
    ordered = sorted(points.items(), key=lambda item: -item[1][1])
    for number, (name, (seconds, mrr)) in enumerate(ordered):
        filled = "0.2" if number % 2 == 0 else "white"
        marker = MARKERS[number % len(MARKERS)]
        axes.plot([seconds], [mrr], ls="", marker=marker, ms=9, mfc=filled, mec="0.1", label=name)
    for rule, dashes in zip(RULES, ((0, (1, 2)), (0, (5, 3)), (0, (8, 2, 1, 2))), strict=True):
        values = runs.values(runs.of(dataset, Row(rule), 3))
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
