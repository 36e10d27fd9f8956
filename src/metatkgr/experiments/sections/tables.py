"""The tables beside the paper's: a row for each model, a dash where there is no run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from metatkgr.data.visibility import Visibility
from metatkgr.evaluation.evaluator import SUBSETS
from metatkgr.evaluation.ranking import FILTERS
from metatkgr.experiments.cells import BASELINES, RULES, Row, row_order
from metatkgr.experiments.published import METRICS, PUBLISHED, Printed
from metatkgr.experiments.records import FloatArray, Record
from metatkgr.experiments.results import METATKGR, Results, values_of
from metatkgr.experiments.rounds import changed_settings
from metatkgr.experiments.sections import section, written
from metatkgr.experiments.suite import DATASETS

__all__ = [
    "BETTER",
    "MISSING",
    "STAR",
    "WITHIN",
    "WORSE",
    "interval_of",
    "main_table",
    "mark",
    "mean_and_spread",
    "number",
    "pivot",
    "stale_mark",
    "table",
]

BETTER, WITHIN, WORSE, MISSING = "▲", "=", "▼", "–"
STAR = "\\*"
"""Behind a significant difference."""
_PAPER = Row("metatkgr", "paper")
_USUAL = [*(Row(rule) for rule in RULES), METATKGR, _PAPER, *(Row(model) for model in BASELINES)]
_ALL = range(len(METRICS))
ColumnT = TypeVar("ColumnT")


def number(value: float | None, digits: int = 3) -> str:
    """A share without its leading zero; an en dash for nothing."""
    return MISSING if value is None else f"{value:.{digits}f}".removeprefix("0")


def mark(value: float, printed: float | None, std: float | None) -> str:
    """Better or worse than a printed number by more than its standard deviation, or within it."""
    if printed is None:
        return ""
    # To the digits that are printed: a difference beyond them cannot be told.
    away = round(value - printed, 4)
    if abs(away) <= (std or 0.0):
        return WITHIN
    return BETTER if away > 0 else WORSE


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    lines = [list(heads), ["---"] * len(heads), *map(list, rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def stale_mark(runs: Iterable[Record]) -> str:
    """A dagger where settings of the row have changed since a run."""
    return "†" if any(changed_settings(run) for run in runs) else ""


def pivot(
    rows: Iterable[Row],
    columns: Sequence[ColumnT],
    cell: Callable[[Row, ColumnT], str],
    *,
    only_known: bool = False,
) -> list[list[str]]:
    """Rows of a table, each with its label first.

    Args:
        rows: down.
        columns: across.
        cell: what stands between the two.
        only_known: leave out rows with nothing but dashes.
    """
    made = [[row.label, *(cell(row, column) for column in columns)] for row in rows]
    return [line for line in made if not only_known or set(line[1:]) != {MISSING}]


def mean_and_spread(values: FloatArray, *, of_all: bool = False) -> list[str]:
    """Means over seeds; behind the first one, or all, the standard deviation where there is one.

    Args:
        values: (seeds, 4).
        of_all: tell the deviation of every metric.
    """
    texts = [number(mean) for mean in values.mean(0)]
    if len(values) > 1:
        for metric in range(len(texts)) if of_all else (0,):
            texts[metric] += f" ± {number(values[:, metric].std(ddof=1))}"
    return texts


def _beside(printed: Printed | None, metric: int, value: float, *, std: bool = False) -> str:
    """' (.370 ▲)': what is printed for this row, and how ours compares."""
    if printed is None or printed.mean[metric] is None:
        return ""
    spread = None if printed.std is None else printed.std[metric]
    text = number(printed.mean[metric])
    if std and spread is not None:
        text += f" ± {number(spread)}"
    return f" ({text} {mark(value, printed.mean[metric], spread)})"


def _bold(value: float, dataset: str, shots: int, metric: int) -> str:
    """A number, bold where it is above the published MetaTKGR."""
    printed = PUBLISHED.get(("metatkgr", dataset, shots))
    reference = None if printed is None else printed.mean[metric]
    text = number(value)
    return f"**{text}**" if reference is not None and value > reference else text


def _rows_to_show(results: Results, shots: int) -> list[Row]:
    """The paper's rows, with or without a run, and whatever else was run."""
    usual = _USUAL if set(results.datasets) & set(DATASETS) else []
    return sorted({*usual, *results.rows(shots)}, key=row_order)


@section("3-shot", place=20, page="tables")
def _three_shot(results: Results) -> list[str]:
    if 3 not in results.shots:
        return []
    return written("3-shot", table=main_table(results, 3))


def main_table(results: Results, shots: int) -> list[str]:
    """Means over seeds, the row's own published number in brackets."""
    columns = [(dataset, shots) for dataset in results.datasets]
    return _against_paper(results, columns, results.datasets, _ALL)


@section("few-shot", place=30, page="tables")
def _few_shot(results: Results) -> list[str]:
    """MRR and H@10 for several numbers of shots, as the paper's second table."""
    columns = [(d, k) for d in results.datasets for k in (1, 2) if k in results.shots]
    if not columns:
        return []
    heads = [f"{d}, {k}-shot" for d, k in columns]
    return written("few-shot", table=_against_paper(results, columns, heads, (0, 3)))


def _against_paper(
    results: Results,
    columns: Sequence[tuple[str, int]],
    heads: Sequence[str],
    metrics: Sequence[int],
) -> list[str]:
    def cell(row: Row, column: tuple[str, int]) -> str:
        values = results.values(column[0], row, column[1])
        if values is None:
            return MISSING
        mean, printed = values.mean(0), PUBLISHED.get((row.model, *column))
        return " / ".join(
            _bold(mean[metric], *column, metric) + _beside(printed, metric, mean[metric])
            for metric in metrics
        ) + stale_mark(results.of(column[0], row, column[1]))

    def published(column: tuple[str, int]) -> str:
        printed = PUBLISHED.get(("metatkgr", *column))
        if printed is None:
            return MISSING
        return " / ".join(number(printed.mean[metric]) for metric in metrics)

    first = ["MetaTKGR, as published", *map(published, columns), "5"]
    shown = sorted({row for _, k in columns for row in _rows_to_show(results, k)}, key=row_order)
    rows = [] if set(first[1:-1]) == {MISSING} else [first]
    for row, line in zip(shown, pivot(shown, columns, cell), strict=True):
        rows.append([*line, _seeds(results.of(d, row, k) for d, k in columns)])
    return table(["", *heads, "seeds"], rows)


def _seeds(runs_by_column: Iterable[Sequence[Record]]) -> str:
    counts = [str(len(runs)) if runs else MISSING for runs in runs_by_column]
    return counts[0] if len(set(counts)) == 1 else "/".join(counts)


@section("detailed", place=40, page="tables")
def _detailed(results: Results) -> list[str]:
    """Mean ± standard deviation over seeds; a rule has the interval over entities instead."""
    lines = ["", "## In detail, with standard deviations"]
    for shots in results.shots:

        def cell(row: Row, dataset: str, shots: int = shots) -> str:
            runs = results.of(dataset, row, shots)
            values, printed = values_of(runs), PUBLISHED.get((row.model, dataset, shots))
            if values is None:
                return MISSING
            texts = []
            for metric, own in enumerate(values.T):
                text = _bold(own.mean(), dataset, shots, metric)
                if len(own) > 1:
                    text += f" ± {number(own.std(ddof=1))}"
                elif metric == 0:
                    text += interval_of(results, dataset, row, shots)
                texts.append(text + _beside(printed, metric, own.mean(), std=True))
            return " / ".join(texts) + stale_mark(runs)

        rows = pivot(_rows_to_show(results, shots), results.datasets, cell)
        lines += ["", f"### {shots}-shot, in detail", "", *table(["", *results.datasets], rows)]
    if set(results.datasets) & set(DATASETS):
        lines += written("inconsistencies")
    return lines


def interval_of(results: Results, dataset: str, row: Row, shots: int) -> str:
    """' (.514-.553)': of the MRR, over entities and seeds; empty where sums were not kept."""
    drawn = results.draws.get((dataset, shots))
    if drawn is None or row not in drawn.mrr:
        return ""
    low, high = drawn.interval(row)
    return f" ({number(low)}-{number(high)})"


@section("visibility", place=140, page="tables")
def _visibilities(results: Results) -> list[str]:
    """Both filters, each number of shots: all queries, novel answers, later queries."""
    lines = []
    for visibility in (known.value for known in Visibility):
        tables = [
            line
            for filter in FILTERS
            for shots in results.shots
            for line in _subset_table(results, visibility, filter, shots)
        ]
        if tables:
            lines += ["", f"## Visibility `{visibility}`: both filters, all subsets", *tables]
    return lines


def _subset_table(results: Results, visibility: str, filter: str, shots: int) -> list[str]:
    shown = results.rows(shots, visibility)
    if not shown:
        return []
    runs_of: dict[tuple[Any, ...], list[Record]] = {
        (row, dataset): results.of(dataset, row, shots, visibility)
        for row in shown
        for dataset in results.datasets
    }
    heads = []
    for dataset in results.datasets:
        runs = next((runs_of[row, dataset] for row in shown if runs_of[row, dataset]), None)
        heads.append(dataset + (_sizes(runs[0]) if runs else ""))
    rows = [
        [
            f"{row.label}, {subset}",
            *(_subset_cell(runs_of[row, dataset], filter, subset) for dataset in results.datasets),
        ]
        for row in shown
        for subset in SUBSETS
    ]
    return ["", f"Filter `{filter}`, {shots}-shot:", "", *table(["", *heads], rows)]


def _sizes(run: Record) -> str:
    share = run.result["metrics"]["static"]["novel"]["share"]
    sizes = f"{run.result['tasks']:,} tasks, {run.result['queries']:,} queries"
    return f" ({sizes}, {share:.1%} novel)"


def _subset_cell(runs: list[Record], filter: str, subset: str) -> str:
    values = values_of(runs, filter, subset)
    if values is None:
        return MISSING
    return " / ".join(mean_and_spread(values)) + stale_mark(runs)
