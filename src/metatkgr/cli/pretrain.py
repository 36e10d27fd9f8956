"""``metatkgr pretrain``: learn the weights of evidence that all graphs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metatkgr.cli import options
from metatkgr.cli.output import console_for, emit_json, growing_bar

__all__ = ["pretrain"]


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
) -> None:
    """Learn what evidence is worth from many graphs, for graphs that are not among them.

    The file is used by `metatkgr train --from FILE`, and without any training by
    `metatkgr evaluate DATA --set start=FILE`. The package comes with such a file, which is used
    where nothing else is said.

    Example: `metatkgr pretrain YAGO WIKI world:trade:20000 --out weights.safetensors`
    """
    from dataclasses import replace

    from metatkgr.data.periods import Shots
    from metatkgr.data.sources import load
    from metatkgr.training.opening import choose_device
    from metatkgr.training.pretraining import SETTINGS, fit, read_graph

    wanted: list[int | str] = [Shots.parse(text.strip()).label for text in shots.split(",")]
    settings = SETTINGS if epochs is None else replace(SETTINGS, epochs=epochs)
    where, console = choose_device(device), console_for(json_out)
    graphs = []
    with growing_bar("reading") as update:
        for name in data:
            graphs.append(read_graph(load(name), settings, shots=wanted, seed=seed, device=where))
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
