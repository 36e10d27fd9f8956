"""The tables beside the main ones: cross-shot, ablations, datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metatkgr.experiments.outcomes import Outcome, Row
from metatkgr.experiments.published import CROSS_SHOT
from metatkgr.experiments.suite import CROSS_DATASET, CROSS_TEST, CROSS_TRAIN, RULES, VARIANTS
from metatkgr.experiments.tables import METATKGR, MISSING, Runs, mark, number, table

__all__ = ["ablation_rows", "ablation_table", "cross_shot_table", "dataset_table"]


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


def ablation_rows(runs: Runs) -> list[tuple[str, Row]]:
    """What an ablation is called, and its row; the whole model first."""
    named = [("whole", METATKGR)]
    for variant in VARIANTS:
        named += [
            (variant, row)
            for row in sorted({o.row for o in runs.outcomes})
            if row.model == "metatkgr" and row.variant == variant and row.preset == "default"
        ]
    return named


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
