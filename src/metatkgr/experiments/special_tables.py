"""The tables beside the main ones: cross-shot, ablations, calibration, datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from metatkgr.experiments.ablations import ABLATIONS
from metatkgr.experiments.outcomes import FloatArray, Outcome, Row
from metatkgr.experiments.published import CROSS_SHOT
from metatkgr.experiments.significance import Comparison
from metatkgr.experiments.suite import CROSS_DATASET, CROSS_TEST, CROSS_TRAIN, RULES
from metatkgr.experiments.tables import (
    EVIDENCE,
    METATKGR,
    MISSING,
    STAR,
    Runs,
    mark,
    number,
    table,
)

__all__ = [
    "ablation_average",
    "ablation_means",
    "ablation_rows",
    "ablation_table",
    "calibration_table",
    "cross_shot_table",
    "dataset_table",
    "evidence_ablation_table",
]

_MISSING_PART = {
    "without=contact": "contacts by other relations are not seen",
    "without=walks": "walks and PageRank only pick candidates",
    "without=peers": "what peers answered is not seen",
    "without=frequency": "counts of the place are not seen",
    "without=age": "ages of candidates are not seen",
    "support_share=0": "nothing is learned from the newest supports",
    "epochs=0": "nothing is learned: weights as they start, near the rules",
    "prior=0": "PageRank is not added to what was learned",
    "members=1": "one set of weights",
    "earlier_queries=0": "nothing is learned from late background entities",
    "repeats_first=false": "repeats are weighed like the rest",
}


def cross_shot_table(runs: Runs, dataset: str) -> list[str]:
    """MRR / H@1 / H@10 for each K of training (across) and of the test (down)."""
    rows = []
    for test in CROSS_TEST:
        cells = []
        for rule in RULES:
            # A rule is not trained: under whichever K it was run, it is the same rule.
            found = next((f for k in (3, 1, 2) if (f := _tested(runs, dataset, rule, k, test))), [])
            cells.append(_cross_cell(runs, found, None))
        for shots in CROSS_TRAIN:
            found = runs.of(dataset, METATKGR, shots, test_shots=test)
            printed = CROSS_SHOT.get((shots, test)) if dataset == CROSS_DATASET else None
            cells.append(_cross_cell(runs, found, printed))
        rows.append([f"test {test}-shot", *cells])
    heads = [f"`{rule}`" for rule in RULES] + [f"`metatkgr`, trained {k}-shot" for k in CROSS_TRAIN]
    return table(["", *heads], rows)


def _tested(runs: Runs, dataset: str, rule: str, shots: int, test: str) -> list[Outcome]:
    own = runs.of(dataset, Row(rule), shots, test_shots=test)
    return own or (runs.of(dataset, Row(rule), int(test)) if test.isdecimal() else [])


def _cross_cell(runs: Runs, found: list[Outcome], printed: tuple[float, ...] | None) -> str:
    values = runs.values(found)
    if values is None:
        return MISSING
    mean = values.mean(0)[[0, 1, 3]]
    texts = [number(value) for value in mean]
    if printed is not None:
        pairs = zip(texts, mean, printed, strict=True)
        texts = [f"{t} ({number(p)} {mark(float(v), p, None)})" for t, v, p in pairs]
    return " / ".join(texts)


def ablation_table(runs: Runs, shots: int = 3) -> list[str]:
    """MetaTKGR whole and with parts left out, mean ± standard deviation over seeds."""
    rows = []
    for name, row in ablation_rows(runs):
        cells = []
        for dataset in runs.datasets:
            values = runs.values(runs.of(dataset, row, shots))
            if values is None:
                cells.append(MISSING)
                continue
            spread = values.std(0, ddof=1) if len(values) > 1 else [None] * 4
            texts = [
                number(mean) + (f" ± {number(std)}" if std is not None else "")
                for mean, std in zip(values.mean(0), spread, strict=True)
            ]
            cells.append(" / ".join(texts))
        rows.append([name, *cells])
    return table(["", *runs.datasets], rows)


def ablation_average(runs: Runs, whole: Row = METATKGR) -> tuple[list[str], int]:
    """The table of :func:`ablation_means`, empty where there is none; and the number of cells."""
    means, fewest = ablation_means(runs, whole)
    rows = [
        [name, *(number(value, 4) for value in mean), str(min(fewest))]
        for name, mean in means.items()
    ]
    heads = ["", "MRR", "H@1", "H@3", "H@10", "seeds, at least"]
    return (table(heads, rows) if rows else []), len(fewest)


def ablation_means(runs: Runs, whole: Row = METATKGR) -> tuple[dict[str, FloatArray], list[int]]:
    """The mean over all cells (datasets and K) of a model and of its ablations.

    A cell counts where all of them have a run of the same seed; only such seeds count.

    Returns:
        (4,) MRR and Hits@1, 3, 10 by what the ablation is called, the whole model first, nothing
        where there is no such cell; and of each cell how many seeds it has.
    """
    named = ablation_rows(runs, whole)
    means: list[list[FloatArray]] = [[] for _ in named]
    fewest: list[int] = []
    for dataset in runs.datasets:
        for shots in runs.shots():
            found = [runs.of(dataset, row, shots) for _, row in named]
            seeds = set.intersection(*({run.seed for run in own} for own in found))
            values = [runs.values([run for run in own if run.seed in seeds]) for own in found]
            present = [value for value in values if value is not None]
            if len(present) == len(named):
                fewest.append(len(seeds))
                for own, value in zip(means, present, strict=True):
                    own.append(value.mean(0))
    if not fewest:
        return {}, []
    named_means = zip(named, means, strict=True)
    return {name: np.mean(own, axis=0) for (name, _), own in named_means}, fewest


def ablation_rows(runs: Runs, whole: Row = METATKGR) -> list[tuple[str, Row]]:
    """What an ablation of a model is called, and its row; the whole model first."""
    named = [("whole", whole)]
    for variant in ABLATIONS[whole.model]:
        named += [
            (variant, row)
            for row in sorted({o.row for o in runs.outcomes})
            if (row.model, row.preset, row.variant) == (whole.model, "default", variant)
        ]
    return named


def evidence_ablation_table(runs: Runs, found: Sequence[Comparison], shots: int = 3) -> list[str]:
    """The evidence model whole and with parts left out, and what that changes.

    Args:
        runs: all runs.
        found: the whole model compared with each ablation.
        shots: K.
    """
    compared = {(c.dataset, c.other): c for c in found if c.shots == shots}
    rows = []
    for name, row in ablation_rows(runs, EVIDENCE):
        cells = []
        for dataset in runs.datasets:
            values = runs.values(runs.of(dataset, row, shots))
            if values is None:
                cells.append(MISSING)
                continue
            texts = [number(mean) for mean in values.mean(0)]
            if len(values) > 1:
                texts[0] += f" ± {number(values[:, 0].std(ddof=1))}"
            cells.append(" / ".join(texts) + _change(runs, dataset, row, shots, compared))
        said = "" if row == EVIDENCE else _MISSING_PART[name]
        rows.append([name if row == EVIDENCE else f"`{name}`", said, *cells])
    return table(["", "what is missing", *runs.datasets], rows)


def _change(
    runs: Runs,
    dataset: str,
    row: Row,
    shots: int,
    compared: dict[tuple[str, Row], Comparison],
) -> str:
    """'; -.012* (-.018 to -.006)': what the ablation changes in the MRR of the common seeds."""
    whole, less = runs.common(dataset, EVIDENCE, row, shots)
    if row == EVIDENCE or whole is None or less is None:
        return ""
    comparison = compared.get((dataset, row))
    if comparison is None:
        return f"; {less[:, 0].mean() - whole[:, 0].mean():+.3f}"
    star = STAR if comparison.significant else ""
    interval = f"{-comparison.high:+.3f} to {-comparison.low:+.3f}"
    return f"; {-comparison.difference:+.3f}{star} ({interval})"


def calibration_table(runs: Runs, shots: int = 3) -> list[str]:
    """How far off probabilities are, on meta-validation and on meta-test; means over seeds.

    Returns:
        Lines of a table; none where no run has measured it.
    """
    rows = []
    for row in runs.rows(shots):
        cells = [_calibration_cell(runs.of(dataset, row, shots)) for dataset in runs.datasets]
        if set(cells) != {MISSING}:
            rows.append([row.label, *cells])
    return table(["", *runs.datasets], rows) if rows else []


def _calibration_cell(found: Sequence[Outcome]) -> str:
    parts = [outcome.result.get("calibration") or {} for outcome in found]
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


def dataset_table(statistics: Sequence[dict[str, Any]]) -> list[str]:
    """Size of the datasets, ours and the paper's, and who is new in them."""
    rows = []
    for found in statistics:
        printed = found.get("published") or {}

        def beside(key: str, found: dict[str, Any] = found, printed: Any = printed) -> str:
            paper = f" ({printed[key]:,})" if printed.get(key) else ""
            return f"{found[key]:,}{paper}"

        rows.append(
            [
                found["name"],
                beside("entities"),
                beside("relations"),
                beside("facts"),
                found["time_unit"],
                f"{found['new_entities']:,} ({found['new_share']:.1%})",
                f"{found['few_facts']['3']:.1%}",
                *(f"{t['tasks']:,} / {t['queries']:,}" for t in found["tasks"]),
            ]
        )
    heads = ["dataset", "entities", "relations", "facts", "step", "new entities", "at most 3 facts"]
    heads += [f"{t['shots']}-shot tasks / queries" for t in statistics[0]["tasks"]]
    return table(heads, rows)
