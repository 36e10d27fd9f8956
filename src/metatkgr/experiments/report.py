"""The report: one page in Markdown, and the same as one HTML file, all of it made from results.

``python -m metatkgr.experiments.report results docs`` writes ``docs/results.md`` and
``docs/figures`` anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from metatkgr.data.visibility import Visibility
from metatkgr.errors import DataError
from metatkgr.experiments.figures import drawable, write_figures
from metatkgr.experiments.findings import (
    ablation_findings,
    bound_findings,
    evidence_findings,
    leader_findings,
    published_findings,
    rule_findings,
    significance_findings,
)
from metatkgr.experiments.outcomes import Outcome, Row, read_outcomes
from metatkgr.experiments.page import to_html
from metatkgr.experiments.provenance import provenance
from metatkgr.experiments.published import INCONSISTENCIES
from metatkgr.experiments.search_table import read_searches, search_section
from metatkgr.experiments.significance import ALPHA, Comparison, comparisons
from metatkgr.experiments.special_tables import (
    ablation_average,
    ablation_rows,
    ablation_table,
    calibration_table,
    cross_shot_table,
    dataset_table,
    evidence_ablation_table,
)
from metatkgr.experiments.suite import DATASETS
from metatkgr.experiments.tables import (
    EVIDENCE,
    METATKGR,
    STAR,
    Runs,
    detailed_table,
    few_shot_table,
    main_table,
    number,
    subset_tables,
    table,
)
from metatkgr.experiments.training_times import read_timings, times_section
from metatkgr.files import read_json, write_json, write_text

__all__ = ["read_statistics", "results_page", "write_report"]

_OF_DOCS = """\
Made from the files in `results/` by `make docs`; nothing here is typed by hand. What the words
mean: [protocol.md](protocol.md)."""
_OF_FOLDER = """\
Made by `metatkgr reproduce` from the cells in this folder. Cells of tiny trainings (`--quick`) show
that everything runs; their numbers mean nothing."""
_INTRODUCTION = """\
Split: meta-test; weights selected on meta-validation. Cells: MRR / H@1 / H@3 / H@10, where nothing
else is said. Learned models: means (± standard deviations) over seeds. The rules have no
randomness: one run of each; intervals (95 %) by bootstrap over entities. In brackets behind our
number: the published one of the same model, and ▲ ours is higher by more than the published
standard deviation, = within it, ▼ lower by more. Bold: above the published MetaTKGR. An en dash: no
run yet."""


_CALIBRATION = """\
## Calibration

Expected calibration error of the first forecast, 3-shot, visibility `streaming` (as a forecaster
sees): on meta-validation, to which probabilities are fitted, of entities that the fit had not seen;
and on meta-test. In brackets, of meta-test: the mean probability that was stated, and how often the
first forecast was right."""


def read_statistics(folder: Path) -> list[dict[str, Any]]:
    """The statistics of datasets below a folder, in the order of the paper."""
    found = []
    for path in sorted((folder / "datasets").glob("*.json")):
        content = read_json(path)
        if not isinstance(content, dict) or not isinstance(content.get("name"), str):
            raise DataError(f"{path} does not hold the statistics of a dataset")
        found.append(content)
    order = list(DATASETS)
    return sorted(
        found, key=lambda s: (order.index(s["name"]) if s["name"] in order else 9, s["name"])
    )


def results_page(
    outcomes: Iterable[Outcome],
    statistics: Sequence[dict[str, Any]] = (),
    searches: Sequence[dict[str, Any]] = (),
    timings: Sequence[dict[str, Any]] = (),
    *,
    origin: str = _OF_DOCS,
) -> str:
    """The page in Markdown; ``origin`` says what it is made from."""
    runs = Runs(outcomes)
    shots = runs.shots()
    found = comparisons(runs.outcomes, METATKGR, shots=shots)
    ablated, less_evidence = (_ablated(runs, whole) for whole in (METATKGR, EVIDENCE))
    lines = ["# Results", "", *origin.splitlines(), "", *_INTRODUCTION.splitlines()]
    said = leader_findings(runs) + published_findings(runs) + rule_findings(runs)
    said += significance_findings(found)
    said += ablation_findings(runs, ablated) + bound_findings(runs)
    said += evidence_findings(runs, less_evidence)
    lines += ["", "## What the numbers say", "", *(f"- {sentence}" for sentence in said)]
    if 3 in shots:
        lines += [
            "",
            "## 3-shot",
            "",
            "Visibility `entity-split`, filter `static`, as in the paper.",
        ]
        lines += ["", *main_table(runs, 3)]
    few = [k for k in (1, 2) if k in shots]
    if few:
        lines += ["", "## 1- and 2-shot", "", "MRR / H@10.", "", *few_shot_table(runs, few)]
    lines += ["", "## In detail, with standard deviations"]
    for k in shots:
        lines += ["", f"### {k}-shot, in detail", "", *detailed_table(runs, k)]
    if set(runs.datasets) & set(DATASETS):
        lines += ["", "Of the published numbers themselves:", ""]
        lines += [f"- {text}" for text in INCONSISTENCIES]
    lines += _cross_shot(runs)
    lines += _significance(found)
    if len(ablation_rows(runs)) > 1:
        lines += ["", "## Ablations", "", "3-shot, `entity-split`, filter `static`."]
        lines += ["", *ablation_table(runs)]
        lines += _average(runs, METATKGR)
    if len(ablation_rows(runs, EVIDENCE)) > 1:
        lines += _evidence_ablations(runs, less_evidence)
    if calibrated := calibration_table(runs):
        lines += ["", *_CALIBRATION.splitlines(), "", *calibrated]
    lines += search_section(searches)
    lines += times_section(runs, timings)
    if statistics:
        lines += ["", "## Datasets", "", "In brackets: the paper's count."]
        lines += ["", *dataset_table(statistics)]
    lines += _figures(runs, statistics)
    for visibility in Visibility:
        if tables := subset_tables(runs, visibility.value):
            lines += ["", f"## Visibility `{visibility.value}`: both filters, all subsets", *tables]
    return "\n".join(lines + provenance(runs)) + "\n"


def _cross_shot(runs: Runs) -> list[str]:
    lines: list[str] = []
    for dataset in runs.datasets:
        crossed = [o for o in runs.outcomes if o.test_shots != str(o.train_shots)]
        if any(o.dataset == dataset for o in crossed):
            lines += ["", f"{dataset}:", "", *cross_shot_table(runs, dataset)]
    if not lines:
        return []
    return [
        "",
        "## Cross-shot",
        "",
        "MRR / H@1 / H@10. Entities of meta-validation and meta-test have the K of the test in all",
        "that is learned from; meta-train tasks have the K of the training. `random`: each entity",
        "its own K from 1 to 5, the same for all models. In brackets: as published (YAGO), without",
        "standard deviation: ▲ higher, ▼ lower.",
        *lines,
    ]


def _ablated(runs: Runs, whole: Row) -> list[Comparison]:
    """A model compared with its own ablations."""
    own = [outcome for outcome in runs.outcomes if outcome.row.model == whole.model]
    return comparisons(own, whole, shots=runs.shots(), ablations=True)


def _average(runs: Runs, whole: Row) -> list[str]:
    """What the parts of a model are worth on the whole, where more than one K was run."""
    average, cells = ablation_average(runs, whole)
    if cells <= len(runs.datasets):
        return []
    return [
        "",
        f"Mean over {cells} cells (datasets, and K of training and test), the seeds that all rows",
        "have:",
        "",
        *average,
    ]


def _evidence_ablations(runs: Runs, found: Sequence[Comparison]) -> list[str]:
    return [
        "",
        f"## Ablations of {EVIDENCE.label}",
        "",
        "3-shot, `entity-split`, filter `static`: MRR / H@1 / H@3 / H@10; behind the semicolon",
        "what the ablation changes in the MRR of the seeds that both have, and the 95 % interval,",
        f"paired over entities and seeds; a star: p < {ALPHA}, corrected for all {len(found)}",
        "comparisons (Holm).",
        "",
        *evidence_ablation_table(runs, found),
        *_average(runs, EVIDENCE),
    ]


def _significance(found: Sequence[Comparison]) -> list[str]:
    if not found:
        return []
    rows = [
        [
            f"{c.dataset}, {c.shots}-shot",
            c.other.label,
            f"{c.difference:+.3f}" + (STAR if c.significant else ""),
            f"{c.low:+.3f} to {c.high:+.3f}",
            _p_value(c.p),
            _p_value(c.corrected),
        ]
        for c in found
    ]
    return [
        "",
        "## Significance",
        "",
        f"MRR of {found[0].one.label} minus that of the other, filter `static`; paired over",
        "entities and seeds, both drawn with replacement (1,000 draws); p-values corrected for all",
        f"{len(found)} comparisons (Holm). A star: corrected p < {ALPHA}.",
        "",
        *table(["", "other", "difference", "95 % interval", "p", "corrected p"], rows),
    ]


def _p_value(p: float) -> str:
    return "< .0001" if p < 0.0001 else number(p, 4)


def _figures(runs: Runs, statistics: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for name, (caption, _) in drawable(runs).items():
        lines += ["", f"![{caption.replace('`', '')}](figures/{name}.png)", "", caption]
    for found in statistics:
        for name, what in _OF_DATASETS.items():
            caption = f"{found['name']}: {what}."
            lines += ["", f"![{caption}](figures/{found['name']}-{name}.png)", "", caption]
    return ["", "## Figures", *lines] if lines else []


_OF_DATASETS = {
    "entities_over_time": "entities over time",
    "facts_per_new_entity": "facts per new entity",
}


def write_report(
    source: Path, out: Path, *, datasets: Iterable[str] = (), html: bool = True
) -> list[Path]:
    """Write ``results.md``, ``results.html`` and ``figures/`` into a folder.

    Args:
        source: where results are: a folder of cells, or ``results/``.
        out: where the report goes.
        datasets: whose statistics are counted and figures drawn anew; they have to be at hand.
        html: write the HTML page too.

    Returns:
        The files written.
    """
    written = []
    for name in datasets:
        written += _write_dataset(name, source, out)
    outcomes, statistics = read_outcomes(source), read_statistics(source)
    runs = Runs(outcomes)
    written += write_figures(runs, out / "figures")
    origin = _OF_FOLDER if html else _OF_DOCS
    found = (statistics, read_searches(source), read_timings(source))
    page = results_page(outcomes, *found, origin=origin)
    write_text(out / "results.md", page)
    written.append(out / "results.md")
    if html:
        write_text(out / "results.html", to_html(page, out))
        written.append(out / "results.html")
    return written


def _write_dataset(name: str, source: Path, out: Path) -> list[Path]:
    """Statistics and figures of one dataset."""
    from metatkgr.data.sources import load
    from metatkgr.data.statistics import DatasetStatistics
    from metatkgr.experiments.dataset_figures import plot_dataset

    facts = load(name)
    path = source / "datasets" / f"{facts.name}.json"
    write_json(path, DatasetStatistics.of(facts).to_json())
    drawn = plot_dataset(facts, out / "figures")
    return [path, *(file.rename(file.with_name(f"{facts.name}-{file.name}")) for file in drawn)]


def _main() -> None:
    from metatkgr.data import catalog

    source, out = map(Path, sys.argv[1:3])
    at_hand = [name for name in DATASETS if catalog.locate(name) is not None]
    for path in write_report(source, out, datasets=at_hand, html=False):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    _main()
