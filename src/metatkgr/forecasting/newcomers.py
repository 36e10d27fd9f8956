"""The next facts of every entity that has just emerged, as rows of a file.

The newcomers are taken a batch at a time, in the order of their numbers. On a cluster the batches
are shared out, and their rows come back in that order: the file is the same.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from metatkgr.data.frames import written_rows
from metatkgr.data.periods import Period, Periods
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.incoming import checked_step, steps_of
from metatkgr.forecasting.live import Snapshot
from metatkgr.forecasting.ranking import Question
from metatkgr.training.cluster import connected
from metatkgr.training.opening import OpenModel

__all__ = [
    "NewcomerForecast",
    "NodeForecasts",
    "forecast_newcomers",
    "newcomers_since",
    "some_forecasts",
]

_AT_ONCE = 64
"""Newcomers asked about in one go; one piece of a cluster's work."""


class NewcomerForecast(NamedTuple):
    """A row of the file."""

    entity: str
    """The newcomer."""
    rank: int
    """1 is the likeliest."""
    relation: str
    side: str
    """'object': the newcomer is the subject and ``answer`` the object; 'subject': the reverse."""
    answer: str
    """The other end."""
    at: str
    probability: float
    score: float


def newcomers_since(snapshot: Snapshot, since: str | None = None) -> list[int]:
    """The entities that emerged since, by their numbers; all have a fact.

    Args:
        snapshot: the facts.
        since: a date, a number where the graph counts in numbers, or a time before its last fact:
            '30d', and so for hours, weeks and years. None: since the end of what a model learns
            from, the period of meta-validation.

    Raises:
        DataError: it is none of these, or not for this graph.
    """
    calendar, last = snapshot.first.calendar, snapshot.last_step
    if since is None:
        begin = int(Periods.last_steps(snapshot.first)[Period.META_VALIDATION]) + 1
    elif (steps := steps_of(since, calendar)) is not None:
        begin = last + 1 - steps
    else:
        begin = checked_step(since, calendar, last + 1, "time since when")
    return snapshot.newcomers(begin - 1)


def forecast_newcomers(
    forecaster: Forecaster,
    out: str | Path,
    *,
    since: str | None = None,
    question: Question | None = None,
    cluster: str | None = None,
    workers: int = 1,
    device: str = "auto",
    opening: partial[OpenModel] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[int, int]:
    """Write the likeliest next facts of every newcomer to a file.

    Args:
        forecaster: of the facts.
        out: .parquet, .jsonl or .csv; it appears when it is complete.
        since: as in :func:`newcomers_since`.
        question: what is asked about each; its entity does not count.
        cluster, workers, device: as in ``training.cluster.connected``; None: this process.
        opening: of ``open_model``, how a node opens the same; needed on a cluster.
        progress: called with the newcomers done since the last call, and the number of all.

    Returns:
        The numbers of newcomers and of rows.

    Raises:
        MetaTKGRError: the question cannot be asked, a node sees other facts, the file has no
            known format or cannot be written.
    """
    asked = question or Question("")
    snapshot = forecaster.snapshot()
    emerged = newcomers_since(snapshot, since)
    pieces = [emerged[begin : begin + _AT_ONCE] for begin in range(0, len(emerged), _AT_ONCE)]
    count = 0
    with written_rows(out, NewcomerForecast) as write:

        def collect(results: Iterable[list[NewcomerForecast]]) -> None:
            nonlocal count
            for piece, rows in zip(pieces, results, strict=True):
                write(rows)
                count += len(rows)
                if progress:
                    progress(len(piece), len(emerged))

        if cluster is None:
            collect(_rows(forecaster, asked, piece) for piece in pieces)
        else:
            assert opening is not None
            calibration = forecaster.calibration if pieces else None
            with connected(cluster, workers=workers, device=device) as nodes:
                there = NodeForecasts(opening, calibration, _size(snapshot), nodes.device, asked)
                collect(nodes.map(there, pieces))
    return len(emerged), count


def some_forecasts(
    forecaster: Forecaster, asked: Question, emerged: list[int], skip: int = 0
) -> Iterator[tuple[int, list[NewcomerForecast]]]:
    """The rows of newcomers, a batch at a time, each with how many newcomers are done.

    Args:
        forecaster: of the facts.
        asked: what is asked about each.
        emerged: their numbers.
        skip: so many of them are done already.
    """
    for begin in range(skip, len(emerged), _AT_ONCE):
        piece = emerged[begin : begin + _AT_ONCE]
        yield begin + len(piece), _rows(forecaster, asked, piece)


def _rows(forecaster: Forecaster, asked: Question, piece: list[int]) -> list[NewcomerForecast]:
    names = [forecaster.snapshot().entities.name(number) for number in piece]
    rows: list[NewcomerForecast] = []
    questions = [replace(asked, entity=name) for name in names]
    for name, found in zip(names, forecaster.predict_many(questions), strict=True):
        if isinstance(found, MetaTKGRError):
            raise found
        rows += [
            NewcomerForecast(
                name, f.rank, f.relation, f.side, f.entity, f.at, f.probability, f.score
            )
            for f in found
        ]
    return rows


def _size(snapshot: Snapshot) -> tuple[int, int, int]:
    """Facts, entities and last step."""
    return len(snapshot.visible), len(snapshot.entities), snapshot.last_step


@dataclass(frozen=True)
class NodeForecasts:
    """Asks about some newcomers in a process of a cluster, which opens the facts itself."""

    opening: partial[OpenModel]
    """Of ``open_model``, with all but the device; every node sees the source under this path."""
    calibration: Calibration | None
    size: tuple[int, int, int]
    """That of the facts that must be found there."""
    device: str
    asked: Question

    def __call__(self, piece: list[int]) -> list[NewcomerForecast]:
        """The rows of some newcomers."""
        return _rows(self.forecaster, self.asked, piece)

    @cached_property
    def forecaster(self) -> Forecaster:
        """Opened once; the one who asks has calibrated it."""
        node = f"the node {socket.gethostname()}"
        try:
            opened = self.opening(device=self.device)
        except MetaTKGRError as error:
            raise DataError(f"{node}: {error}") from None
        how: dict[str, Any] = {"shots": opened.shots, "calibration": self.calibration}
        found = Forecaster(opened.model, opened.facts, **how)
        if _size(found.snapshot()) != self.size:
            raise DataError(
                f"{node} finds other facts in {self.opening.args[0]}: all nodes must share it"
            )
        return found
