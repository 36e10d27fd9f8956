"""The command line. Each command reads its words, calls the library, and prints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from metatkgr import __version__
from metatkgr.cli.backtest import backtest as backtest_command
from metatkgr.cli.data import app as data_app
from metatkgr.cli.demo import demo as demo_command
from metatkgr.cli.evaluate import compare as compare_command
from metatkgr.cli.evaluate import evaluate as evaluate_command
from metatkgr.cli.evaluate import models as models_command
from metatkgr.cli.predict import calibrate as calibrate_command
from metatkgr.cli.predict import predict as predict_command
from metatkgr.cli.reproduce import reproduce as reproduce_command
from metatkgr.cli.serve import mcp as mcp_command
from metatkgr.cli.serve import serve as serve_command
from metatkgr.cli.serve import token as token_command
from metatkgr.cli.store import app as store_app
from metatkgr.cli.train import pretrain as pretrain_command
from metatkgr.cli.train import train as train_command
from metatkgr.cli.train import tune as tune_command
from metatkgr.errors import MetaTKGRError, show_warnings, visible

__all__ = ["app", "main"]

app = typer.Typer(
    name="metatkgr",
    help="Forecast what a newly emerged entity of a temporal knowledge graph will do next, from "
    "its first few facts.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo_command)
app.add_typer(data_app, name="data")
app.command("train")(train_command)
app.command("pretrain")(pretrain_command)
app.command("evaluate")(evaluate_command)
app.command("predict")(predict_command)
app.command("backtest")(backtest_command)
app.command("calibrate")(calibrate_command)
app.command("compare")(compare_command)
app.command("models")(models_command)
app.command("tune")(tune_command)
app.command("reproduce")(reproduce_command)
app.command("serve")(serve_command)
app.add_typer(store_app, name="store")
app.command("mcp")(mcp_command)
app.command("token")(token_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"metatkgr {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    show_warnings()


def main(program: Callable[[], object] = app) -> None:
    """Run the command line; an error that is the input's fault is one message and exit code 2."""
    try:
        program()
    except MetaTKGRError as error:
        sys.stderr.write(visible(f"error: {error}\n"))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); there is no one left to tell.
        sys.stderr.close()
        sys.exit(141)
