"""``metatkgr compare``: several runs on the same queries, with the differences' intervals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from metatkgr.cli import options
from metatkgr.cli.output import console_for, emit_json, growing_bar, plain_table, short

__all__ = ["compare"]


def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="Folders of runs; the first is compared with the others. After it also names of "
            "models that need no training (recurrency, paths), which answer the same queries.",
            show_default=False,
        ),
    ],
    split: Annotated[str, typer.Option(help="Whose new entities.")] = "meta-test",
    filter_: Annotated[
        str,
        typer.Option(
            "--filter",
            help="Which other true answers a ranking leaves out: static, all; time, those of the "
            "same time.",
        ),
    ] = "static",
    device: options.Device = "auto",
    json_out: options.JsonOut = None,
) -> None:
    """Evaluate runs on the same queries and compare the first with each other one.

    The difference in MRR is paired: an interval by bootstrap over entities, each with all of its
    queries. An interval that holds 0 shows no difference.

    Example: `metatkgr compare runs/metatkgr runs/transe recurrency`
    """
    from metatkgr.errors import SettingsError
    from metatkgr.evaluation.evaluator import evaluate
    from metatkgr.evaluation.filters import FILTERS
    from metatkgr.evaluation.statistics import paired_difference
    from metatkgr.models import available
    from metatkgr.training.opening import open_model

    if filter_ not in FILTERS:
        raise SettingsError(f"--filter takes {' or '.join(FILTERS)}, not {filter_!r}")
    console = console_for(json_out)
    rows, found = [], []
    first: Any = None
    for source in sources:
        if first is not None and source in available():
            opened = open_model(first[2].facts, model=source, device=device, **first[2].protocol)
        else:
            opened = open_model(source, device=device)
        tasks = opened.tasks(split)
        total = len(tasks.questions)
        with growing_bar(source) as update:
            evaluation = evaluate(opened.model, tasks, progress=partial(_tell, update, total))
        drawn_by = opened.seed if isinstance(opened.shots, str) else 0
        key = (opened.facts.name, opened.shots, opened.visibility, len(tasks.answers), drawn_by)
        if first is None:
            first = (key, evaluation, opened)
        elif key != first[0]:
            raise SettingsError(
                f"{source} asks other queries than {sources[0]}: {key} and {first[0]} (dataset, "
                "shots, visibility, queries, seed of the shots where they are drawn)"
            )
        summary = evaluation.summary(filter_)
        difference = None
        if evaluation is not first[1]:
            ranks = (first[1].ranks[filter_], evaluation.ranks[filter_])
            difference = paired_difference(*ranks, evaluation.entity)
        low, high = summary.mrr_ci95 or (0.0, 0.0)
        rows.append(
            [
                source,
                opened.model.name,
                short(summary.mrr or 0.0, 4),
                f"{short(low)}-{short(high)}",
                *(short(hit or 0.0, 4) for hit in summary.hits.values()),
                "" if difference is None else f"{difference[0]:+.3f}",
                "" if difference is None else f"{difference[1]:+.3f} to {difference[2]:+.3f}",
            ]
        )
        found.append(
            {"run": source, "model": opened.model.name, "seed": opened.seed}
            | summary.to_json()
            | {"first_minus_this": None if difference is None else list(difference)}
        )
    title = (
        f"{first[0][0]}: {first[0][1]}-shot, {split}, visibility {first[0][2]}, filter {filter_}"
    )
    columns = [
        "run",
        "model",
        "MRR",
        "95 % int.",
        "H@1",
        "H@3",
        "H@10",
        "first - this",
        "95 % int.",
    ]
    console.print(plain_table(title, columns, rows))
    emit_json(json_out, found)


def _tell(update: Callable[[int, int], object], total: int, done: int) -> None:
    update(done, total)
