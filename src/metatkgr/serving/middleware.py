"""What every request passes before and after its work: who asks, how much, how many at once."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
import threading
import time
from collections.abc import Awaitable, Collection
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metatkgr.deadlines import StoppedError, stopping
from metatkgr.errors import DataError
from metatkgr.serving.auth import ASKING, Asking, Token, Tokens, may_change, needed_role
from metatkgr.serving.errors import answer
from metatkgr.serving.limits import ServiceSettings, is_loopback
from metatkgr.serving.records import Logs, Metrics, json_or_text

__all__ = ["LimitsMiddleware"]

_LOG = logging.getLogger(__name__)
_SMALL_BODY = 1 << 16
"""Bytes that every body may have, however full the room for bodies is."""
_MOST_NESTED = 100_000
"""Lists and objects in one body: to make many is slow, and nobody is answered meanwhile."""
_OPEN = frozenset({"/", "/docs", "/health", "/health/live", "/favicon.ico"})
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_LATER = {"Retry-After": "1"}
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class LimitsMiddleware:
    """ASGI middleware: tokens, host, body size, content type, concurrency, headers, metrics, logs.

    What lies behind finds in ``ASKING`` who asks.

    Args:
        app: what lies behind.
        settings: how much is allowed, to whom, and where it is written down.
        metrics: counts what passes.
        paths: that exist, to be counted by name; all others are counted as 'other'.
        posts: the paths to which a body is posted.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServiceSettings,
        metrics: Metrics,
        paths: Collection[str],
        posts: Collection[str],
    ) -> None:
        self._app = app
        self._tokens = None if settings.token_file is None else Tokens(settings.token_file)
        self._logs = None if settings.log is None else Logs(settings.log, settings.log_bytes)
        self._limits = settings.limits
        self._metrics = metrics
        self._paths = frozenset(paths)
        self._posts = frozenset(posts)
        self._busy = 0
        self._streams = 0
        self._bodies = _Room(self._limits.bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = 500
        request = secrets.token_hex(8)
        state = scope["state"] = {**scope.get("state", {}), "who": None, "request": request}

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                known = {name for name, _ in message["headers"]}
                more = [header for header in _HEADERS if header[0] not in known]
                more.append((b"x-request-id", request.encode()))
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            await self._pass(scope, receive, send_with_headers)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            method = scope["method"] if scope["method"] in _METHODS else "other"
            seconds = time.perf_counter() - begin
            self._metrics.count(method, path, status, seconds)
            if self._logs is not None:
                outcome = {"status": status, "ms": round(1000 * seconds, 1)}
                self._logs.access(_about(scope) | outcome | state.get("refused", {}))

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is None and self._has_body(scope):
            with _Share(self._bodies) as share:
                body = await self._body(receive, share)
                if isinstance(body, Response):
                    refusal = body
                else:
                    await self._work(scope, receive, send, body)
                    return
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._work(scope, receive, send)

    async def _work(self, scope: Scope, receive: Receive, send: Send, body: bytes = b"") -> None:
        if scope["path"] in _OPEN or scope["path"].startswith("/page/"):
            await self._app(scope, receive, send)
            return
        if self._busy >= self._limits.concurrency:
            message = f"{self._busy} requests are being worked on, no more are taken"
            await _busy(message)(scope, receive, send)
            return
        if self._logs and may_change(scope["state"]["who"], scope["method"], scope["path"]):
            try:
                self._logs.audit.write(_about(scope) | {"body": json_or_text(body)})
            except DataError as error:
                _LOG.error("%s", error)
                message = "this cannot be written down, so it is not done"
                await answer(503, "no_log", message, "try again", _LATER)(scope, receive, send)
                return
        ASKING.set(Asking(scope["state"]["who"], len(body)))
        self._busy += 1
        self._metrics.busy.set(self._busy)
        begun = streams = False
        last = asyncio.get_running_loop().time() + self._limits.stream_seconds

        async def sending(message: Message) -> None:
            nonlocal begun, streams
            begun = True
            await send(message)
            if message.get("more_body", False):
                if not streams and 4 * self._streams < self._limits.concurrency:
                    streams = True
                    self._streams += 1
                if streams:  # the next part has a time of its own
                    next_part = asyncio.get_running_loop().time() + self._limits.answer_seconds
                    time_left.reschedule(min(next_part, last))

        over = threading.Event()
        try:
            # What is started here, in threads too, ends when the time is over or the client goes.
            with stopping(over.is_set):
                async with asyncio.timeout(self._limits.answer_seconds) as time_left:
                    await _unless_gone(receive, self._app(scope, _replay(body), sending))
        except TimeoutError:
            if not begun:
                await _busy("the answer took too long")(scope, receive, send)
        finally:
            over.set()
            self._busy -= 1
            self._streams -= streams
            self._metrics.busy.set(self._busy)

    def _has_body(self, scope: Scope) -> bool:
        return scope["method"] == "POST" and scope["path"] in self._posts

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request is not even read; None where it is."""
        headers = Headers(scope=scope)
        path = scope["path"]
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy that goes by the other one takes the rest for a request of someone else.
            close = {"Connection": "close"}
            return answer(400, "two_lengths", "the body's length is given in two ways", "", close)
        if self._tokens is not None:
            if path not in _OPEN and not path.startswith("/page/"):
                refusal = self._admit(scope, self._tokens)
                if refusal is not None:
                    return refusal
        elif not is_loopback(_host(headers.get("host", ""))):
            # A page elsewhere whose name was pointed at this machine would send its own name.
            message = "this service is for this machine alone"
            return answer(403, "foreign_host", message, "use http://127.0.0.1, or set a token")
        if self._has_body(scope):
            # A page elsewhere can post forms and plain text here, but not JSON.
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                hint = "send the header Content-Type: application/json"
                return answer(415, "not_json", "a body is JSON", hint)
            if headers.get("content-encoding", "identity").lower() != "identity":
                return answer(415, "encoded", "a body is not compressed", "send it as it is")
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length[:20]) > self._limits.body_bytes:
                return self._too_large()
        return None

    @staticmethod
    def _admit(scope: Scope, tokens: Tokens) -> Response | None:
        """Find out who asks, and whether they may; None where they may."""
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        given = given.strip()
        who = tokens.find(given) if kind.lower() == "bearer" else None
        scope["state"]["who"] = who
        if who is None:
            scope["state"]["refused"] = {"refused": "a wrong token" if given else "no token"}
            hint = "send the header Authorization: Bearer TOKEN"
            challenge = {"WWW-Authenticate": "Bearer"}
            return answer(401, "no_token", "this needs a token", hint, challenge)
        if seconds := who.wait():
            message = f"{who.name} may ask {who.entry.requests_per_minute:,} times a minute"
            later = {"Retry-After": str(math.ceil(seconds))}
            return answer(429, "too_many", message, "try again", later)
        needed = needed_role(scope["method"], scope["path"])
        if who.role < needed:
            message = f"this needs the role {needed.name.lower()}"
            return answer(403, "forbidden", message, f"{who.name} has {who.entry.role}")
        return None

    @staticmethod
    def _checked(body: bytes) -> bytes | Response:
        """A body, if it can be read in a moment."""
        if body.count(b"[") + body.count(b"{") <= _MOST_NESTED:
            return body
        message = f"the body has more than {_MOST_NESTED:,} lists and objects"
        return answer(413, "too_large", message, "send several smaller requests")

    def _too_large(self) -> Response:
        most = f"{self._limits.body_bytes:,} bytes"
        # The rest of the body is not read, so the connection cannot be used again.
        return answer(
            413,
            "too_large",
            f"the body is larger than {most}",
            "send several smaller requests, or allow more with serve --body-bytes",
            {"Connection": "close"},
        )

    async def _body(self, receive: Receive, share: _Share) -> bytes | Response:
        """The whole body, or why not."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return answer(400, "incomplete", "the body did not arrive whole")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._limits.body_bytes:
                        return self._too_large()
                    if not share.holds(size):
                        return _busy("other bodies are being read", {"Connection": "close"})
                    if not message.get("more_body", False):
                        return self._checked(b"".join(parts))
        except TimeoutError:
            close = {"Connection": "close"}
            return answer(408, "too_slow", "the body took too long to arrive", "", close)


class _Room:
    """Bytes that bodies may take together."""

    def __init__(self, free: int) -> None:
        self.free = free


class _Share:
    """What one body holds of the room for all, counted as it arrives, until its request is done."""

    def __init__(self, room: _Room) -> None:
        self._room = room
        self._held = 0

    def holds(self, size: int) -> bool:
        """Whether there is room for a body that has grown to so many bytes."""
        more = max(0, size - _SMALL_BODY) - self._held
        if more > self._room.free:
            return False
        self._room.free -= more
        self._held += more
        return True

    def __enter__(self) -> _Share:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.free += self._held


def _busy(message: str, headers: dict[str, str] | None = None) -> Response:
    return answer(503, "busy", message, "try again", _LATER | (headers or {}))


def _about(scope: Scope) -> dict[str, Any]:
    """A request as a log tells it."""
    who: Token | None = scope["state"]["who"]
    return {
        "request": scope["state"]["request"],
        # From this machine, any text that a proxy, or who says to be one, has sent.
        "client": scope["client"][0][:45] if scope.get("client") else None,
        "token": None if who is None else who.name,
        "method": scope["method"][:16],
        "path": scope["path"][:200],
        "query": scope["query_string"][:2000].decode("latin-1"),
    }


def _host(header: str) -> str:
    """The name in a Host header, without the port; empty where it is not a name and a port."""
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?", header)
    return found[1] if found else ""


def _replay(body: bytes) -> Receive:
    """Gives a body that has been read; then nothing more, for who went is seen elsewhere."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _unless_gone(receive: Receive, work: Awaitable[None]) -> None:
    """Work, which is not waited for any more when the client has gone."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.add_done_callback(_hear)
        working.cancel()
        gone.cancel()


def _hear(ended: asyncio.Future[None]) -> None:
    """Take note of how work ended that nobody waits for: asyncio would print that it stopped."""
    error = None if ended.cancelled() else ended.exception()
    if error is not None and not _only_stopped(error):
        _LOG.error("unexpected error after the client had gone", exc_info=error)


def _only_stopped(error: BaseException) -> bool:
    """Whether nothing went wrong but that work stopped; tasks that ran together fail as a group."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_only_stopped, error.exceptions))
    return isinstance(error.__cause__ or error, StoppedError)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
