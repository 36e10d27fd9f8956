"""How fast, and in how much memory, queries are scored and ranked."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import torch

from benchmarks.base import Measurement, Workload, benchmark, best_time
from metatkgr.data import catalog, sources
from metatkgr.data.answers import FILTERS, true_answers
from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.evaluation.ranking import filtered_ranks
from metatkgr.models import create

__all__ = ["memory", "ranking", "rules"]

_SCORE_SEED = 0


def _dataset(name: str, instead: str, quick: bool) -> Facts:
    """A published dataset where it is on this machine, else a world of about that size."""
    if quick:
        return sources.load("world:5000")
    return sources.load(name if catalog.locate(name) else instead)


@benchmark("rank")
def ranking(work: Workload) -> list[Measurement]:
    """Filtering and ranking given scores, against a loop over queries and against pykeen."""
    facts = _dataset("YAGO", "world:200000", work.quick)
    tasks = Tasks.build(facts)
    generator = torch.Generator().manual_seed(_SCORE_SEED)
    count = min(200 if work.quick else 4000, len(tasks.questions))
    answers = int(np.searchsorted(tasks.answers.question, count))
    queries = tasks.questions[:count]
    scores = torch.rand(count, len(facts.entities), generator=generator)
    query = torch.from_numpy(tasks.answers.question[:answers])
    answer = torch.from_numpy(tasks.answers.answer[:answers])

    def ours() -> list[torch.Tensor]:
        tables = [true_answers(VisibleFacts.of(facts), queries, name) for name in FILTERS]
        return filtered_ranks(scores, query, answer, tables)

    links = VisibleFacts.of(facts)

    def loop() -> list[float]:
        known: dict[tuple[int, int], set[int]] = {}
        rows = zip(*(c.tolist() for c in (links.source, links.relation, links.target)), strict=True)
        for s, r, o in rows:
            known.setdefault((s, r), set()).add(o)
        ranks = []
        for q, x in zip(query.tolist(), answer.tolist(), strict=True):
            row = scores[q].clone()
            value = row[x].item()
            row[list(known[int(queries.entity[q]), int(queries.relation[q])])] = -1.0
            ranks.append(1 + int((row > value).sum()) + int((row == value).sum()) / 2)
        return ranks

    fast, ranks = best_time(ours, work.repeats)
    slow, expected = best_time(loop, 1)
    if ranks[0].tolist() != expected:
        raise AssertionError("the evaluator and the loop disagree")
    cells = answers * len(facts.entities)
    note = (
        f"{answers:,} answers x {len(facts.entities):,} candidates ({facts.name}), both filters, "
        "filters built anew (the references: the static one only); "
        f"floor: {cells * 4 / 1e9:.2f} GB of scores read once"
    )
    result = [Measurement("filter and rank", "s", fast, slow, "a loop over queries", note)]
    try:
        from pykeen.evaluation.evaluator import create_sparse_positive_filter_, filter_scores_
        from pykeen.evaluation.ranks import Ranks
    except ImportError:
        return result

    triples = torch.from_numpy(np.stack([links.source, links.relation, links.target], axis=1))
    distinct = torch.unique(triples, dim=0)

    def pykeen() -> list[float]:
        ranks: list[float] = []
        batch = 256
        hrt = torch.stack(
            [
                torch.from_numpy(queries.entity)[query],
                torch.from_numpy(queries.relation)[query],
                answer,
            ],
            dim=1,
        )
        for begin in range(0, answers, batch):
            rows = hrt[begin : begin + batch]
            part = scores[query[begin : begin + batch]]
            true = part.gather(1, rows[:, 2:3])
            positives, _ = create_sparse_positive_filter_(rows, distinct, filter_col=2)
            part = filter_scores_(part, positives)
            part.scatter_(1, rows[:, 2:3], true)
            ranks += Ranks.from_scores(true, part).realistic.tolist()
        return ranks

    reference, reference_ranks = best_time(pykeen, 1)
    if not np.allclose(reference_ranks, expected):
        raise AssertionError("pykeen and the loop disagree")
    result.append(Measurement("filter and rank", "s", fast, reference, "pykeen's evaluator", note))
    return result


@benchmark("rules")
def rules(work: Workload) -> list[Measurement]:
    """Scoring and ranking every query of YAGO with the rules."""
    facts = _dataset("YAGO", "world:200000", work.quick)
    tasks = Tasks.build(facts)
    result = []
    for name in ("recurrency", "paths"):
        seconds, _ = best_time(lambda name=name: evaluate(create(name), tasks), 1)  # type: ignore[misc]
        cells = len(tasks.answers) * len(facts.entities)
        note = (
            f"all {len(tasks.answers):,} queries x {len(facts.entities):,} candidates "
            f"({facts.name}); floor: {cells * 8 / 1e9:.1f} GB of scores compared"
        )
        result.append(Measurement(f"score and rank, {name}", "s", seconds, note=note))
    return result


@benchmark("memory")
def memory(work: Workload) -> list[Measurement]:
    """Peak memory of an evaluation, in a process of its own, beside one that only loads."""
    wiki = catalog.locate("WIKI") is not None and not work.quick
    data = "WIKI" if wiki else ("world:5000" if work.quick else "world:300000")
    evaluation = _peak_megabytes("evaluate", data, "--model", "recurrency", "--device", "cpu")
    loading = _peak_megabytes("data", "stats", data)
    note = f"{data}: the whole process; importing, loading and counting alone {loading:,.0f} MB"
    return [Measurement("peak memory of evaluate", "MB", evaluation, note=note)]


_WITH_PEAK = """
import runpy, sys
try:
    runpy.run_module("metatkgr", run_name="__main__")
finally:
    try:
        # Not ru_maxrss, in which Linux counts the process that started this one.
        lines = open("/proc/self/status").read().splitlines()
        peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except OSError:
        import resource
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(peak)
"""


def _peak_megabytes(*words: str) -> float:
    """Peak resident memory of ``metatkgr`` with these words."""
    done = subprocess.run(
        [sys.executable, "-c", _WITH_PEAK, *words], check=True, capture_output=True, text=True
    )
    return int(done.stdout.split()[-1]) / 1e6
