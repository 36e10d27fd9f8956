"""``metatkgr serve``: forecasts over HTTP, with a page. ``metatkgr mcp``: the same for agents."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from metatkgr import errors
from metatkgr.cli import options
from metatkgr.cli.options import Group, Reading, Reads, grouped
from metatkgr.cli.output import console_for

if TYPE_CHECKING:
    from metatkgr.serving.limits import Limits, ServiceSettings
    from metatkgr.serving.quality import Quality
    from metatkgr.serving.service import Service
    from metatkgr.training.opening import OpenModel

__all__ = ["Kept", "Store", "mcp", "need", "serve", "token"]

_RULES = ("recurrency", "paths")


Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where observed facts are kept: a file (SQLite) or postgresql://…; else a file "
        "for these facts in your data folder ($XDG_DATA_HOME/metatkgr/observed).",
    ),
]


class Kept(NamedTuple):
    """Where observed facts are kept; each field is an option."""

    store: Store = None
    adopt_store: Annotated[
        bool,
        typer.Option("--adopt-store", help="Use the store, though it was made for another graph."),
    ] = False


class Listening(NamedTuple):
    """How a service is reached; each field is an option."""

    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs a token.")
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000
    token_file: Annotated[
        Path | None,
        typer.Option(help="File of tokens, made by `metatkgr token`; read again when it changes."),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option(help="Folder for access.jsonl (requests) and audit.jsonl (changes)."),
    ] = None
    log_bytes: Annotated[int, typer.Option(help="Of one file of a log; ten of each are kept.")] = (
        64 << 20
    )

    def settings(self, limits: Limits) -> ServiceSettings:
        """The same for the service; what it reads and writes for that is there."""
        from metatkgr.serving.auth import Tokens
        from metatkgr.serving.limits import ServiceSettings
        from metatkgr.serving.records import Logs

        made = ServiceSettings(**self._asdict(), limits=limits)
        if self.token_file is not None:
            Tokens(self.token_file)
        if self.log is not None:
            Logs(self.log, self.log_bytes).close()
        return made


class Allowed(NamedTuple):
    """How much a service allows; each field is an option, and a limit of ``serving.limits``."""

    concurrency: Annotated[
        int,
        typer.Option(
            min=1, help="Requests that a process works on at once; more are answered 503."
        ),
    ] = 32
    body_bytes: Annotated[int, typer.Option(min=1, help="Largest body of a request.")] = 4 << 20
    import_facts: Annotated[int, typer.Option(min=1, help="Facts of one file of POST /import.")] = (
        50_000
    )
    import_bytes: Annotated[
        int, typer.Option(min=1, help="Memory that what is in such a file may take.")
    ] = 128 << 20
    new_names_bytes: Annotated[
        int, typer.Option(min=0, help="What the names of new entities may take together.")
    ] = 256 << 20
    new_relations: Annotated[
        int, typer.Option(min=0, help="Relations that may come with facts.")
    ] = 200


@grouped
def serve(
    data: options.RunOrData,
    workers: Annotated[
        int,
        typer.Option(
            min=1, max=64, help="Processes that answer; they share the data's pages and the store."
        ),
    ] = 1,
    quality: Annotated[
        bool, typer.Option(help="Measure the model in the background, for the page.")
    ] = True,
    set_: options.SetValues = None,
    *,
    kept: Annotated[Kept, Group(Kept)],
    listening: Annotated[Listening, Group(Listening)],
    allowed: Annotated[Allowed, Group(Allowed)],
    answering: options.Answering,
    reading: Reads,
) -> None:
    """Answer questions over HTTP and on a page, while facts keep arriving.

    Facts that are accepted are on disk before the answer, and are there again after a restart.
    Stop with Ctrl-C.

    Example: `metatkgr serve world`, then open http://127.0.0.1:8000
    """
    need("serve", "fastapi", "prometheus_client", "sqlalchemy", "uvicorn")
    from metatkgr.serving.limits import Limits
    from metatkgr.serving.workers import serve as start

    console = console_for(None)
    # A wrong address or token is refused before a large graph is read.
    limits = Limits(**allowed._asdict())
    settings = listening.settings(limits)
    words = answering | {"settings": options.parse_assignments(set_ or [])}
    with tempfile.TemporaryDirectory(prefix="metatkgr-serve-") as shared:
        opening = _Opening(
            data,
            words,
            reading,
            kept,
            settings.limits,
            Path(shared) if quality else None,
        )
        opening_shown = console.status(f"opening {data} …")
        opening_shown.start()

        def ready(url: str, about: list[str]) -> None:
            opening_shown.stop()
            for line in (*about, f"Listening on {url}; Ctrl-C stops."):
                console.print(line, soft_wrap=True)

        try:
            start(opening, settings, workers, ready=ready)
        finally:
            opening_shown.stop()


@grouped
def mcp(
    data: options.RunOrData,
    http: Annotated[
        bool,
        typer.Option("--http", help="Listen for clients over streamable HTTP, at /mcp."),
    ] = False,
    set_: options.SetValues = None,
    *,
    kept: Annotated[Kept, Group(Kept)],
    listening: Annotated[Listening, Group(Listening)],
    answering: options.Answering,
    reading: Reads,
) -> None:
    """Give the forecasts to agents as tools, over the Model Context Protocol.

    Tools: graph, search, newcomers, as_of, what_next, why and observe. Without --http the server
    speaks with the program that started it, over standard input and output.

    Example: `metatkgr mcp events.csv --model paths`
    """
    need("mcp", "mcp", "fastapi", "prometheus_client", "sqlalchemy", "uvicorn")
    from metatkgr.serving.agents import serve_agents
    from metatkgr.serving.limits import Limits

    console = console_for("-")  # standard output is the client's
    settings = listening.settings(Limits()) if http else None
    words = answering | {"settings": options.parse_assignments(set_ or [])}
    opening = _Opening(data, words, reading, kept, Limits(), None, "-")
    with console.status(f"opening {data} …"):
        service, _ = opening(0, again=False)
    serve_agents(
        service,
        settings,
        lambda where: console.print(
            f"{service.about()[0]}\nListening on {where}; Ctrl-C stops.", soft_wrap=True
        ),
    )


def token(
    name: Annotated[str, typer.Argument(help="Whose token it is; logs call them so.")],
    file: Annotated[Path, typer.Option(help="File of tokens; it is made, or added to.")],
    role: Annotated[str, typer.Option(help="read, write (tell facts) or admin.")] = "read",
    requests_per_minute: Annotated[int | None, typer.Option(help="At most.")] = None,
    facts_per_day: Annotated[int | None, typer.Option(help="At most.")] = None,
    new_entities_per_day: Annotated[int | None, typer.Option(help="At most.")] = None,
    bytes_per_day: Annotated[int | None, typer.Option(help="Of told facts, at most.")] = None,
) -> None:
    """Make a token for `--token-file` and print it; the file keeps its hash alone.

    A running service knows it within a second. Remove its lines from the file, and it does not.

    Example: `metatkgr token alice --role write --file tokens.toml`
    """
    need("serve", "sqlalchemy")
    from metatkgr.serving.auth import add_token

    limits = {
        "requests_per_minute": requests_per_minute,
        "facts_per_day": facts_per_day,
        "new_entities_per_day": new_entities_per_day,
        "bytes_per_day": bytes_per_day,
    }
    given = {key: value for key, value in limits.items() if value is not None}
    typer.echo(add_token(file, name, role, given))


def need(extra: str, *modules: str) -> None:
    """Say which extra to install where a package is absent."""
    for module in modules:
        errors.need(module, extra)


@dataclass(frozen=True)
class _Opening:
    """Opens what is served, in this process or in each worker's."""

    data: str
    words: dict[str, Any]
    """Of the model, for ``open_forecaster``."""
    reading: Reading
    kept: Kept
    limits: Limits
    shared: Path | None
    """A folder in which workers share what the first has measured; None: nothing is measured."""
    json_out: str | None = None
    """As of :func:`console_for`: '-' keeps standard output free."""

    def __call__(self, worker: int, *, again: bool) -> tuple[Service, Quality | None]:
        from metatkgr.forecasting.store import FactStore
        from metatkgr.serving.service import Service

        console = console_for(self.json_out)
        how_read = self.reading.options(console)
        if worker > 0 or again:
            how_read["tell"] = None  # once is enough
        opened, forecaster = options.open_forecaster(self.data, how_read, **self.words)
        # Who comes in place of another must not begin an empty store beside one that was removed.
        store = FactStore(self.kept.store or opened.store, make=not again)
        if not (self.kept.store or worker or again or len(store)):
            for other in _other_stores(opened):
                told_before = f"Facts observed before are in {other}: --store opens it."
                console.print(told_before, soft_wrap=True)
        service = Service(
            forecaster,
            store,
            model=forecaster.model.name,
            limits=self.limits,
            adopt=self.kept.adopt_store,
        )
        _ = forecaster.calibration  # fitted now, not while the first client waits
        return service, None if self.shared is None else _quality_of(opened, self.shared, worker)


def _other_stores(opened: OpenModel) -> list[Path]:
    """Where a user may look for facts who finds none in the usual store."""
    usual = opened.store
    name = usual.name.rpartition("-")[0]
    before = [Path(f"{name}.observed.sqlite"), *sorted(usual.parent.glob(f"{name}-*.sqlite"))]
    if opened.folder:
        before.append(opened.folder / "observed.sqlite")
    return [path for path in before if path != usual and path.is_file()]


def _quality_of(opened: OpenModel, shared: Path, worker: int) -> Quality:
    """Measures what is served beside the rules; of a run, the result is kept."""
    from metatkgr.models import create
    from metatkgr.serving.quality import Quality, QualitySettings

    device = opened.model.device
    rules = (rule for rule in _RULES if rule != opened.model.name)
    makers = {rule: partial(create, rule, device=device) for rule in rules}
    return Quality(
        {opened.model.name: opened.another, **makers},
        opened.facts,
        QualitySettings(opened.shots, opened.visibility, opened.seed),
        opened.quality_file or shared / "quality.json",
        measures=worker == 0,
    )
