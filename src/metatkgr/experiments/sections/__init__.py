"""Parts of the report: sections of its page, and figures. Each registers itself.

A file in this folder is found and imported. It decorates a function of the results:

    @section("calibration", place=90, page="tables")
    def calibration(results: Results) -> list[str]:
        '''Lines of Markdown that begin with an empty one and a heading; none: no such section.'''

    @figure(place=50)
    def bound(results: Results) -> Iterator[Drawing]:
        '''The figures that can be drawn from these results.'''

A module of another package does the same, named by an entry point of the group
``metatkgr.sections``. Cells of its own it adds to ``suite.EXPERIMENTS`` under a name, and
``metatkgr reproduce NAME`` computes them. What our own sections say around their tables is in
``text.md``.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from metatkgr.experiments.results import Results
from metatkgr.files import read_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FIRST",
    "Drawing",
    "Write",
    "drawings",
    "figure",
    "page_lines",
    "register_all",
    "section",
    "written",
]


@dataclass(frozen=True)
class Drawing:
    """A figure that can be drawn."""

    name: str
    """Of its files."""
    caption: str
    draw: Callable[[], Figure]


FIRST = "results"
"""The page that a person reads; others hold details."""
Write = Callable[[Results], list[str]]
Draw = Callable[[Results], Iterable[Drawing]]
WriteT = TypeVar("WriteT", bound=Write)
DrawT = TypeVar("DrawT", bound=Draw)
_SECTIONS: dict[str, tuple[int, Write, str]] = {}
_FIGURES: dict[str, tuple[int, Draw]] = {}


def section(name: str, *, place: int, page: str = FIRST) -> Callable[[WriteT], WriteT]:
    """Decorator: make a section known; those of lower places come first on their page."""

    def keep(write: WriteT) -> WriteT:
        _SECTIONS[name] = (place, write, page)
        return write

    return keep


def figure(*, place: int) -> Callable[[DrawT], DrawT]:
    """Decorator: make figures known; those of lower places come first."""

    def keep(draw: DrawT) -> DrawT:
        _FIGURES[f"{draw.__module__}.{draw.__qualname__}"] = (place, draw)
        return draw

    return keep


def register_all() -> None:
    """Import every file of this folder, and those that other packages offer."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    for offered in entry_points(group="metatkgr.sections"):
        offered.load()


@cache
def _texts() -> dict[str, str]:
    """The parts of ``text.md`` by their names."""
    _, *parts = re.split(r"<!-- (\S+) -->\n", read_text(Path(__file__).with_name("text.md")))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def written(name: str, **slots: Any) -> list[str]:
    """The lines of a part of ``text.md`` behind an empty one, its ``{slots}`` filled."""
    filled = {key: "\n".join(x) if isinstance(x, list) else x for key, x in slots.items()}
    return ["", *_texts()[name].format(**filled).split("\n")]


def page_lines(results: Results, page: str | None = None) -> list[str]:
    """The lines of the sections of one page; None: of all pages, as one."""
    register_all()
    known = [(place, write) for place, write, own in _SECTIONS.values() if page in (None, own)]
    ordered = sorted(known, key=lambda placed: placed[0])
    return [line for _, write in ordered for line in write(results)]


def drawings(results: Results) -> list[Drawing]:
    """All figures that can be drawn."""
    register_all()
    ordered = sorted(_FIGURES.values(), key=lambda known: known[0])
    return [drawing for _, draw in ordered for drawing in draw(results)]
