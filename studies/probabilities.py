"""Are probabilities as often right as they say, on graphs of many shapes, after they were fitted?

``python -m studies.probabilities [GRAPH ...]`` cuts each graph in time, fits a calibration to what
lies before the cut, as a forecaster does that is asked at that moment, and judges it on queries
about newcomers after the cut. Whether and when facts come is measured beside it, against a constant
rate for each relation and against the last gap. It writes ``results/probabilities.json`` and prints
both tables.

``python -m studies.probabilities --prior`` learns over a dozen graphs, none of them those, how
rates of facts depend on the past, and prints what ``forecasting.hazard`` begins with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import metatkgr as mt
from metatkgr.data.facts import Facts
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world.kinds import CAREERS, KINDS
from metatkgr.experiments.sections.tables import number, table
from metatkgr.files import read_json, write_json
from metatkgr.forecasting.calibrating import fit_calibration, judged
from metatkgr.forecasting.hazard import BASELINES, fit_spans, spans_of, within_report
from metatkgr.models import create

__all__ = ["GRAPHS", "business", "graph", "measured", "payments", "prior"]

_CUT = 0.85
"""Share of the facts that lies before the cut."""
_QUERIES = 3000
_RESULTS = Path("results/probabilities.json")


def business(facts: int = 30_000, seed: int = 0) -> Facts:
    """Events of firms: partners that are kept, goods by fashion, eight cities, firms bought young.

    A relation with eight objects stands beside one whose answers are often new to everybody.
    """
    draw = np.random.default_rng(seed)
    firms, partners = [f"firm {n}" for n in range(40)], dict[str, list[str]]()
    rows = []
    for row in range(facts):
        day = row * 700 // facts
        if draw.random() < 0.05:
            firms.append(f"firm {len(firms)}")
            rows.append((firms[-1], "is registered in", f"city {int(draw.zipf(1.6)) % 8}", day))
            continue
        young = min(int(draw.exponential(len(firms) * 0.3)), len(firms) - 1)
        firm, what = firms[len(firms) - 1 - young], draw.random()
        known = partners.setdefault(firm, [])
        if what < 0.5:
            if not known or draw.random() > 0.6:
                known.append(firms[min(int(draw.zipf(1.5)), len(firms)) - 1])
            rows.append((firm, "supplies", known[int(draw.integers(len(known)))], day))
        elif what < 0.8:
            rows.append((firm, "orders", f"good {min(int(draw.zipf(1.4)), 300)}", day))
        elif what < 0.9:
            rows.append((firm, "opens office in", f"city {int(draw.integers(8))}", day))
        else:
            other = firms[int(draw.integers(len(firms)))]
            rows.append((firm, "acquires", f"start-up {row}" if row % 2 else other, day))
    return mt.read_facts(rows)


def payments(facts: int = 20_000, seed: int = 1) -> Facts:
    """Payments between accounts: the last payee again, or anybody; now and then a device."""
    draw = np.random.default_rng(seed)
    accounts, last = [f"account {n}" for n in range(50)], dict[str, str]()
    rows = []
    for row in range(facts):
        day = row * 300 // facts
        if draw.random() < 0.04:
            accounts.append(f"account {len(accounts)}")
        young = min(int(draw.exponential(len(accounts) * 0.2)), len(accounts) - 1)
        payer = accounts[len(accounts) - 1 - young]
        if payer not in last or draw.random() > 0.7:
            last[payer] = accounts[int(draw.integers(len(accounts)))]
        rows.append((payer, "pays", last[payer], day))
        if draw.random() < 0.1:
            rows.append((payer, "uses", f"device {int(draw.integers(len(accounts)))}", day))
    return mt.read_facts(rows)


_MADE: dict[str, Callable[[], Facts]] = {"business": business, "payments": payments}
GRAPHS = (
    "YAGO",
    "WIKI",
    "ICEWS18",
    "world:30000:2",
    "world:trade:20000:1",
    "world:conflict:20000:1",
    *_MADE,
)


def graph(name: str) -> Facts:
    """A graph made here, or one of the catalogue."""
    return _MADE[name]() if name in _MADE else mt.load(name)


def measured(facts: Facts, model: str = "paths", most: int = _QUERIES) -> dict[str, Any]:
    """What a fit to the facts before the cut is worth after it."""
    cut = int(facts.time[int(_CUT * len(facts))])
    early = facts.select(np.flatnonzero(facts.time < cut))
    fitted = fit_calibration(create(model), VisibleFacts.of(early))
    found = judged(fitted, create(model), VisibleFacts.of(facts), since=cut, most=most)
    assert found is not None
    return found | {"fitted to": fitted.queries, "within": within_report(VisibleFacts.of(facts))}


_LEARNED_FROM = (
    "ICEWS14",
    "world:20000:7",
    *(f"world:{kind}:12000:5" for kind in KINDS if kind != CAREERS.name),
)
_OF_EACH = 6000


def prior() -> list[float]:
    """Weights of a hazard under which what happened in many graphs is likeliest, each alike."""
    graphs = [*map(mt.load, _LEARNED_FROM), business(15_000, 9), payments(10_000, 9)]
    parts = []
    for facts in graphs:
        columns = spans_of(VisibleFacts.of(facts))
        size = len(columns[0])
        some = np.random.default_rng(0).choice(size, min(size, _OF_EACH), replace=False)
        parts.append([column[some] for column in columns])
    rows, steps, event = (torch.cat(column) for column in zip(*parts, strict=True))
    return [round(weight, 2) for weight in fit_spans(rows, steps, event).tolist()]


def written(results: dict[str, Any]) -> list[str]:
    """The table, in Markdown."""
    rows = []
    for name, found in results.items():
        before = found.get("before") or {}
        rows.append(
            [
                name,
                f"{found['queries']:,}",
                f"{number(before.get('ece_ranks'))} → {number(found['ece_ranks'])}",
                f"{number(found['ece'])} ({number(found['stated'])}, {number(found['correct'])})",
                f"{number(before.get('log_loss'), 2)} → {number(found['log_loss'], 2)}",
                f"{number(before.get('sum'), 2)} → {number(found['sum'][0], 2)}",
                f"{found['least']:.0e}",
            ]
        )
    head = ["", "queries", "all ranks", "first (stated, right)", "log-loss", "sum", "least"]
    return table(head, rows)


def written_within(results: dict[str, Any]) -> list[str]:
    """The table of whether and when."""
    rows = []
    for name, found in results.items():
        for steps, within in found["within"].items():
            ours = within["hazard"]
            each = [within[way] for way in ("hazard", *BASELINES)]
            rows.append(
                [
                    name,
                    steps,
                    f"{within['queries']:,}",
                    number(within["came"]),
                    number(ours["ece"]),
                    " / ".join(number(one["brier"]) for one in each),
                    " / ".join(number(one["log_likelihood"], 2) for one in each),
                ]
            )
    head = ["", "within", "queries", "came", "error", "Brier score", "log-likelihood"]
    return table(head, rows)


def main(names: list[str]) -> None:
    """Measure some graphs, or all; keep what is known of the others."""
    if names == ["--prior"]:
        print(prior())
        return
    results = read_json(_RESULTS) if _RESULTS.exists() else {}
    for name in names or GRAPHS:
        found = measured(graph(name))
        # What the calibration before this one gave on the same queries was measured once.
        results[name] = found | {"before": (results.get(name) or {}).get("before")}
        print(name, found, flush=True)
    write_json(_RESULTS, results)
    print("\n".join([*written(results), "", *written_within(results)]))


if __name__ == "__main__":
    main(sys.argv[1:])
