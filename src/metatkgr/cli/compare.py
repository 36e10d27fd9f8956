"""``metatkgr compare``: several runs on the same queries, with the differences' intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from metatkgr.cli import options
from metatkgr.cli.output import console_for, emit_json, plain_table, short

__all__ = ["compare"]


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs; the first is compared with the others.")
    ],
    split: Annotated[str, typer.Option(help="Whose new entities.")] = "meta-test",
    filter_: Annotated[str, typer.Option("--filter", help="static or time.")] = "static",
    device: options.Device = "auto",
    json_out: options.JsonOut = None,
) -> None:
    """Evaluate runs on the same queries and compare the first with each other one.

    The difference in MRR is paired: an interval by bootstrap over entities, each with all of its
    queries. An interval that holds 0 shows no difference.
    """
    from metatkgr.data.tasks import Tasks
    from metatkgr.errors import SettingsError
    from metatkgr.evaluation.evaluator import evaluate
    from metatkgr.evaluation.filters import FILTERS
    from metatkgr.evaluation.statistics import paired_difference
    from metatkgr.training.runs import load_run

    if filter_ not in FILTERS:
        raise SettingsError(f"--filter takes {' or '.join(FILTERS)}, not {filter_!r}")
    where = options.choose_device(device)
    console = console_for(json_out)
    rows, found = [], []
    first: Any = None
    for folder in runs:
        run = load_run(folder, device=where)
        config = run.config
        shots = config.test_shots or config.shots
        drawn_by = config.seed if isinstance(shots, str) else 0
        tasks = Tasks.build(
            run.facts, shots=shots, visibility=config.visibility, split=split, seed=drawn_by
        )
        evaluation = evaluate(run.model, tasks)
        key = (config.dataset, shots, config.visibility, len(tasks.answers), drawn_by)
        if first is None:
            first = (key, evaluation)
        elif key != first[0]:
            raise SettingsError(
                f"{folder} asks other queries than {runs[0]}: {key} and {first[0]} (dataset, "
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
                str(folder),
                config.model,
                short(summary.mrr or 0.0, 4),
                f"{short(low)}-{short(high)}",
                *(short(hit or 0.0, 4) for hit in summary.hits.values()),
                "" if difference is None else f"{difference[0]:+.3f}",
                "" if difference is None else f"{difference[1]:+.3f} to {difference[2]:+.3f}",
            ]
        )
        found.append(
            {"run": str(folder), "model": config.model, "seed": config.seed}
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
