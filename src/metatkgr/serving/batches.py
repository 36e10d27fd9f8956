"""Questions that wait are answered together: the more there are, the less each costs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from metatkgr.deadlines import StoppedError, stopping
from metatkgr.errors import MetaTKGRError
from metatkgr.forecasting.explain import Forecasts
from metatkgr.serving.schemas import PredictIn

__all__ = ["Batches"]

_LOG = logging.getLogger(__name__)
_MOST = 64
"""Questions in one batch."""
_MOST_EXPLAINED = 8
"""The same where reasons are asked for, which take longer."""


class _Waiting:
    """A question, and who waits for its answer."""

    def __init__(self, question: PredictIn, answer: asyncio.Future[Forecasts]) -> None:
        self.question, self.answer = question, answer
        self.loop = answer.get_loop()


class Batches:
    """Answers questions in threads of its own, all that wait in one call.

    A question that comes while nothing is worked on does not wait. Those that come meanwhile are
    the next batch, but for those whose client has gone or whose time is over: they are dropped.
    A batch that nobody waits for any more is not finished. Questions with reasons have a thread of
    their own, so that who asks for little waits little.

    Args:
        answer: gives an answer or an error for each question.
    """

    def __init__(
        self, answer: Callable[[Sequence[PredictIn]], Sequence[Forecasts | MetaTKGRError]]
    ) -> None:
        self._queues = (_Queue(answer, _MOST), _Queue(answer, _MOST_EXPLAINED))

    async def ask(self, question: PredictIn) -> Forecasts:
        """The answer; whoever cancels this is not answered.

        Raises:
            MetaTKGRError: as :meth:`Forecaster.predict` does.
        """
        waiting = _Waiting(question, asyncio.get_running_loop().create_future())
        self._queues[question.explain].put(waiting)
        return await waiting.answer

    def stop(self) -> None:
        """End; what is being worked on is not finished."""
        for queue in self._queues:
            queue.stop()


class _Queue:
    """Questions that wait for one thread, which answers at most so many at once."""

    def __init__(
        self,
        answer: Callable[[Sequence[PredictIn]], Sequence[Forecasts | MetaTKGRError]],
        most: int,
    ) -> None:
        self._answer, self._most = answer, most
        self._waiting: deque[_Waiting] = deque()
        self._some = threading.Condition()
        self._stop = False
        threading.Thread(target=self._work, name="batches", daemon=True).start()

    def put(self, waiting: _Waiting) -> None:
        """One more."""
        with self._some:
            self._waiting.append(waiting)
            self._some.notify()

    def stop(self) -> None:
        """End the thread."""
        with self._some:
            self._stop = True
            self._some.notify()

    def _work(self) -> None:
        while True:
            with self._some:
                while not (self._waiting or self._stop):
                    self._some.wait()
                if self._stop:
                    return
                batch: list[_Waiting] = []
                while self._waiting and len(batch) < self._most:
                    waiting = self._waiting.popleft()
                    if not waiting.answer.done():
                        batch.append(waiting)
            if batch:
                self._deliver(batch)

    def _deliver(self, batch: list[_Waiting]) -> None:
        answers: Sequence[Forecasts | BaseException]
        try:
            with stopping(lambda: self._stop or all(one.answer.done() for one in batch)):
                answers = self._answer([waiting.question for waiting in batch])
        except StoppedError as error:
            answers = [error] * len(batch)
        except Exception as error:
            _LOG.exception("a batch of %d questions could not be answered", len(batch))
            answers = [error] * len(batch)
        for waiting, answer in zip(batch, answers, strict=True):
            # The loop may end before this thread does when the service is stopped.
            with suppress(RuntimeError):
                waiting.loop.call_soon_threadsafe(_give, waiting.answer, answer)


def _give(future: asyncio.Future[Forecasts], answer: Forecasts | BaseException) -> None:
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
