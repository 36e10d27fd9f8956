"""The server that speaks HTTP: a socket, connections that do not last for ever, an orderly end."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from metatkgr.errors import DataError
from metatkgr.serving.limits import Limits, ServiceSettings

__all__ = ["Server", "listen", "run", "url_of"]

_STOP_SECONDS = 10
"""How long requests that are being worked on may take when the service is told to stop."""
_BACKLOG = 512
"""Connections that the system keeps until they are accepted."""
_ACCEPTED_AT_ONCE = 4
"""Few, so that of several processes none takes all that wait."""
_TURN_SECONDS = 0.0005
"""After which a thread lets another go on. A short question gives way at each of its many small
steps: with Python's own 0.005 it is ten times as long on its way beside a long one."""
_SENT_BYTES = 1 << 17
"""Of an answer that is not read yet, in the system: it would take 4 MB for each connection, and no
limit of ours would see them."""
_SPARE_FILES = 128
"""Open files that are not connections."""
_SMALLEST_PART = 64
"""Bytes of a body that comes in parts (chunks), on average: to take in each is as much work."""
_SMALL_PARTS = 200
"""That any body may have."""


def listen(settings: ServiceSettings) -> socket.socket:
    """A listening socket."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        made = socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_BYTES)
        # With its protocol named: asyncio sends answers at once (TCP_NODELAY) only where it is.
        return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, made.detach())
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot listen on {settings.host}, port {settings.port}: {reason}; choose another "
            "with --port"
        ) from None


def url_of(listening: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Parser(h11.Connection):
    """Refuses a body of very many very small parts: its parsing would hold up everyone."""

    _room = 0

    def next_event(self) -> Any:
        """What comes next."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._room = _SMALL_PARTS * _SMALLEST_PART
        elif isinstance(event, h11.Data):
            self._room += len(event.data) - _SMALLEST_PART
            if self._room < 0:
                raise h11.RemoteProtocolError("the parts of the body are too small")
        return event


class Connection(H11Protocol):
    """A connection that has a time for each of its parts, and is one of a limited number.

    A client that sends half a header, or nothing, costs a place for some seconds. When all places
    are taken, the connection that has waited longest gives way to the new one: those that have
    never sent a whole request first. So whoever asks properly is answered, however many do not.

    Args:
        limits: how long, and how many.
        how: what uvicorn gives.
    """

    def __init__(self, limits: Limits, **how: Any) -> None:
        super().__init__(**how)
        self.conn = _Parser(h11.SERVER)
        self._limits = limits
        self._deadline: float | None = None
        self._asked: object = None
        self._since = 0.0

    @property
    def host(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    @property
    def busy(self) -> bool:
        """Whether a request is being worked on."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def unread(self) -> int:
        """Bytes of answers that the client has not read yet."""
        return int(self.transport.get_write_buffer_size())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Someone has come; someone else may have to go."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._deadline = self._since + self._limits.header_seconds
        everyone = cast("set[Connection]", self.connections)
        crowd = [other for other in everyone if other.host == self.host]
        if len(crowd) <= self._limits.connections_each:
            crowd = list(everyone)
            if len(crowd) <= self._limits.connections:
                return
        waiting = [other for other in crowd if other is not self and not other.busy]
        # Who has been answered before has shown good will.
        gone = min(waiting, key=lambda c: (c.cycle is not None, c._since), default=self)
        gone.drop()

    def data_received(self, data: bytes) -> None:
        """A part of a request has come."""
        if self._deadline is None:
            self._deadline = self.loop.time() + self._limits.header_seconds
        super().data_received(data)
        if self.cycle is not None and self.cycle is not self._asked:
            self._asked = self.cycle
            self._deadline = self.loop.time() + self._limits.request_seconds

    def send_400_response(self, msg: str) -> None:
        """Something came that is no HTTP; in the midst of a request, too."""
        if self.busy:  # what the app says of the request is not sent any more
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.drop()

    def on_response_complete(self) -> None:
        """The answer is on its way; uvicorn closes the connection after a while of silence."""
        self._deadline = None
        self._since = self.loop.time()
        super().on_response_complete()

    def check(self, now: float) -> None:
        """End the connection if its time is over."""
        if self.busy and self.cycle.response_started and not self.transport.is_closing():
            return  # an answer in parts: each has its time, which the app looks after
        # Who does not read the answer is not waited for either: uvicorn would, for ever.
        read = self._since + max(self._limits.idle_seconds, self._limits.request_seconds)
        if now > (read if self._deadline is None else self._deadline):
            self.drop()

    def drop(self) -> None:
        """End the connection at once."""
        self.connections.discard(self)
        self.transport.abort()


class Server(uvicorn.Server):
    """Serves an app on a listening socket.

    Args:
        app: what answers.
        settings: with the limits of connections.
        ready: called once requests are answered.
    """

    def __init__(
        self, app: ASGIApp, settings: ServiceSettings, ready: Callable[[], object] = lambda: None
    ) -> None:
        limits = settings.limits
        protocol = partial(Connection, _fitting(limits))
        config = uvicorn.Config(
            app,
            http=cast("type[asyncio.Protocol]", protocol),
            ws="none",
            access_log=False,
            log_config=None,
            log_level="error",  # a line for each broken request would fill a disk
            server_header=False,
            backlog=_ACCEPTED_AT_ONCE,
            timeout_graceful_shutdown=_STOP_SECONDS,
            timeout_keep_alive=int(limits.idle_seconds),
        )
        super().__init__(config)
        self._ready = ready
        self._most_unread = limits.bodies_bytes

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)  # asyncio has set it to what is accepted at once
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            known = cast("list[Connection]", list(self.server_state.connections))
            for connection in known:
                connection.check(now)
            unread = sum(connection.unread for connection in known)
            for connection in sorted(known, key=lambda one: one.unread, reverse=True):
                if unread <= self._most_unread:
                    break
                unread -= connection.unread
                connection.drop()
        return await super().on_tick(counter)


def _fitting(limits: Limits) -> Limits:
    """No more connections than this process may have files open."""
    try:
        import resource
    except ImportError:  # not on Windows
        return limits
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return limits
    return limits.fewer_connections(max(1, files - _SPARE_FILES))


def run(
    app: ASGIApp,
    settings: ServiceSettings,
    listening: socket.socket,
    ready: Callable[[], object] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM; then finish what is being answered, and return."""
    # The server hands the signal on when it has stopped; here that is the normal end.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        Server(app, settings, ready).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGTERM, before)
