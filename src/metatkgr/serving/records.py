"""What a service keeps of its requests: logs, a line of JSON each; and counts, for Prometheus.

``access.jsonl`` has every request with its answer's status, those with wrong tokens too.
``audit.jsonl`` has every request that is to change something, with its body. It is written before
anything is changed: what cannot be written down is not done. Both name a request by the same
number, which its answer carries as ``X-Request-Id``. They are apart, so that nobody without a token
can push lines out of the second by filling the first.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from metatkgr import __version__
from metatkgr.errors import DataError
from metatkgr.files import exclusive

if TYPE_CHECKING:
    from metatkgr.serving.service import Service

__all__ = ["Log", "Logs", "Metrics", "json_or_text"]

_LOG = logging.getLogger(__name__)
_FILES = 10
"""That are kept of each log, with the one that is written to."""
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds."""


class Log:
    """A file of JSON lines that is put aside when it has become large, and begun anew.

    Several processes may write to it: each line is appended by one call, the file is put aside
    under a lock, and who finds it gone opens the new one.

    Args:
        path: the file; older ones are ``PATH.1``, ``PATH.2`` and so on.
        most_bytes: of one file.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path, self._most = path, most_bytes
        self._lock = threading.Lock()
        self._file = -1
        with self._lock:
            self._open()

    def write(self, content: dict[str, Any]) -> None:
        """Append a line.

        Raises:
            DataError: it cannot be written.
        """
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        # ASCII: no name can end a line, or turn what a terminal shows.
        line = json.dumps({"time": now, **content}, allow_nan=False).encode() + b"\n"
        try:
            with self._lock:
                if not self._is_current():
                    self._open()
                elif os.fstat(self._file).st_size + len(line) > self._most:
                    self._put_aside()
                size = os.fstat(self._file).st_size
                if size and os.pread(self._file, 1, size - 1) != b"\n":
                    line = b"\n" + line  # the one before was cut, here or in another process
                if os.write(self._file, line) != len(line):
                    raise DataError(f"a line of {self._path} was cut: the disk is full")
        except OSError as error:
            raise DataError(f"cannot write {self._path}: {error.strerror or error}") from None

    def close(self) -> None:
        """Give the file back."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _is_current(self) -> bool:
        try:
            return self._file >= 0 and os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            how = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self._path, how, 0o600)
        except OSError as error:
            raise DataError(f"cannot write {self._path}: {error.strerror or error}") from None

    def _put_aside(self) -> None:
        with exclusive(self._path.with_name(f".{self._path.name}.lock")):
            if self._is_current() and os.fstat(self._file).st_size:  # nobody else has done it
                for number in range(_FILES - 1, 0, -1):
                    older = self._path.with_name(f"{self._path.name}.{number}")
                    newer = self._path.with_name(f"{self._path.name}.{number - 1}")
                    newer = newer if number > 1 else self._path
                    if newer.exists():
                        newer.replace(older)
            self._open()


class Logs:
    """The two logs of a service.

    Args:
        folder: where they are.
        most_bytes: of one file.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._access = Log(folder / "access.jsonl", most_bytes)
        self.audit = Log(folder / "audit.jsonl", most_bytes)

    def access(self, content: dict[str, Any]) -> None:
        """Write down a request that was answered; if that fails, it was answered all the same."""
        try:
            self._access.write(content)
        except DataError as error:
            _LOG.error("%s", error)

    def close(self) -> None:
        """Give the files back."""
        self._access.close()
        self.audit.close()


def json_or_text(body: bytes) -> Any:
    """A body's content; its text where others may read it otherwise: NaN, a key twice, no JSON.

    What reads it next may be more lenient than we are, and change something all the same.
    """
    try:
        content = json.loads(body, object_pairs_hook=_with_each_key_once)
        json.dumps(content, allow_nan=False)
        return content
    except (ValueError, RecursionError):
        return body.decode("utf-8", "backslashreplace")


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(content := dict(pairs)) < len(pairs):
        raise ValueError("a key comes twice")
    return content


class Metrics:
    """Counters of one service; a registry of its own, so that several can live in one process."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry()
        labels = ("method", "path", "status")
        self._requests = Counter(
            "metatkgr_requests", "Requests answered.", labels, registry=self._registry
        )
        self._seconds = Histogram(
            "metatkgr_request_seconds",
            "Time to answer.",
            ("path",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.busy = Gauge(
            "metatkgr_requests_in_progress", "Requests worked on now.", registry=self._registry
        )
        info = Gauge(
            "metatkgr_info",
            "What is served, and by which process; each counts for itself.",
            ("version", "model", "process"),
            registry=self._registry,
        )
        info.labels(__version__, service.model, str(os.getpid())).set(1)
        observed = Gauge(
            "metatkgr_observed_facts",
            "Facts of the store that were new to the graph.",
            registry=self._registry,
        )
        observed.set_function(lambda: service.observed)
        refused = Gauge(
            "metatkgr_refused_facts",
            "Facts of the store that do not fit the graph.",
            registry=self._registry,
        )
        refused.set_function(lambda: service.refused)

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        """One request was answered."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)
