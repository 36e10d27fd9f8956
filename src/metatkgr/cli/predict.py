"""``metatkgr predict``: what next for this entity, how likely, and why."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metatkgr.cli import options
from metatkgr.cli.options import Reads, grouped
from metatkgr.cli.output import console_for, emit_json, growing_bar

if TYPE_CHECKING:
    from metatkgr.forecasting.calibration import Calibration

__all__ = ["calibrate", "predict"]


@grouped
def predict(
    data: options.RunOrData,
    entity: Annotated[
        str | None,
        typer.Option("--entity", "-e", help="Who is asked about: a name.", show_default=False),
    ] = None,
    newcomers: Annotated[
        bool,
        typer.Option(
            "--newcomers", help="Ask about every entity that emerged lately, and write a file."
        ),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --newcomers: since a time as --at takes it, or so long before the last fact "
            "(30d; also h, w, y); without it, since the end of what a model learns from.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="With --newcomers: the file, .parquet, .jsonl or .csv."),
    ] = None,
    relation: Annotated[
        str | None,
        typer.Option("--relation", "-r", help="By which relation; without it, the likeliest."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="When: a date (2018-03-05, 2018-03, 2018), or a number where the data counts in "
            "numbers; without it, one step after the last fact.",
        ),
    ] = None,
    side: Annotated[
        str,
        typer.Option(
            help="What is looked for: the object (ENTITY RELATION ?) or the subject (? RELATION "
            "ENTITY)."
        ),
    ] = "object",
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Answer as if nothing had happened after this date; the entity's own facts too.",
        ),
    ] = None,
    facts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Facts to observe first, about new entities too: a file as DATA may be one; "
            "--columns and the like hold for it too.",
        ),
    ] = None,
    allow_far: Annotated[
        bool, typer.Option("--allow-far", help="With --facts: dates far after the last are right.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many forecasts.")] = 10,
    within: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How likely is it to come within a time (30d; also h, w, y) or so many steps; "
            "without it: given that such a fact happens.",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why.")] = False,
    cluster: options.Cluster = None,
    workers: Annotated[
        int, typer.Option(min=1, help="With --cluster local: processes that share the newcomers.")
    ] = 1,
    json_out: options.JsonOut = None,
    *,
    answering: options.Answering,
    reading: Reads,
) -> None:
    """Forecast the next facts of an entity, new or old, with probabilities and reasons.

    Everything before the query's time is seen, and of the entity its first K facts at any time;
    with --as-of, nothing later than that date. To a misspelt name the answer is the nearest ones.

    Examples:

    `metatkgr predict runs/events --entity "Acme Corp" --relation acquires --at 2026-11-20`

    `metatkgr predict events.csv --entity "Acme Corp"` (its likeliest next facts)

    `metatkgr predict events.csv --entity "Acme Corp" --within 30d` (what comes in thirty days)

    `metatkgr predict events.csv --entity "New Ltd" --facts first-facts.csv --json -`

    `metatkgr predict runs/events --newcomers --since 30d --top 5 --out forecasts.parquet`
    """
    from metatkgr.forecasting.forecaster import Question

    _check_asked(entity, newcomers, since, out, cluster, facts or as_of, explain)
    console = console_for(json_out)
    device, verify = answering["device"], answering["verify"]
    words = answering | ({"device": "cpu"} if cluster else {})
    with console.status(f"opening {data} …"):
        how_read = reading.options(console, data=data if facts else None)
        _, forecaster = options.open_forecaster(data, how_read, **words)
    if facts is not None:
        more = reading.more_facts(facts, forecaster.facts, console)
        taken = forecaster.observe(more, allow_far=allow_far)
        count = len(taken.new_entities)
        new = f", {count:,} new {'entity' if count == 1 else 'entities'}" if count else ""
        console.print(
            f"Observed {taken.accepted:,} facts{new}; {taken.duplicates:,} were known.",
            soft_wrap=True,
        )
    if as_of is not None:
        forecaster = forecaster.at(as_of)
    if entity is None:
        from metatkgr.forecasting.newcomers import forecast_newcomers
        from metatkgr.training.opening import open_model

        assert out is not None
        with growing_bar("newcomers", "entities") as progress:
            count, rows = forecast_newcomers(
                forecaster,
                out,
                since=since,
                question=Question("", relation, at, side, top, within),
                cluster=cluster,
                workers=workers,
                device=device,
                opening=partial(
                    open_model,
                    _for_all_nodes(data),
                    model=answering["model"],
                    shots=answering["shots"],
                    reading=reading.fields,
                    verify=verify and verify.absolute(),
                ),
                progress=progress,
            )
        console.print(f"{out}: {rows:,} forecasts for {count:,} newcomers", soft_wrap=True)
        if count:
            console.print(_trust(forecaster.calibration), soft_wrap=True)
        emit_json(json_out, {"file": str(out), "newcomers": count, "forecasts": rows})
        return
    with console.status("calibrating and asking …"):
        forecasts = forecaster.predict(
            entity, relation, at=at, side=side, top=top, within=within, explain=explain
        )
    console.print(forecasts)
    console.print(_trust(forecaster.calibration, given=within is None), soft_wrap=True)
    emit_json(json_out, forecasts.to_json())


def _check_asked(
    entity: str | None,
    newcomers: bool,
    since: str | None,
    out: Path | None,
    cluster: str | None,
    facts: str | None,
    explain: bool,
) -> None:
    """Refuse options that do not go together."""
    from metatkgr.errors import SettingsError

    if (entity is None) != newcomers:
        raise SettingsError("say who is asked about: --entity NAME, or --newcomers")
    if newcomers and out is None:
        raise SettingsError("--newcomers writes a file: --out forecasts.parquet, .jsonl or .csv")
    if newcomers and explain:
        raise SettingsError("--newcomers gives no reasons: ask --entity NAME --explain for them")
    if not newcomers and (since or out or cluster):
        raise SettingsError("--since, --out and --cluster are for --newcomers")
    if cluster and facts:
        raise SettingsError(
            "the nodes of a cluster open DATA as it is: add the facts to it first, with "
            "'metatkgr data ingest FILE --append FOLDER'"
        )


def _for_all_nodes(data: str) -> str:
    """DATA as any process finds it: a path from the root, or a name as it is."""
    path = Path(data).expanduser()
    return str(path.absolute()) if path.exists() else data


@grouped
def calibrate(
    data: options.RunOrData,
    model: options.ModelName = None,
    shots: options.KnownShots = None,
    device: options.Device = "auto",
    json_out: options.JsonOut = None,
    *,
    reading: Reads,
) -> None:
    """Fit probabilities to the latest newcomers of a graph, and keep them with it.

    `predict` and `serve` find them in the run or in the ingested folder, and fit them anew where
    its model or its facts have changed since. This does so ahead of time: after a training, or
    after facts were appended to a folder.

    Examples:

    `metatkgr calibrate runs/events`

    `metatkgr calibrate events/`
    """
    from metatkgr.errors import SettingsError
    from metatkgr.forecasting.calibration import KeptCalibration
    from metatkgr.forecasting.forecaster import Forecaster
    from metatkgr.training.opening import open_model

    console = console_for(json_out)
    with console.status(f"opening {data} …"):
        opened = open_model(
            data, model=model, shots=shots, device=device, **reading.options(console)
        )
    kept = KeptCalibration.of(opened)
    if kept is None:
        raise SettingsError(
            f"{data} is read into memory, and nothing can be kept with it: give the folder of a "
            f"run, or of 'metatkgr data ingest {data} --out FOLDER'"
        )
    with suppress(OSError):
        kept.path.unlink()
    forecaster = Forecaster.load(opened)
    with console.status("calibrating …"):
        calibration = forecaster.calibrate()
    console.print(_trust(calibration), soft_wrap=True)
    written = kept.load()
    if written is not None and written.about() == calibration.about():
        console.print(f"Kept in {kept.path}.", soft_wrap=True)
    else:
        console.print(f"{kept.path} cannot be written: it will be fitted again.", soft_wrap=True)
    emit_json(json_out, calibration.about())


def _trust(calibration: Calibration, *, given: bool = True) -> str:
    """What the probabilities are worth, in a sentence."""
    if not calibration.queries:
        return (
            "Probabilities are a guess: the graph has too few newcomers to calibrate them; the "
            "order is what the model says."
        )
    of = f"fitted to the latest {calibration.queries:,} questions about newcomers"
    if not given:
        return (
            f"Probabilities: that it comes in time; whom with, {of}, when to what became of others."
        )
    off = (
        "" if calibration.ece is None else f"; the first is off by {calibration.ece:.1%} on average"
    )
    return f"Probabilities: given that such a fact happens; {of}{off}."
