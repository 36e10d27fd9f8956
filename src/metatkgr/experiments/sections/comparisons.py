"""Tests: the best model against every row, every model against the best rule."""

from __future__ import annotations

from collections.abc import Callable

from metatkgr.experiments.cells import Row
from metatkgr.experiments.results import Results
from metatkgr.experiments.sections import section, written
from metatkgr.experiments.sections.tables import MISSING, STAR, number, pivot, table
from metatkgr.experiments.significance import ALPHA, RESAMPLES, Comparison

__all__: list[str] = []

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
