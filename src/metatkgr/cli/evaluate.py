"""``metatkgr evaluate`` and ``compare``: queries of a split, ranked, as numbers and differences."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from metatkgr.cli import options
from metatkgr.cli.options import Reads, grouped
from metatkgr.cli.output import (
    console_for,
    emit_json,
    growing_bar,
    metric_table,
    plain_table,
    short,
)

__all__ = ["compare", "evaluate", "models"]


@grouped
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
        str | None,
        typer.Option(
            help="Whose new entities: meta-train, meta-validation or meta-test (the default); with "
            "--protocol extrapolation: valid or test (the default)."
        ),
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="few-shot: new entities by their first facts; extrapolation: all facts of the "
            "last part of the time range, as most papers evaluate."
        ),
    ] = "few-shot",
    history: Annotated[
        str,
        typer.Option(
            help="With --protocol extrapolation: single-step (all facts before a query) or "
            "multi-step (all facts before the part begins)."
        ),
    ] = "single-step",
    shares: Annotated[
        str,
        typer.Option(
            metavar="TRAIN,VALID",
            help="With --protocol extrapolation: shares of the facts (TGB 2.0 has 0.7,0.15), or "
            "the first steps of valid and test, as 304,334.",
        ),
    ] = "0.8,0.1",
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
    verify: options.Verify = None,
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
    reading: Reads,
) -> None:
    """Rank the queries of a split under both filters: all of them, or those of a sample.

    Models without weights (recurrency, paths, and oracle on a simulated world) need nothing but
    data; a model with weights is named by the run it was trained into. Under the protocol
    extrapolation it is named itself: it learns from train first, in the settings of the preset
    extrapolation where it has one.

    Examples:

    `metatkgr evaluate YAGO --model recurrency --shots 3 --json -`

    `metatkgr evaluate YAGO --model evidence --protocol extrapolation --shares 0.7,0.15`
    """
    from metatkgr.data.extrapolation import Extrapolation
    from metatkgr.data.sources import refuse_test_graph
    from metatkgr.evaluation.evaluator import evaluation_report
    from metatkgr.training.comparing import IN_A_ROUND
    from metatkgr.training.opening import open_extrapolation, open_model

    console = console_for(json_out)
    begin = time.perf_counter()
    words: dict[str, Any] = {
        "model": model,
        "settings": options.parse_assignments(set_ or []),
        "seed": seed,
        "device": "cpu" if cluster else device,
        "verify": verify,
        **reading.options(console),
    }
    tasks = None
    if protocol == "few-shot":
        opened = open_model(data, shots=shots, visibility=visibility, **words)
        loaded = time.perf_counter() - begin
    else:
        few_shot = {"--shots": shots, "--visibility": visibility, "--calibration": calibration}
        _check_protocol(protocol, [name for name, value in few_shot.items() if value])
        cut = _shares(shares)
        with console.status(f"opening {data}, training where the model has weights …"):
            opened = open_extrapolation(data, split=cut, history=history, **words)
        loaded = time.perf_counter() - begin
        tasks = Extrapolation.build(opened.facts, split=cut, part=split or "test", history=history)
    refuse_test_graph(opened.facts.name, IN_A_ROUND)
    with growing_bar(f"{opened.model.name}, {opened.facts.name}") as update:
        result = evaluation_report(
            opened.model,
            opened.facts,
            **opened.protocol,
            split=split or "meta-test",
            questions=questions,
            loaded=loaded,
            details=details,
            progress=update,
            ranked=_ranker(cluster, workers, device),
            tasks=tasks,
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


def _check_protocol(protocol: str, given: list[str]) -> None:
    """Refuse what is not of the field's standard protocol."""
    from metatkgr.errors import SettingsError, UnknownNameError

    if protocol != "extrapolation":
        raise UnknownNameError("protocol", protocol, ["few-shot", "extrapolation"])
    if given:
        raise SettingsError(f"{', '.join(given)}: only of the few-shot protocol")


def _shares(text: str) -> tuple[float, float]:
    from metatkgr.errors import SettingsError

    try:
        train, valid = (float(share) for share in text.split(","))
    except ValueError:
        raise SettingsError(f"--shares takes TRAIN,VALID, as in 0.8,0.1, not {text!r}") from None
    return train, valid


def _calibration_of(model: Any, facts: Any, shots: int | str, console: Console) -> dict[str, Any]:
    """How far off the model's probabilities are: printed, and as part of the JSON."""
    from metatkgr.data.visibility import VisibleFacts
    from metatkgr.forecasting.calibrating import calibration_report
    from metatkgr.forecasting.hazard import BASELINES, within_report

    visible = VisibleFacts.of(facts)
    with console.status("calibration …"):
        report = calibration_report(model, visible, shots)
        report["within"] = within_report(visible)
    for steps, found in report["within"].items():
        ours = found["hazard"]
        others = ", ".join(f"{found[name]['log_likelihood']:.3f} by {name}" for name in BASELINES)
        console.print(
            f"Within {steps} steps: {found['came']:.1%} of {found['queries']:,} facts came; "
            f"calibration error {ours['ece']:.3f}, Brier score {ours['brier']:.3f}, "
            f"log-likelihood {ours['log_likelihood']:.3f} ({others})."
        )
    fitted, later = report["fitted"], report["meta-test"]
    if fitted["ece"] is None or later is None:
        console.print("Too few queries to fit probabilities to, or to judge them by.")
        return report
    console.print(
        f"Expected calibration error of the first forecast (over all ranks), visibility "
        f"{report['visibility']}: {fitted['ece']:.3f} ({fitted['ece_ranks']:.3f}) on the last "
        f"queries of {fitted['split']}, by a fit to those before ({fitted['queries']:,} queries); "
        f"{later['ece']:.3f} ({later['ece_ranks']:.3f}) on meta-test ({later['queries']:,} "
        f"queries), where it said {later['stated']:.1%} on average and was right in "
        f"{later['correct']:.1%}."
    )
    return report


def _tell_shots(known: int | str, shots: int | str, console: Console) -> None:
    if known != shots:
        console.print(
            f"The entities' vectors were learned from {known}-shot supports, not from those "
            "given here: see 'Shots' in the guide before comparing.",
            style="yellow",
        )


def _ranker(cluster: str | None, workers: int, device: str) -> Any:
    """What ranks: this process, or a cluster where one is wanted."""
    if cluster is None:
        from metatkgr.evaluation.evaluator import evaluate

        return evaluate
    from metatkgr.training.cluster import evaluate_on

    return partial(evaluate_on, cluster, workers=workers, device=device)


@grouped
def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="Folders of runs, or names of models that need no training (recurrency, paths), "
            "which answer the same queries; the first is compared with the others.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(help="What models are compared on where no run comes first: as DATA."),
    ] = None,
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
    *,
    reading: Reads,
) -> None:
    """Evaluate runs on the same queries and compare the first with each other one.

    The difference in MRR is paired: an interval by bootstrap over entities, each with all of its
    queries, and a p-value by drawing the sign of each entity's gain anew.

    Examples:

    `metatkgr compare runs/metatkgr runs/transe recurrency`

    `metatkgr compare recurrency paths --data world`
    """
    from metatkgr.training.comparing import compare as compared

    console = console_for(json_out)
    facts = None if data is None else reading.load(data, console)
    with growing_bar("comparing", "questions") as update:
        found = compared(
            *sources, data=facts, split=split, filter=filter_, device=device, progress=update
        )
    rows = []
    for one in found.rows:
        low, high = one.summary.mrr_ci95 or (0.0, 0.0)
        p = one.p_value
        rows.append(
            [
                _in_short(one.name),
                f"{short(one.summary.mrr or 0.0)} {short(low)}-{short(high)}",
                *(short(hit or 0.0) for hit in one.summary.hits.values()),
                "" if one.first_minus_this is None else _difference(*one.first_minus_this),
                "" if p is None else ("<.001" if p < 0.001 else short(p)),
            ]
        )
    columns = ["run or model", "MRR 95 %", "H@1", "H@3", "H@10", "first - this 95 %", "p"]
    console.print(plain_table(found.title(), columns, rows))
    emit_json(json_out, found.to_json())


def _in_short(source: str, most: int = 14) -> str:
    """The last part of a path, so that a table fits 80 columns."""
    name = source.rstrip("/").rpartition("/")[2]
    return name if len(name) <= most else name[: most - 1] + "…"


def _difference(middle: float, low: float, high: float) -> str:
    shown = [f"{value:+.3f}".replace("0.", ".") for value in (middle, low, high)]
    return f"{shown[0]} {shown[1]} to {shown[2]}"


def models(plugin: options.Plugins = None, json_out: options.JsonOut = None) -> None:
    """List the models that can be named, those of installed packages and of plugins too.

    Example: `metatkgr models`
    """
    from metatkgr.models import DEFAULT_MODEL, available, load_plugins
    from metatkgr.models.base import TrainableModel

    load_plugins(plugin or ())
    rows = [
        {
            "model": name,
            # The default comes with weights that were learned on other graphs.
            "trained": issubclass(kind, TrainableModel) and name != DEFAULT_MODEL,
            "default": name == DEFAULT_MODEL,
            "about": (kind.__doc__ or "").strip().partition("\n")[0],
        }
        for name, kind in available().items()
    ]
    console = console_for(json_out)
    for row in rows:
        how = "train it first" if row["trained"] else "needs no training"
        usual = ", the default" if row["default"] else ""
        console.print(f"{row['model']:12} {row['about']} ({how}{usual})", soft_wrap=True)
    emit_json(json_out, rows)
