"""``metatkgr serve``: forecasts over HTTP, with a page."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metatkgr.cli import options
from metatkgr.cli.options import Reading, reads_data
from metatkgr.cli.output import console_for

if TYPE_CHECKING:
    from metatkgr.serving.quality import Quality
    from metatkgr.training.opening import OpenModel

__all__ = ["serve"]

_RULES = ("recurrency", "paths")


@reads_data
def serve(
    data: options.RunOrData,
    model: options.ModelName = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where observed facts are kept: a file (SQLite) or postgresql://…; else "
            "observed.sqlite in the run's folder, or NAME.observed.sqlite here.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that clients send as Authorization: Bearer TOKEN."),
    ] = None,
    shots: options.KnownShots = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Requests worked on at once; more are answered 503.")
    ] = 32,
    quality: Annotated[
        bool, typer.Option(help="Measure the model in the background, for the page.")
    ] = True,
    set_: options.SetValues = None,
    device: options.Device = "auto",
    *,
    reading: Reading,
) -> None:
    """Answer questions over HTTP and on a page, while facts keep arriving.

    Facts that are accepted are on disk before the answer, and are there again after a restart.
    Stop with Ctrl-C.

    Example: `metatkgr serve world --model paths`, then open http://127.0.0.1:8000
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        from metatkgr.errors import SettingsError

        raise SettingsError(f"{error.name} is absent: pip install 'metatkgr[serve]'") from None
    from metatkgr.forecasting.forecaster import Forecaster
    from metatkgr.forecasting.store import FactStore
    from metatkgr.serving.app import serve as start
    from metatkgr.serving.limits import Limits, ServiceSettings, read_token
    from metatkgr.serving.service import Service
    from metatkgr.training.opening import open_model

    console = console_for(None)
    # A wrong address or token is told before a large graph is read.
    settings = ServiceSettings(
        host, port, read_token(token_file) if token_file else None, Limits(concurrency=concurrency)
    )
    with console.status(f"opening {data} …"):
        opened = open_model(
            data,
            model=model,
            settings=options.parse_assignments(set_ or []),
            shots=shots,
            device=device,
            **reading.options(console),
        )
        forecaster, folder = Forecaster.load(opened), opened.folder
    name = re.sub(r"[^\w.-]+", "-", forecaster.facts.name or "facts")
    where = store or str(folder / "observed.sqlite" if folder else f"{name}.observed.sqlite")
    kept = FactStore(where)
    service = Service(forecaster, kept, model=forecaster.model.name, limits=settings.limits)
    with console.status("calibrating …"):
        _ = forecaster.calibration  # fitted now, not while the first client waits

    def ready(url: str) -> None:
        console.print(f"{forecaster.model.name} on {forecaster.facts}", soft_wrap=True)
        console.print(f"{len(kept):,} observed facts in {kept.name}", soft_wrap=True)
        console.print(f"Listening on {url}; Ctrl-C stops.", soft_wrap=True)

    start(service, settings, _quality_of(opened) if quality else None, ready=ready)


def _quality_of(opened: OpenModel) -> Quality:
    """Measures what is served beside the rules; of a run, the result is kept in its folder."""
    from metatkgr.models import create
    from metatkgr.serving.quality import Quality, QualitySettings

    device = opened.model.device
    rules = (rule for rule in _RULES if rule != opened.model.name)
    makers = {rule: partial(create, rule, device=device) for rule in rules}
    return Quality(
        {opened.model.name: opened.another, **makers},
        opened.facts,
        QualitySettings(opened.shots, opened.visibility, opened.seed),
        opened.folder and opened.folder / "quality.json",
    )
