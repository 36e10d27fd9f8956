"""Parts of an evaluation, for several processes: who ranks which questions, and all together.

A model encodes its candidates once for each moment that is asked about, so a part is a stretch of
time. Its ranks do not depend on the other parts: scores do not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.data.tasks import Tasks
from metatkgr.evaluation.evaluator import Evaluation
from metatkgr.models.trainable import Part

__all__ = ["answer_rows", "join_shards", "shard_rows"]


def shard_rows(tasks: Tasks, part: Part) -> IntArray:
    """The questions of one part, as ascending rows of ``tasks.questions``; may be none.

    Every question weighs 1/Q, and every moment 1/M, shared by its questions: the parts are as equal
    as can be both in questions and in moments.
    """
    time = tasks.questions.time
    order = np.argsort(time, kind="stable")
    _, moment, size = np.unique(time[order], return_inverse=True, return_counts=True)
    weight = 1.0 / max(len(time), 1) + 1.0 / (max(len(size), 1) * size[moment])
    before = np.cumsum(weight) - weight / 2  # adds up to 2
    mine = np.minimum((before / 2 * part.count).astype(np.int64), part.count - 1) == part.number
    return np.sort(order[mine])


def answer_rows(tasks: Tasks, questions: IntArray) -> IntArray:
    """The rows of ``tasks.answers`` that belong to some questions, in the order of a shard's."""
    return np.flatnonzero(np.isin(tasks.answers.question, questions))


def join_shards(tasks: Tasks, shards: Sequence[tuple[IntArray, Evaluation]]) -> Evaluation:
    """The evaluation of all questions from those of all parts.

    Args:
        tasks: the whole.
        shards: for each part its questions, from :func:`shard_rows`, and the evaluation of
            ``tasks.only`` of them.
    """
    ranks: dict[str, np.ndarray] = {}
    novel = np.zeros(len(tasks.answers), bool)
    seconds: dict[str, float] = {}
    for questions, shard in shards:
        rows = answer_rows(tasks, questions)
        novel[rows] = shard.novel
        for name, values in shard.ranks.items():
            ranks.setdefault(name, np.full(len(tasks.answers), np.nan))[rows] = values
        for name, spent in shard.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + spent
    return Evaluation(tasks, ranks, novel, seconds)
