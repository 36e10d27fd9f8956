"""Evaluate translations whose tables are on disk, in the memory of some questions.

True answers come from the mapped index, candidates are scored block by block.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Visibility
from metatkgr.errors import MetaTKGRError
from metatkgr.evaluation.evaluator import Evaluation
from metatkgr.evaluation.filters import FILTERS
from metatkgr.evaluation.in_blocks import Scores, ranks_in_blocks, true_answers_of
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.novelty import novel_answers
from metatkgr.graph.ragged import expand_ranges
from metatkgr.models.translation import relation_vectors, score_all

__all__ = ["evaluate_on_disk"]

_QUESTIONS = 128
"""Asked at once: the tables are read once for all of them."""


def evaluate_on_disk(
    entity: Tensor,
    relation: Tensor,
    tasks: Tasks,
    index: GraphIndex,
    *,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Rank queries as ``evaluate`` ranks those of TransE with these tables.

    Args:
        entity: (E, d) vectors, perhaps mapped.
        relation: (R, d) vectors.
        tasks: of :meth:`StoredSplit.tasks`.
        index: all facts of the graph.
        progress: called with the number of questions done since the last call.
    """
    if len(tasks.answers) == 0:
        raise MetaTKGRError(
            f"the {tasks.split.label} split has no query at {tasks.shots} shots: "
            "no new entity has more facts than its support"
        )
    begin = time.perf_counter()
    asked = tasks.questions
    who, how, when = map(torch.from_numpy, (asked.entity, asked.relation, asked.time))
    answer = torch.from_numpy(tasks.answers.answer)
    chunks: list[list[Tensor]] = []
    for low in range(0, len(asked), _QUESTIONS):
        part = slice(low, min(low + _QUESTIONS, len(asked)))
        first, last = np.searchsorted(tasks.answers.question, [part.start, part.stop])
        question = torch.from_numpy(tasks.answers.question[first:last]) - low
        columns = who[part], how[part], when[part]
        filters = [true_answers_of(index, *columns, name) for name in FILTERS]
        points = entity[who[part]] + relation_vectors(relation, how[part])
        scores = _scores(points, who[part], entity)
        chunks.append(ranks_in_blocks(scores, len(entity), question, answer[first:last], filters))
        if progress:
            progress(len(points))
    ranks = {name: torch.cat([c[i] for c in chunks]).numpy() for i, name in enumerate(FILTERS)}
    novel = novel_answers(tasks)
    if tasks.visibility is Visibility.STREAMING:
        # Then all facts are public, of which ``tasks`` holds only some.
        row = torch.from_numpy(tasks.answers.question)
        novel &= ~_linked_before(index, who[row], how[row], when[row], answer)
    return Evaluation(tasks, ranks, novel, {"score": time.perf_counter() - begin})


def _scores(points: Tensor, who: Tensor, table: Tensor) -> Scores:
    """Of (Q, d) points; nobody answers with themselves."""

    def block(low: int, high: int) -> Tensor:
        scores = score_all(points, table[low:high])
        own = torch.nonzero((who >= low) & (who < high)).squeeze(1)
        # Below all others, and finite, as a rank demands.
        scores[own, who[own] - low] = torch.finfo(scores.dtype).min / 2
        return scores

    return block


def _linked_before(
    index: GraphIndex, entity: Tensor, relation: Tensor, when: Tensor, answer: Tensor
) -> npt.NDArray[np.bool_]:
    """(A,) whether an earlier fact links the entity to the answer by the relation."""
    row, position = expand_ranges(*index.before(entity, when))
    target, kind, half = index.target[position], index.relation[position], index.relations // 2
    # A fact of an entity with itself is one link, in its own direction, and true in both.
    same = (kind == relation[row]) | (
        (target == entity[row]) & (kind == (relation[row] + half) % (2 * half))
    )
    linked = torch.zeros(len(entity), dtype=torch.bool)
    linked[row[same & (target == answer[row])]] = True
    return linked.numpy()
