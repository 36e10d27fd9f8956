"""``metatkgr train``, ``pretrain`` and ``tune``: what learns weights, or chooses settings."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

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

__all__ = ["pretrain", "train", "tune"]


@grouped
def train(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    model: Annotated[
        str, typer.Option(help="Which model; the usual one is the one that forecasts best.")
    ] = "evidence",
    shots: options.Shots = "3",
    test_shots: Annotated[
        str | None,
        typer.Option(
            metavar="K",
            help="K of the meta-validation and meta-test entities, where it is another one.",
        ),
    ] = None,
    visibility: options.VisibilityName = "entity-split",
    seed: options.Seed = 0,
    preset: Annotated[
        str,
        typer.Option(
            help="Named settings of the model: default, paper for metatkgr, or tuned: those that "
            "`metatkgr tune` chose for this dataset."
        ),
    ] = "default",
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Weights of evidence to start from: a file of `metatkgr pretrain`, 'none', or "
            "'pretrained', those of the package (the usual ones).",
        ),
    ] = None,
    set_: options.SetValues = None,
    device: options.Device = "auto",
    precision: Annotated[
        str,
        typer.Option(
            help="Of the losses: float32, tf32, bfloat16, or auto (tf32 on a GPU, float32 on a "
            "CPU); weights and evaluation are float32 always."
        ),
    ] = "auto",
    track: Annotated[
        bool,
        typer.Option("--track", help="Write curves for TensorBoard into the run's folder."),
    ] = False,
    track_to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write these curves into DIR instead.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an interrupted training stopped.")
    ] = False,
    sign: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="Sign the run with the key in this file; see --verify."),
    ] = None,
    cluster: options.Cluster = None,
    workers: Annotated[
        int, typer.Option(min=1, help="With --cluster local: processes that read examples.")
    ] = 1,
    json_out: options.JsonOut = None,
    *,
    reading: Reads,
) -> None:
    """Train a model and save it as a run, which `metatkgr evaluate` takes in place of data.

    Settings are selected on meta-validation only; meta-test is not looked at. Several processes:
    `torchrun --nproc-per-node 2 -m metatkgr train …`; with `--max-restarts 3` a lost process is
    replaced, and all go on from the last checkpoint. For evidence, `--cluster` shares out the
    reading of its examples, which is most of its training; the weights are the same.

    Examples: `metatkgr train YAGO --out runs/yago`,
    `metatkgr train YAGO --model transe --shots 3 --out runs/yago-transe`
    """
    from metatkgr.files import read_key, write_signature
    from metatkgr.training.checkpoint import Tracker
    from metatkgr.training.distributed import is_first, was_restarted
    from metatkgr.training.estimator import Estimator
    from metatkgr.training.runs import check_folder

    # torchrun repeats the command as it was when it replaces a lost process.
    resume = resume or was_restarted()
    estimator = Estimator(
        model,
        shots=shots,
        test_shots=test_shots,
        visibility=visibility,
        seed=seed,
        preset=preset,
        device=device,
        precision=precision,
    )
    estimator.settings = options.parse_assignments(set_ or [])
    if start is not None:
        estimator.settings["start"] = start
    # What is misspelt is refused before a large file is read.
    estimator.check(cluster)
    if sign:
        read_key(sign)
    console = console_for(json_out)
    console.quiet = not is_first()
    with ExitStack() as stack:
        tracker = None
        if is_first():
            check_folder(out, resume=resume)
            if track or track_to:
                tracker = stack.enter_context(Tracker(track_to or out / "tensorboard"))
        facts = reading.load(data, console)

        def progress(line: dict[str, Any]) -> None:
            console.print(_progress(line))
            if tracker is not None:
                tracker(line)

        bar = stack.enter_context(growing_bar(f"{model}, {facts.name}"))
        estimator.fit(
            facts,
            folder=out,
            resume=resume,
            progress=progress,
            evaluating=bar,
            cluster=cluster,
            workers=workers,
        )
    if is_first():
        if sign:
            write_signature(out / "MANIFEST", sign)
        console.print(metric_table(estimator.metrics_))
        console.print(f"Saved as {out}; next: metatkgr evaluate {out}")
        result = estimator.metrics_ | {"run": str(out), "epochs": len(estimator.trace_)}
        emit_json(json_out, result)


def _progress(line: dict[str, Any]) -> str:
    """A line of the trace for people."""
    text = f"{line['phase']} {line['epoch']}/{line['epochs']}: loss {line['loss']:.4f}"
    if "validation_mrr" in line:
        text += f", validation MRR {line['validation_mrr']:.4f}"
    left = line["seconds_phase"] / line["epoch"] * (line["epochs"] - line["epoch"])
    return f"{text} ({line['seconds']:.0f} s, at most {left:.0f} s of this phase left)"


@grouped
def pretrain(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA…",
            help="Graphs to learn from, of kinds as different as can be: datasets of the "
            "catalogue, worlds, paths of files or folders.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="File of the weights.")],
    shots: Annotated[
        str, typer.Option(metavar="K,…", help="Each K to learn from, with commas between them.")
    ] = "1,2,3,random",
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over all examples.")] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    json_out: options.JsonOut = None,
    *,
    reading: Reads,
) -> None:
    """Learn what evidence is worth from many graphs, for graphs that are not among them.

    The file is used by `metatkgr train --from FILE`, and without any training by
    `metatkgr evaluate DATA --set start=FILE`. The package comes with such a file, which is used
    where nothing else is said.

    Example: `metatkgr pretrain YAGO WIKI world:trade:20000 --out weights.safetensors`
    """
    from metatkgr.data.periods import Shots
    from metatkgr.data.sources import is_read, load
    from metatkgr.models.registry import choose_device
    from metatkgr.training.pretraining import SETTINGS, fit, read_graph

    wanted: list[int | str] = [Shots.parse(text.strip()).label for text in shots.split(",")]
    settings = SETTINGS if epochs is None else replace(SETTINGS, epochs=epochs)
    where, console = choose_device(device), console_for(json_out)
    graphs = []
    with growing_bar("reading") as update:
        for name in data:
            facts = reading.load(name, console) if is_read(name) else load(name)
            graphs.append(read_graph(facts, settings, shots=wanted, seed=seed, device=where))
            update(1, len(data))
    for graph, examples in graphs:
        console.print(f"{graph.name}: {len(examples.relation):,} examples")
    with growing_bar("learning") as update:
        found = fit(graphs, settings, seed=seed, progress=lambda *_: update(1, settings.epochs))
    found.save(out)
    console.print(f"Saved as {out}; next: metatkgr train DATA --from {out} --out RUN")
    emit_json(
        json_out,
        {"file": str(out), "graphs": [graph._asdict() for graph in found.graphs], "seed": seed},
    )


@grouped
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
    reading: Reads,
) -> None:
    """Search for the settings of a model with the best MRR on meta-validation.

    The ranges lie beside the model; `--set` fixes a setting. The study is kept in a file: the same
    command again goes on with it, and started several times at once, anywhere that sees the file,
    the processes share the trials. Trials that fall behind are pruned. Meta-test is not looked at.

    Example: `metatkgr tune YAGO --model transe --trials 30 --workers 2`
    """
    from metatkgr.data.periods import Shots
    from metatkgr.models.registry import choose_device, keep_tuned
    from metatkgr.training.tuning import Search, search_space
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
        progress=lambda trial: console.print(_trial(trial)),
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


def _trial(trial: Any) -> str:
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
