"""What the command line prints: tables for people, JSON for programs.

JSON asked for on '-' is the only thing on standard output; all else goes to standard error. Names
come from files of anyone: whatever is printed passes ``errors.visible``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table

from metatkgr.errors import visible
from metatkgr.files import write_json

__all__ = [
    "console_for",
    "emit_json",
    "growing_bar",
    "metric_table",
    "plain_table",
    "short",
]


class _Visible(RenderHook):
    """Has all that a console prints pass ``visible``, but not what rich itself adds to it."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(renderable) for renderable in renderables]


@dataclass(frozen=True)
class _Shown:
    renderable: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self.renderable, options):
            yield part if part.control else Segment(visible(part.text), part.style)


def console_for(json_out: str | None) -> Console:
    """Where to print for people: standard error when standard output carries JSON."""
    console = Console(stderr=json_out == "-", highlight=False, markup=False)
    console.push_render_hook(_Visible())
    return console


def emit_json(json_out: str | None, content: Any) -> None:
    """Write ``content`` where ``--json`` says, if it says anything."""
    if json_out == "-":
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(visible(text) + "\n")
    elif json_out is not None:
        write_json(json_out, content)


def short(value: float, digits: int = 3) -> str:
    """A share without its leading zero: '.4695'."""
    return f"{value:.{digits}f}".removeprefix("0")


def plain_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    return table


def metric_table(result: dict[str, Any]) -> Table:
    """The metrics of one evaluation, a row for each filter and subset."""
    # Here, because they come with torch, which `metatkgr --version` can do without.
    from metatkgr.evaluation.evaluator import SUBSETS
    from metatkgr.evaluation.ranking import HITS

    conditions = (
        f"{result['shots']}-shot, {result['split']}, visibility {result['visibility']}; "
        f"{result['tasks']:,} tasks"
        if "shots" in result
        else f"{result['protocol']}, {result['history']}, {result['split']}; "
        f"{result['tasks']:,} entities"
    )
    title = f"{result['model']} on {result['dataset']}: {conditions}, {result['queries']:,} queries"
    rows = []
    for name, subsets in result["metrics"].items():
        for subset in SUBSETS:
            metrics = subsets[subset]
            if metrics["mrr"] is None:
                rows.append([f"{name}, {subset}", "-", "-", "-", "-", "-", "-", "0 %"])
                continue
            low, high = metrics["mrr_ci95"]
            rows.append(
                [
                    f"{name}, {subset}",
                    short(metrics["mrr"], 4),
                    f"{short(low)}-{short(high)}",
                    *(short(metrics[f"hits@{k}"], 4) for k in HITS),
                    short(metrics["mrr_macro"], 4),
                    f"{metrics['share']:.1%}",
                ]
            )
    hits = [f"H@{k}" for k in HITS]
    columns = ["filter, subset", "MRR", "95 % int.", *hits, "macro", "share"]
    return plain_table(title, columns, rows)


@contextmanager
def growing_bar(what: str, unit: str = "q") -> Iterator[Callable[[int, int], object]]:
    """A progress bar on standard error, where that is a terminal.

    Yields:
        ``update(done, total)``, called with what was done since the last call and with the total.
    """
    from tqdm import tqdm

    with ExitStack() as stack:
        bar: tqdm[Any] | None = None

        def update(done: int, total: int) -> None:
            nonlocal bar
            if bar is None:  # drawn when there is something to tell, not while others print
                words = {"desc": visible(what), "unit": unit, "disable": None, "leave": False}
                bar = stack.enter_context(tqdm(total=total, file=sys.stderr, **words))
            bar.total = total
            bar.update(done)

        yield update
