"""How the numbers came about: what was seen before, searches, datasets, seeds and settings."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from metatkgr.data.sources import TEST_GRAPHS
from metatkgr.experiments.cells import BASELINES, Row
from metatkgr.experiments.published import METRICS
from metatkgr.experiments.records import FloatArray
from metatkgr.experiments.results import EVIDENCE, METATKGR, Results, in_papers_order
from metatkgr.experiments.rounds import read_looks, read_rounds
from metatkgr.experiments.sections import section, written
from metatkgr.experiments.sections.findings import leaders
from metatkgr.experiments.sections.tables import MISSING, number, pivot, table
from metatkgr.files import read_json

__all__ = ["blind_leads"]

_SHOTS = 3
"""K of the tables of searches and of times."""


@section("seen", place=12)
def _seen(results: Results) -> list[str]:
    """What was seen when: text, and numbers out of the records."""
    if results.folder is None:
        return []
    lines = written("seen")
    if blind := blind_leads(results):
        values = results.values("YAGO", Row("pagerank"), 3)
        rule = number(None if values is None else float(values[0, 0]))
        leads = {"led": blind[1], "blind": blind[0], "all": blind[3]}
        lines += written("blind", **leads, mrr=number(blind[2]), rule=rule)
    looks = Counter(look["round"] for look in read_looks(results.folder))
    rows = [
        [r.name, r.registered, f"`{r.commit}`", r.claim, str(looks[r.name])]
        for r in read_rounds(results.folder)
    ]
    return lines + written(
        "rounds",
        graphs=_listed_graphs(results),
        looks=looks.total(),
        records=len(results.records),
        table=table(["round", "registered", "commit", "claim", "looks"], rows),
    )


def _listed_graphs(results: Results) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(TEST_GRAPHS))
    return names if results.test_graphs else f"{names}, run by nobody yet"


def blind_leads(results: Results) -> tuple[int, int, float, int] | None:
    """How many cells ``evidence`` leads as meta-validation had chosen it, and as it is.

    The former is on record in ``studies/evidence-mirrored.json``; with one shot both are the same.

    Returns:
        Cells led blind and not blind, the blind MRR on YAGO, 3-shot, and the number of cells; None
        where there is no such record.
    """
    path = results.folder / "studies" / "evidence-mirrored.json" if results.folder else None
    if path is None or not path.exists():
        return None
    runs: dict[tuple[str, int, str], dict[int, list[float]]] = {}
    for run in read_json(path)["variants"]:
        plain = run["settings"] == {"mirrored_share": "1"} and run["visibility"] == "entity-split"
        for kind in ("static", "time") if plain else ():
            by_seed = runs.setdefault((run["dataset"], run["shots"], kind), {})
            by_seed[run["seed"]] = [run[kind][metric] for metric in METRICS]
    blind: dict[tuple[str, int, str], FloatArray] = {
        key: np.mean(list(by_seed.values()), axis=0) for key, by_seed in runs.items()
    }
    led: list[Counter[str]] = [Counter(), Counter()]
    for shots in results.shots:
        led[0] += leaders(results, shots, instead=blind)
        led[1] += leaders(results, shots)
    blind_led, seen_led = (count[EVIDENCE.label] for count in led)
    return blind_led, seen_led, float(blind["YAGO", _SHOTS, "static"][0]), led[1].total()


@section("budgets", place=45)
def _budgets(results: Results) -> list[str]:
    """Who was searched how much."""
    kept = results.kept("tuning", "model", "dataset", "all", "best", "trials")
    searches = {(search["model"], search["dataset"]): search for search in kept}
    if not searches:
        return []
    datasets = in_papers_order(dataset for _, dataset in searches)

    def cell(row: Row, dataset: str) -> str:
        search = searches.get((row.model, dataset))
        seeds = len(results.of(dataset, row, _SHOTS))
        if search is None or search["best"] is None:
            return f"not searched; {seeds} seeds"
        first = next(trial for trial in search["all"] if trial["trial"] == 0)
        tried = sum(count for state, count in search["trials"].items() if state != "failed")
        before = number(first["mrr"] if first["state"] == "complete" else None)
        spent = f" in {search['seconds']:.0f} s" if "seconds" in search else ""
        return f"{tried} trials{spent}, {before} to {number(search['best']['mrr'])}; {seeds} seeds"

    rows = [METATKGR, *(Row(model) for model in BASELINES), EVIDENCE]
    return written("budgets", table=table(["", *datasets], pivot(rows, datasets, cell)))


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
