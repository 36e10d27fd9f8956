"""``metatkgr store``: facts that a service has observed, from files and into files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metatkgr.cli import options
from metatkgr.cli.options import Group, Reads, grouped
from metatkgr.cli.output import console_for, emit_json
from metatkgr.cli.serve import Kept, Store, need

__all__ = ["app"]

app = typer.Typer(
    help="Facts that a service has observed: import and export.", no_args_is_help=True
)


@app.command("import")
@grouped
def take_in(
    data: options.RunOrData,
    file: Annotated[str, typer.Argument(help="CSV, JSONL, Parquet or whatever DATA may be.")],
    retract: Annotated[
        bool, typer.Option("--retract", help="Take the facts of the file back.")
    ] = False,
    source: Annotated[str, typer.Option(help="Who says so.")] = "",
    confirm_new: Annotated[
        bool, typer.Option("--confirm-new", help="Names that nearly are known ones are right.")
    ] = False,
    allow_far: Annotated[
        bool, typer.Option("--allow-far", help="Dates far after the last are right.")
    ] = False,
    json_out: options.JsonOut = None,
    *,
    kept: Annotated[Kept, Group(Kept)],
    reading: Reads,
) -> None:
    """Observe the facts of a file, all or none: on disk, and known to a service that runs.

    Example: `metatkgr store import events.csv last-week.parquet --source desk`
    """
    need("serve", "sqlalchemy")
    from metatkgr.forecasting.incoming import rows_of
    from metatkgr.forecasting.store import FactStore
    from metatkgr.serving.service import Service

    console = console_for(json_out)
    how_read = reading.options(console, data=data)
    opened, forecaster = options.open_forecaster(data, how_read, device="cpu")
    rows = rows_of(reading.more_facts(file, opened.facts, console))
    name = forecaster.model.name
    store = FactStore(kept.store or opened.store)
    service = Service(forecaster, store, model=name, adopt=kept.adopt_store)
    service.start()
    try:
        if retract:
            taken = service.retract(rows, source=source)
            found = {"retracted": taken.retracted, "unknown": taken.unknown}
        else:
            added = service.add(rows, source=source, confirm_new=confirm_new, allow_far=allow_far)
            found = {
                "accepted": added.accepted,
                "duplicates": added.duplicates,
                "new_entities": len(added.new_entities),
            }
    finally:
        service.stop()
    counts = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in found.items())
    console.print(f"{service.store.name}: {counts}", soft_wrap=True)
    emit_json(json_out, found)


@app.command("export")
@grouped
def export(
    data: options.RunOrData,
    out: Annotated[Path, typer.Option(help="The file, .csv, .jsonl or .parquet.")],
    store: Store = None,
    changes: Annotated[
        bool,
        typer.Option("--changes", help="Every change with its source and times; else what holds."),
    ] = False,
    json_out: options.JsonOut = None,
    *,
    reading: Reads,
) -> None:
    """Write the facts that a service was given.

    Example: `metatkgr store export events.csv --out told.parquet`
    """
    need("serve", "sqlalchemy")
    from metatkgr.forecasting.exports import export_facts
    from metatkgr.forecasting.store import FactStore
    from metatkgr.training.opening import open_model

    console = console_for(json_out)
    where = store or open_model(data, device="cpu", **reading.options(console)).store
    with FactStore(where, make=False) as kept:
        count = export_facts(kept, out, changes=changes)
    console.print(f"{out}: {count:,} {'changes' if changes else 'facts'}", soft_wrap=True)
    emit_json(json_out, {"file": str(out), "rows": count})
