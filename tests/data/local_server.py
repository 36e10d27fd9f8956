"""A web server on this machine that serves bytes from memory and can be told to misbehave."""

from __future__ import annotations

import http.server
import threading
from dataclasses import dataclass, field
from types import TracebackType


@dataclass
class LocalServer:
    """Serves ``files`` at ``url``; use it as a context manager."""

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    version: str = '"v1"'
    """The ETag of every file; empty for none."""
    ranges: bool = True
    """Whether Range requests are honoured."""
    break_after: list[int] = field(default_factory=list)
    """One number per coming answer: close the connection after so many bytes of body."""
    refusals: list[int] = field(default_factory=list)
    """One HTTP status per coming request, to be given instead of an answer."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of every request."""
    sent: int = 0
    """Bytes of body sent."""

    def __enter__(self) -> LocalServer:
        plan = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                plan._answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.requests.append((request.path, wanted))
        if self.refusals:
            request.send_error(self.refusals.pop(0))
            return
        if request.path in self.redirects:
            request.send_response(302)
            request.send_header("Location", self.redirects[request.path])
            request.end_headers()
            return
        content = self.files.get(request.path)
        if content is None:
            request.send_error(404)
            return
        start = 0
        same = request.headers.get("If-Range") in (None, self.version)
        if wanted and self.ranges and same:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                request.send_error(416)
                return
            request.send_response(206)
            span = f"bytes {start}-{len(content) - 1}/{len(content)}"
            request.send_header("Content-Range", span)
        else:
            request.send_response(200)
        body = content[start:]
        request.send_header("Content-Length", str(len(body)))
        if self.version:
            request.send_header("ETag", self.version)
        request.end_headers()
        if self.break_after:
            body = body[: self.break_after.pop(0)]
        # Counted first: once the last byte is out, the test goes on and reads the number.
        self.sent += len(body)
        request.wfile.write(body)
        request.close_connection = True
