"""Who works on what, among processes that share nothing but a folder.

A lease is a file ``<cell>/<generation>``, made so that only one process can make it. Its owner
touches it every few seconds. A lease that was not touched for long, or whose process is gone, is
stale: the next generation may be taken. Since a generation is made at most once, of all processes
that see a stale lease exactly one takes over; a former owner that was only slow finds a newer
generation and gives up.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

__all__ = ["STALE_SECONDS", "Lease"]

STALE_SECONDS = 120.0
"""A lease that was not touched for so long has lost its owner."""
_BEAT_SECONDS = 5.0


class Lease:
    """The right to work on one thing; a context that gives it back at the end.

    Args:
        folder: of this thing's leases; it is made and removed.
    """

    def __init__(self, folder: Path, generation: int) -> None:
        self.folder = folder
        self.generation = generation
        self._over = threading.Event()
        self._beat = threading.Thread(target=self._keep_alive, daemon=True)

    @classmethod
    def take(cls, folder: Path, stale_seconds: float = STALE_SECONDS) -> Lease | None:
        """Take the lease; None where another process that is alive has it."""
        folder.mkdir(parents=True, exist_ok=True)
        newest = _newest(folder)
        if newest >= 0 and not _is_stale(folder / str(newest), stale_seconds):
            return None
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        path = folder / str(newest + 1)
        try:
            with path.open("x", encoding="utf-8") as file:
                json.dump(owner, file)
        except (FileExistsError, FileNotFoundError):  # another was faster, or done meanwhile
            return None
        return cls(folder, newest + 1)

    @property
    def lost(self) -> bool:
        """Whether another process took over, because this one was not heard of for too long."""
        return _newest(self.folder) != self.generation

    def __enter__(self) -> Self:
        self._beat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._beat.join()
        if not self.lost:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _keep_alive(self) -> None:
        while not self._over.wait(_BEAT_SECONDS):
            with suppress(OSError):
                os.utime(self.folder / str(self.generation))


def _newest(folder: Path) -> int:
    try:
        return max((int(path.name) for path in folder.iterdir()), default=-1)
    except (FileNotFoundError, ValueError):
        return -1


class _Clock:
    """Notices when somebody sets the system's clock.

    Ages of files mean nothing then, until their owners have touched them again.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._set_at: float | None = None

    def is_steady(self, seconds: float) -> bool:
        """Whether the clock was not set for so long, as far as this process has seen."""
        offset, now = time.time() - time.monotonic(), time.monotonic()
        if abs(offset - self._offset) > _BEAT_SECONDS:
            self._set_at = now
        self._offset = offset
        return self._set_at is None or now - self._set_at > seconds


_CLOCK = _Clock()


def _is_stale(path: Path, stale_seconds: float) -> bool:
    try:
        # A lease from the future was not touched since the clock was set back.
        silent = abs(time.time() - path.stat().st_mtime) > stale_seconds
        if silent and _CLOCK.is_steady(stale_seconds):
            return True
        owner = json.loads(path.read_text(encoding="utf-8"))
        return owner["host"] == socket.gethostname() and not _is_alive(int(owner["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        # Just being written, or just given back: its owner is alive. Time tells otherwise.
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended and only its parent has not noticed yet (Linux)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
