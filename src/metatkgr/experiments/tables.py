"""Tables in Markdown, made from finished runs; a cell without a run is an en dash."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from metatkgr.evaluation.evaluator import SUBSETS
from metatkgr.evaluation.filters import FILTERS
from metatkgr.experiments.outcomes import FloatArray, Outcome, Row, row_order
from metatkgr.experiments.published import METRICS, PUBLISHED, Printed
from metatkgr.experiments.suite import BASELINES, DATASETS, RULES

__all__ = [
    "BETTER",
    "EVIDENCE",
    "METATKGR",
    "MISSING",
    "STAR",
    "WITHIN",
    "WORSE",
    "Runs",
    "detailed_table",
    "few_shot_table",
    "main_table",
    "mark",
    "number",
    "subset_tables",
    "table",
]

BETTER, WITHIN, WORSE, MISSING = "▲", "=", "▼", "–"
STAR = "\\*"
"""Behind a significant difference."""
METATKGR, PAPER, EVIDENCE = Row("metatkgr"), Row("metatkgr", "paper"), Row("evidence")
_USUAL = [*(Row(rule) for rule in RULES), METATKGR, PAPER, *(Row(model) for model in BASELINES)]


class Runs:
    """Finished runs, found by what they are runs of.

    Args:
        outcomes: in any order; a seed counts once.
    """

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self.outcomes = list(outcomes)
        self._found: dict[tuple[Any, ...], dict[int, Outcome]] = defaultdict(dict)
        for o in self.outcomes:
            key = (o.dataset, o.row, o.train_shots, o.test_shots, o.visibility)
            self._found[key][o.seed] = o
        present = {o.dataset for o in self.outcomes}
        self.datasets = [d for d in DATASETS if d in present] + sorted(present - set(DATASETS))

    def of(
        self,
        dataset: str,
        row: Row,
        shots: int,
        visibility: str = "entity-split",
        test_shots: str | None = None,
    ) -> list[Outcome]:
        """The runs of all seeds, in their order."""
        found = self._found.get((dataset, row, shots, test_shots or str(shots), visibility), {})
        return [found[seed] for seed in sorted(found)]

    def values(
        self, runs: Sequence[Outcome], filter: str = "static", subset: str = "all"
    ) -> FloatArray | None:
        """(seeds, 4) MRR and Hits@1, 3, 10; None where there is nothing."""
        found = [values for run in runs if (values := run.values(filter, subset)) is not None]
        return np.array(found) if found else None

    def common(
        self, dataset: str, one: Row, other: Row, shots: int
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """The values of two rows for the seeds that both have."""
        both = [self.of(dataset, row, shots) for row in (one, other)]
        seeds = {run.seed for run in both[0]} & {run.seed for run in both[1]}
        mine, theirs = ([run for run in runs if run.seed in seeds] for runs in both)
        return self.values(mine), self.values(theirs)

    def rows(self, shots: int, visibility: str = "entity-split") -> list[Row]:
        """The rows with a run; no ablations."""
        wanted = {
            o.row
            for o in self.outcomes
            if o.train_shots == shots
            and o.test_shots == str(shots)
            and o.visibility == visibility
            and not o.row.variant
        }
        return sorted(wanted, key=row_order)

    def shots(self) -> list[int]:
        """Every K that was trained and tested."""
        return sorted({o.train_shots for o in self.outcomes if o.test_shots == str(o.train_shots)})


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


def _beside(printed: Printed | None, place: int, value: float, *, std: bool = False) -> str:
    """' (.370 ▲)': what is printed for this row, and how ours compares."""
    if printed is None or printed.mean[place] is None:
        return ""
    spread = None if printed.std is None else printed.std[place]
    text = number(printed.mean[place])
    if std and spread is not None:
        text += f" ± {number(spread)}"
    return f" ({text} {mark(value, printed.mean[place], spread)})"


def _bold(value: float, dataset: str, shots: int, place: int) -> str:
    """A number, bold where it is above the published MetaTKGR."""
    printed = PUBLISHED.get(("metatkgr", dataset, shots))
    reference = None if printed is None else printed.mean[place]
    text = number(value)
    return f"**{text}**" if reference is not None and value > reference else text


def _published_cell(printed: Printed | None, places: Sequence[int] = range(4)) -> str:
    if printed is None:
        return MISSING
    return " / ".join(number(printed.mean[place]) for place in places)


def _seeds(found: Iterable[Sequence[Outcome]]) -> str:
    counts = [str(len(runs)) if runs else MISSING for runs in found]
    return counts[0] if len(set(counts)) == 1 else "/".join(counts)


def _rows_to_show(runs: Runs, shots: int) -> list[Row]:
    """The paper's rows, with or without a run, and whatever else was run."""
    usual = _USUAL if set(runs.datasets) & set(DATASETS) else []
    return sorted({*usual, *runs.rows(shots)}, key=row_order)


def main_table(runs: Runs, shots: int) -> list[str]:
    """Means over seeds, the row's own published number in brackets."""
    return _against_paper(runs, [(d, shots) for d in runs.datasets], runs.datasets, range(4))


def few_shot_table(runs: Runs, shots: Sequence[int] = (1, 2)) -> list[str]:
    """MRR and H@10 for several numbers of shots, as the paper's second table."""
    columns = [(d, k) for d in runs.datasets for k in shots]
    return _against_paper(runs, columns, [f"{d}, {k}-shot" for d, k in columns], (0, 3))


def _against_paper(
    runs: Runs,
    columns: Sequence[tuple[str, int]],
    heads: Sequence[str],
    places: Sequence[int],
) -> list[str]:
    published = [_published_cell(PUBLISHED.get(("metatkgr", d, k)), places) for d, k in columns]
    rows = [] if set(published) == {MISSING} else [["MetaTKGR, as published", *published, "5"]]
    for row in sorted({row for _, k in columns for row in _rows_to_show(runs, k)}, key=row_order):
        cells = []
        for dataset, k in columns:
            values = runs.values(runs.of(dataset, row, k))
            printed = PUBLISHED.get((row.model, dataset, k))
            if values is None:
                cells.append(MISSING)
                continue
            mean = values.mean(0)
            cells.append(
                " / ".join(
                    _bold(mean[p], dataset, k, p) + _beside(printed, p, mean[p]) for p in places
                )
            )
        rows.append([row.label, *cells, _seeds(runs.of(d, row, k) for d, k in columns)])
    return table(["", *heads, "seeds"], rows)


def detailed_table(runs: Runs, shots: int) -> list[str]:
    """Mean ± standard deviation over seeds; a rule has the interval over entities instead."""
    rows = []
    for row in _rows_to_show(runs, shots):
        cells = []
        for dataset in runs.datasets:
            found = runs.of(dataset, row, shots)
            values = runs.values(found)
            printed = PUBLISHED.get((row.model, dataset, shots))
            if values is None:
                cells.append(MISSING)
                continue
            texts = []
            for place in range(len(METRICS)):
                own = values[:, place]
                text = _bold(own.mean(), dataset, shots, place)
                if len(own) > 1:
                    text += f" ± {number(own.std(ddof=1))}"
                elif place == 0:
                    text += _interval(found[0])
                texts.append(text + _beside(printed, place, own.mean(), std=True))
            cells.append(" / ".join(texts))
        rows.append([row.label, *cells])
    return table(["", *runs.datasets], rows)


def _interval(run: Outcome, filter: str = "static", subset: str = "all") -> str:
    low, high = run.result["metrics"][filter][subset]["mrr_ci95"]
    return f" ({number(low)}-{number(high)})"


def subset_tables(runs: Runs, visibility: str) -> list[str]:
    """Both filters, each number of shots: all queries, novel answers, later queries."""
    lines: list[str] = []
    for filter in FILTERS:
        for shots in runs.shots():
            shown = runs.rows(shots, visibility)
            if not shown:
                continue
            heads = [_head(runs, dataset, shown, shots, visibility) for dataset in runs.datasets]
            rows = [
                [f"{row.label}, {subset}"]
                + [
                    _subset_cell(runs, runs.of(dataset, row, shots, visibility), filter, subset)
                    for dataset in runs.datasets
                ]
                for row in shown
                for subset in SUBSETS
            ]
            lines += ["", f"Filter `{filter}`, {shots}-shot:", "", *table(["", *heads], rows)]
    return lines


def _head(runs: Runs, dataset: str, rows: Iterable[Row], shots: int, visibility: str) -> str:
    for row in rows:
        if found := runs.of(dataset, row, shots, visibility):
            result = found[0].result
            share = result["metrics"]["static"]["novel"]["share"]
            return (
                f"{dataset} ({result['tasks']:,} tasks, {result['queries']:,} queries, "
                f"{share:.1%} novel)"
            )
    return dataset


def _subset_cell(runs: Runs, found: list[Outcome], filter: str, subset: str) -> str:
    values = runs.values(found, filter, subset)
    if values is None:
        return MISSING
    texts = [number(value) for value in values.mean(0)]
    if len(values) > 1:
        texts[0] += f" ± {number(values[:, 0].std(ddof=1))}"
    else:
        texts[0] += _interval(found[0], filter, subset)
    return " / ".join(texts)
