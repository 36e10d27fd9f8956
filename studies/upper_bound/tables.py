"""Upper bounds of several datasets: ``python -m studies.upper_bound.tables DIR``.

Made from the files of ``studies.upper_bound``. Fitted on meta-test: no result of a model.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError
from metatkgr.experiments.sections.tables import number
from metatkgr.experiments.suite import DATASETS
from metatkgr.files import read_json
from studies.upper_bound.measure import WARNING

__all__ = ["LEVELS", "read_upper_bounds", "tables"]

Bound = Mapping[str, Any]

LEVELS: dict[tuple[str, int], tuple[float | None, float]] = {
    ("YAGO", 3): (0.54, 0.62),
    ("WIKI", 3): (0.58, 0.67),
    ("ICEWS18", 3): (0.40, 0.56),
    ("YAGO", 1): (None, 0.428),
}
"""MRR and Hits@10 that are to be reached, static filter; with one shot the published Hits@10."""


def read_upper_bounds(folder: Path) -> list[Bound]:
    """The bounds of a folder: more shots first, datasets in the order of the paper."""
    bounds = []
    for path in sorted(folder.glob("*.json")):
        content = read_json(path)
        if not isinstance(content, dict) or content.get("warning") != WARNING:
            raise DataError(f"{path} holds no upper bound")
        bounds.append(content)
    order = list(DATASETS)
    return sorted(
        bounds,
        key=lambda one: (
            -one["shots"],
            order.index(one["dataset"]) if one["dataset"] in order else len(order),
        ),
    )


def tables(bounds: Sequence[Bound]) -> str:
    """What each kind of evidence points at, and what fits reach, in Markdown."""
    names = [f"{one['dataset']}, {one['shots']}-shot" for one in bounds]
    head = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    return "\n".join([*head, *_of_evidence(bounds), "", *head, *_of_fits(bounds)])


def _of_evidence(bounds: Sequence[Bound]) -> list[str]:
    rows = [
        ("queries that are novel", [number(one["novel_share"]) for one in bounds]),
        ("novel questions looked at", [f"{one['questions']:,}" for one in bounds]),
    ]
    for kind, evidence in bounds[0]["pointed_at"].items():
        shares = [one["pointed_at"][kind] for one in bounds]
        cells = [f"{number(one['share'])} ({number(one['bound'])})" for one in shares]
        rows.append((evidence["what"], cells))
    return [_row(*row) for row in rows]


def _of_fits(bounds: Sequence[Bound]) -> list[str]:
    rows = [
        ("wanted", [_wanted(one) for one in bounds]),
        ("the rule, nothing learned", [_reached(one["rule"]) for one in bounds]),
    ]
    by_name = [{_name(fit): fit for fit in one["fits"]} for one in bounds]
    for name in max(by_name, key=len):
        cells = [_reached(fits[name]) if name in fits else "–" for fits in by_name]
        rows.append((name, cells))
    return [_row(*row) for row in rows]


def _name(fit: Bound) -> str:
    return (
        f"{fit['weights']}, λ = {fit['prior']:g}, fitted on {fit['fitted_on']}, "
        f"judged on {fit['judged_on']}"
    )


def _wanted(one: Bound) -> str:
    """The levels, and what novel answers alone would have to reach for them."""
    n = one["novel_share"]
    levels = LEVELS.get((one["dataset"], one["shots"]))
    if levels is None:
        return "–"
    wanted = ["–" if level is None else number(level) for level in levels]
    needed = ["–" if level is None else number((level - 1 + n) / n) for level in levels]
    return f"{' / '.join(wanted)} (novel {' / '.join(needed)})"


def _reached(fit: Bound) -> str:
    names = ("mrr", "hits@10")
    of_all = " / ".join(number(fit["all"][name]) for name in names)
    novel = [fit["novel"][name] for name in names]
    values = " / ".join(number(one["value"]) for one in novel)
    low, high = novel[0]["ci95"]
    return f"{of_all} (novel {values}; MRR {number(low)} to {number(high)})"


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print(tables(read_upper_bounds(Path(sys.argv[1]))))
