"""The best model with every row, every model with the best rule, ablations with the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from metatkgr.experiments.cells import ABLATIONS, Row
from metatkgr.experiments.dataset_figures import STYLE, load_matplotlib, new_figure
from metatkgr.experiments.records import FloatArray
from metatkgr.experiments.results import EVIDENCE, METATKGR, WALKS, Results
from metatkgr.experiments.sections import Drawing, figure, section, written
from metatkgr.experiments.sections.tables import (
    MISSING,
    STAR,
    mean_and_spread,
    number,
    pivot,
    table,
)
from metatkgr.experiments.significance import ALPHA, RESAMPLES, Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ablation_average", "ablation_means", "ablation_rows", "ablation_table"]

_HOW = {"draws": RESAMPLES, "alpha": ALPHA}


@section("tests", place=40)
def _tests(results: Results) -> list[str]:
    best, against = results.best, results.against_best
    if best is None or not against:
        return []
    how = written("tests-and-where" if results.folder else "tests-alone", **_HOW)
    matrix = _matrix(results, against, lambda c: c.other)
    lines = written("tests", how=how[1:], best=best.label, table=matrix)
    if rules := results.against_rules:
        lines += ["", "MRR of the row minus that of the best rule there:", ""]
        lines += _matrix(results, rules, lambda c: c.one)
    return [*lines, "", *(f"- {text}" for text in _test_sentences(results))]


def _matrix(
    results: Results, tested: list[Comparison], of: Callable[[Comparison], Row]
) -> list[str]:
    by_cell = {(of(c), c.dataset, c.shots): c for c in tested}
    columns = list(results.draws)
    rows = list(dict.fromkeys(row for row, _, _ in by_cell))
    return table(
        ["", *(f"{d}, {k}-shot" for d, k in columns)],
        pivot(rows, columns, lambda row, column: _cell(by_cell.get((row, *column)))),
    )


def _cell(c: Comparison | None) -> str:
    return MISSING if c is None else f"{c.difference:+.3f}" + (STAR if c.significant else "")


def _test_sentences(results: Results) -> list[str]:
    against, rules = results.against_best, results.against_rules
    weakest = max(against, key=lambda c: c.corrected)
    better = sum(c.significant and c.difference > 0 for c in against)
    said = [
        f"Of {len(against)} comparisons of {against[0].one.label} with another row, {better} show "
        f"it significantly better; the weakest is {weakest.other.label} on {weakest.dataset}, "
        f"{weakest.shots}-shot (corrected p = {number(weakest.corrected)}).",
    ]
    others = [c for c in rules if c.one != results.best]
    if others:
        above = sum(c.significant and c.difference > 0 for c in others)
        below = sum(c.significant and c.difference < 0 for c in others)
        said.append(
            f"Of {len(others)} comparisons of another learned row with the best rule, {above} show "
            f"the row significantly better, {below} significantly worse."
        )
    few = min(results.draws, key=lambda key: len(results.draws[key].size))
    of_best = next(
        (c for c in rules if (c.dataset, c.shots) == few and c.one == results.best), None
    )
    if of_best is not None and results.best is not None:
        low, high = results.draws[few].interval(results.best)
        said.append(
            f"Power: {few[0]}, {few[1]}-shot, has {len(results.draws[few].size)} tasks only. An "
            f"MRR there is known to ±{number((high - low) / 2)}; a difference between "
            f"{results.best.label} and the best rule is found four times out of five, by one test "
            f"alone, if it is at least {number(of_best.detectable)}. Where no difference is found "
            "there, little is said."
        )
    return said


@section("all-tests", place=41, page="tests")
def _all_tests(results: Results) -> list[str]:
    """Each comparison with its interval, its p-values and the bound of equivalence."""
    lines: list[str] = []
    for title, tested in (
        ("The best model against every row", results.against_best),
        ("Every model against the best rule", results.against_rules),
    ):
        if not tested:
            continue
        rows = [
            [
                f"{c.dataset}, {c.shots}-shot",
                c.one.label,
                c.other.label,
                f"{c.difference:+.3f}" + (STAR if c.significant else ""),
                f"{c.low:+.3f} to {c.high:+.3f}",
                _p_value(c.p),
                _p_value(c.corrected),
                f"±{number(c.equivalence)}",
            ]
            for c in tested
        ]
        heads = ["", "one", "other", "difference", "95 % interval", "p", "corrected", "same within"]
        lines += ["", f"## {title}", "", *table(heads, rows)]
    return [*written("all-tests", **_HOW), *lines] if lines else []


def _p_value(p: float) -> str:
    return "< .0001" if p < 0.0001 else number(p, 4)


_SHOTS = 3
_HATCHES = (("0.6", ""), ("0.85", "////"), ("1.0", ""), ("0.7", "----"), ("0.9", "xxxx"))


def ablation_rows(results: Results, full: Row = METATKGR) -> list[tuple[str, Row]]:
    """The name of each ablation of a model, and its row; the full model first."""
    named = [("whole", full)]
    for variant in ABLATIONS[full.model, full.preset]:
        named += [
            (variant, row)
            for row in sorted({record.row for record in results.records})
            if (row.model, row.preset, row.variant) == (full.model, full.preset, variant)
        ]
    return named


@section("ablations", place=70, page="ablations")
def _of_metatkgr(results: Results) -> list[str]:
    """MetaTKGR in full and with parts left out, mean ± standard deviation over seeds."""
    named = ablation_rows(results)
    if len(named) < 2:
        return []
    rows = []
    for name, row in named:
        by_dataset = [results.values(dataset, row, _SHOTS) for dataset in results.datasets]
        cells = [
            MISSING if values is None else mean_and_spread(values, of_all=True)
            for values in by_dataset
        ]
        rows.append([name, *cells])
    made = written("ablations", table=table(["", *results.datasets], rows))
    return made + _average(results, METATKGR)


@section("walk-ablations", place=75, page="ablations")
def _of_walks(results: Results) -> list[str]:
    return _parts(results, WALKS)


@section("evidence-ablations", place=80, page="ablations")
def _of_evidence(results: Results) -> list[str]:
    return _parts(results, EVIDENCE)


def _parts(results: Results, full: Row) -> list[str]:
    """A model and its ablations, and what each changes, with intervals."""
    if len(ablation_rows(results, full)) < 2:
        return []
    tested = results.against_ablations(full)
    made = ablation_table(results, tested, full)
    about = {"model": full.label, "alpha": ALPHA, "count": len(tested)}
    return written("evidence-ablations", **about, table=made) + _average(results, full)


def ablation_table(
    results: Results, tested: Sequence[Comparison], full: Row = EVIDENCE
) -> list[str]:
    """A model in full and with its ablations, and what each of them changes; 3-shot.

    Args:
        results: all results.
        tested: the full model compared with each ablation.
        full: the model.
    """
    compared = {(c.dataset, c.other): c for c in tested if c.shots == 3}
    rows = []
    for name, row in ablation_rows(results, full):
        cells = []
        for dataset in results.datasets:
            values = results.values(dataset, row, 3)
            if values is None:
                cells.append(MISSING)
                continue
            change = "" if row == full else _change(results, dataset, full, row, 3, compared)
            cells.append(mean_and_spread(values) + change)
        means = ABLATIONS[full.model, full.preset].get(name, "")
        rows.append([name if row == full else f"`{name}`", means, *cells])
    return table(["", "what is changed", *results.datasets], rows)


def _change(
    results: Results,
    dataset: str,
    full: Row,
    row: Row,
    shots: int,
    compared: dict[tuple[str, Row], Comparison],
) -> str:
    """'; -.012* (-.018 to -.006)': what the ablation changes in the MRR of the common seeds."""
    whole, ablated = results.common(dataset, full, row, shots)
    if whole is None or ablated is None:
        return ""
    comparison = compared.get((dataset, row))
    if comparison is None:
        return f"; {ablated[:, 0].mean() - whole[:, 0].mean():+.3f}"
    star = STAR if comparison.significant else ""
    interval = f"{-comparison.high:+.3f} to {-comparison.low:+.3f}"
    return f"; {-comparison.difference:+.3f}{star} ({interval})"


def _average(results: Results, full: Row) -> list[str]:
    """What the parts of a model are worth on average, where more than one K was run."""
    average, cells = ablation_average(results, full)
    if cells <= len(results.datasets):
        return []
    return written("average", cells=cells, table=average)


def ablation_average(results: Results, full: Row = METATKGR) -> tuple[list[str], int]:
    """The table of :func:`ablation_means`, empty where there is none; and the number of cells."""
    means, fewest = ablation_means(results, full)
    rows = [
        [name, *(number(value, 4) for value in mean), str(min(fewest))]
        for name, mean in means.items()
    ]
    heads = ["", "MRR", "H@1", "H@3", "H@10", "seeds, at least"]
    return (table(heads, rows) if rows else []), len(fewest)


def ablation_means(
    results: Results, full: Row = METATKGR
) -> tuple[dict[str, FloatArray], list[int]]:
    """The mean over all cells (datasets and K) of a model and of its ablations.

    A cell counts where all of them have a run of the same seed; only such seeds count.

    Returns:
        (4,) MRR and Hits@1, 3, 10 by the name of the ablation, the full model first, nothing
        where there is no such cell; and of each cell how many seeds it has.
    """
    named = ablation_rows(results, full)
    means: list[list[FloatArray]] = [[] for _ in named]
    fewest: list[int] = []
    for dataset in results.datasets:
        for shots in results.shots:
            seeds = set.intersection(*(results.seeds(dataset, row, shots) for _, row in named))
            by_row = [results.values(dataset, row, shots, seeds) for _, row in named]
            present = [values for values in by_row if values is not None]
            if len(present) == len(named):
                fewest.append(len(seeds))
                for own, values in zip(means, present, strict=True):
                    own.append(values.mean(0))
    if not fewest:
        return {}, []
    named_means = zip(named, means, strict=True)
    return {name: np.mean(own, axis=0) for (name, _), own in named_means}, fewest


@figure(place=20)
def _ablations(results: Results) -> Iterator[Drawing]:
    datasets = [dataset for dataset in results.datasets if len(_hits(results, dataset)) > 1]
    if datasets:
        yield Drawing(
            "ablations",
            "MetaTKGR and its ablations: H@10, 3-shot, `entity-split`, filter `static`; mean, and "
            "standard deviation over seeds.",
            lambda: _draw_ablations(results, datasets),
        )


def _hits(results: Results, dataset: str) -> dict[str, FloatArray]:
    """H@10 of each seed, of the full model and of its ablations."""
    return {
        name: values[:, 3]
        for name, row in ablation_rows(results)
        if (values := results.values(dataset, row, _SHOTS)) is not None
    }


def _draw_ablations(results: Results, datasets: Sequence[str]) -> Figure:
    figure, (axes,) = new_figure("MetaTKGR and its ablations")
    names = [name for name, _ in ablation_rows(results)]
    width = 0.8 / len(names)
    for bar_of, name in enumerate(names):
        grey, hatch = _HATCHES[bar_of % len(_HATCHES)]
        for group, dataset in enumerate(datasets):
            hits = _hits(results, dataset).get(name)
            if hits is None:
                continue
            spread = float(hits.std(ddof=1)) if len(hits) > 1 else 0.0
            with load_matplotlib().rc_context(STYLE):
                bar = axes.bar(
                    group + (bar_of - (len(names) - 1) / 2) * width, hits.mean(), width * 0.92,
                    fc=grey, ec="0.1", lw=0.8, hatch=hatch, yerr=spread, capsize=3,
                    error_kw={"ecolor": "0.0", "elinewidth": 1.4}, label=name,
                )  # fmt: skip
            axes.bar_label(bar, [number(hits.mean())], padding=3, size=8)
    handles = {text: handle for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    axes.set_xticks(range(len(datasets)), datasets)
    axes.set_ylabel("H@10")
    axes.margins(y=0.1)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False
    )
    return figure
