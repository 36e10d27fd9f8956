"""Who may ask a service, how much, and how many at once.

What every request passes before and after its work holds it to that, and counts it.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metatkgr.errors import DataError, SettingsError
from metatkgr.serving.errors import answer
from metatkgr.serving.metrics import Metrics
from metatkgr.settings import Range, Settings

__all__ = ["Limits", "LimitsMiddleware", "ServiceSettings", "is_loopback", "read_token"]

_SHORTEST_TOKEN = 16
_SMALL_BODY = 1 << 16
"""Bytes that every body may have, however full the room for bodies is."""
_OPEN = frozenset({"/", "/health", "/health/live", "/favicon.ico"})
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Limits(Settings):
    """Bounds on what one client can ask for."""

    body_bytes: Annotated[int, Range(1)] = 4 << 20
    """Largest body of a request."""
    body_seconds: Annotated[float, Range(above=0)] = 30.0
    """Longest time a body may take to arrive."""
    bodies_bytes: Annotated[int, Range(1)] = 64 << 20
    """What all bodies that are being read or worked on may hold together, but for 64 kB each."""
    answer_seconds: Annotated[float, Range(above=0)] = 30.0
    """Longest time an answer may take once the whole request has arrived."""
    header_seconds: Annotated[float, Range(above=0)] = 10.0
    """Longest time the header of a request may take to arrive."""
    idle_seconds: Annotated[float, Range(1)] = 30.0
    """Longest time between two requests on one connection."""
    request_seconds: Annotated[float, Range(above=0)] = 90.0
    """Longest time from a request's header to the end of its answer."""
    connections: Annotated[int, Range(1)] = 512
    """Open at once; a further one takes the place of the one that has been idle longest."""
    connections_each: Annotated[int, Range(1)] = 256
    """The same for one client's address."""
    concurrency: Annotated[int, Range(1)] = 32
    """Requests worked on at once; more are answered 503 with Retry-After."""
    steps_ahead: Annotated[float, Range(above=0)] = 1.0
    """How far after the graph's last step a fact may lie, in lengths of the graph."""
    new_names_bytes: Annotated[int, Range(0, 1 << 50)] = 256 << 20
    """What the names of new entities may take together, with 64 bytes more for each of them."""

    def fewer_connections(self, most: int) -> Limits:
        """The same with at most so many connections."""
        fewer = min(self.connections, most)
        return replace(self, connections=fewer, connections_each=min(self.connections_each, fewer))


@dataclass(frozen=True)
class ServiceSettings(Settings):
    """How a service is reached."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Range(0, 65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    token: str | None = None
    """What clients send as ``Authorization: Bearer TOKEN``; None: no token is asked for."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token is None and not is_loopback(self.host):
            raise SettingsError(
                f"{self.host} can be reached from other machines: give a token with --token-file, "
                "or listen on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """The token in a file; space around it does not count."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the token file {path} cannot be read: {error}") from None
    if len(token) < _SHORTEST_TOKEN or any(letter.isspace() for letter in token):
        raise SettingsError(
            f"a token has at least {_SHORTEST_TOKEN} characters and no space; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


class LimitsMiddleware:
    """ASGI middleware: token, host, body size, content type, concurrency, headers, metrics.

    Args:
        app: what lies behind.
        settings: who may do how much.
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
        self._token = settings.token.encode() if settings.token else None
        self._limits = settings.limits
        self._metrics = metrics
        self._paths = frozenset(paths)
        self._posts = frozenset(posts)
        self._busy = 0
        self._bodies = _Room(self._limits.bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._pass(scope, receive, send_with_headers)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.count(method, path, status, time.perf_counter() - begin)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is None and self._has_body(scope):
            with _Share(self._bodies) as share:
                body = await self._body(receive, share)
                if isinstance(body, Response):
                    refusal = body
                else:
                    await self._work(scope, _replay(body, receive), send)
                    return
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._work(scope, receive, send)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _OPEN or scope["path"].startswith("/page/"):
            await self._app(scope, receive, send)
            return
        if self._busy >= self._limits.concurrency:
            message = f"{self._busy} requests are being worked on, no more are taken"
            await _busy(message)(scope, receive, send)
            return
        self._busy += 1
        self._metrics.busy.set(self._busy)
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            async with asyncio.timeout(self._limits.answer_seconds):
                await self._app(scope, receive, sending)
        except TimeoutError:
            if not begun:
                await _busy("the answer took too long")(scope, receive, send)
        except ClientDisconnect:
            pass  # there is nobody to tell
        finally:
            self._busy -= 1
            self._metrics.busy.set(self._busy)

    def _has_body(self, scope: Scope) -> bool:
        return scope["method"] == "POST" and scope["path"] in self._posts

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request is not even read; None where it is."""
        headers = Headers(scope=scope)
        path = scope["path"]
        if self._token is not None:
            if path not in _OPEN and not path.startswith("/page/"):
                kind, _, given = headers.get("authorization", "").partition(" ")
                same = hmac.compare_digest(given.strip().encode(), self._token)
                if kind.lower() != "bearer" or not same:
                    hint = "send the header Authorization: Bearer TOKEN"
                    challenge = {"WWW-Authenticate": "Bearer"}
                    return answer(401, "no_token", "this needs a token", hint, challenge)
        elif not is_loopback(_host(headers.get("host", ""))):
            # A page elsewhere whose name was pointed at this machine would send its own name.
            message = "this service is for this machine alone"
            return answer(403, "foreign_host", message, "use http://127.0.0.1, or set a token")
        if self._has_body(scope):
            # A page elsewhere can post forms and plain text here, but not JSON.
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                hint = "send the header Content-Type: application/json"
                return answer(415, "not_json", "a body is JSON", hint)
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length[:20]) > self._limits.body_bytes:
                return self._too_large()
        return None

    def _too_large(self) -> Response:
        most = f"{self._limits.body_bytes:,} bytes"
        # The rest of the body is not read, so the connection cannot be used again.
        return answer(
            413,
            "too_large",
            f"the body is larger than {most}",
            "send several smaller requests",
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
                        return b"".join(parts)
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
    return answer(503, "busy", message, "try again", {"Retry-After": "1", **(headers or {})})


def _host(header: str) -> str:
    """The name in a Host header, without the port; empty where it is not a name and a port."""
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?", header)
    return found[1] if found else ""


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
