"""``metatkgr tune``: search for settings on meta-validation."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from metatkgr.cli import options
from metatkgr.cli.options import Reading, reads_data
from metatkgr.cli.output import console_for, emit_json, plain_table, short

__all__ = ["tune"]


@reads_data
def tune(
    data: options.Data,
    model: Annotated[str, typer.Option(help="Which model.")],
    trials: Annotated[
        int, typer.Option(min=1, help="Trials in all, of all workers together.")
    ] = 20,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which no other trial is begun.")
    ] = None,
    storage: Annotated[
        str,
        typer.Option(
            metavar="FILE|URL",
            help="The study that workers share: an SQLite file, or the URL of a database.",
        ),
    ] = "tuning.db",
    workers: Annotated[
        int, typer.Option(min=1, help="Processes on this machine, or on the cluster.")
    ] = 1,
    cluster: options.Cluster = None,
    startup: Annotated[int, typer.Option(min=1, help="Trials before any is pruned.")] = 5,
    shots: options.Shots = "3",
    visibility: options.VisibilityName = "entity-split",
    seed: options.Seed = 0,
    preset: Annotated[
        str, typer.Option(help="Named settings of the model that the search starts from.")
    ] = "default",
    set_: options.SetValues = None,
    device: options.Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the best settings in a TOML file, beside those of other models and "
            "datasets; `train --preset tuned` reads the package's.",
        ),
    ] = None,
    json_out: options.JsonOut = None,
    *,
    reading: Reading,
) -> None:
    """Search for the settings of a model with the best MRR on meta-validation.

    The ranges lie beside the model; `--set` fixes a setting. The study is kept in a file: the same
    command again goes on with it, and started several times at once, anywhere that sees the file,
    the processes share the trials. Trials that fall behind are pruned. Meta-test is not looked at.

    Example: `metatkgr tune YAGO --model transe --trials 30 --workers 2`
    """
    from metatkgr.data.periods import Shots
    from metatkgr.training.opening import choose_device
    from metatkgr.training.study import Search, search_space
    from metatkgr.training.tuned import keep_tuned
    from metatkgr.training.tuning import tune as search_settings

    search = Search(
        model=model,
        storage=storage if "://" in storage else Path(storage),
        trials=trials,
        timeout=timeout,
        shots=Shots.parse(shots).label,
        visibility=visibility,
        seed=seed,
        fixed=dict(options.parse_assignments(set_ or [])),
        preset=preset,
        device=device if cluster else choose_device(device),
        startup=startup,
    )
    console = console_for(json_out)
    space = search_space(search)
    facts = reading.load(data, console)
    console.print(f"Searching {', '.join(space)} of {model} on {facts.name}; study in {storage}.")
    result = search_settings(
        search,
        facts,
        workers=workers,
        cluster=cluster,
        progress=lambda trial: console.print(_progress(trial)),
    )
    counts = ", ".join(f"{count} {state}" for state, count in result["trials"].items())
    best = result["best"]
    if best is None:
        console.print(f"No trial came to its end ({counts}); give it more time or trials.")
        emit_json(json_out, result)
        return
    rows = [[name, str(value)] for name, value in best["settings"].items()]
    title = f"Best of {counts}: MRR {short(best['mrr'], 4)} on meta-validation"
    console.print(plain_table(title, ["setting", "value"], rows))
    chosen = search.fixed | best["settings"]
    result["set"] = " ".join(
        f"--set {shlex.quote(f'{key}={value}')}" for key, value in chosen.items()
    )
    preset_word = "" if preset == "default" else f" --preset {preset}"
    command = f"metatkgr train {data} --model {model}{preset_word} {result['set']} --out RUN"
    console.print(f"Train with it: {command}", soft_wrap=True)
    if out is not None:
        keep_tuned(out, model, facts.name, _typed(model, preset, chosen))
        console.print(f"Kept in {out}.")
    emit_json(json_out, result)


def _typed(model: str, preset: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Settings by name in their own types, with what the preset says, as a file keeps them."""
    import dataclasses

    from metatkgr.models import available, create

    base = {} if preset == "tuned" else dict(available()[model].presets[preset])
    wanted = base | chosen
    values = dataclasses.asdict(create(model, wanted).settings)
    return {name: values[name] for name in wanted}


def _progress(trial: Any) -> str:
    """A trial that ended, for people."""
    values = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in trial.params.items()
    )
    validated = trial.intermediate_values
    if trial.state.name == "PRUNED":
        seen = f"pruned at MRR {max(validated.values()):.4f}" if validated else "given up"
    else:
        seen = f"MRR {trial.value:.4f}"
    return f"trial {trial.number}: {seen} ({trial.duration.total_seconds():.0f} s; {values})"
