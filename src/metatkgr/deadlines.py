"""Work that ends when nobody waits for it any more.

Who asks says when to stop, for this thread or task and what it starts; long work looks from time to
time::

    with stopping(lambda: time.monotonic() > end):
        answer(question)          # calls check() between its parts
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["StoppedError", "check", "checking", "holding", "stopping"]

_Item = TypeVar("_Item")

_LOOK_SECONDS = 0.1

_OVER: ContextVar[Callable[[], bool] | None] = ContextVar("over", default=None)


class StoppedError(Exception):
    """Nobody waits for what was being done."""


@contextmanager
def stopping(over: Callable[[], bool]) -> Iterator[None]:
    """Within it, work stops at its next :func:`check` once ``over()`` is true."""
    before = _OVER.set(over)
    try:
        yield
    finally:
        _OVER.reset(before)


def check() -> None:
    """End here if nobody waits any more; nothing must be left half done.

    Raises:
        StoppedError: nobody does.
    """
    over = _OVER.get()
    if over is not None and over():
        raise StoppedError("the time for this is over")


def checking(items: Iterable[_Item]) -> Iterator[_Item]:
    """The same things, with a :func:`check` before each."""
    for item in items:
        check()
        yield item


@contextmanager
def holding(lock: threading.Lock) -> Iterator[None]:
    """Within it, a lock is held; it is not waited for any longer once nobody waits for the work.

    Raises:
        StoppedError: nobody does.
    """
    while not lock.acquire(timeout=_LOOK_SECONDS):
        check()
    try:
        check()
        yield
    finally:
        lock.release()
