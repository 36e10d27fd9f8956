"""Questions that wait are answered together: the more there are, the less each costs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from metatkgr.errors import MetaTKGRError
from metatkgr.forecasting.explain import Forecasts
from metatkgr.serving.schemas import PredictIn

__all__ = ["Batches"]

_LOG = logging.getLogger(__name__)
_MOST = 64
"""Questions in one batch."""
_MOST_EXPLAINED = 8
"""The same where reasons are asked for, which take longer: others wait for them."""


class _Waiting:
    """A question, and who waits for its answer."""

    def __init__(self, question: PredictIn, answer: asyncio.Future[Forecasts]) -> None:
        self.question, self.answer = question, answer
        self.loop = answer.get_loop()


class Batches:
    """Answers questions in a thread of its own, all that wait in one call.

    A question that comes while nothing is worked on does not wait. Those that come meanwhile are
    the next batch, but for those whose client has gone or whose time is over: they are dropped.
    Questions with and without reasons come in batches of their own, in turn, so that who asks for
    little waits little.

    Args:
        answer: gives an answer or an error for each question.
    """

    def __init__(
        self, answer: Callable[[Sequence[PredictIn]], Sequence[Forecasts | MetaTKGRError]]
    ) -> None:
        self._answer = answer
        self._plain: deque[_Waiting] = deque()
        self._explained: deque[_Waiting] = deque()
        self._some = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    async def ask(self, question: PredictIn) -> Forecasts:
        """The answer; whoever cancels this is not answered.

        Raises:
            MetaTKGRError: as :meth:`Forecaster.predict` does.
        """
        waiting = _Waiting(question, asyncio.get_running_loop().create_future())
        with self._some:
            (self._explained if question.explain else self._plain).append(waiting)
            self._some.notify()
        return await waiting.answer

    def stop(self) -> None:
        """End after the batch that is being worked on."""
        with self._some:
            self._stop = True
            self._some.notify()

    def _work(self) -> None:
        first, second = (self._plain, _MOST), (self._explained, _MOST_EXPLAINED)
        while True:
            with self._some:
                while not (first[0] or second[0] or self._stop):
                    self._some.wait()
                if self._stop:
                    return
                queue, most = first if first[0] else second
                batch: list[_Waiting] = []
                while queue and len(batch) < most:
                    waiting = queue.popleft()
                    if not waiting.answer.done():
                        batch.append(waiting)
            if queue is first[0]:
                first, second = second, first
            if batch:
                self._deliver(batch)

    def _deliver(self, batch: list[_Waiting]) -> None:
        answers: Sequence[Forecasts | BaseException]
        try:
            answers = self._answer([waiting.question for waiting in batch])
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
