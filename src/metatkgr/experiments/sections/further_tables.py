"""The other tables: cross-shot, calibration, datasets, settings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from metatkgr.experiments.cells import RULES, Row
from metatkgr.experiments.published import CROSS_SHOT
from metatkgr.experiments.records import Record
from metatkgr.experiments.results import METATKGR, Results, values_of
from metatkgr.experiments.sections import section, written
from metatkgr.experiments.sections.tables import MISSING, mark, number, pivot, table
from metatkgr.experiments.suite import CROSS_DATASET, CROSS_TEST, CROSS_TRAIN

__all__: list[str] = []

_SHOTS = 3
"""K of the tables of probabilities and of times."""


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
    mean = values.mean(0)[[0, 1, 3]]
    texts = [number(value) for value in mean]
    if printed is not None:
        pairs = zip(texts, mean, printed, strict=True)
        texts = [f"{t} ({number(p)} {mark(float(v), p, None)})" for t, v, p in pairs]
    return " / ".join(texts)


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


@section("datasets", place=120, page="runs")
def _datasets(results: Results) -> list[str]:
    """Size of the datasets, ours and the paper's, and who is new in them."""
    if not results.statistics:
        return []
    rows = []
    for counts in results.statistics:
        printed = counts.get("published") or {}

        def beside(key: str, counts: dict[str, Any] = counts, printed: Any = printed) -> str:
            paper = f" ({printed[key]:,})" if printed.get(key) else ""
            return f"{counts[key]:,}{paper}"

        rows.append(
            [
                counts["name"],
                beside("entities"),
                beside("relations"),
                beside("facts"),
                counts["time_unit"],
                f"{counts['new_entities']:,} ({counts['new_share']:.1%})",
                f"{counts['few_facts']['3']:.1%}",
                *(f"{t['tasks']:,} / {t['queries']:,}" for t in counts["tasks"]),
            ]
        )
    heads = ["dataset", "entities", "relations", "facts", "step", "new entities", "at most 3 facts"]
    heads += [f"{t['shots']}-shot tasks / queries" for t in results.statistics[0]["tasks"]]
    return written("datasets", table=table(heads, rows))


@section("provenance", place=150, page="runs")
def _provenance(results: Results) -> list[str]:
    """How the numbers were made: commands, seeds, versions, hardware and settings."""
    records = results.records
    lines = written("provenance")
    for title, counted in (
        ("Versions", [", ".join(f"{k} {v}" for k, v in r.versions.items()) for r in records]),
        ("Hardware", [r.hardware for r in records]),
        ("Commits", [r.commit or "not known" for r in records]),
    ):
        if counted:
            lines += ["", f"{title}:", ""]
            lines += [f"- {text} ({n} cells)" for text, n in sorted(Counter(counted).items())]
    rows = _settings_rows(results)
    if rows:
        heads = ["model", "seeds", "seconds of training, 3-shot", "settings"]
        lines += written("settings", table=table(heads, rows))
    return lines


def _settings_rows(results: Results) -> list[list[str]]:
    rows = []
    for row in sorted({record.row for record in results.records if record.training}):
        own = [record for record in results.records if record.row == row and record.training]
        seeds = sorted({record.cell.seed for record in own})
        seconds = []
        for dataset in results.datasets:
            runs = results.of(dataset, row, _SHOTS)
            spent = [run.training["seconds"] for run in runs if run.training]
            if spent:
                seconds.append(f"{dataset} {sum(spent) / len(spent):.0f}")
        different = {json.dumps(record.settings, sort_keys=True) for record in own}
        texts = [
            ", ".join(f"{key}={value}" for key, value in json.loads(text).items())
            for text in sorted(different)
        ]
        said = texts[0] if len(texts) == 1 else "; or: ".join(texts)
        rows.append(
            [row.label, ", ".join(map(str, seeds)), ", ".join(seconds) or MISSING, f"`{said}`"]
        )
    return rows
