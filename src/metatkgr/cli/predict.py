"""``metatkgr predict``: what next for this entity, how likely, and why."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from metatkgr.cli import options
from metatkgr.cli.options import Reading, reads_data
from metatkgr.cli.output import console_for, emit_json

if TYPE_CHECKING:
    from metatkgr.forecasting.calibration import Calibration

__all__ = ["calibrate", "predict"]


@reads_data
def predict(
    data: options.RunOrData,
    entity: Annotated[
        str, typer.Option("--entity", "-e", help="Who is asked about: a name.", show_default=False)
    ],
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
    facts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Facts to observe first, about new entities too: a file as DATA may be one; "
            "--columns and the like hold for it too.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many forecasts.")] = 10,
    horizon: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Look so many steps ahead; each candidate at its likeliest."
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why.")] = False,
    model: options.ModelName = None,
    shots: options.KnownShots = None,
    device: options.Device = "auto",
    verify: options.Verify = None,
    json_out: options.JsonOut = None,
    *,
    reading: Reading,
) -> None:
    """Forecast the next facts of an entity, new or old, with probabilities and reasons.

    Everything before the query's time is seen, and of the entity its first K facts at any time. To
    a misspelt name the answer is the nearest ones.

    Examples:

    `metatkgr predict runs/events --entity "Acme Corp" --relation acquires --at 2026-11-20`

    `metatkgr predict events.csv --entity "Acme Corp"` (its likeliest next facts, by the rule paths)

    `metatkgr predict events.csv --entity "New Ltd" --facts first-facts.csv --json -`
    """
    from metatkgr.forecasting.forecaster import Forecaster
    from metatkgr.training.opening import open_model

    console = console_for(json_out)
    with console.status(f"opening {data} …"):
        opened = open_model(
            data,
            model=model,
            shots=shots,
            device=device,
            verify=verify,
            **reading.options(console, data=data if facts else None),
        )
        forecaster = Forecaster.load(opened)
    if facts is not None:
        taken = forecaster.observe(reading.more_facts(facts, forecaster.facts, console))
        count = len(taken.new_entities)
        new = f", {count:,} new {'entity' if count == 1 else 'entities'}" if count else ""
        console.print(
            f"Observed {taken.accepted:,} facts{new}; {taken.duplicates:,} were known.",
            soft_wrap=True,
        )
    with console.status("calibrating and asking …"):
        forecasts = forecaster.predict(
            entity, relation, at=at, side=side, top=top, horizon=horizon, explain=explain
        )
    console.print(forecasts)
    console.print(_trust(forecaster.calibration), soft_wrap=True)
    emit_json(json_out, forecasts.to_json())


@reads_data
def calibrate(
    data: options.RunOrData,
    model: options.ModelName = None,
    shots: options.KnownShots = None,
    device: options.Device = "auto",
    json_out: options.JsonOut = None,
    *,
    reading: Reading,
) -> None:
    """Fit probabilities to the latest newcomers of a graph, and keep them with it.

    `predict` and `serve` find them in the run or in the ingested folder, and fit them anew where
    its model or its facts have changed since. This does so ahead of time: after a training, or
    after facts were appended to a folder.

    Examples:

    `metatkgr calibrate runs/events`

    `metatkgr calibrate events/ --model paths`
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


def _trust(calibration: Calibration) -> str:
    """What the probabilities are worth, in a sentence."""
    if not calibration.queries:
        return (
            "Probabilities are a guess: the graph has too few newcomers to calibrate them; the "
            "order is what the model says."
        )
    off = "" if calibration.ece is None else f"; off by {calibration.ece:.1%} on average"
    return (
        f"Probabilities: given that such a fact happens. Calibrated on {calibration.queries:,} "
        f"queries ({calibration.split}){off}."
    )
