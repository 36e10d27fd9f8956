"""What all figures of results look like: greys, dashes and markers, for print without colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metatkgr.experiments.dataset_figures import _STYLE, _matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LINES", "MARKERS", "new_figure"]

LINES: tuple[tuple[str, Any, str], ...] = (
    ("0.0", "-", "o"),
    ("0.0", (0, (5, 2)), "s"),
    ("0.45", "-", "^"),
    ("0.45", (0, (1, 1)), "D"),
    ("0.25", (0, (6, 2, 1, 2)), "v"),
    ("0.6", (0, (3, 1, 1, 1, 1, 1)), "P"),
    ("0.6", "-", "X"),
)
"""Grey, dashes and marker of each line; no two alike in two of the three."""
MARKERS = "os^DvPX*<>ph8d"


def new_figure(
    columns: int = 1, height: float = 4.5, width: float = 8.0
) -> tuple[Figure, list[Axes]]:
    """A figure with some panels side by side; sizes in inches."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)
