"""From the results in ``results/`` to the page ``docs/results.md``; nothing on it is typed by hand.

``python -m metatkgr.experiments.tables results docs/results.md`` writes the page anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metatkgr.data.visibility import Visibility
from metatkgr.errors import DataError
from metatkgr.evaluation.filters import FILTERS
from metatkgr.evaluation.statistics import HITS
from metatkgr.files import write_text

__all__ = ["PUBLISHED", "read_results", "results_page"]

DATASETS = ("YAGO", "WIKI", "ICEWS18")
RULES = ("recurrency", "paths")
SHOTS = (1, 2, 3)

PUBLISHED: dict[tuple[str, int], tuple[float, float, float, float]] = {
    ("YAGO", 1): (0.294, 0.240, 0.319, 0.428),
    ("YAGO", 2): (0.356, 0.284, 0.372, 0.526),
    ("YAGO", 3): (0.370, 0.303, 0.416, 0.558),
    ("WIKI", 1): (0.277, 0.203, 0.3071, 0.419),
    ("WIKI", 2): (0.309, 0.249, 0.325, 0.441),
    ("WIKI", 3): (0.329, 0.253, 0.335, 0.489),
    ("ICEWS18", 1): (0.295, 0.207, 0.309, 0.496),
    ("ICEWS18", 2): (0.300, 0.208, 0.311, 0.500),
    ("ICEWS18", 3): (0.335, 0.249, 0.340, 0.527),
}
"""MRR, H@1, H@3, H@10 of MetaTKGR as printed in the paper's detailed tables (static filter)."""

Result = dict[str, Any]


def read_results(folder: Path) -> list[Result]:
    """Every evaluation below ``folder``, in the order of the file names."""
    results: list[Result] = []
    for path in sorted(folder.rglob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path} is not JSON: {error}") from None
        found = content if isinstance(content, list) else [content]
        results += [result for result in found if "metrics" in result]
    if not results:
        raise DataError(f"there is no result in {folder}")
    return results


def results_page(results: Iterable[Result]) -> str:
    """The page in Markdown."""
    results = list(results)
    by_run = {(r["dataset"], r["model"], r["shots"], r["visibility"]): r for r in results}
    lines = [
        "# Results",
        "",
        "Made from the files in `results/` by `make docs`; nothing here is typed by hand. What the",
        "words mean: [protocol.md](protocol.md). Every file of the rules was written by",
        "",
        "```text",
        "metatkgr evaluate DATASET --model RULE --shots K --visibility V"
        " --json results/rules/DATASET-V-K-RULE.json",
        "```",
        "",
        "Learned models, by `metatkgr train DATASET --model NAME --seed N --out RUN` and",
        "`metatkgr evaluate RUN`, are means ± standard deviations over seeds, without interval.",
        "",
        "The rules have no randomness, so there is one run of each; intervals (95 %) are by",
        "bootstrap over entities. Split: meta-test. Cells: MRR (interval) / H@1 / H@3 / H@10.",
        "",
        "## Against the published MetaTKGR",
        "",
        "Visibility `entity-split`, filter `static`, as in the paper; bold: above the published",
        "number. The published row has no interval over entities.",
    ]
    better = total = 0
    for shots in SHOTS:
        rows = [["MetaTKGR, as published", *(_numbers(PUBLISHED[d, shots]) for d in DATASETS)]]
        for rule in RULES:
            cells = []
            for dataset in DATASETS:
                metrics = by_run[dataset, rule, shots, "entity-split"]["metrics"]["static"]["all"]
                cells.append(_cell(metrics, PUBLISHED[dataset, shots]))
                if rule == "paths":
                    wins = zip(_values(metrics), PUBLISHED[dataset, shots], strict=True)
                    better += sum(ours > theirs for ours, theirs in wins)
                    total += 4
            rows.append([f"`{rule}`", *cells])
        rows += _learned_rows(results, shots)
        lines += ["", f"{shots}-shot:", "", *_table(["", *DATASETS], rows)]
    lines += [
        "",
        f"The untrained rule `paths` is above the published model in {better} of {total} cells.",
    ]
    for visibility in Visibility:
        for name in FILTERS:
            lines += ["", f"## Visibility `{visibility.value}`, filter `{name}`"]
            for shots in SHOTS:
                rows = []
                for rule in RULES:
                    for subset in ("all", "novel", "later"):
                        cells = []
                        for dataset in DATASETS:
                            run = by_run[dataset, rule, shots, visibility.value]
                            metrics = run["metrics"][name][subset]
                            share = f", {metrics['share']:.1%}" if subset == "novel" else ""
                            cells.append(_cell(metrics) + share)
                        rows.append([f"`{rule}`, {subset}", *cells])
                heads = [
                    "",
                    *(_head(by_run[d, RULES[0], shots, visibility.value]) for d in DATASETS),
                ]
                lines += ["", f"{shots}-shot:", "", *_table(heads, rows)]
    return "\n".join(lines) + "\n"


def _learned_rows(results: list[Result], shots: int) -> list[list[str]]:
    """A row for each learned model that has runs of this many shots on all datasets."""
    rows = []
    for model in sorted({r["model"] for r in results} - set(RULES)):
        cells = []
        for dataset in DATASETS:
            wanted = (dataset, model, shots, "entity-split")
            runs = [
                _values(r["metrics"]["static"]["all"])
                for r in results
                if (r["dataset"], r["model"], r["shots"], r["visibility"]) == wanted
            ]
            if runs:
                cells.append(_mean_cell(np.array(runs), PUBLISHED[dataset, shots]))
        if len(cells) == len(DATASETS):
            rows.append([f"`{model}`", *cells])
    return rows


def _mean_cell(runs: npt.NDArray[np.float64], reference: Iterable[float]) -> str:
    """Mean ± standard deviation over seeds of each metric, bold where above ``reference``."""
    texts = []
    for values, published in zip(runs.T, reference, strict=True):
        mean = _numbers([float(values.mean())])
        mean = f"**{mean}**" if values.mean() > published else mean
        texts.append(f"{mean} ± {_numbers([float(values.std(ddof=1))])}" if len(runs) > 1 else mean)
    return f"{' / '.join(texts)} ({len(runs)} seeds)"


def _head(run: Result) -> str:
    return f"{run['dataset']} ({run['tasks']:,} tasks, {run['queries']:,} queries)"


def _values(metrics: dict[str, Any]) -> list[float]:
    return [metrics["mrr"], *(metrics[f"hits@{k}"] for k in HITS)]


def _numbers(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.3f}".removeprefix("0") for value in values)


def _cell(metrics: dict[str, Any], reference: Iterable[float] | None = None) -> str:
    """MRR with its interval, and Hits@k; bold where above ``reference``."""
    values = _values(metrics)
    low, high = metrics["mrr_ci95"]
    texts = [_numbers([value]) for value in values]
    if reference is not None:
        pairs = zip(texts, values, reference, strict=True)
        texts = [f"**{text}**" if ours > theirs else text for text, ours, theirs in pairs]
    texts[0] += f" ({_numbers([low])}-{_numbers([high])})"
    return " / ".join(texts)


def _table(heads: list[str], rows: list[list[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


if __name__ == "__main__":
    write_text(sys.argv[2], results_page(read_results(Path(sys.argv[1]))))
