"""A service of the tests' own: in this process behind a port, or as a command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.types import ASGIApp

from metatkgr.data.facts import Facts
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.store import FactStore
from metatkgr.models import create
from metatkgr.serving.app import create_app
from metatkgr.serving.limits import ServiceSettings
from metatkgr.serving.quality import Quality, QualitySettings
from metatkgr.serving.server import Server, listen, url_of
from metatkgr.serving.service import Service


def started(facts: Facts, where: str | Path, **how: Any) -> Service:
    """A service of the rule 'paths' that has read its store."""
    service = Service(Forecaster.of(facts, "paths"), FactStore(where), model="paths", **how)
    service.start()
    return service


def measured(facts: Facts) -> Quality:
    """The rules on few questions."""
    makers = {name: lambda name=name: create(name) for name in ("paths", "recurrency")}
    return Quality(makers, facts, QualitySettings(questions=60))


@contextmanager
def listening(app: ASGIApp, settings: ServiceSettings | None = None) -> Iterator[str]:
    """Serve an app from a thread; yields its URL."""
    settings = settings or ServiceSettings(port=0)
    server, socket = Server(app, settings), listen(settings)
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the service did not start"
        time.sleep(0.01)
    try:
        yield url_of(socket)
    finally:
        server.should_exit = True
        thread.join()


def app_of(facts: Facts, where: str | Path, settings: ServiceSettings | None = None) -> FastAPI:
    """An app with everything."""
    return create_app(started(facts, where), settings or ServiceSettings(), measured(facts))


def client_of(app: FastAPI) -> TestClient:
    """A client of an app in this process."""
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


class Command:
    """``metatkgr serve`` as a process, or another command that listens.

    Args:
        words: after ``serve``; the port is chosen by the system.
        folder: where it runs.
        command: 'serve' or 'mcp'.
    """

    def __init__(self, *words: object, folder: Path, command: str = "serve") -> None:
        called = [sys.executable, "-m", "metatkgr", command, *map(str, words), "--port", "0"]
        self.process = subprocess.Popen(
            called, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if found := re.search(r"Listening on (http://\S+);", line):
                self.url = found[1]
                return
        self.end()
        raise AssertionError(f"the service did not start: {self.said}")

    def wait(self) -> int:
        """Its exit code, once it has stopped."""
        assert self.process.stdout is not None
        self.said += self.process.stdout.read()
        return self.process.wait(timeout=300)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill it and its workers, which may be asleep or stuck."""
        workers: list[str] = []
        with suppress(OSError):  # it has ended by itself, or this is not Linux
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            workers = children.read_text().split()
        self.process.kill()
        for worker in map(int, workers):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        self.process.wait()


Start = Callable[..., Command]
