"""One writer for each run folder: a second one is refused while the first is at work.

The lock is the system's own, on a file in the folder, so that it ends with its process, however
that ends. Where a file system knows no locks, none is taken.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from metatkgr.errors import DataError, SettingsError

try:
    import fcntl
except ImportError:  # not a Unix system
    fcntl = None  # type: ignore[assignment]

__all__ = ["FolderBusyError", "only_writer"]

_LOG = logging.getLogger(__name__)
_NAME = ".writer"


class FolderBusyError(SettingsError):
    """Another process is writing to the folder."""


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Within it, no other process may write to the folder.

    Raises:
        FolderBusyError: another does.
    """
    if fcntl is None:
        yield
        return
    path = folder / _NAME
    file = _locked(path)
    try:
        yield
    finally:
        # Removed while it is locked; who waits for it finds that the name is gone.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(file)


def _locked(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                raise FolderBusyError(
                    f"another process is training in {path.parent}; wait for it, stop it, or "
                    "choose another folder"
                ) from None
            except OSError as error:
                _LOG.warning("%s cannot be locked (%s); make sure nobody else writes", path, error)
                return file
            if _is_still(path, file):
                return file
            os.close(file)
    except OSError as error:
        raise DataError(f"cannot write to {path.parent}: {error.strerror or error}") from error


def _is_still(path: Path, file: int) -> bool:
    """Whether the name leads to the file that was locked, not to a later one."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
