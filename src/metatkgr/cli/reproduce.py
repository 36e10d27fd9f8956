"""``metatkgr reproduce``: the paper's experiments, with the paper's numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from metatkgr.cli import options
from metatkgr.cli.output import console_for, emit_json, short

__all__ = ["reproduce"]


def reproduce(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE|FIGURE]...",
            help="Which tables and figures: 3-shot, 1-shot, 2-shot, detailed, cross-shot, "
            "visibility, ablations, walk-ablations, evidence-ablations, over-time, training-time, "
            "bound, datasets; all, where none is named.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the cells and of the report.")] = Path(
        "runs/reproduce"
    ),
    datasets: Annotated[
        list[str] | None, typer.Option(help="Datasets, separated by commas; repeatable.")
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option(help="Models, separated by commas; repeatable.")
    ] = None,
    shots: Annotated[
        list[str] | None, typer.Option(help="Numbers of shots, separated by commas; repeatable.")
    ] = None,
    visibility: Annotated[
        list[str] | None, typer.Option(help="Visibilities, separated by commas; repeatable.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Seeds of each learned model; without it 5 for MetaTKGR, evidence and the three "
            "best baselines, 3 for the others.",
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            help="Presets of the learned models, separated by commas; without it default, and for "
            "metatkgr paper too."
        ),
    ] = None,
    set_: options.SetValues = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            help="Processes that share the cells; on a cluster of GPUs, those that share a GPU.",
        ),
    ] = 1,
    cluster: options.Cluster = None,
    device: options.Device = "auto",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="The whole pipeline on the simulated world, tiny trainings."),
    ] = False,
    claim: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Register these cells as a round before they are run, with what is expected of "
            "them. Needed where other than the package's default settings meet the meta-test of a "
            "published dataset or a test graph.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="In a checkout: make README's table and docs/results anew from results/, and fail "
            "where a number, star or sentence differs, or a row has become stale unmarked.",
        ),
    ] = False,
    write_pages: Annotated[
        bool, typer.Option("--write-pages", help="In a checkout: write them, and the figures.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Only list the cells and which are done.")
    ] = False,
    report: Annotated[
        bool, typer.Option(help="Write tables, figures and the page at the end.")
    ] = True,
    limit_seconds: Annotated[
        float | None, typer.Option(min=0, help="Begin no cell after so many seconds.")
    ] = None,
    stop_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="After so many seconds also leave the trainings in hand, at their next epoch; "
            "the same command goes on with them.",
        ),
    ] = None,
    json_out: options.JsonOut = None,
) -> None:
    """Train what is missing, evaluate, and write the tables and figures into a folder.

    Cell by cell: every finished one is kept, an interrupted one goes on where it was. Any number of
    these commands may share the folder, on one machine or several; with `--cluster` Ray starts the
    workers, and replaces those that die.

    Example: `metatkgr reproduce --quick --out runs/quick`
    """
    from metatkgr.experiments.runner import Limits, failures, run_grid
    from metatkgr.experiments.sections import register_all
    from metatkgr.experiments.suite import DATASETS, Choice, cells_for, quick_choice
    from metatkgr.models.registry import choose_device

    console = console_for(json_out)
    if check or write_pages:
        _pages(console, write=write_pages)
        return
    choice = Choice(
        datasets=tuple(_split(datasets)) or DATASETS,
        models=tuple(_split(models)) or None,
        shots=tuple(_number(text) for text in _split(shots)) or None,
        visibilities=tuple(_split(visibility)) or None,
        seeds=seeds,
        presets=tuple(_split(preset)) or None,
        settings=tuple(sorted(options.parse_assignments(set_ or []).items())),
    )
    if quick:
        choice = quick_choice(choice)
    register_all()
    names = experiments or []
    where = device if cluster else choose_device(device)
    limits = Limits.of(limit_seconds, stop_seconds)
    cells = cells_for(names, _with_best(choice, out))
    _register(console, out, claim, cells)
    if list_:
        _list_cells(console, out, cells, json_out)
        return

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    def compute(chosen: list[Any]) -> None:
        run_grid(
            out, chosen, workers=workers, cluster=cluster, device=where, limits=limits, say=say
        )

    workplace = f"the Ray cluster {cluster}" if cluster else f"{workers} workers on {where}"
    say(f"{len(cells)} cells in {out}; {workplace}")
    compute(cells)
    # Which baselines are the best is known only now: they get more seeds and visibilities.
    more = cells_for(names, _with_best(choice, out))
    if {cell.name for cell in more} - {cell.name for cell in cells} and limits.may_begin:
        cells = more
        _register(console, out, claim, cells)
        compute(cells)
    _print_finished(console, out, cells, json_out)
    failed = failures(out, cells)
    for name, reason in failed.items():
        console.print(f"failed: {name}: {reason.splitlines()[0]}", style="red")
    if report:
        from metatkgr.experiments.report import write_report

        for path in write_report(out, datasets=choice.datasets):
            say(f"wrote {path}")
    if failed:
        raise typer.Exit(1)


def _pages(console: Any, *, write: bool) -> None:
    from metatkgr.errors import DataError
    from metatkgr.experiments import report
    from metatkgr.experiments.results import Results
    from metatkgr.experiments.rounds import changed_settings

    root = Path()
    if not (root / "results" / "cells").is_dir() or not (root / "README.md").is_file():
        raise DataError("there is no results/cells and README.md here: run it in a checkout")
    if write:
        for path in report.write_pages(root):
            console.print(f"wrote {path}", soft_wrap=True)
        return
    results = Results.of_repository(root / "results")
    found = report.differences(root, results)
    for line in found:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    stale = sum(bool(changed_settings(record)) for record in results.records)
    unknown = sum(not record.commit for record in results.records)
    console.print(
        f"{len(results.records):,} records ({stale} stale, marked †; {unknown} without a commit); "
        + (f"{len(found)} lines differ: metatkgr reproduce --write-pages" if found else "all agree")
    )
    if found:
        raise typer.Exit(1)


def _register(console: Any, out: Path, claim: str | None, cells: list[Any]) -> None:
    from metatkgr.experiments.cell_run import commit
    from metatkgr.experiments.rounds import register

    if claim is not None and (path := register(out, claim, cells, commit())):
        console.print(f"registered {path}", soft_wrap=True)


def _split(texts: list[str] | None) -> list[str]:
    return [part.strip() for text in texts or [] for part in text.split(",") if part.strip()]


def _number(text: str) -> int:
    from metatkgr.errors import SettingsError

    if not text.isdecimal():
        raise SettingsError(f"--shots takes numbers, as in 1,2,3, not {text!r}")
    return int(text)


def _with_best(choice: Any, out: Path) -> Any:
    from dataclasses import replace

    from metatkgr.experiments.results import best_baselines, read_records

    return (
        choice if choice.best else replace(choice, best=best_baselines(read_records(out / "cells")))
    )


def _list_cells(console: Any, out: Path, cells: list[Any], json_out: str | None) -> None:
    from metatkgr.experiments.runner import failures, record_path

    failed = failures(out, cells)
    rows, states = [], []
    for cell in cells:
        state = "done" if record_path(out, cell).exists() else ""
        state = "failed" if cell.name in failed else state
        rows.append([cell.name, cell.test_shots, state])
        states.append(cell.to_json() | {"name": cell.name, "state": state or "missing"})
    done = sum(row[2] == "done" for row in rows)
    console.print(f"{done} of {len(cells)} cells done")
    _print_rows(console, [["cell", "K", "state"], *rows])
    emit_json(json_out, states)


def _print_finished(console: Any, out: Path, cells: list[Any], json_out: str | None) -> None:
    from metatkgr.experiments.records import Record
    from metatkgr.experiments.runner import record_path

    rows, records = [], []
    for cell in cells:
        if not (path := record_path(out, cell)).exists():
            continue
        record = Record.read(path)
        records.append(record.to_json())
        training, metrics = record.training, record.result["metrics"]
        every, novel = (metrics["static"][subset] for subset in ("all", "novel"))
        rows.append(
            [
                f"{cell.dataset} {cell.row.plain}",
                f"{cell.shots}/{cell.test_shots}",
                cell.visibility,
                str(cell.seed),
                *(short(every[key], 4) for key in ("mrr", "hits@1", "hits@3", "hits@10")),
                "" if novel["mrr"] is None else short(novel["mrr"], 4),
                short(metrics["time"]["all"]["mrr"], 4),
                short(training["validation_mrr"], 4) if training.get("validation_mrr") else "",
                f"{training['seconds']:.0f}" if training else "",
            ]
        )
    columns = [
        "cell", "K", "visibility", "seed", "MRR", "H@1", "H@3", "H@10", "novel", "time MRR",
        "valid.", "s",
    ]  # fmt: skip
    title = f"{len(records)} of {len(cells)} cells done; static filter unless said otherwise"
    console.print(title)
    _print_rows(console, [columns, *rows])
    emit_json(json_out, records)


def _print_rows(console: Any, rows: list[list[str]]) -> None:
    """Columns of text, uncut on any width: a log file has none."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *others = (
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        console.print("  ".join([first, *others]), soft_wrap=True)
