"""A service in one process, or in several that listen on one socket and share one store.

Each worker opens the same data, whose pages the system keeps once where they are mapped, and
follows the store: what one accepts, all have observed a moment later, in the order of the store.
The process that starts them answers nothing. It starts a worker that died again, and ends all.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection as Line
from typing import Protocol

import torch

from metatkgr.errors import DataError, MetaTKGRError, show_warnings
from metatkgr.serving import server
from metatkgr.serving.app import create_app
from metatkgr.serving.limits import ServiceSettings
from metatkgr.serving.quality import Quality
from metatkgr.serving.service import Service

__all__ = ["Opening", "serve"]

_LOG = logging.getLogger(__name__)
_LONGEST_PAUSE = 30.0
"""Seconds before a worker that keeps dying is started once more."""
_GRACE = 25.0
"""Seconds that a worker has to finish when it is told to stop."""


class Opening(Protocol):
    """Opens what is served; a worker does so in its own process, so it must be picklable."""

    def __call__(self, worker: int, *, again: bool) -> tuple[Service, Quality | None]:
        """A service that is not started yet, and what measures its model, if anything does.

        Args:
            worker: its number.
            again: it is opened in place of one that died.
        """
        ...


def serve(
    opening: Opening,
    settings: ServiceSettings,
    workers: int = 1,
    *,
    ready: Callable[[str, list[str]], object] = lambda url, about: None,
) -> None:
    """Serve until SIGINT or SIGTERM; then finish what is being answered, and return.

    Args:
        opening: what is served.
        settings: where to listen, and to whom.
        workers: processes; one is this one.
        ready: called with the service's URL and a few lines about it once it answers.

    Raises:
        MetaTKGRError: it cannot be opened.
    """
    with server.listen(settings) as listening:
        url = server.url_of(listening)
        if workers > 1:
            _Team(opening, settings, listening, workers).run(lambda about: ready(url, about))
        else:
            _work(opening(0, again=False), settings, listening, lambda about: ready(url, about))


def _work(
    opened: tuple[Service, Quality | None],
    settings: ServiceSettings,
    listening: socket.socket,
    ready: Callable[[list[str]], object],
) -> None:
    service, quality = opened
    service.start()
    app = create_app(service, settings, quality)
    server.run(app, settings, listening, lambda: ready(service.about()))


def _worker(
    number: int,
    again: bool,
    opening: Opening,
    settings: ServiceSettings,
    listening: socket.socket,
    threads: int,
    line: Line,
) -> None:
    """The life of a worker; by its line it tells that it is ready, or why it cannot be."""
    show_warnings(f"worker {number}: ")
    # Ctrl-C reaches the whole group; the process that started us tells us when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(line,), daemon=True).start()
    torch.set_num_threads(threads)
    try:
        _work(opening(number, again=again), settings, listening, line.send)
    except MetaTKGRError as error:
        line.send(str(error))


def _end_with_parent(line: Line) -> None:
    with suppress(EOFError, OSError):
        line.recv()
    os.kill(os.getpid(), signal.SIGTERM)


class _Member:
    """One place in the team: a process, and the next one when it has died."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.starts = 0
        self.deaths = 0
        """In a row, without a time of health between them."""
        self.start_at = 0.0
        self.about: list[str] | None = None
        self.refusal = ""
        self.process: multiprocessing.process.BaseProcess | None = None

    def start(self, *how: object) -> None:
        """Start a process."""
        spawn = multiprocessing.get_context("spawn")
        self.line, theirs = spawn.Pipe()
        self.about, self.refusal = None, ""
        self.process = spawn.Process(
            target=_worker, args=(self.number, self.starts > 0, *how, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        self.starts += 1
        self.began = time.monotonic()

    def listen(self) -> None:
        """Hear what the process has to say."""
        with suppress(EOFError, OSError):
            while self.line.poll():
                said = self.line.recv()
                if isinstance(said, str):
                    self.refusal = said
                else:
                    self.about = said

    def bury(self) -> None:
        """The process has died: another will be started after a pause, longer each time."""
        assert self.process is not None
        code, lived = self.process.exitcode, time.monotonic() - self.began
        self.deaths = 0 if lived > _LONGEST_PAUSE else self.deaths + 1
        pause = 0.0 if self.deaths <= 1 else min(_LONGEST_PAUSE, 2.0 ** (self.deaths - 2))
        self.start_at = time.monotonic() + pause
        self.process = None
        self.line.close()
        said = f": {self.refusal}" if self.refusal else ""
        _LOG.error("worker %d ended with %s and is started again%s", self.number, code, said)


class _Team:
    """Keeps some workers at work."""

    def __init__(
        self, opening: Opening, settings: ServiceSettings, listening: socket.socket, workers: int
    ) -> None:
        threads = max(1, torch.get_num_threads() // workers)
        self._how = (opening, settings, listening, threads)
        self._members = [_Member(number) for number in range(workers)]
        self._stop = False

    def run(self, ready: Callable[[list[str]], object]) -> None:
        """Until a signal comes."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._told_to_stop) for number in signals]
        try:
            # What the first one makes and keeps, such as a calibration, the others find.
            self._begin(self._members[:1])
            self._begin(self._members[1:])
            if not self._stop:
                ready(self._members[0].about or [])
            while not self._stop:
                self._look_after()
                time.sleep(0.1)
        finally:
            self._end()
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, handler)

    def _told_to_stop(self, *_: object) -> None:
        self._stop = True

    def _begin(self, members: list[_Member]) -> None:
        """Start workers and wait until they answer."""
        for member in members:
            member.start(*self._how)
        for member in members:
            while member.about is None and not self._stop:
                assert member.process is not None
                member.process.join(0.05)
                member.listen()
                if member.refusal or not member.process.is_alive():
                    code = member.process.exitcode
                    raise DataError(member.refusal or f"a worker ended with {code} at its start")

    def _look_after(self) -> None:
        for member in self._members:
            if member.process is not None:
                member.listen()
                if not member.process.is_alive():
                    member.bury()
            elif time.monotonic() >= member.start_at:
                member.start(*self._how)

    def _end(self) -> None:
        alive = [m.process for m in self._members if m.process is not None]
        for process in alive:
            process.terminate()
        end = time.monotonic() + _GRACE
        for process in alive:
            process.join(max(0.1, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
