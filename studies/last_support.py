"""`te2`: the last support fact of each meta-test entity, foretold from its earlier ones.

A support is observed by all, so that this may choose between models where meta-validation is
blind (nine in ten queries of YAGO's repeat a fact) without a look at any meta-test query.
``python -m studies.last_support RUN [STEPS…]`` prints the MRR of the novel ones; with numbers of
inner steps behind it, the same after so many steps of adaptation. The run must not have learned
from them: it has seen one fact less of later entities than of meta-train ones
(``metatkgr train DATA --shots 3 --test-shots 2 …``), or learns from background and meta-train alone
(``--preset adapted``).
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np

from metatkgr.data.facts import Facts
from metatkgr.data.periods import Period, Periods
from metatkgr.data.tasks import NewEntities, Tasks, distinct_queries
from metatkgr.data.visibility import Visibility
from metatkgr.errors import SettingsError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.models.metatkgr.model import MetaTKGR
from metatkgr.training.runs import load_run

__all__ = ["last_support", "main"]


def last_support(facts: Facts, shots: int, visibility: str = "entity-split") -> Tasks:
    """Tasks whose queries are the K-th facts of meta-test entities, with supports of K - 1.

    Everybody's K-th facts are public once their time has passed, as they are for K-shot tasks. What
    is among the first K - 1 facts of its other end is no query: that support has told it.

    Args:
        facts: the whole graph.
        shots: K, at least 2.
        visibility: which other facts are public.
    """
    if shots < 2:
        raise SettingsError(f"the last of {shots} support facts has none before it; give 2 or more")
    rule = Visibility.parse(visibility)
    new = NewEntities.of(facts, Periods.of(facts), Period.META_TEST, rule)
    earlier = new.tasks(shots - 1)
    last = np.full(len(facts.entities), -1)
    np.maximum.at(last, earlier.supports.entity, earlier.supports.time)
    itself = (new.entity == new.other) & (new.relation >= len(facts.relations))
    told = new.in_support(shots - 1)[new.fact]
    rows = np.flatnonzero((new.ordinal == shots - 1) & ~itself & ~told)
    questions, answers = distinct_queries(
        facts, new.entity[rows], new.relation[rows], new.other[rows], new.fact[rows], last
    )
    visible = new.tasks(shots).visible
    return dataclasses.replace(earlier, questions=questions, answers=answers, visible=visible)


def main(folder: str, *steps: str) -> str:
    """The table of a run, in Markdown."""
    run = load_run(Path(folder))
    config, model = run.config, run.model
    shots = int(config.shots)
    apart = isinstance(model, MetaTKGR) and model.settings.newcomers == "adapted"
    if not apart and str(config.test_shots) != str(shots - 1):
        raise SettingsError(
            f"{folder} was trained on all {shots} support facts; leave out the last: "
            f"metatkgr train {config.dataset} --shots {shots} --test-shots {shots - 1} …"
        )
    tasks = last_support(run.facts, shots, config.visibility)
    rows = ["| inner steps | novel MRR | queries |", "|---|---|---|"]
    for count in steps or ("",):
        if count and not isinstance(model, MetaTKGR):
            raise SettingsError(f"{folder} is a run of {config.model}, which has no inner steps")
        if count and isinstance(model, MetaTKGR):
            model.settings = dataclasses.replace(model.settings, inner_steps=int(count))
        found = evaluate(model, tasks).summary("static", "novel", resamples=0)
        rows.append(f"| {count or 'as trained'} | {found.mrr or 0:.4f} | {found.queries} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
