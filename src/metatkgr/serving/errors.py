"""Errors as answers: ``{"error": {"code", "message", "hint"}}``, with a sentence that helps."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from metatkgr.deadlines import StoppedError
from metatkgr.errors import FarDateError, MetaTKGRError, NearNameError, UnknownNameError
from metatkgr.forecasting.store import StoreError
from metatkgr.forecasting.store_tables import QuotaError

__all__ = ["answer", "handle_errors", "methods_of", "plain"]

_LOG = logging.getLogger(__name__)
_LONGEST = 600
"""Characters of a message: a hostile name is not sent back whole."""

_HINTS = {
    404: ("not_found", "GET /openapi.json lists the paths"),
    405: ("method_not_allowed", "the header Allow says which methods this path takes"),
}


def plain(text: object) -> str:
    """A text that any JSON writer takes, of bounded length."""
    safe = str(text).encode("utf-8", "backslashreplace").decode()
    return safe if len(safe) <= _LONGEST else safe[:_LONGEST] + " …"


def answer(
    status: int,
    code: str,
    message: object,
    hint: object = "",
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """An error as a response."""
    content = {"error": {"code": code, "message": plain(message), "hint": plain(hint)}}
    return JSONResponse(content, status_code=status, headers=headers)


def handle_errors(app: FastAPI) -> None:
    """Give an app the handlers of all errors."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(MetaTKGRError, _input_error)
    app.add_exception_handler(StoppedError, _stopped)
    app.add_exception_handler(Exception, _unexpected)


def methods_of(app: FastAPI) -> dict[str, set[str]]:
    """The methods of every path."""
    known: dict[str, set[str]] = {}
    for route in app.routes:
        known.setdefault(getattr(route, "path", ""), set()).update(getattr(route, "methods", ()))
    return known


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """The request does not have the form that the path asks for."""
    assert isinstance(error, RequestValidationError)
    problems = [_problem(detail) for detail in error.errors()[:3]]
    return answer(
        422, "invalid_request", "; ".join(problems), "GET /openapi.json says what is expected"
    )


def _problem(detail: Any) -> str:
    # The offending input is left out: it may be megabytes, or no text at all.
    where = ".".join(plain(part) for part in detail.get("loc", ())[:6])
    message = plain(detail.get("msg", "is not valid"))
    return f"{where}: {message}"


def _leads_to(route: Any, path: str) -> bool:
    found = getattr(route, "path_regex", None)
    return found is not None and bool(found.match(path)) and bool(route.methods)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code, hint = _HINTS.get(error.status_code, ("bad_request", ""))
    message = error.detail
    if error.status_code == 404:
        message = "there is nothing at this path"
    headers = dict(error.headers) if error.headers else {}
    if error.status_code == 405:
        # A path may have several routes; the router names the methods of the first alone.
        routes = [route for route in request.app.routes if _leads_to(route, request.url.path)]
        methods = {method for route in routes for method in route.methods}
        headers["Allow"] = ", ".join(sorted(methods))
    return answer(error.status_code, code, message, hint, headers)


async def _input_error(request: Request, error: Exception) -> JSONResponse:
    """An error that is the input's fault: its own sentence, the advice apart where there is any."""
    if isinstance(error, StoreError):
        _LOG.error("%s", error)
        message = "the store of facts does not answer; nothing was changed"
        return answer(503, "store_unavailable", message, "try again", {"Retry-After": "2"})
    text = str(error)
    message, _, hint = (text, "", "") if "\n" in text else text.partition("; ")
    if isinstance(error, QuotaError):
        return answer(429, "quota", message, hint, {"Retry-After": "3600"})
    if isinstance(error, (NearNameError, FarDateError)):
        code = "near_name" if isinstance(error, NearNameError) else "far_date"
        return answer(409, code, message, hint)
    if isinstance(error, UnknownNameError):
        return answer(404, "unknown_name", message, hint)
    return answer(400, "bad_request", message, hint)


async def _stopped(request: Request, error: Exception) -> JSONResponse:
    return answer(503, "busy", "the answer took too long", "try again", {"Retry-After": "1"})


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    _LOG.error("unexpected error at %s", request.url.path, exc_info=error)
    return answer(500, "internal", "something went wrong here, not with your request")
