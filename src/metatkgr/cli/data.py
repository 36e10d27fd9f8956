"""``metatkgr data``: what there is, where it is, what it looks like; files of any size ingested."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metatkgr.cli import options
from metatkgr.cli.options import Reads, grouped
from metatkgr.cli.output import console_for, emit_json, plain_table
from metatkgr.errors import SettingsError

if TYPE_CHECKING:
    from metatkgr.data.ingest import Appended, Ingested
    from metatkgr.data.readers import ReadOptions

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
    for name, entry in catalog.ENTRIES.items():
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
@grouped
def stats(
    data: options.Data,
    json_out: options.JsonOut = None,
    *,
    reading: Reads,
) -> None:
    """Count facts, entities, periods and tasks, beside the paper's numbers where it has them."""
    from metatkgr.data.statistics import DatasetStatistics

    console = console_for(json_out)
    facts = reading.load(data, console)
    statistics = DatasetStatistics.of(facts)
    console.print(plain_table(facts.name, ["", "here", "in the paper"], statistics.table()))
    emit_json(json_out, statistics.to_json())


@app.command("plot")
@grouped
def plot(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
    json_out: options.JsonOut = None,
    *,
    reading: Reads,
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
    from metatkgr.data.world import WorldSettings
    from metatkgr.data.world.simulation import write_world

    settings = WorldSettings(facts=facts, seed=seed, kind=kind)
    with _counting_bar("facts", facts) as progress:
        summary = write_world(out, settings, progress)
    console_for(json_out).print(
        f"{summary.path}: {summary.facts:,} facts of {summary.entities:,} entities over "
        f"{summary.steps:,} steps, {summary.bytes:,} bytes, in {summary.seconds:.1f} s"
    )
    emit_json(json_out, asdict(summary) | {"path": str(summary.path), "seed": seed, "kind": kind})


@app.command("ingest")
@grouped
def ingest(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files and folders that together are one graph: .parquet; or .csv, .tsv, .txt, "
            ".tab, .jsonl, .ndjson, also with .gz, .zst or .zip.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; it must not exist yet.")
    ] = None,
    append: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Add the facts to a folder that an earlier ingest has written."
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1000, help="Rows in memory at a time: a million take about 1 GB.")
    ] = 1_000_000,
    index: Annotated[
        bool, typer.Option("--index", hidden=True, help="There always is an index of links.")
    ] = False,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="With --append: have the index of links cover all facts, also the latest; FILES "
            "may be left out.",
        ),
    ] = False,
    json_out: options.JsonOut = None,
    *,
    reading: Reads,
) -> None:
    """Read a graph larger than memory into a folder that opens at once.

    The folder can then be named wherever a command takes DATA. The facts are the same as if the
    files were named there themselves. With --append it grows by the facts that are not there yet.
    """
    from metatkgr.data.readers import ReadOptions

    if (out is None) == (append is None):
        raise SettingsError(
            "say where the facts go: --out FOLDER makes a folder, --append FOLDER adds to one"
        )
    if compact and append is None:
        raise SettingsError("--compact goes with --append FOLDER: a new folder is in one piece")
    if not files and not compact:
        raise SettingsError("name at least one file to ingest")
    console, result = console_for(json_out), dict[str, Any]()
    if files:
        chosen = ReadOptions.of(None, reading.fields)
        done: Ingested | Appended
        if append is None:
            assert out is not None
            done, line = _read(files, out, chosen, rows)
        else:
            done, line = _add(files, append, chosen, rows)
        reading.tell(done.report, console)
        console.print(line)
        result = asdict(done) | {"report": done.report.to_json()}
    folder = append or out
    assert folder is not None
    if compact:
        from metatkgr.data.ingest import compact as cover_all

        cover_all(folder, rows=rows)
        console.print(f"{folder}: the index of links covers all facts")
    emit_json(json_out, result | {"folder": str(folder)})


def _read(files: list[Path], out: Path, chosen: ReadOptions, rows: int) -> tuple[Ingested, str]:
    from metatkgr.data.ingest import ingest as read_into

    with _counting_bar("rows") as progress:
        done = read_into(files, out, chosen, rows=rows, progress=progress)
    return done, (
        f"{done.folder}: {done.facts:,} facts of {done.entities:,} entities over {done.steps:,} "
        f"steps, {done.repeated:,} repeated ones left out, in {done.seconds:.1f} s"
    )


def _add(files: list[Path], folder: Path, chosen: ReadOptions, rows: int) -> tuple[Appended, str]:
    from metatkgr.data.ingest import append as add_to

    with _counting_bar("rows") as progress:
        done = add_to(files, folder, chosen, rows=rows, progress=progress)
    anew = (
        " (all columns were written anew: some times lie before the last one, or between two steps)"
        if done.rewritten
        else ""
    )
    return done, (
        f"{done.folder}: {done.added:,} facts added, {done.repeated:,} repeated ones left out, "
        f"{done.new_entities:,} entities and {done.new_relations:,} relations are new, in "
        f"{done.seconds:.1f} s{anew}; now {done.facts:,} facts of {done.entities:,} entities over "
        f"{done.steps:,} steps"
    )


@contextmanager
def _counting_bar(unit: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; yields what is called with how many more are done."""
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, unit_scale=True, disable=None, file=sys.stderr) as bar:

        def progress(count: int) -> None:
            bar.update(count)

        yield progress
