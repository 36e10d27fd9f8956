"""The tables beside the paper's: a row for each model, a dash where there is no run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from metatkgr.data.answers import FILTERS
from metatkgr.data.visibility import Visibility
from metatkgr.evaluation.evaluator import SUBSETS
from metatkgr.experiments.cells import BASELINES, RULES, Row, row_order
from metatkgr.experiments.published import CROSS_SHOT, METRICS, PUBLISHED, Printed
from metatkgr.experiments.records import FloatArray, Record
from metatkgr.experiments.results import METATKGR, Results, values_of
from metatkgr.experiments.rounds import changed_settings
from metatkgr.experiments.sections import section, written
from metatkgr.experiments.suite import CROSS_DATASET, CROSS_TEST, CROSS_TRAIN, DATASETS

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
    "shown",
    "stale_mark",
    "table",
]

BETTER, WITHIN, WORSE, MISSING = "▲", "=", "▼", "–"
STAR = "\\*"
"""Behind a significant difference."""
_PAPER = Row("metatkgr", "paper")
_USUAL = [*(Row(rule) for rule in RULES), METATKGR, _PAPER, *(Row(model) for model in BASELINES)]
_ALL = range(len(METRICS))
_SHOTS = 3
"""K of the table of probabilities."""
ColumnT = TypeVar("ColumnT")


def number(value: float | None, digits: int = 3) -> str:
    """A share without its leading zero; an en dash for nothing."""
    return MISSING if value is None else f"{value:.{digits}f}".removeprefix("0")


def mark(value: float, printed: float | None, std: float | None) -> str:
    """Better or worse than a printed number by more than its standard deviation, or within it."""
    if printed is None:
        return ""
    # To the digits that are printed: a difference beyond them is not known.
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


def shown(runs: Sequence[Record], text: Callable[[FloatArray], str], *which: str) -> str:
    """What a cell says of the runs of all seeds.

    Args:
        runs: of a row under some conditions.
        text: of (seeds, 4) values.
        which: filter and subset, if others than 'static' and 'all'.
    """
    values = values_of(runs, *which)
    return MISSING if values is None else text(values) + stale_mark(runs)


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


def mean_and_spread(values: FloatArray, *, of_all: bool = False) -> str:
    """Means over seeds; behind the first one, or all, the standard deviation where there is one.

    Args:
        values: (seeds, 4).
        of_all: tell the deviation of every metric.
    """
    texts = [number(mean) for mean in values.mean(0)]
    if len(values) > 1:
        for metric in range(len(texts)) if of_all else (0,):
            texts[metric] += f" ± {number(values[:, metric].std(ddof=1))}"
    return " / ".join(texts)


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
    return written("3-shot", table=main_table(results, 3)) if 3 in results.shots else []


def main_table(results: Results, shots: int) -> list[str]:
    """Means over seeds, the row's own published number in brackets."""
    columns = [(dataset, shots) for dataset in results.datasets]
    return _against_paper(results, columns, results.datasets, _ALL)


@section("few-shot", place=30, page="tables")
def _few_shot(results: Results) -> list[str]:
    """MRR and H@10 for several numbers of shots, as the paper's second table."""
    columns = [(d, k) for d in results.datasets for k in (1, 2) if k in results.shots]
    heads = [f"{d}, {k}-shot" for d, k in columns]
    made = _against_paper(results, columns, heads, (0, 3))
    return written("few-shot", table=made) if columns else []


def _against_paper(
    results: Results,
    columns: Sequence[tuple[str, int]],
    heads: Sequence[str],
    metrics: Sequence[int],
) -> list[str]:
    def cell(row: Row, column: tuple[str, int]) -> str:
        def text(values: FloatArray) -> str:
            mean, printed = values.mean(0), PUBLISHED.get((row.model, *column))
            return " / ".join(
                _bold(mean[metric], *column, metric) + _beside(printed, metric, mean[metric])
                for metric in metrics
            )

        return shown(results.of(column[0], row, column[1]), text)

    def published(column: tuple[str, int]) -> str:
        printed = PUBLISHED.get(("metatkgr", *column))
        if printed is None:
            return MISSING
        return " / ".join(number(printed.mean[metric]) for metric in metrics)

    first = ["MetaTKGR, as published", *map(published, columns), "5"]
    every = sorted({row for _, k in columns for row in _rows_to_show(results, k)}, key=row_order)
    rows = [] if set(first[1:-1]) == {MISSING} else [first]
    for row, line in zip(every, pivot(every, columns, cell), strict=True):
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
            def one(metric: int, own: FloatArray) -> str:
                text = _bold(own.mean(), dataset, shots, metric)
                if len(own) > 1:
                    text += f" ± {number(own.std(ddof=1))}"
                elif metric == 0:
                    text += interval_of(results, dataset, row, shots)
                printed = PUBLISHED.get((row.model, dataset, shots))
                return text + _beside(printed, metric, own.mean(), std=True)

            runs = results.of(dataset, row, shots)
            return shown(runs, lambda values: " / ".join(map(one, _ALL, values.T)))

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
    runs_of = {
        row: [results.of(dataset, row, shots, visibility) for dataset in results.datasets]
        for row in results.rows(shots, visibility)
    }
    if not runs_of:
        return []
    heads = [
        dataset + next((_sizes(runs[at][0]) for runs in runs_of.values() if runs[at]), "")
        for at, dataset in enumerate(results.datasets)
    ]
    rows = [
        [f"{row.label}, {part}", *(shown(one, mean_and_spread, filter, part) for one in runs)]
        for row, runs in runs_of.items()
        for part in SUBSETS
    ]
    return ["", f"Filter `{filter}`, {shots}-shot:", "", *table(["", *heads], rows)]


def _sizes(run: Record) -> str:
    found, novel = run.result, run.result["metrics"]["static"]["novel"]["share"]
    return f" ({found['tasks']:,} tasks, {found['queries']:,} queries, {novel:.1%} novel)"


@section("cross-shot", place=50, page="tables")
def _cross_shot(results: Results) -> list[str]:
    """MRR / H@1 / H@10 for each K of training (across) and of the test (down)."""
    crossed = {
        record.dataset
        for record in results.records
        if record.cell.test_shots != str(record.cell.shots)
    }
    if not crossed:
        return []
    lines = written("cross-shot")
    heads = [f"`{rule}`" for rule in RULES] + [f"`metatkgr`, trained {k}-shot" for k in CROSS_TRAIN]
    for dataset in (name for name in results.datasets if name in crossed):
        rows = [
            [
                f"test {test}-shot",
                *(_cross_cell(_rule_runs(results, dataset, rule, test), None) for rule in RULES),
                *(_trained_cell(results, dataset, shots, test) for shots in CROSS_TRAIN),
            ]
            for test in CROSS_TEST
        ]
        lines += ["", f"{dataset}:", "", *table(["", *heads], rows)]
    return lines


def _rule_runs(results: Results, dataset: str, rule: str, test: str) -> list[Record]:
    """A rule is not trained: under whichever K it was run, it is the same rule."""
    for shots in (3, 1, 2):
        own = results.of(dataset, Row(rule), shots, test_shots=test)
        own = own or (results.of(dataset, Row(rule), int(test)) if test.isdecimal() else [])
        if own:
            return own
    return []


def _trained_cell(results: Results, dataset: str, shots: int, test: str) -> str:
    printed = CROSS_SHOT.get((shots, test)) if dataset == CROSS_DATASET else None
    return _cross_cell(results.of(dataset, METATKGR, shots, test_shots=test), printed)


def _cross_cell(runs: list[Record], printed: tuple[float | None, ...] | None) -> str:
    values = values_of(runs)
    if values is None:
        return MISSING
    return " / ".join(
        number(mean) + (f" ({number(p)} {mark(mean, p, None)})" if p is not None else "")
        for mean, p in zip(values.mean(0)[[0, 1, 3]], printed or (None,) * 3, strict=True)
    )


@section("calibration", place=90, page="tables")
def _calibration(results: Results) -> list[str]:
    """How far off probabilities are, on meta-validation and on meta-test; means over seeds."""
    rows = pivot(
        results.rows(_SHOTS),
        results.datasets,
        lambda row, dataset: _calibration_cell(results.of(dataset, row, _SHOTS)),
        only_known=True,
    )
    return written("calibration", table=table(["", *results.datasets], rows)) if rows else []


def _calibration_cell(runs: Sequence[Record]) -> str:
    parts = [run.result.get("calibration") or {} for run in runs]
    known = [(p["fitted"], p["meta-test"]) for p in parts if p.get("fitted") and p.get("meta-test")]

    def mean(values: list[float | None]) -> float | None:
        measured = [value for value in values if value is not None]
        return sum(measured) / len(measured) if measured else None

    if not known:
        return MISSING
    fitted = mean([before.get("ece") for before, _ in known])
    error, stated, correct = (
        mean([after.get(key) for _, after in known]) for key in ("ece", "stated", "correct")
    )
    return f"{number(fitted)} / {number(error)} ({number(stated)}, {number(correct)})"
