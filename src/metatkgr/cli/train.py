"""``metatkgr train``: learn a model's weights into the folder of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from metatkgr.cli import options
from metatkgr.cli.output import console_for, emit_json, metric_table
from metatkgr.cli.reading import Reading, reads_data

__all__ = ["train"]


@reads_data
def train(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    model: Annotated[str, typer.Option(help="Which model.")],
    shots: options.Shots = 3,
    visibility: options.VisibilityName = "entity-split",
    seed: options.Seed = 0,
    preset: Annotated[
        str, typer.Option(help="Named settings of the model: default, or paper for metatkgr.")
    ] = "default",
    set_: options.SetValues = None,
    device: options.Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an interrupted training stopped.")
    ] = False,
    json_out: options.JsonOut = None,
    *,
    reading: Reading,
) -> None:
    """Train a model and save it as a run, which `metatkgr evaluate` takes in place of data.

    Settings are selected on meta-validation only; meta-test is not looked at. Several processes:
    `torchrun --nproc-per-node 2 -m metatkgr train …`.

    Example: `metatkgr train YAGO --model transe --shots 3 --out runs/yago-transe`
    """
    from metatkgr.cli.evaluate import evaluation_of
    from metatkgr.data.problem import Problem
    from metatkgr.errors import SettingsError
    from metatkgr.evaluation.evaluator import evaluate
    from metatkgr.files import write_json, write_text
    from metatkgr.models import create
    from metatkgr.models.trainable import TrainableModel
    from metatkgr.training.distributed import processes
    from metatkgr.training.loop import train as run_training
    from metatkgr.training.runs import RunConfig, is_run, load_config, save_graph, save_model
    from metatkgr.version import __version__

    chosen = create(
        model,
        options.parse_assignments(set_ or []),
        preset=preset,
        device=options.choose_device(device),
    )
    if not isinstance(chosen, TrainableModel):
        raise SettingsError(
            f"{model} needs no training; use it at once: metatkgr evaluate {data} --model {model}"
        )
    with processes(chosen.device) as part:
        first = part.number == 0
        console = console_for(json_out)
        console.quiet = not first
        if first and is_run(out) and not resume:
            raise SettingsError(
                f"{out} already holds a run; choose another folder, or --resume to go on with it"
            )
        facts = reading.load(data, console)
        config = RunConfig(
            dataset=facts.name,
            model=model,
            shots=shots,
            visibility=visibility,
            seed=seed,
            version=__version__,
            preset=preset,
            settings=dataclasses.asdict(chosen.settings),
        )
        if first and resume and is_run(out) and load_config(out) != config:
            raise SettingsError(f"{out} was begun with other settings; --resume must repeat them")
        if first:
            save_graph(out, config, facts)
        problem = Problem.of(facts, shots=shots, visibility=visibility)

        def validate(candidate: TrainableModel[Any]) -> float:
            return evaluate(candidate, problem.validation).summary(resamples=0).mrr or 0.0

        lines = run_training(
            chosen,
            problem,
            seed=seed,
            validate=validate,
            folder=out,
            resume=resume,
            progress=lambda line: console.print(_progress(line)),
        )
        if not first:
            return
    save_model(out, chosen)
    result = evaluation_of(facts, chosen, shots, visibility, "meta-validation", seed)
    write_json(out / "metrics.json", result)
    write_text(out / "CARD.md", _card(config, result, lines))
    console.print(metric_table(result))
    console.print(f"Saved as {out}; next: metatkgr evaluate {out}")
    emit_json(json_out, result | {"run": str(out), "epochs": len(lines)})


def _progress(line: dict[str, Any]) -> str:
    """A line of the trace for people."""
    text = f"{line['phase']} {line['epoch']}/{line['epochs']}: loss {line['loss']:.4f}"
    if "validation_mrr" in line:
        text += f", validation MRR {line['validation_mrr']:.4f}"
    left = line["seconds_phase"] / line["epoch"] * (line["epochs"] - line["epoch"])
    return f"{text} ({line['seconds']:.0f} s, at most {left:.0f} s of this phase left)"


def _card(config: Any, result: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    metrics = result["metrics"]["static"]["all"]
    settings = "\n".join(f"- {key}: {value}" for key, value in config.settings.items())
    return (
        f"# {config.model} on {config.dataset}\n\n"
        f"{config.shots}-shot, visibility {config.visibility}, seed {config.seed}, metatkgr "
        f"{config.version}. {len(lines)} epochs, {lines[-1]['seconds']:.0f} s.\n\n"
        f"Meta-validation, static filter: MRR {metrics['mrr']:.4f} (95 % interval "
        f"{metrics['mrr_ci95'][0]:.3f} to {metrics['mrr_ci95'][1]:.3f}), H@10 "
        f"{metrics['hits@10']:.4f}. Meta-test was not looked at.\n\n## Settings\n\n{settings}\n"
    )
