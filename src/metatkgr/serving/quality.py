"""How good the served model is: over time, and beside the rules, on meta-validation.

Measured once, in the background, on a sample of the queries, and kept in a file of the user's own:
what lies in the folder of a run may be a stranger's word.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr import __version__
from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Tasks
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.evaluation.evaluator import Evaluation, evaluate
from metatkgr.files import read_json, write_json
from metatkgr.models.base import Model
from metatkgr.serving.schemas import ModelQualityOut, QualityOut, SpanOut

__all__ = ["Quality", "QualitySettings"]

_LOG = logging.getLogger(__name__)
_CHUNK_BYTES = 1 << 23
"""Scores at once: small, so that answering goes on beside it and stopping takes a moment."""


@dataclass(frozen=True)
class QualitySettings:
    """What is measured."""

    shots: int | str = 3
    """K of the tasks."""
    visibility: str = "entity-split"
    """What the models may see."""
    seed: int = 0
    """Of each entity's K, where it is drawn, and of the sample."""
    questions: int = 1000
    """At most so many, drawn evenly from all."""
    spans: int = 12
    """Parts into which the time of the queries is cut."""


class _StopError(Exception):
    """The service ends."""


class Quality:
    """Measures models in a thread and remembers the result.

    Args:
        models: makes each model by its name, the served one first. Not the served object itself:
            measuring shows it other facts.
        facts: the graph as it was when the model was trained.
        settings: what is measured.
        cache: file that keeps the result.
        measures: else another process does, and the result is found in ``cache`` then.
    """

    def __init__(
        self,
        models: Mapping[str, Callable[[], Model[Any]]],
        facts: Facts,
        settings: QualitySettings | None = None,
        cache: Path | None = None,
        *,
        measures: bool = True,
    ) -> None:
        self._models = dict(models)
        self._facts = facts
        self._settings = settings or QualitySettings()
        self._cache = cache
        self._measures = measures
        self._stop = threading.Event()
        self._report = QualityOut(status="computing")
        self._thread = threading.Thread(target=self._work, name="quality", daemon=True)

    def start(self) -> None:
        """Begin to measure, unless it was done before."""
        kept = self._kept()
        if kept is not None:
            self._report = kept
        elif self._measures:
            self._thread.start()

    def stop(self) -> None:
        """End the measuring at the next chunk of queries."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)

    def report(self) -> QualityOut:
        """The result; while there is none, its status alone."""
        if not self._measures and self._report.status == "computing":
            self._report = self._kept() or self._report
        return self._report

    def _key(self) -> dict[str, Any]:
        settings = vars(self._settings)
        sizes = {"facts": len(self._facts), "entities": len(self._facts.entities)}
        return {"version": __version__, "models": list(self._models), **sizes, **settings}

    def _kept(self) -> QualityOut | None:
        if self._cache is None:
            return None
        try:
            content = read_json(self._cache)
            return QualityOut(**content["report"]) if content["key"] == self._key() else None
        except (DataError, ValueError, KeyError, TypeError):
            return None

    def _work(self) -> None:
        try:
            report = self._measure()
        except _StopError:
            return
        except MetaTKGRError as error:
            self._report = QualityOut(status="failed", detail=str(error))
            return
        except Exception:
            # A thread's failure must not pass unseen, nor end the service.
            _LOG.exception("the quality could not be measured")
            self._report = QualityOut(status="failed", detail="see the service's log")
            return
        self._report = report
        if self._cache is not None:
            try:
                write_json(self._cache, {"key": self._key(), "report": report.model_dump()})
            except MetaTKGRError as error:
                _LOG.warning("%s", error)

    def _measure(self) -> QualityOut:
        s = self._settings
        tasks = Tasks.build(
            self._facts,
            shots=s.shots,
            visibility=s.visibility,
            split="meta-validation",
            seed=s.seed,
        )
        total = len(tasks.questions)
        tasks = tasks.sample(s.questions, s.seed)
        done = {
            name: evaluate(make(), tasks, score_bytes=_CHUNK_BYTES, progress=self._go_on)
            for name, make in self._models.items()
        }
        return QualityOut(
            status="ready",
            split="meta-validation",
            shots=str(s.shots),
            visibility=s.visibility,
            questions=len(tasks.questions),
            of_questions=total,
            models=[_row(name, evaluation) for name, evaluation in done.items()],
            spans=_spans(done, s.spans),
        )

    def _go_on(self, _: int) -> None:
        if self._stop.is_set():
            raise _StopError


def _row(name: str, evaluation: Evaluation) -> ModelQualityOut:
    summary = evaluation.summary("static", "all")
    low, high = summary.mrr_ci95 or (None, None)
    hits = {f"hits_{k}": value for k, value in summary.hits.items()}
    return ModelQualityOut(name=name, mrr=summary.mrr, low=low, high=high, **hits)


def _spans(done: dict[str, Evaluation], most: int) -> list[SpanOut]:
    """MRR of each model in each part of the time."""
    one = next(iter(done.values()))
    time, calendar = one.time, one.tasks.facts.calendar
    first, last = int(time.min()), int(time.max())
    edges = np.unique(np.linspace(first, last + 1, most + 1).astype(np.int64))
    spans = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        rows = (time >= begin) & (time < end)
        if rows.any():
            mrr = {name: float((1 / e.ranks["static"][rows]).mean()) for name, e in done.items()}
            dates = {"first": calendar.label(begin), "last": calendar.label(end - 1)}
            spans.append(SpanOut(**dates, queries=int(rows.sum()), mrr=mrr))
    return spans
