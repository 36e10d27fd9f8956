"""The field's standard protocol: our rows beside figures that others have published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metatkgr.experiments.published import EXTRAPOLATION, METRICS
from metatkgr.experiments.results import Results
from metatkgr.experiments.sections import section, written
from metatkgr.experiments.sections.tables import MISSING, number, table
from metatkgr.files import read_json

__all__ = ["UNCHECKED", "gaps"]

UNCHECKED = "?"
"""Behind a published figure that could not be read in its source again."""

_TPAR, _README, _TGB = (
    "[1](https://arxiv.org/abs/2405.18106)",
    "[2](https://github.com/nec-research/recurrency_baseline_tkg)",
    "[3](https://arxiv.org/abs/2406.09639)",
)
_HEADS = ["", "MRR", "95 %", "H@1", "H@3", "H@10"]
_HEADS += ["MRR, static", "novel", "repeated", "reached", "queries"]


@section("extrapolation", place=10, page="extrapolation")
def _tables(results: Results) -> list[str]:
    content = _kept(results, "extrapolation.json")
    if content is None:
        return []
    lines: list[str] = []
    for name, cells in content["test"].items():
        novel = next(iter(cells.values()))["novel"]
        lines += ["", f"### {name}", "", *_table(name, cells), ""]
        lines.append(f"In {novel:.1%} of the queries the answer is novel. {gaps(name, cells)}")
    if later := content.get("multi-step"):
        lines += ["", "## Multi-step"]
        for name, cells in later.items():
            lines += ["", f"### {name}, multi-step", "", *table(_HEADS, _ours(cells))]
    return written("extrapolation", tables=lines[1:])


def _table(name: str, cells: Mapping[str, Any]) -> list[str]:
    rows = _ours(cells)
    for row, values in EXTRAPOLATION[name].items():
        source = _README if row == "recurrency baseline" else _TPAR
        doubt = UNCHECKED if name == "tkgl-yago" else ""
        shown = [number(value) for value in values]
        source = _TGB if doubt else source
        rows.append([f"{row} {source}", shown[0] + doubt, MISSING, *shown[1:], *[MISSING] * 5])
    return table(_HEADS, rows)


def _ours(cells: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for row, cell in cells.items():
        low, high = cell["mrr_ci95"]
        metrics = [number(cell[metric]) for metric in METRICS]
        again = (cell["mrr"] - cell["novel"] * cell["mrr_novel"]) / (1 - cell["novel"])
        reached = cell.get("novel_listed")
        apart = [
            number(cell.get("mrr_static")),
            number(cell["mrr_novel"]),
            number(again),
            MISSING if reached is None else f"{reached:.0%}",
        ]
        interval = f"{number(low)} to {number(high)}"
        rows.append([_named(row), metrics[0], interval, *metrics[1:], *apart, _asked(cell)])
    return rows


def gaps(name: str, cells: Mapping[str, Any]) -> str:
    """How the highest of our rows stands to each published MRR."""
    best = max(cells, key=lambda row: cells[row]["mrr"])
    cell, ours = cells[best], round(cells[best]["mrr"], 4)
    low, high = cell["mrr_ci95"]
    groups: dict[str, list[str]] = {"above": [], "not to be told from": [], "below": []}
    for row, (mrr, *_) in EXTRAPOLATION[name].items():
        assert mrr is not None
        group = "above" if low > mrr else "below" if high < mrr else "not to be told from"
        groups[group].append(f"{row} ({ours - mrr:+.4f})")
    stands = [f"{group} {', '.join(rows)}" for group, rows in groups.items() if rows]
    return (
        f"The highest of our rows ({_named(best)}: {number(ours, 4)}) is, by its interval, "
        f"{'; '.join(stands)}."
    )


def _named(row: str) -> str:
    """The model as code, and how it is used."""
    model, comma, how = row.partition(",")
    return f"`{model}`{comma}{how}"


@section("extrapolation-chosen", place=20, page="extrapolation")
def _chosen(results: Results) -> list[str]:
    """Which settings were tried on valid."""
    content = _kept(results, "extrapolation.json")
    if content is None or not content["valid"]:
        return []
    lines = written("extrapolation-chosen")
    for name, tried in content["valid"].items():
        rows = [
            [
                f"`{label}`",
                number(cell["mrr"], 4),
                number(cell["mrr_novel"], 4),
                f"{cell['queries']:,} of {cell['queries_of_split']:,}",
            ]
            for label, cell in sorted(tried.items(), key=lambda item: -item[1]["mrr"])
        ]
        heads = ["settings", "MRR", "MRR, novel", "queries"]
        lines += ["", f"### {name}, valid", "", *table(heads, rows)]
    return lines


@section("tgb", place=30, page="extrapolation")
def _agreement(results: Results) -> list[str]:
    """Whether py-tgb ranks every query as we do."""
    content = _kept(results, "tgb.json")
    if content is None:
        return []
    rows = [
        [
            _named(row),
            _asked(cell),
            number(cell["mrr"], 4),
            number(cell["mrr_of_py_tgb"], 4),
            str(cell["queries_that_differ"]),
            f"`{cell['commit']}`",
        ]
        for row, cell in content["rows"].items()
    ]
    heads = ["", "queries", "MRR, ours", "MRR, py-tgb", "queries that differ", "commit"]
    about = {"dataset": content["dataset"], "version": content["py-tgb"]}
    return written("tgb", **about, command=content["command"], table=table(heads, rows))


def _asked(cell: Mapping[str, Any]) -> str:
    """How many queries, and of how many they were drawn, where they were."""
    asked, split = cell["queries"], cell["queries_of_split"]
    return f"{asked:,}" + (f" of {split:,}, drawn" if asked < split else "")


def _kept(results: Results, file: str) -> Any:
    """What a file of ``results/`` holds; None where there is none."""
    path = results.folder / file if results.folder else None
    return read_json(path) if path is not None and path.exists() else None
