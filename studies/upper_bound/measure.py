"""Upper bounds of the numbers on meta-test. FITTED ON META-TEST: AN UPPER BOUND, NEVER A MODEL.

``python -m studies.upper_bound DATASET [--shots K] [--questions N] [--out FILE]`` says

1. at what share of the novel answers of meta-test each kind of visible evidence points; a model
   that always put those answers first, and all repeats, would have 1 - n + n · share as its MRR and
   its Hits@10, n being the share of novel answers: an upper bound for whatever uses that evidence;
2. what the weights of the evidence model reach when they are fitted on the answers of one half of
   the meta-test entities and judged on the other half, and the reverse (with ``--quarter`` also on
   a quarter: what would more queries bring?); and when they are judged on the very queries they
   were fitted on. The best of several numbers of steps counts.

Nothing of this is used by a model, and no setting is chosen by it.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metatkgr.data.problem import Problem
from metatkgr.data.sources import load
from metatkgr.data.tasks import Tasks
from metatkgr.experiments.cell_run import hardware, versions
from metatkgr.files import write_json
from metatkgr.models.evidence.settings import EvidenceSettings
from studies.upper_bound.fit import (
    MARKS,
    FloatArray,
    Rows,
    fitted_weights,
    halves,
    judged,
    ranks_by,
    rule_ranks,
)
from studies.upper_bound.queries import POINTERS, NovelEvidence, draw_novel, read_evidence

__all__ = ["WARNING", "main", "table", "upper_bound"]

WARNING = "fitted on meta-test: a ceiling, never a model"
KINDS: dict[str, dict[str, Any]] = {"linear": {"hidden": 0, "members": 1}, "hidden": {}}
"""Kinds of fits, with changes of the evidence model's settings."""


def upper_bound(
    tasks: Tasks,
    problem: Problem,
    *,
    questions: int = 12_000,
    marks: Sequence[int] | None = None,
    settings: EvidenceSettings | None = None,
    quarter: bool = False,
    device: str = "cpu",
) -> dict[str, Any]:
    """Upper bounds of the novel answers of some tasks.

    Args:
        tasks: of meta-test.
        problem: of the same facts and shots.
        questions: how many novel answers to look at, at most three of one link.
        marks: numbers of steps after which a fit is judged; None: :data:`MARKS`.
        settings: of the evidence model; None: its defaults.
        quarter: whether to fit on a quarter of the entities too.
        device: where to compute.
    """
    settings, marks = settings or EvidenceSettings(), marks or MARKS
    begin = time.perf_counter()
    novel = draw_novel(tasks, questions)
    evidence = read_evidence(tasks, problem, novel, settings, torch.device(device))
    weight = evidence.weight / evidence.weight.sum()
    pointed = {
        kind: {
            "what": POINTERS[kind],
            "share": round(share := float(weight @ points), 4),
            "bound": round(1 - novel.share + novel.share * share, 4),
        }
        for kind, points in evidence.pointed.items()
    }
    everything = np.arange(len(evidence.weight))
    rule = judged(rule_ranks(evidence, everything), evidence, everything, novel.share)
    relations = 2 * len(tasks.facts.relations)
    fits = [
        fit
        for kind, changes in KINDS.items()
        for fit in _fits(
            kind,
            dataclasses.replace(settings, **changes),
            evidence,
            relations,
            novel.share,
            marks,
            quarter,
        )
    ]
    return {
        "warning": WARNING,
        "dataset": tasks.facts.name,
        "shots": tasks.shots,
        "visibility": tasks.visibility.value,
        "filter": "static",
        "tasks": tasks.count,
        "queries": len(tasks.answers),
        "novel_share": round(novel.share, 4),
        "questions": len(evidence.weight),
        "pointed_at": pointed,
        "rule": {"what": "contacts, then PageRank in the place; learns nothing"} | rule,
        "fits": fits,
        "settings": dataclasses.asdict(settings),
        "versions": versions(),
        "hardware": hardware(device),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def _fits(
    kind: str,
    settings: EvidenceSettings,
    evidence: NovelEvidence,
    relations: int,
    novel_share: float,
    marks: Sequence[int],
    quarter: bool,
) -> list[dict[str, Any]]:
    """Fits of one kind of weights: on some entities and judged on others, or on the same."""
    everything = np.arange(len(evidence.weight))
    one, other = halves(evidence, everything)
    plans: dict[tuple[str, str], list[tuple[Rows, Rows]]] = {
        ("half of the entities", "the other half"): [(one, other), (other, one)],
        ("all", "the same questions"): [(everything, everything)],
    }
    if quarter:
        fewer = [(halves(evidence, one)[0], other), (halves(evidence, other)[0], one)]
        plans = {("a quarter of the entities", "the other half"): fewer} | plans
    fits = []
    for (on, where), pairs in plans.items():
        ranks: dict[tuple[float, int], FloatArray] = {}
        for fitted_on, judged_on in pairs:
            for steps, weights in fitted_weights(
                evidence, fitted_on, relations, settings, marks=marks
            ):
                for prior in {0.0, settings.prior}:
                    of_all = ranks.setdefault((prior, steps), np.ones(len(everything)))
                    of_all[judged_on] = ranks_by(weights, evidence, judged_on, prior)
        for prior in sorted({prior for prior, _ in ranks}):
            tried = {
                steps: judged(values, evidence, everything, novel_share)
                for (used, steps), values in ranks.items()
                if used == prior
            }
            best = max(tried, key=lambda steps: tried[steps]["novel"]["mrr"]["value"])
            about = {"weights": kind, "prior": prior, "fitted_on": on, "judged_on": where}
            fits.append(about | {"steps": best} | tried[best])
    return fits


def table(bound: dict[str, Any]) -> str:
    """The bounds of one dataset, in Markdown."""
    n = bound["novel_share"]
    lines = [
        f"{bound['dataset']}, {bound['shots']}-shot, {bound['questions']:,} novel questions; "
        f"{n:.1%} of the queries are novel. {WARNING.upper()}",
        "",
        "| evidence that points at a novel answer | share | bound of MRR and H@10 |",
        "|---|---|---|",
        *(
            f"| {kind}: {evidence['what']} | {evidence['share']:.3f} | {evidence['bound']:.3f} |"
            for kind, evidence in bound["pointed_at"].items()
        ),
        "",
        "| weights | fitted on | judged on | novel: MRR (95 %) / H@10 (95 %) "
        "| all, repeats first: MRR / H@10 |",
        "|---|---|---|---|---|",
        _line("the rule", "nothing | all", bound["rule"]),
        *(
            _line(
                f"{fit['weights']}, λ = {fit['prior']:g}",
                f"{fit['fitted_on']} | {fit['judged_on']}",
                fit,
            )
            for fit in bound["fits"]
        ),
    ]
    return "\n".join(lines)


def _line(what: str, where: str, fit: dict[str, Any]) -> str:
    novel = " / ".join(
        "{value:.3f} ({ci95[0]:.3f} to {ci95[1]:.3f})".format(**fit["novel"][name])
        for name in ("mrr", "hits@10")
    )
    return f"| {what} | {where} | {novel} | {fit['all']['mrr']:.3f} / {fit['all']['hits@10']:.3f} |"


def main(arguments: Iterable[str]) -> str:
    """Measure the upper bounds of a dataset; returns what to print."""
    parser = argparse.ArgumentParser(prog="python -m studies.upper_bound", description=WARNING)
    parser.add_argument("dataset", help="a dataset's name or a file of facts")
    parser.add_argument("--shots", type=int, default=3)
    parser.add_argument("--questions", type=int, default=12_000, help="novel questions, at most")
    parser.add_argument("--dimension", type=int, default=0, help="of vectors as evidence; 0: none")
    parser.add_argument("--quarter", action="store_true", help="fit on a quarter too")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args(list(arguments))
    facts = load(chosen.dataset)
    bound = upper_bound(
        Tasks.build(facts, shots=chosen.shots),
        Problem.of(facts, shots=chosen.shots),
        questions=chosen.questions,
        settings=EvidenceSettings(dimension=chosen.dimension),
        quarter=chosen.quarter,
        device=chosen.device,
    )
    if chosen.out:
        write_json(chosen.out, bound)
    return table(bound)
