"""``metatkgr data ingest``: files of any size into a folder, or into one that is there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metatkgr.cli import options
from metatkgr.cli.options import Reading, reads_data
from metatkgr.cli.output import console_for, emit_json
from metatkgr.errors import SettingsError

if TYPE_CHECKING:
    from metatkgr.data.ingest import Appended, Ingested
    from metatkgr.data.readers import ReadOptions

__all__ = ["ingest"]


@reads_data
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
    reading: Reading,
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
    console, told = console_for(json_out), dict[str, Any]()
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
        told = asdict(done) | {"report": done.report.to_json()}
    folder = append or out
    assert folder is not None
    if compact:
        from metatkgr.data.ingest import compact as cover_all

        cover_all(folder, rows=rows)
        console.print(f"{folder}: the index of links covers all facts")
    emit_json(json_out, told | {"folder": str(folder)})


def _read(files: list[Path], out: Path, chosen: ReadOptions, rows: int) -> tuple[Ingested, str]:
    from metatkgr.data.ingest import ingest as read_into

    with _rows_bar() as progress:
        done = read_into(files, out, chosen, rows=rows, progress=progress)
    return done, (
        f"{done.folder}: {done.facts:,} facts of {done.entities:,} entities over {done.steps:,} "
        f"steps, {done.repeated:,} repeated ones left out, in {done.seconds:.1f} s"
    )


def _add(files: list[Path], folder: Path, chosen: ReadOptions, rows: int) -> tuple[Appended, str]:
    from metatkgr.data.ingest import append as add_to

    with _rows_bar() as progress:
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
def _rows_bar() -> Iterator[Callable[[int], None]]:
    from tqdm import tqdm

    with tqdm(unit="rows", unit_scale=True, disable=None, file=sys.stderr) as bar:

        def progress(count: int) -> None:
            bar.update(count)

        yield progress
