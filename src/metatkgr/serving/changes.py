"""Facts one by one and in files, over HTTP: their history, retraction, import and export."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from fastapi import Path as InPath
from starlette.responses import StreamingResponse

from metatkgr.data.frames import to_arrow
from metatkgr.data.readers import read_facts
from metatkgr.deadlines import check
from metatkgr.errors import DataError, UnknownNameError
from metatkgr.forecasting.backtest import backtest
from metatkgr.forecasting.explain import Observed, Retracted
from metatkgr.forecasting.exports import export_facts
from metatkgr.forecasting.incoming import rows_of
from metatkgr.forecasting.newcomers import NewcomerForecast, newcomers_since, some_forecasts
from metatkgr.forecasting.ranking import Question
from metatkgr.serving import schemas
from metatkgr.serving.limits import Limits
from metatkgr.serving.service import Service

__all__ = ["add_changes", "tell"]

_KINDS = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
_BLOCK = 1 << 16

Number = Annotated[int, InPath(ge=1, le=10**12, description="Of a fact; GET /facts has it.")]
Format = Literal["csv", "jsonl", "parquet"]


def tell(service: Service, rows: Sequence[tuple[Any, ...]], how: schemas.TellIn) -> Observed:
    """Add or retract rows, as a request says."""
    about = {"source": how.source, "observed": "" if how.observed is None else str(how.observed)}
    if how.retract:
        done = service.retract(rows, **about)
        return Observed(done.retracted, done.unknown)
    replaces = how.replaces if isinstance(how, schemas.OneFactIn) else None
    return service.add(
        rows,
        confirm_new=how.confirm_new,
        allow_far=how.allow_far,
        replaces=replaces,
        **about,
    )


def add_changes(
    app: FastAPI,
    service: Service,
    errors: Callable[..., dict[int | str, dict[str, Any]]],
    secured: Sequence[Any],
) -> None:
    """Give an app the paths of this file."""

    @app.get("/facts/{number}", responses=errors(404), dependencies=secured)
    def history(number: Number) -> schemas.HistoryOut:
        """What was said about a fact, by whom and when, oldest first."""
        changes = [
            schemas.ChangeOut(
                fact=c.fact,
                retracted=c.retracted,
                source=c.source,
                observed=c.observed,
                received=c.received,
            )
            for c in service.history(number)
        ]
        return schemas.HistoryOut(id=number, changes=changes)

    @app.delete("/facts/{number}", responses=errors(404), dependencies=secured)
    def retract(
        number: Number,
        source: Annotated[
            str, Query(max_length=200, pattern=schemas.PLAIN, description="Who says so.")
        ] = "",
    ) -> Retracted:
        """Take a fact back: it is in no later forecast, and still in its history."""
        last = service.history(number)[-1]
        if last.retracted:
            raise UnknownNameError("fact", str(number), [], among=len(service.store))
        return service.retract([last.fact], source=source)

    @app.post("/import", responses=errors(408, 409, 413, 415), dependencies=secured)
    def take_in(file: schemas.ImportIn) -> Observed:
        """Observe the facts of a file, all or none."""
        return tell(service, _rows_in(file.text, file.format, service.unit, service.limits), file)

    @app.get(
        "/export",
        response_class=StreamingResponse,
        responses={**_content(*_KINDS.values()), **errors()},
        dependencies=secured,
    )
    def export(
        format: Format = "csv",
        changes: Annotated[
            bool, Query(description="Every change with its source and times; else what holds.")
        ] = False,
    ) -> StreamingResponse:
        """The facts that this service was told."""
        name = f"{'changes' if changes else 'facts'}.{format}"
        return StreamingResponse(
            _file(name, lambda path: export_facts(service.store, path, changes=changes)),
            media_type=_KINDS[format],
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    @app.post("/backtest", responses=errors(404, 408, 413, 415), dependencies=secured)
    def replayed(period: schemas.BacktestIn) -> dict[str, Any]:
        """Replay a period: what was forecast, with which probability, and what happened."""
        done = backtest(
            service.forecaster,
            period.begin,
            period.end,
            questions=period.questions,
            progress=lambda *_: check(),
        )
        return done.to_json()

    @app.get(
        "/newcomers/forecasts",
        response_class=StreamingResponse,
        responses={**_content(_KINDS["jsonl"]), **errors()},
        dependencies=secured,
    )
    def newcomers(
        since: Annotated[
            str | None,
            Query(max_length=40, pattern=schemas.PLAIN, description="A date, or 30d, 4w, 1y."),
        ] = None,
        top: Annotated[int, Query(ge=1, le=100)] = 5,
        skip: Annotated[int, Query(ge=0, description="Newcomers that were told before.")] = 0,
    ) -> StreamingResponse:
        """The likeliest next facts of every newcomer, a line of JSON each, as they are found.

        After each batch comes a line `{"done": n, "of": n}`; the last has both alike. Who was cut
        off goes on with `skip` = `done`.
        """
        emerged = newcomers_since(service.forecaster.snapshot(), since)
        asked = Question("", top=top)
        return StreamingResponse(
            _lines(some_forecasts(service.forecaster, asked, emerged, skip), len(emerged)),
            media_type="application/x-ndjson",
        )


def _content(*kinds: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {kind.partition(";")[0]: {} for kind in kinds}}}


def _lines(batches: Iterable[tuple[int, list[NewcomerForecast]]], of: int) -> Iterator[str]:
    done = 0
    for done, rows in batches:
        lines = [*(row._asdict() for row in rows), {"done": done, "of": of}]
        yield "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if not done:
        yield json.dumps({"done": of, "of": of}) + "\n"


def _rows_in(text: str, kind: str, unit: str, limits: Limits) -> list[tuple[Any, Any, Any, Any]]:
    """The rows of a file's content, with all its bad lines told if there are any."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"import.{kind}"
        how: dict[str, Any] = {"ids": False, "most_bytes": limits.import_bytes}
        if unit == "step":
            how["unit"] = "step"
        if kind == "parquet":
            path.write_bytes(_decoded(text))
        else:
            path.write_text(text, encoding="utf-8", newline="")
        try:
            facts = read_facts(path, **how)
        except DataError as error:
            # Where it lies meanwhile is nobody's business.
            told = str(error).replace(str(path), "the file")
            told = told.replace("--most-bytes (most_bytes)", "serve --import-bytes")
            raise DataError(told) from None
        if len(facts) > limits.import_facts:
            raise DataError(
                f"the file has {len(facts):,} facts, and one request takes "
                f"{limits.import_facts:,}; send several smaller files, use `metatkgr store "
                "import`, or allow more with serve --import-facts"
            )
        check()
        return rows_of(to_arrow(facts))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise DataError(f"the Parquet file is not in base64: {error}") from None


def _file(name: str, write: Callable[[Path], object]) -> Iterator[bytes]:
    """The content of a file that is written now."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block
