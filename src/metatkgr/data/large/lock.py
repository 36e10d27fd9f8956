"""One append to a folder at a time: a second one is refused while the first is at work."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from metatkgr.errors import DataError

try:
    import fcntl
except ImportError:  # not a Unix system
    fcntl = None  # type: ignore[assignment]

__all__ = ["only_appender"]

_LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def only_appender(folder: Path) -> Iterator[None]:
    """Within it, no other process may append to the folder.

    The lock is the system's own, on the folder itself, so that it ends with its process, however
    that ends.

    Raises:
        DataError: another appends.
    """
    if fcntl is None:
        yield
        return
    try:
        place = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError as error:
        raise DataError(f"cannot open {folder}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"another process is appending to {folder}; wait until it is done"
            ) from None
        except OSError as error:
            _LOG.warning("%s cannot be locked (%s); make sure nobody else appends", folder, error)
        yield
    finally:
        os.close(place)
