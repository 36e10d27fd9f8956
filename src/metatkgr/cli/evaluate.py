"""``metatkgr evaluate``: all queries of a split, ranked, as numbers."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from metatkgr.cli import options
from metatkgr.cli.output import console_for, emit_json, metric_table, progress_bar

__all__ = ["evaluate", "evaluation_of"]


def evaluate(
    data: options.Data,
    model: Annotated[
        str | None, typer.Option(help="Which model; without it the product's default.")
    ] = None,
    shots: options.Shots = 3,
    visibility: options.VisibilityName = "entity-split",
    split: Annotated[
        str, typer.Option(help="Whose new entities: meta-train, meta-validation or meta-test.")
    ] = "meta-test",
    seed: options.Seed = 0,
    set_: options.SetValues = None,
    device: options.Device = "auto",
    details: Annotated[
        bool, typer.Option(help="Add metrics per relation and per time step to the JSON.")
    ] = False,
    json_out: options.JsonOut = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    header: options.Header = None,
    unit: options.Unit = "auto",
    ids: options.Ids = None,
    clip: options.Clip = None,
    skip_bad_rows: options.SkipBadRows = None,
) -> None:
    """Rank all queries of a split under both filters.

    Untrained models (recurrency, paths, and oracle on a simulated world) need nothing but data.

    Example: `metatkgr evaluate YAGO --model recurrency --shots 3 --json -`
    """
    from metatkgr.cli.data import load_for_command
    from metatkgr.models import DEFAULT_MODEL, create

    console = console_for(json_out)
    # A misspelt model or setting is told before a large file is read.
    chosen = create(
        model or DEFAULT_MODEL,
        options.parse_assignments(set_ or []),
        device=options.choose_device(device),
    )
    begin = time.perf_counter()
    reading = options.reading(columns, delimiter, header, unit, ids, clip, skip_bad_rows)
    facts = load_for_command(data, reading, skip_bad_rows, console)
    loaded = time.perf_counter() - begin
    result = evaluation_of(facts, chosen, shots, visibility, split, seed, loaded, details=details)
    console.print(metric_table(result))
    console.print(
        "Ranks are over all entities, ties at their mean; intervals by bootstrap over entities; "
        "seconds: " + ", ".join(f"{k} {v:.1f}" for k, v in result["seconds"].items())
    )
    emit_json(json_out, result)


def evaluation_of(
    facts: Any,
    model: Any,
    shots: int,
    visibility: str,
    split: str,
    seed: int,
    loaded: float = 0.0,
    *,
    details: bool = False,
) -> dict[str, Any]:
    """One evaluation with a progress bar, as the object that ``--json`` writes."""
    import dataclasses

    from metatkgr.data.tasks import Tasks
    from metatkgr.evaluation.evaluator import evaluate as rank_all
    from metatkgr.version import __version__

    tasks = Tasks.build(facts, shots=shots, visibility=visibility, split=split)
    with progress_bar(len(tasks.questions), f"{model.name}, {facts.name}") as update:
        evaluation = rank_all(model, tasks, progress=update)
    measured = evaluation.to_json(details=details)
    measured["seconds"] = {"load": round(loaded, 4)} | measured["seconds"]
    return {
        "dataset": facts.name,
        "model": model.name,
        "settings": dataclasses.asdict(model.settings),
        "seed": seed,
        "version": __version__,
    } | measured
