"""``metatkgr backtest``: a period replayed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metatkgr.cli import options
from metatkgr.cli.options import Reads, grouped
from metatkgr.cli.output import console_for, emit_json, growing_bar, plain_table, short

if TYPE_CHECKING:
    from rich.table import Table

    from metatkgr.forecasting.backtest import Backtest

__all__ = ["backtest"]


@grouped
def backtest(
    data: options.RunOrData,
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help="First date of the period.")],
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="Last date; without it, that of the last fact."),
    ] = None,
    questions: Annotated[
        int, typer.Option(min=1, help="Questions, drawn evenly from the facts of the period.")
    ] = 500,
    show: Annotated[int, typer.Option(min=0, help="Questions to show.")] = 10,
    figure: Annotated[
        Path | None, typer.Option(help="Draw it: .png, .svg or .pdf (needs metatkgr[plots]).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    json_out: options.JsonOut = None,
    *,
    answering: options.Answering,
    reading: Reads,
) -> None:
    """Replay a period: what was forecast, with which probability, and what happened.

    Each question is answered by what was known before its date, and by nothing later: neither the
    entity's own later facts nor names that came later are seen.

    Example: `metatkgr backtest world --model paths --from 2017-07-01 --to 2017-09-30`
    """
    from metatkgr.forecasting.backtest import backtest as replay

    console = console_for(json_out)
    with console.status(f"opening {data} …"):
        _, forecaster = options.open_forecaster(data, reading.options(console), **answering)
    with growing_bar("replaying", "questions") as progress:
        done = replay(forecaster, begin, end, questions=questions, seed=seed, progress=progress)
    for table in _tables(done, show):
        console.print(table)
    if done.unaskable:
        console.print(
            f"{done.unaskable:,} more could not be asked: nobody had heard of the entity or the "
            "relation when it happened.",
            soft_wrap=True,
        )
    if figure is not None:
        done.figure(figure)
        console.print(str(figure), soft_wrap=True)
    emit_json(json_out, done.to_json())


def _tables(done: Backtest, show: int) -> list[Table]:
    metrics = done.metrics()
    title = f"{done.model} on {done.dataset}, {done.begin} to {done.end}"
    row = ["-" if value is None else short(value) for value in metrics.values()]
    tables = [
        plain_table(
            title, ["questions", *metrics], [[f"{len(done.rows):,} of {done.facts:,} facts", *row]]
        ),
        plain_table(
            "Forecasts by their probability",
            ["said", "forecasts", "mean said", "happened"],
            [
                [
                    f"{bin_['low']:.0%} to {bin_['high']:.0%}",
                    f"{bin_['forecasts']:,}",
                    f"{bin_['said']:.1%}",
                    f"{bin_['happened']:.1%}",
                ]
                for bin_ in done.reliability()
            ],
        ),
    ]
    if show and done.rows:
        from rich.table import Table
        from rich.text import Text

        table = Table(title="What was forecast, and what happened", title_justify="left")
        for column in ("date", "question", "forecast", "happened", "rank"):
            table.add_column(column, overflow="fold")
        for row_ in done.rows[:: max(1, len(done.rows) // show)][:show]:
            ends = (row_.entity, "…") if row_.side == "object" else ("…", row_.entity)
            first = "".join(f"{name} ({chance:.0%})" for name, chance in row_.forecasts[:1])
            chance = "" if row_.probability is None else f" ({row_.probability:.0%})"
            cells = (
                row_.at,
                f"{ends[0]} {row_.relation} {ends[1]}",
                first,
                f"{row_.happened}{chance}",
                "> 100" if row_.rank is None else str(row_.rank),
            )
            table.add_row(*map(Text, cells))
        tables.append(table)
    return tables
