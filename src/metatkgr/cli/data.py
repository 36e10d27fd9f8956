"""``metatkgr data``: what there is, where it is, what it looks like."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from metatkgr.cli import options
from metatkgr.cli.ingest import ingest
from metatkgr.cli.options import Reading, reads_data
from metatkgr.cli.output import console_for, emit_json, plain_table

__all__ = ["app"]

app = typer.Typer(
    help="Datasets: list, fetch, describe, draw, simulate, ingest.", no_args_is_help=True
)


@app.command("list")
def list_datasets(json_out: options.JsonOut = None) -> None:
    """List the datasets of the catalogue and where they are on this machine."""
    from metatkgr.data import catalog, sources
    from metatkgr.data.world.kinds import CAREERS, KINDS

    rows = []
    for name, entry in catalog.entries().items():
        folder = catalog.locate(name)
        rows.append(
            {
                "name": name,
                "about": entry.about,
                "home": entry.home,
                "folder": None if folder is None else str(folder),
            }
        )
    for kind in KINDS.values():
        name = sources.WORLD if kind is CAREERS else f"{sources.WORLD}:{kind.name}"
        about = f"simulated: {kind.about}"
        rows.append({"name": name, "about": about, "home": None, "folder": None})
    console = console_for(json_out)
    table = plain_table("Datasets", ["name"], [])
    for column in ("what it is", "where it is"):
        table.add_column(column, overflow="fold")
    for row in rows:
        place = row["folder"] or (
            "made when asked for"
            if row["home"] is None
            else f"not here; 'metatkgr data fetch {row['name']}' gets it"
        )
        table.add_row(row["name"], row["about"], place)
    console.print(table)
    emit_json(json_out, rows)


@app.command("fetch")
def fetch(
    name: Annotated[
        str, typer.Argument(help="YAGO, WIKI, ICEWS18 or ICEWS14.", show_default=False)
    ],
    json_out: options.JsonOut = None,
) -> None:
    """Fetch a dataset from its public home into the cache, and check it to the byte.

    An interrupted download goes on where it stopped. A dataset that is already on this machine is
    checked and left alone.
    """
    from metatkgr.data import catalog

    folder = catalog.locate(name)
    cached = catalog.cache_folder() / catalog.entry(name).name
    if folder is None or folder == cached:
        # In the cache what is damaged is fetched anew; a folder of the user's is only checked.
        folder = catalog.fetch_dataset(name)
    catalog.verify(name, folder)
    entry = catalog.entry(name)
    console = console_for(json_out)
    console.print(f"{entry.name} is in {folder}; every file is the published one.")
    emit_json(json_out, {"name": entry.name, "folder": str(folder)})


@app.command("stats")
@reads_data
def stats(
    data: options.Data,
    json_out: options.JsonOut = None,
    *,
    reading: Reading,
) -> None:
    """Count facts, entities, periods and tasks, beside the paper's numbers where it has them."""
    from metatkgr.data.statistics import DatasetStatistics

    console = console_for(json_out)
    facts = reading.load(data, console)
    statistics = DatasetStatistics.of(facts)
    console.print(plain_table(facts.name, ["", "here", "in the paper"], statistics.table()))
    emit_json(json_out, statistics.to_json())


@app.command("plot")
@reads_data
def plot(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
    json_out: options.JsonOut = None,
    *,
    reading: Reading,
) -> None:
    """Draw entities over time, and how many facts a new entity has (SVG and PNG)."""
    from metatkgr.experiments.dataset_figures import plot_dataset

    console = console_for(json_out)
    facts = reading.load(data, console)
    files = plot_dataset(facts, out)
    for file in files:
        console.print(str(file))
    emit_json(json_out, {"dataset": facts.name, "files": [str(file) for file in files]})


@app.command("simulate")
def simulate(
    out: Annotated[Path, typer.Option(help="File to write: .parquet, .csv or .tsv.")],
    facts: Annotated[int, typer.Option(help="How many facts, at least 200.")] = 20_000,
    kind: Annotated[
        str, typer.Option(help="What happens in it: the kinds that 'data list' tells of.")
    ] = "careers",
    seed: options.Seed = 0,
    json_out: options.JsonOut = None,
) -> None:
    """Write a simulated world to a file; 100 million facts need no more memory than a million."""
    import sys

    from tqdm import tqdm

    from metatkgr.data.world import WorldSettings
    from metatkgr.data.world.simulation import write_world

    settings = WorldSettings(facts=facts, seed=seed, kind=kind)
    with tqdm(total=facts, unit="facts", unit_scale=True, disable=None, file=sys.stderr) as bar:

        def progress(count: int) -> None:
            bar.update(count)

        summary = write_world(out, settings, progress)
    console_for(json_out).print(
        f"{summary.path}: {summary.facts:,} facts of {summary.entities:,} entities over "
        f"{summary.steps:,} steps, {summary.bytes:,} bytes, in {summary.seconds:.1f} s"
    )
    emit_json(json_out, asdict(summary) | {"path": str(summary.path), "seed": seed, "kind": kind})


app.command("ingest")(ingest)
