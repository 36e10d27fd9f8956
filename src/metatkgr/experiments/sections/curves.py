"""Figures of trainings: every model's loss, and the regulariser's bound against the true loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from metatkgr.experiments.dataset_figures import new_figure
from metatkgr.experiments.records import FloatArray
from metatkgr.experiments.results import METATKGR, Results
from metatkgr.experiments.sections import Drawing, figure
from metatkgr.experiments.sections.figures import LINES, MARKERS
from metatkgr.training.tuned import TUNED

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

__all__ = ["bound_curve"]


@figure(place=40)
def _learning(results: Results) -> Iterator[Drawing]:
    learning = {d: drawn for d in results.datasets if (drawn := _learning_curves(results, d))}
    if learning:
        yield Drawing(
            "learning",
            "The loss of each model over the last phase of its training, 3-shot, first seed, "
            "against that of the first epoch that was kept.",
            lambda: _draw_learning(learning),
        )


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


def _learning_curves(results: Results, dataset: str) -> dict[str, tuple[FloatArray, FloatArray]]:
    """For each trained row: epochs of its last phase, and the loss against the first one's.

    Rows of the preset 'tuned' are left out: there are not as many marks as lines.
    """
    lines = {}
    for row in (row for row in results.rows(3) if row.preset != TUNED):
        for run in results.of(dataset, row, 3)[:1]:
            curves = [c for c in run.training.get("curve", []) if len(c.get("loss", [])) > 1]
            if curves:
                curve = curves[-1]
                loss = np.array(curve["loss"], np.float64)
                epoch = np.array(curve["epoch"], np.float64)
                lines[row.plain] = epoch, loss / loss[0]
    return lines


def _draw_learning(learning: dict[str, dict[str, tuple[FloatArray, FloatArray]]]) -> Figure:
    """A panel for each dataset, a line for each model."""
    title = "Loss over training, relative to its beginning"
    figure, panels = new_figure(title, len(learning), 4.4, max(4.6, 3.8 * len(learning)))
    names = list(dict.fromkeys(name for lines in learning.values() for name in lines))
    for axes, (dataset, lines) in zip(panels, learning.items(), strict=True):
        for number, name in enumerate(names):
            if name not in lines:
                continue
            grey, dashes, _ = LINES[number % len(LINES)]
            marker = MARKERS[number % len(MARKERS)]
            epoch, loss = lines[name]
            axes.plot(
                epoch, loss, color=grey, ls=dashes, marker=marker, ms=4, lw=1.1, mfc="white",
                markevery=max(len(epoch) // 6, 1), label=name,
            )  # fmt: skip
        axes.set_title(dataset, size=10)
        axes.set_xlabel("epoch")
        axes.set_xscale("log")
        axes.grid(color="0.93", lw=0.6)
    panels[0].set_ylabel("loss / first loss")
    handles: dict[str, Artist] = {}
    for axes in panels:
        drawn, named = axes.get_legend_handles_labels()
        handles |= dict(zip(named, drawn, strict=True))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=6,
        frameon=False,
        fontsize=8.5,
    )
    return figure


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
        styles = (LINES[0], LINES[1], LINES[3])
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
