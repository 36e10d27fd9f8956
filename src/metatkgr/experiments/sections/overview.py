"""What a reader looks for first: every model with its interval, on every question and graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from metatkgr.data.visibility import Visibility
from metatkgr.experiments.cells import BASELINES, RULES, Cell, Row
from metatkgr.experiments.dataset_figures import new_figure
from metatkgr.experiments.published import PUBLISHED
from metatkgr.experiments.records import Record
from metatkgr.experiments.results import EVIDENCE, METATKGR, WALKS, Results, values_of
from metatkgr.experiments.sections import Drawing, figure, section, written
from metatkgr.experiments.sections.provenance import blind_leads
from metatkgr.experiments.sections.tables import (
    MISSING,
    interval_of,
    number,
    pivot,
    shown,
    stale_mark,
    table,
)
from metatkgr.experiments.significance import RESAMPLES, Draws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["headline", "readme_results", "unseen_graphs"]

_SHOTS = 3


def headline(results: Results, shots: int = _SHOTS) -> list[str]:
    """MRR with its interval and H@10 of every row."""

    rows = pivot(
        results.rows(shots), results.datasets, lambda row, d: _in_short(results, d, row, shots)
    )
    published = [
        f"{number(p.mean[0])} / {number(p.mean[3])}"
        if (p := PUBLISHED.get(("metatkgr", dataset, shots)))
        else MISSING
        for dataset in results.datasets
    ]
    first = [] if set(published) == {MISSING} else [["MetaTKGR, as published", *published]]
    return table(["", *results.datasets], first + rows)


def _in_short(results: Results, dataset: str, row: Row, shots: int) -> str:
    """'.533 (.514-.553)† / .612': the MRR with its interval, a dagger where it is stale; H@10."""
    runs = results.of(dataset, row, shots)
    values = values_of(runs)
    if values is None:
        return MISSING
    mrr, hits = values.mean(0)[[0, 3]]
    interval = interval_of(results, dataset, row, shots)
    return f"{number(mrr)}{interval}{stale_mark(runs)} / {number(hits)}"


@section("overview", place=10)
def _overview(results: Results) -> list[str]:
    if _SHOTS not in results.shots:
        return []
    made = written("overview", shots=_SHOTS, draws=RESAMPLES, table=headline(results))
    return made + (written("samples") if results.folder else [])


@section("test-graphs", place=14)
def unseen_graphs(results: Results) -> list[str]:
    """The table of the graphs that no choice has seen, as it fell."""
    graphs = results.test_graphs
    if graphs is None:
        return []
    made = graphs.against(EVIDENCE)
    higher = sum(c.difference > 0 for c in made)
    better, worse = (
        [c for c in made if c.significant and (c.difference > 0) is wanted]
        for wanted in (True, False)
    )
    above = "; ".join(
        f"{c.other.label} on {c.dataset}, {c.shots}-shot" for c in made if c.difference <= 0
    )
    tables: list[str] = []
    for shots in (k for k in (3, 1, 2) if k in graphs.shots):
        learned = [row for row in graphs.rows(shots) if row.model not in RULES]
        seeds = {len(graphs.of(name, row, shots)) for name in graphs.datasets for row in learned}
        how_many = " to ".join(map(str, sorted({min(seeds), max(seeds)}))) if seeds else ""
        seen = f"{how_many} seeds of a learned row" if seeds else "rules"
        tables += ["", f"{shots}-shot, {seen}:", "", *headline(graphs, shots)]
    result = (
        f"`evidence` has the higher MRR in {higher} of {len(made)} comparisons with another row, "
        f"significantly in {len(better)}; significantly the lower one in {len(worse)} (corrected)."
    )
    result += f" Not below it: {above}." if above else ""
    return written("test-graphs", tables=tables[1:], result=result)


@section("visibilities", place=30)
def _three_questions(results: Results) -> list[str]:
    """``frozen`` and ``streaming`` beside ``entity-split``, K = 3."""
    columns = [(d, v.value) for d in results.datasets for v in Visibility]
    rows = {row for v in Visibility for row in results.rows(_SHOTS, v.value)}
    chosen = [row for row in results.rows(_SHOTS) if row in rows and row.preset == "default"]

    def cell(row: Row, column: tuple[str, str]) -> str:
        return shown(
            results.of(column[0], row, _SHOTS, column[1]),
            lambda values: " / ".join(number(x) for x in values.mean(0)[[0, 3]]),
        )

    if not any(results.rows(_SHOTS, v) for v in ("frozen", "streaming")):
        return []
    heads = ["", *(f"{d}, `{v}`" for d, v in columns)]
    return written("visibilities", shots=_SHOTS, table=table(heads, pivot(chosen, columns, cell)))


def readme_results(results: Results) -> list[str]:
    """The lines of README's table and of the sentences below it."""
    best = results.best
    rows: list[list[str]] = []
    for label, row in (
        *((f"`{rule}`", Row(rule)) for rule in RULES),
        (METATKGR.label, METATKGR),
        *([(WALKS.label, WALKS)] if WALKS in results.rows(_SHOTS) else []),
        ("best of the nine baselines there", None),
        *([(best.label, best)] if best and best not in (METATKGR,) else []),
    ):
        cells = []
        for dataset in results.datasets:
            here = row or _best_baseline(results, dataset)
            text = _in_short(results, dataset, here, _SHOTS) if here else MISSING
            cells.append(text if row or not here else f"{text}, {here.label}")
        rows.append([label, *cells])
    published = [PUBLISHED["metatkgr", dataset, _SHOTS].mean for dataset in results.datasets]
    first = ["MetaTKGR, as published", *(f"{number(p[0])} / {number(p[3])}" for p in published)]
    return [*table(["", *results.datasets], [first, *rows]), "", *_readme_sentences(results)]


def _readme_sentences(results: Results) -> list[str]:
    against, blind = results.against_best, blind_leads(results)
    rule, names = Row("pagerank"), " and ".join(graph.name for graph in _elsewhere(results))
    baselines = [c for c in results.against_rules if c.shots == _SHOTS and c.one.model in BASELINES]
    above = sum(c.difference > 0 for c in baselines)
    better = sum(c.significant and c.difference > 0 for c in against)
    least = min((g.gain for g in _elsewhere(results)), default=0.0)
    weakest = max(c.corrected for c in against)
    said = [
        f"`pagerank`, which learns nothing, is above the published MetaTKGR in "
        f"{_above_published(results, rule)} cells, `paths` in "
        f"{_above_published(results, Row('paths'))}; of {len(baselines)} results of a baseline, "
        f"tuned or not, {above} have a higher MRR than the best rule there (all {_SHOTS}-shot).",
        f"`evidence`, which learns how far to trust what rules see, is significantly above the "
        f"other row in {better} of {len(against)} comparisons, 1 to 3 shots (corrected; weakest "
        f"p = {number(weakest)}), and untouched above the best rule on {names}, on which nobody "
        f"had tuned, by {number(least)} MRR at least.",
    ]
    if results.test_graphs:
        made = results.test_graphs.against(EVIDENCE)
        said.append(
            f"On {len(results.test_graphs.datasets)} graphs that were set aside before any choice "
            f"and run once, it has the higher MRR in {sum(c.difference > 0 for c in made)} of "
            f"{len(made)} comparisons, significantly in "
            f"{sum(c.significant and c.difference > 0 for c in made)}, and significantly the lower "
            f"one in {sum(c.significant and c.difference < 0 for c in made)} "
            "([results](docs/results.md#graphs-that-no-choice-has-seen))."
        )
    if blind:
        said.append(
            f"On the published datasets it leads {blind[1]} of {blind[3]} cells, but **not "
            "blind**: meta-test was seen while it was built. As meta-validation alone had chosen "
            f"it, it led {blind[0]} of "
            f"{blind[3]}, with {number(blind[2])} on YAGO, no gain over `pagerank`."
        )
    return said


def _above_published(results: Results, row: Row) -> str:
    """'11 of 12': cells in which a row is above the published MetaTKGR."""
    pairs = [
        (own, printed)
        for dataset in results.datasets
        if (values := results.values(dataset, row, _SHOTS)) is not None
        for own, printed in zip(
            values.mean(0), PUBLISHED["metatkgr", dataset, _SHOTS].mean, strict=True
        )
        if printed is not None
    ]
    return f"{sum(own > printed for own, printed in pairs)} of {len(pairs)}"


class _Graph(NamedTuple):
    """A graph on which nothing was tuned."""

    name: str
    draws: Draws
    gain: float
    """How far ``evidence`` is above the best rule."""


def _elsewhere(results: Results) -> list[_Graph]:
    graphs = []
    for content in results.kept("elsewhere", "graph", "runs"):
        name = content["graph"]["name"]
        runs = [
            Record(Cell(name, run["model"], run["shots"], run["seed"]), run)
            for run in content["runs"]
            if run["shots"] == _SHOTS
        ]
        drawn = Draws(runs)
        means = {row.model: float(np.mean([*drawn.mrr[row].values()])) for row in drawn.rows}
        rule = max(means[model] for model in RULES if model in means)
        graphs.append(_Graph(name, drawn, means["evidence"] - rule))
    return graphs


def _best_baseline(results: Results, dataset: str) -> Row | None:
    """By MRR, tuned or not."""
    means = {r: mrr for r, mrr in results.mrr(dataset, _SHOTS).items() if r.model in BASELINES}
    return max(means, key=lambda row: means[row]) if means else None


@figure(place=5)
def _all_models(results: Results) -> Iterator[Drawing]:
    graphs = {d: drawn for (d, k), drawn in results.draws.items() if k == _SHOTS}
    graphs |= {graph.name: graph.draws for graph in _elsewhere(results)}
    if graphs:
        yield Drawing(
            "overview",
            f"MRR of every model with its 95 % interval over entities and seeds, {_SHOTS}-shot, "
            "`entity-split`, filter `static`, default settings. Filled: rules, which learn "
            "nothing. Nothing was tuned on baseball and flights; few models were run there.",
            lambda: _draw_all(graphs),
        )
    if results.test_graphs:
        unseen = {d: drawn for (d, k), drawn in results.test_graphs.draws.items() if k == _SHOTS}
        yield Drawing(
            "test-graphs",
            f"The same on the graphs that no choice has seen, {_SHOTS}-shot.",
            lambda: _draw_all(unseen),
        )


def _draw_all(graphs: dict[str, Draws]) -> Figure:
    names = {row for drawn in graphs.values() for row in drawn.rows}
    chosen = {
        row for row in names if row == WALKS or (row.preset == "default" and not row.settings)
    }
    # In the order of the graphs on which all were run: few were on the others.
    shared = [d for d in graphs.values() if chosen <= d.mrr.keys()] or list(graphs.values())
    rows = sorted(
        chosen,
        key=lambda row: np.mean([np.mean([*d.mrr[row].values()]) for d in shared if row in d.mrr]),
    )
    height = 1.6 + 0.26 * len(rows)
    figure, panels = new_figure(
        "MRR with 95 % intervals", len(graphs), height, 2.6 * len(graphs) + 1
    )
    for number_, (axes, (name, drawn)) in enumerate(zip(panels, graphs.items(), strict=True)):
        for place, row in enumerate(rows):
            if row not in drawn.mrr:
                continue
            mean, (low, high) = np.mean([*drawn.mrr[row].values()]), drawn.interval(row)
            axes.plot([low, high], [place, place], color="0.35", lw=1.4)
            face = "0.1" if row.model in RULES else "white"
            axes.plot([mean], [place], ls="", marker="o", ms=5, mfc=face, mec="0.1")
        axes.set_title(f"{name}, {len(drawn.size):,} tasks", size=9)
        axes.set_yticks(range(len(rows)), [row.plain for row in rows] if number_ == 0 else [])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.grid(axis="x", color="0.9", lw=0.6)
        axes.locator_params(axis="x", nbins=4)
        axes.set_xlabel("MRR")
    return figure
