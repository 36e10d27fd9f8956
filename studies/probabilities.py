"""Are probabilities as often right as they say, on graphs of many shapes, after they were fitted?

``python -m studies.probabilities [GRAPH ...]`` cuts each graph in time, fits a calibration to what
lies before the cut, as a forecaster does that is asked at that moment, and judges it on queries
about newcomers after the cut; of the rule ``paths`` and of the pretrained ``evidence``, where that
has not learned from the graph. How high the answers stand is measured in the model's order and in
the order that is shown. Whether and when facts come is measured beside it, against a constant rate
for each relation and against the last gap. It writes ``results/probabilities.json`` and prints the
tables. Graphs from packages are made first: ``python -m studies.held_out_graphs build NAME``.

``python -m studies.probabilities --prior`` learns over a dozen graphs, none of them those, how
rates of facts depend on the past, and prints what ``forecasting.hazard`` begins with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import metatkgr as mt
from metatkgr.data.answers import FILTERS, true_answers
from metatkgr.data.facts import Facts
from metatkgr.data.periods import Period
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world.kinds import CAREERS, KINDS
from metatkgr.errors import DataError
from metatkgr.experiments.sections.tables import number, table
from metatkgr.files import read_json, write_json
from metatkgr.forecasting.calibrating import (
    _Draw,
    _Sample,
    fit_calibration,
    judged,
    shown_above,
)
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.hazard import BASELINES, fit_spans, spans_of, within_report
from metatkgr.graph.ragged import expand_ranges
from metatkgr.models.base import Model
from metatkgr.training.opening import open_model
from studies.held_out_graphs.graphs import graph_file

__all__ = ["FRESH", "GRAPHS", "TABLES", "business", "graph", "measured", "payments", "prior"]

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
_PACKAGES = ("baseball", "congress", "flights")
_OTHER_PACKAGES = ("films", "office", "gridiron", "browsers")
GRAPHS = (
    "YAGO",
    "WIKI",
    "ICEWS18",
    "world:30000:2",
    "world:trade:20000:1",
    "world:conflict:20000:1",
    *_PACKAGES,
    *_MADE,
)
FRESH = (
    *_OTHER_PACKAGES,
    "world:letters:20000:11",
    "world:contracts:20000:11",
    "world:social:20000:11",
)
"""Looked at once, when all choices about probabilities, types and hazards had been made."""
RULE, DEFAULT = "paths", "evidence"


def graph(name: str) -> Facts:
    """A graph made here, one of a package, or one of the catalogue."""
    if name in _MADE:
        return _MADE[name]()
    made = name in (*_PACKAGES, *_OTHER_PACKAGES)
    return mt.load(str(graph_file(name)) if made else name)


def measured(facts: Facts, name: str = RULE, most: int = _QUERIES) -> dict[str, Any]:
    """What a fit to the facts before the cut is worth after it."""
    cut = int(facts.time[int(_CUT * len(facts))])
    early = facts.select(np.flatnonzero(facts.time < cut))
    model = open_model(facts, model=name, device="cpu").model
    fitted = fit_calibration(model, VisibleFacts.of(early))
    found = judged(fitted, model, VisibleFacts.of(facts), since=cut, most=most)
    assert found is not None
    return found | {"fitted to": fitted.queries, "mrr": _ranked(fitted, model, facts, cut, most)}


def _ranked(
    fitted: Calibration, model: Model[Any], facts: Facts, since: int, most: int
) -> dict[str, list[float]]:
    """By either filter the MRR in the model's order and as shown; the error of their difference.

    Among the first 1,024; who is behind them counts as never found, in both. The standard error is
    that of the mean over queries.
    """
    visible = VisibleFacts.of(facts)
    draw = _Draw.of(model, visible, Period.META_TEST, 3, 0, since=since, most=most)
    assert draw is not None
    sample = _Sample.of([draw], fitted.scale)
    found = fitted.apply(sample.scored, sample.standing)
    entity, rows = found.entity, torch.arange(len(draw.answer)).unsqueeze(1)
    right = (entity == draw.answer.unsqueeze(1)) & ~sample.unseen.unsqueeze(1)
    equal = torch.zeros_like(found.chance)
    orders = [shown_above(each, right) for each in (replace(found, chance=equal), found)]
    ranked: dict[str, list[float]] = {}
    for name in FILTERS:
        true = true_answers(VisibleFacts.of(facts), draw.drawn.queries, name)
        row, position = expand_ranges(true.start, true.stop)
        known = row * len(facts.entities) + true.entity[position]
        others = ~torch.isin(rows * len(facts.entities) + entity, known)
        own, shown = (
            right.any(1) / (1 + (others & above).sum(1) + (others & beside).sum(1).double() / 2)
            for above, beside in orders
        )
        error = (shown - own).std() / len(own) ** 0.5
        ranked[name] = [float(own.mean()), float(shown.mean()), float(error)]
    return ranked


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
    """The table, in Markdown; with what the calibration before gave, where it was measured."""
    rows = []
    for name, found in results.items():
        before = found.get("before") or {}
        changed = [
            f"{number(before[key], places)} → {now}" if before else now
            for key, places, now in (
                ("ece_ranks", 3, number(found["ece_ranks"])),
                ("log_loss", 2, number(found["log_loss"], 2)),
                ("sum", 2, number(found["sum"][0], 2)),
            )
        ]
        first = f"{number(found['ece'])} ({number(found['stated'])}, {number(found['correct'])})"
        queries, least = f"{found['queries']:,}", f"{found['least']:.0e}"
        rows.append([name, queries, changed[0], first, *changed[1:], least])
    head = ["", "queries", "all ranks", "first (stated, right)", "log-loss", "sum", "least"]
    return table(head, rows)


def written_default(results: dict[str, Any]) -> list[str]:
    """The same of the default model, in Markdown."""
    rows = [
        [
            name,
            number(ours["ece_ranks"]),
            f"{number(ours['ece'])} ({number(ours['stated'])}, {number(ours['correct'])})",
            number(ours["log_loss"], 2),
            f"{ours['least']:.0e}",
        ]
        for name, found in results.items()
        if (ours := found.get(DEFAULT))
    ]
    return table(["", "all ranks", "first (stated, right)", "log-loss", "least"], rows)


def written_order(results: dict[str, Any]) -> list[str]:
    """The MRR of either model in its own order and in the order that is shown."""
    cells = [
        cell
        for found in results.values()
        for one in (found, found.get(DEFAULT))
        if one
        for cell in one["mrr"].values()
    ]
    lower = [(own - shown, error) for own, shown, error in cells if shown < own]
    told = (
        f"In {len(lower)} of {len(cells)} cells the second is lower, by at most "
        f"{max((by for by, _ in lower), default=0):.4f} and nowhere by more than "
        f"{max((by / error for by, error in lower), default=0):.1f} standard errors of the "
        "difference over queries."
    )
    rows = [
        [name, model, *(" / ".join(map(number, one["mrr"][by][:2])) for by in FILTERS)]
        for name, found in results.items()
        for model, one in ((RULE, found), (DEFAULT, found.get(DEFAULT)))
        if one
    ]
    return [told, "", *table(["", "model", *FILTERS], rows)]


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


TABLES = (written, written_default, written_order, written_within)


def main(names: list[str]) -> None:
    """Measure some graphs, or all; keep what is known of the others."""
    if names == ["--prior"]:
        print(prior())
        return
    results = read_json(_RESULTS) if _RESULTS.exists() else {}
    every = (*GRAPHS, *FRESH)
    for name in names or every:
        facts = graph(name)
        found = measured(facts) | {"within": within_report(VisibleFacts.of(facts))}
        with suppress(DataError):  # all its weights have learned from this graph
            found[DEFAULT] = measured(facts, DEFAULT)
        # What the calibration before this one gave on the same queries was measured once.
        results[name] = found | {"before": (results.get(name) or {}).get("before")}
        print(name, found, flush=True)
        write_json(_RESULTS, {name: results[name] for name in every if name in results})
    for group in (GRAPHS, FRESH):
        some = {name: results[name] for name in group if name in results}
        print("\n".join(line for one in TABLES for line in [*one(some), ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
