"""``metatkgr evaluate``: all queries of a split, ranked, as numbers."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console

from metatkgr.cli import options
from metatkgr.cli.output import console_for, emit_json, growing_bar, metric_table
from metatkgr.cli.reading import Reading, reads_data

__all__ = ["evaluate", "evaluation_of"]


@reads_data
def evaluate(
    data: options.RunOrData,
    model: options.ModelName = None,
    shots: Annotated[
        str | None,
        typer.Option(
            metavar="K",
            help="K: how many first facts are known; 'random' (1-5) or a range as 2-4: drawn for "
            "each entity by the seed; else the run's, or 3.",
        ),
    ] = None,
    visibility: Annotated[
        str | None,
        typer.Option(
            help="What a model may see: entity-split, frozen or streaming; else the run's, or "
            "entity-split."
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Whose new entities: meta-train, meta-validation or meta-test.")
    ] = "meta-test",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; else the run's, or 0.")] = None,
    questions: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Ask only so many questions of the split, drawn evenly by the seed, each with all "
            "its answers; else all.",
        ),
    ] = None,
    set_: options.SetValues = None,
    device: options.Device = "auto",
    cluster: options.Cluster = None,
    workers: Annotated[
        int, typer.Option(min=1, help="With --cluster local: processes that share the questions.")
    ] = 2,
    details: Annotated[
        bool, typer.Option(help="Add metrics per relation and per time step to the JSON.")
    ] = False,
    calibration: Annotated[
        bool,
        typer.Option(
            help="Also fit probabilities to meta-validation, and tell how far off they are there "
            "and on meta-test: the expected calibration error."
        ),
    ] = False,
    json_out: options.JsonOut = None,
    *,
    reading: Reading,
) -> None:
    """Rank the queries of a split under both filters: all of them, or those of a sample.

    Models without weights (recurrency, paths, and oracle on a simulated world) need nothing but
    data; a model with weights is named by the run it was trained into.

    Example: `metatkgr evaluate YAGO --model recurrency --shots 3 --json -`
    """
    from metatkgr.training.opening import open_model

    console = console_for(json_out)
    begin = time.perf_counter()
    opened = open_model(
        data,
        model=model,
        settings=options.parse_assignments(set_ or []),
        shots=shots,
        visibility=visibility,
        seed=seed,
        device="cpu" if cluster else device,
        **reading.options(console),
    )
    loaded = time.perf_counter() - begin
    result = evaluation_of(
        opened.facts,
        opened.model,
        opened.shots,
        opened.visibility,
        split,
        opened.seed,
        loaded,
        questions=questions,
        details=details,
        ranked=_on_cluster(cluster, workers, device),
    )
    console.print(metric_table(result))
    if opened.trained_shots is not None:
        result["trained_shots"] = opened.trained_shots
        _tell_shots(opened.trained_shots, result["shots"], console)
    if questions is not None:
        console.print(
            f"Asked {result['questions']:,} questions: {result['queries']:,} of the split's "
            f"{result['queries_of_split']:,} queries."
        )
    console.print(
        "Ranks are over all entities, ties at their mean; intervals by bootstrap over entities; "
        "seconds: " + ", ".join(f"{k} {v:.1f}" for k, v in result["seconds"].items())
    )
    if calibration:
        result["calibration"] = _calibration_of(
            opened.model, opened.facts, result["shots"], console
        )
    emit_json(json_out, result)


def _calibration_of(model: Any, facts: Any, shots: int | str, console: Console) -> dict[str, Any]:
    """How far off the model's probabilities are; told, and as part of the JSON."""
    from metatkgr.forecasting.calibrating import calibration_report

    with console.status("calibration …"):
        found = calibration_report(model, facts, shots)
    fitted, later = found["fitted"], found["meta-test"]
    if fitted["ece"] is None or later is None:
        console.print("Too few queries to fit probabilities to, or to judge them by.")
        return found
    console.print(
        f"Expected calibration error of the first forecast (of the first ten), visibility "
        f"{found['visibility']}: {fitted['ece']:.3f} ({fitted['ece_top10']:.3f}) on entities of "
        f"{fitted['split']} that the fit had not seen ({fitted['queries']:,} queries); "
        f"{later['ece']:.3f} ({later['ece_top10']:.3f}) on meta-test ({later['queries']:,} "
        f"queries), where it said {later['stated']:.1%} on average and was right in "
        f"{later['correct']:.1%}."
    )
    return found


def _tell_shots(known: int | str, shots: int | str, console: Console) -> None:
    if known != shots:
        console.print(
            f"The entities' vectors were learned from {known}-shot supports, not from those "
            "given here: see 'Shots' in the guide before comparing.",
            style="yellow",
        )


def evaluation_of(
    facts: Any,
    model: Any,
    shots: int | str,
    visibility: str,
    split: str,
    seed: int,
    loaded: float = 0.0,
    *,
    questions: int | None = None,
    details: bool = False,
    ranked: Any = None,
) -> dict[str, Any]:
    """One evaluation with a progress bar, as the object that ``--json`` writes."""
    from metatkgr.evaluation.evaluator import evaluate, evaluation_report

    with growing_bar(f"{model.name}, {facts.name}") as update:
        return evaluation_report(
            model,
            facts,
            shots=shots,
            visibility=visibility,
            split=split,
            seed=seed,
            questions=questions,
            loaded=loaded,
            details=details,
            progress=update,
            ranked=ranked or evaluate,
        )


def _on_cluster(address: str | None, workers: int, device: str) -> Any:
    """What ranks on a cluster, if one is wanted."""
    if address is None:
        return None
    from functools import partial

    from metatkgr.training.cluster import evaluate_on

    return partial(evaluate_on, address, workers=workers, device=device)
