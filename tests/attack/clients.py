"""Clients that do not behave."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = [
    "begun", "half_open", "more_files", "parts_of_a_letter", "send", "unfinished_bodies", "worked"
]  # fmt: skip


@contextmanager
def more_files(count: int) -> Iterator[bool]:
    """Within it, this process may have so many files open, if it yields True."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        yield False
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _connected(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname or "", address.port or 80), timeout=30)


def begun(url: str, path: str, body: Any) -> http.client.HTTPConnection:
    """A connection on which a whole request was sent, and no answer is waited for."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection


def half_open(url: str, count: int) -> list[socket.socket]:
    """Connections on which half a header was sent."""
    opened = []
    for _ in range(count):
        one = _connected(url)
        one.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ")
        opened.append(one)
    return opened


def unfinished_bodies(url: str, count: int, sent: int = 1_000_000) -> list[socket.socket]:
    """Connections on which a part of a body of 4 MB was sent."""
    start = b"POST /facts HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    part = b'Content-Length: 4000000\r\n\r\n{"facts": [' + b" " * sent
    opened = []
    for _ in range(count):
        one = _connected(url)
        with suppress(OSError):
            one.sendall(start + part)
        opened.append(one)
    return opened


def parts_of_a_letter(stop: threading.Event, url: str) -> None:
    """Send bodies in parts of one letter, each on a new connection, until it is told to stop."""
    start = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    start += b"Transfer-Encoding: chunked\r\n\r\n"
    while not stop.is_set():
        with suppress(OSError), _connected(url) as one:
            one.sendall(start + b"1\r\n \r\n" * 100_000)
            one.recv(1)


def send(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and content of an answer, on a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    kind = {"Content-Type": "application/json"} | (headers or {})
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, kind)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def worked(pid: int) -> float:
    """Seconds of processor that a process and those it has started have used (Linux)."""
    ticks = 0
    for one in (str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        numbers = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(numbers[11]) + int(numbers[12])
    return ticks / os.sysconf("SC_CLK_TCK")
