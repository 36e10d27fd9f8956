"""The evaluator: scores and ranks the queries of a split, a chunk at a time, in bounded memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from metatkgr import __version__
from metatkgr.data.answers import FILTERS, TrueAnswers, novel_answers, true_answers
from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.deadlines import check
from metatkgr.errors import MetaTKGRError
from metatkgr.evaluation.ranking import Summary, filtered_ranks, summarise
from metatkgr.models.base import Model

__all__ = ["SUBSETS", "Evaluation", "evaluate", "evaluation_report", "in_chunks"]

_LOG = logging.getLogger(__name__)

SUBSETS = ("all", "novel", "later")

_CPU_SCORE_BYTES = 1 << 26
_GPU_SCORE_BYTES = 1 << 30
_LISTED_BYTES = 1 << 16
"""What the scores of one query take, with all that is read for them, where only some are listed."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The rank of every query, and the numbers made from them."""

    tasks: Tasks
    ranks: dict[str, npt.NDArray[np.float64]]
    """(A,) ranks for each filter."""
    novel: npt.NDArray[np.bool_]
    """(A,) whether no visible fact had linked the answer to the entity by the relation."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in adapt, score and rank."""

    @property
    def entity(self) -> IntArray:
        """(A,) the entity each query asks about."""
        return self.tasks.questions.entity[self.tasks.answers.question]

    @property
    def relation(self) -> IntArray:
        """(A,) the directed relation each query asks for."""
        return self.tasks.questions.relation[self.tasks.answers.question]

    @property
    def time(self) -> IntArray:
        """(A,) the step each query asks about."""
        return self.tasks.questions.time[self.tasks.answers.question]

    def subset(self, name: str) -> npt.NDArray[np.bool_]:
        """(A,) mask of the subset 'all', 'novel' or 'later'."""
        if name == "all":
            return np.ones(len(self.novel), bool)
        if name == "novel":
            return self.novel
        if name == "later":
            return self.tasks.answers.later
        raise ValueError(f"unknown subset {name!r}; choose one of {SUBSETS}")

    def summary(
        self, filter: str = "static", subset: str = "all", resamples: int = 1000
    ) -> Summary:
        """Metrics of one subset under one filter."""
        rows = self.subset(subset)
        return summarise(self.ranks[filter][rows], self.entity[rows], resamples=resamples)

    def per_relation(self, filter: str = "static") -> dict[str, Summary]:
        """Metrics for each directed relation; the subject's side is marked 'inverse of'."""
        names = self.tasks.facts.relations
        label = [names.label(r) for r in range(len(names))]
        label += [f"inverse of {name}" for name in label]
        return {label[r]: s for r, s in self._by(self.relation, filter).items()}

    def per_step(self, filter: str = "static") -> dict[str, Summary]:
        """Metrics for each time step, by date."""
        calendar = self.tasks.facts.calendar
        return {calendar.label(step): s for step, s in self._by(self.time, filter).items()}

    def _by(self, key: IntArray, filter: str) -> dict[int, Summary]:
        """Metrics of each value of ``key`` (one sort, then a slice each)."""
        order = np.argsort(key, kind="stable")
        values, start = np.unique(key[order], return_index=True)
        groups = np.split(order, start[1:])
        return {
            int(value): summarise(self.ranks[filter][rows], self.entity[rows], resamples=0)
            for value, rows in zip(values, groups, strict=True)
        }

    def to_json(self, *, details: bool = False) -> dict[str, Any]:
        """Counts and metrics; with ``details`` also per relation and per time step."""
        result: dict[str, Any] = {
            **self.tasks.about(),
            "tasks": self.tasks.count,
            "queries": len(self.tasks.answers),
            "metrics": {
                name: {
                    subset: self.summary(name, subset).to_json()
                    | {"share": float(self.subset(subset).mean())}
                    for subset in SUBSETS
                }
                for name in self.ranks
            },
            "seconds": {part: round(spent, 4) for part, spent in self.seconds.items()},
        }
        if details:
            result["per_relation"] = {
                name: {k: s.to_json() for k, s in self.per_relation(name).items()}
                for name in self.ranks
            }
            result["per_step"] = {
                name: {k: s.to_json() for k, s in self.per_step(name).items()}
                for name in self.ranks
            }
        return result


def evaluate(
    model: Model[Any],
    tasks: Tasks,
    *,
    score_bytes: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Adapt a prepared model to the supports of all tasks, and rank all queries.

    Args:
        model: a model; ``prepare`` is called with the public facts of ``tasks``.
        tasks: the tasks of one split.
        score_bytes: memory for the scores of one chunk of queries; the peak is a small multiple
            of it, whatever the dataset.
        progress: called with the number of distinct queries done since the last call.

    Returns:
        The ranks, by filter, and where the time went.
    """
    if len(tasks.answers) == 0:
        raise MetaTKGRError(
            f"the {tasks.split.label} split has no query at {tasks.shots} shots: "
            "no new entity has more facts than its support"
        )
    seconds = {"adapt": 0.0, "score": 0.0, "rank": 0.0}
    device = model.device
    with _clock(seconds, "adapt"):
        model.prepare(tasks.visible).adapt(tasks.supports)
    with _clock(seconds, "rank"):
        filters, novel = _known_of(tasks, device)
        query = torch.from_numpy(tasks.answers.question).to(device)
        answer = torch.from_numpy(tasks.answers.answer).to(device)
    budget = score_bytes or (_GPU_SCORE_BYTES if device.type == "cuda" else _CPU_SCORE_BYTES)
    # Scores are at most 8 bytes wide.
    each = _LISTED_BYTES if model.live else 8 * len(tasks.facts.entities)
    size = max(1, budget // each)
    chunks: list[list[torch.Tensor]] = []

    def rank(begin: int, end: int) -> None:
        chunk = slice(begin, end)
        with _clock(seconds, "score"):
            scores = model.score(tasks.questions[chunk])
        with _clock(seconds, "rank"):
            low, high = np.searchsorted(tasks.answers.question, [begin, end])
            dropped = [f[chunk] for f in filters]
            rows = slice(int(low), int(high))
            chunks.append(filtered_ranks(scores, query[rows] - begin, answer[rows], dropped))
        if progress:
            progress(len(scores))

    in_chunks(len(tasks.questions), size, rank)
    ranks = {
        name: torch.cat([chunk[i] for chunk in chunks]).cpu().numpy()
        for i, name in enumerate(FILTERS)
    }
    return Evaluation(tasks, ranks, novel, seconds)


def in_chunks(count: int, size: int, work: Callable[[int, int], object]) -> None:
    """Call ``work(begin, end)`` for all of ``range(count)``, ``size`` at a time, in order.

    Where a chunk runs out of a GPU's memory it is halved, with a warning, and done again; later
    chunks keep the smaller size. So ``work`` must leave nothing behind when it raises.

    Raises:
        MetaTKGRError: not even a single one fits.
        StoppedError: nobody waits for it any more.
    """
    begin = 0
    while begin < count:
        check()
        end = min(count, begin + size)
        try:
            work(begin, end)
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0] if str(error) else "out of memory"
        else:
            begin = end
            continue
        # Outside the handler: the error holds on to the tensors of the frames it came through.
        if end - begin == 1:
            raise MetaTKGRError(
                f"the device has too little memory for a single question ({reason}); choose a "
                "smaller model, or --device cpu"
            )
        size = (end - begin) // 2
        _LOG.warning("out of memory with %d questions at once; going on with %d", end - begin, size)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def evaluation_report(
    model: Model[Any],
    facts: Facts,
    *,
    shots: int | str = 3,
    visibility: str = "entity-split",
    split: str = "meta-test",
    seed: int = 0,
    questions: int | None = None,
    loaded: float = 0.0,
    details: bool = False,
    progress: Callable[[int, int], object] | None = None,
    ranked: Callable[..., Evaluation] = evaluate,
    tasks: Tasks | None = None,
) -> dict[str, Any]:
    """Rank the queries of a split and say under which conditions.

    Args:
        model: with its weights, if it has any.
        facts: the whole graph.
        shots: K, or a range from which each entity's K is drawn.
        visibility: which facts are public.
        split: whose new entities the queries are about.
        seed: recorded, and of each entity's K and of the sample, where they are drawn.
        questions: at most so many distinct (e, r, t) are ranked, drawn evenly; None: all. Then the
            result also says how many were ranked, and how many queries the split has.
        loaded: seconds that loading took.
        details: add metrics per relation and per time step.
        progress: called with the distinct queries done since the last call and their number.
        ranked: who ranks; called as ``evaluate`` is.
        tasks: of another protocol; None: the few-shot tasks that the others say.
    """
    if tasks is None:
        tasks = Tasks.build(facts, shots=shots, visibility=visibility, split=split, seed=seed)
    sampled: dict[str, Any] = {}
    if questions is not None:
        all_queries, tasks = len(tasks.answers), tasks.sample(questions, seed)
        sampled = {"questions": len(tasks.questions), "queries_of_split": all_queries}
    total = len(tasks.questions)
    evaluation = ranked(
        model, tasks, progress=None if progress is None else lambda done: progress(done, total)
    )
    measured = evaluation.to_json(details=details)
    measured["seconds"] = {"load": round(loaded, 4)} | measured["seconds"]
    return (
        {
            "dataset": facts.name,
            "model": model.name,
            "settings": asdict(model.settings),
            "seed": seed,
            "version": __version__,
        }
        | sampled
        | measured
    )


_KNOWN: WeakKeyDictionary[Tasks, tuple[list[TrueAnswers], npt.NDArray[np.bool_]]]
_KNOWN = WeakKeyDictionary()
"""Of tasks that were evaluated already and are still in use: a training validates many times."""


def _known_of(
    tasks: Tasks, device: torch.device
) -> tuple[list[TrueAnswers], npt.NDArray[np.bool_]]:
    """What each filter drops, and which answers are novel; the same for every model."""
    if tasks not in _KNOWN:
        facts = VisibleFacts.of(tasks.facts)
        filters = [true_answers(facts, tasks.questions, name) for name in FILTERS]
        _KNOWN[tasks] = filters, novel_answers(tasks)
    filters, novel = _KNOWN[tasks]
    return [table.to(device) for table in filters], novel


@contextmanager
def _clock(seconds: dict[str, float], part: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[part] += time.perf_counter() - begin
