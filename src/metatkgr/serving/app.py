"""The HTTP interface: what each path takes and gives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Query, Response
from fastapi.security import HTTPBearer
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from metatkgr import __version__
from metatkgr.errors import MetaTKGRError
from metatkgr.forecasting.explain import Observed
from metatkgr.forecasting.store_tables import Amounts
from metatkgr.serving import schemas
from metatkgr.serving.auth import Tokens
from metatkgr.serving.batches import Batches
from metatkgr.serving.changes import add_changes, tell
from metatkgr.serving.errors import handle_errors, methods_of
from metatkgr.serving.limits import ServiceSettings
from metatkgr.serving.middleware import LimitsMiddleware
from metatkgr.serving.quality import Quality
from metatkgr.serving.records import Metrics
from metatkgr.serving.service import Service

__all__ = ["create_app"]

_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_JSON: TypeAdapter[Any] = TypeAdapter(Any)
_AT = {"index.html": "/", "docs.html": "/docs"}
"""Files of the page that have a path of their own."""
_SAID = {
    400: "What was sent is of the right form, but this graph cannot take it.",
    401: "The token is missing or wrong.",
    403: "The token's role does not allow it; without tokens, only this machine is answered.",
    404: "A name that nothing answers to; the hint has the nearest.",
    409: "Asked back: a name that is nearly a known one, or a date far after the last fact.",
    408: "The body took too long.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "What was sent is not of the right form.",
    429: "More than the token's rate or daily quota; try again after Retry-After seconds.",
    503: "Busy, or the store does not answer; try again after Retry-After seconds.",
}

Text = Annotated[
    schemas.Name,
    Query(description="Part of a name; misspelt ones are found too.", examples=["tar"]),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    statuses = (400, 401, 403, 422, 429, 503, *statuses)
    return {s: {"model": schemas.ErrorOut, "description": _SAID[s]} for s in sorted(statuses)}


def create_app(
    service: Service, settings: ServiceSettings, quality: Quality | None = None
) -> FastAPI:
    """The application; it starts the service when it starts, and stops it when it stops."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        if quality is not None:
            quality.start()
        yield
        batches.stop()
        if quality is not None:
            await run_in_threadpool(quality.stop)
        await run_in_threadpool(service.stop)

    tokens = None if settings.token_file is None else Tokens(settings.token_file)
    secured = [] if tokens is None else [Depends(HTTPBearer(auto_error=False))]
    app = FastAPI(
        title="metatkgr",
        version=__version__,
        description="Forecasts what a newly emerged entity will do next, from its first few facts.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    handle_errors(app)
    metrics = Metrics(service)
    forecaster = service.forecaster
    batches = Batches(service.answer)

    @app.post(
        "/predict",
        response_model=schemas.ForecastsOut,
        responses=_errors(404, 408, 413, 415),
        dependencies=secured,
    )
    async def predict(query: schemas.PredictIn) -> JSONResponse:
        """Rank what comes next for an entity."""
        if query.as_of is None and query.known_at is None:
            forecasts = await batches.ask(query)
        else:  # takes longer: nobody else waits for it
            found = await run_in_threadpool(service.look_back, query)
            if isinstance(found, MetaTKGRError):
                raise found
            forecasts = found
        # As it is: to validate and copy what was made here takes longer than to write it.
        return JSONResponse(forecasts.to_json())

    @app.post("/explain", responses=_errors(404, 408, 413, 415), dependencies=secured)
    def explain(query: schemas.ExplainIn) -> schemas.ExplainOut:
        """Say what speaks for one answer."""
        reasons = forecaster.explain(
            query.entity,
            query.relation,
            query.answer,
            at=query.at,
            side=query.side,
        )
        return schemas.ExplainOut(reasons=reasons)

    @app.post(
        "/facts",
        response_model=Observed,
        responses=_errors(404, 408, 409, 413, 415),
        dependencies=secured,
    )
    def add_facts(facts: Annotated[schemas.OneOrMore, Body()]) -> Response:
        """Observe one fact, or several as `{"facts": [...]}`: all of them or none.

        When this answers 200, they are on disk and part of every later forecast. The same fact
        sent again changes nothing. New entities are welcome, and new relations where the model
        takes them. With `retract` they are taken back instead, and with `replaces` one fact takes
        another's place.
        """
        given = facts.facts if isinstance(facts, schemas.FactsIn) else [facts]
        rows = [(f.subject, f.relation, f.object, f.time) for f in given]
        return _written(tell(service, rows, facts))

    @app.get(
        "/facts",
        response_model=schemas.TimelineOut,
        responses=_errors(404),
        dependencies=secured,
    )
    def timeline(
        entity: Annotated[schemas.Name, Query(examples=["Tarn Velloso"])], limit: Limit = 200
    ) -> Response:
        """The facts of an entity, oldest first; where there are more, the latest."""
        return _written(service.timeline(entity, limit))

    @app.get(
        "/entities",
        response_model=schemas.EntitiesOut,
        responses=_errors(),
        dependencies=secured,
    )
    def entities(q: Text, limit: Annotated[int, Query(ge=1, le=100)] = 10) -> Response:
        """Search entities by name."""
        return _written(schemas.EntitiesOut(entities=forecaster.search(q, limit)))

    @app.get("/newcomers", responses=_errors(), dependencies=secured)
    def newcomers(
        limit: Annotated[int, Query(ge=1, le=100)] = 8,
    ) -> schemas.EntitiesOut:
        """The entities that emerged last, those with a single fact too."""
        return schemas.EntitiesOut(entities=service.newcomers(limit))

    @app.get("/graph", responses=_errors(), dependencies=secured)
    def graph() -> schemas.GraphOut:
        """What is known: sizes, dates, relations."""
        return service.describe()

    @app.get("/quality", responses=_errors(), dependencies=secured)
    def measured() -> schemas.QualityOut:
        """How good the model is, over time and beside the rules; measured after the start."""
        report = schemas.QualityOut(status="off") if quality is None else quality.report()
        return report.model_copy(update={"calibration": service.forecaster.calibration.about()})

    @app.get("/usage", responses=_errors(), dependencies=secured)
    def usage() -> schemas.UsageOut:
        """What each token may do, and what it has used today (UTC); for admins."""
        used, nothing = service.store.used_today(), Amounts(0, 0, 0)
        return schemas.UsageOut(
            tokens=[
                schemas.TokenOut(
                    name=token.name,
                    role=token.entry.role,
                    used=used.get(token.name, nothing)._asdict(),
                    most=token.most._asdict(),
                )
                for token in (tokens.all() if tokens is not None else ())
            ]
        )

    @app.get("/health", responses={403: _errors()[403], 503: {"model": schemas.HealthOut}})
    async def health(response: Response) -> schemas.HealthOut:
        """Whether the service can do its work: its store is written and read back."""
        problem = await service.problem()
        if problem:
            response.status_code = 503
        return schemas.HealthOut(
            status="degraded" if problem else "ok", version=__version__, detail=problem
        )

    @app.get("/health/live", responses={403: _errors()[403]})
    async def live() -> schemas.HealthOut:
        """Whether the process answers; where it does not, start it again."""
        return schemas.HealthOut(status="ok", version=__version__, detail="")

    @app.get(
        "/metrics",
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **{
                status: content
                for status, content in _errors().items()
                if status in (401, 403, 429, 503)
            },
        },
        dependencies=secured,
    )
    def counters() -> Response:
        """Numbers for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    add_changes(app, service, _errors, secured)
    _add_page(app)
    methods = methods_of(app)
    posts = [path for path, known in methods.items() if "POST" in known]
    app.add_middleware(
        LimitsMiddleware, settings=settings, metrics=metrics, paths=list(methods), posts=posts
    )
    return app


def _written(made: Any) -> Response:
    """An answer as it is, in the thread that made it.

    FastAPI would check it once more, and write it in another thread.
    """
    return Response(_JSON.dump_json(made), media_type="application/json")


def _add_page(app: FastAPI) -> None:
    """Serve the page's files, read once: no path leads anywhere else."""
    folder = resources.files("metatkgr.serving") / "page"
    for file in folder.iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in _KINDS:
            path = _AT.get(file.name, f"/page/{file.name}")
            _add_file(app, path, file.read_bytes(), _KINDS[suffix])


def _add_file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})
