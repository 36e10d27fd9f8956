"""Evaluate a model whose tables are on disk, in the memory of some questions.

True answers come from the mapped index, candidates are scored block by block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import IntArray
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Visibility
from metatkgr.errors import MetaTKGRError
from metatkgr.evaluation.evaluator import Evaluation
from metatkgr.evaluation.filters import FILTERS
from metatkgr.evaluation.in_blocks import Scores, ranks_in_blocks, true_answers_of
from metatkgr.graph.index import LinkIndex
from metatkgr.graph.novelty import novel_answers
from metatkgr.graph.ragged import expand_ranges
from metatkgr.models.translation import relation_vectors, score_all

__all__ = ["BlockScorer", "TableScorer", "evaluate_on_disk"]

_QUESTIONS = 128
"""Asked at once: the tables are read once for all of them."""


class BlockScorer(Protocol):
    """A model that scores candidates range by range."""

    @property
    def entities(self) -> int:
        """E."""

    def together(self, queries: Queries) -> list[IntArray]:
        """Rows of the questions in groups to be asked at once; each row is in one of them."""

    def scores(self, queries: Queries) -> Scores:
        """The scores of a group."""


class TableScorer:
    """TransE of tables.

    Args:
        entity: (E, d) vectors, perhaps mapped.
        relation: (R, d) vectors.
    """

    def __init__(self, entity: Tensor, relation: Tensor) -> None:
        self._entity, self._relation = entity, relation

    @property
    def entities(self) -> int:
        """E."""
        return len(self._entity)

    def together(self, queries: Queries) -> list[IntArray]:
        """As they come, so many at once."""
        rows = np.arange(len(queries), dtype=np.int64)
        return [rows[low : low + _QUESTIONS] for low in range(0, len(rows), _QUESTIONS)]

    def scores(self, queries: Queries) -> Scores:
        """Negative squared distances; nobody answers with themselves."""
        who, how = map(torch.from_numpy, (queries.entity, queries.relation))
        points = self._entity[who] + relation_vectors(self._relation, how)

        def block(low: int, high: int) -> Tensor:
            scores = score_all(points, self._entity[low:high])
            own = torch.nonzero((who >= low) & (who < high)).squeeze(1)
            # Below all others, and finite, as a rank demands.
            scores[own, who[own] - low] = torch.finfo(scores.dtype).min / 2
            return scores

        return block


def evaluate_on_disk(
    model: BlockScorer,
    tasks: Tasks,
    index: LinkIndex,
    *,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Rank queries as ``evaluate`` ranks those of the same model in memory.

    Args:
        model: ready to be asked.
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
    ranks = {name: np.empty(len(tasks.answers)) for name in FILTERS}
    groups = model.together(tasks.questions)
    # Answers in the order of the groups: those of a group lie side by side.
    place = np.empty(len(tasks.questions), np.int64)
    place[np.concatenate(groups)] = np.arange(len(place))
    row = place[tasks.answers.question]
    order = np.argsort(row, kind="stable")
    row, done = row[order], 0
    for group in groups:
        asked = tasks.questions[group]
        first, last = np.searchsorted(row, [done, done + len(group)])
        question = torch.from_numpy(row[first:last] - done)
        answer = torch.from_numpy(tasks.answers.answer[order[first:last]])
        who, how, when = map(torch.from_numpy, (asked.entity, asked.relation, asked.time))
        filters = [true_answers_of(index, who, how, when, name) for name in FILTERS]
        found = ranks_in_blocks(model.scores(asked), model.entities, question, answer, filters)
        for name, each in zip(FILTERS, found, strict=True):
            ranks[name][order[first:last]] = each.numpy()
        done += len(group)
        if progress:
            progress(len(group))
    return Evaluation(tasks, ranks, _novel(tasks, index), {"score": time.perf_counter() - begin})


def _novel(tasks: Tasks, index: LinkIndex) -> npt.NDArray[np.bool_]:
    """(A,) whether no visible fact had linked the answer to the entity by the relation."""
    novel = novel_answers(tasks)
    if tasks.visibility is Visibility.STREAMING:
        # Then all facts are public, of which ``tasks`` holds only some.
        row, asked = tasks.answers.question, tasks.questions
        columns = (asked.entity[row], asked.relation[row], asked.time[row], tasks.answers.answer)
        novel &= ~_linked_before(index, *map(torch.from_numpy, columns))
    return novel


def _linked_before(
    index: LinkIndex, entity: Tensor, relation: Tensor, when: Tensor, answer: Tensor
) -> npt.NDArray[np.bool_]:
    """(A,) whether an earlier fact links the entity to the answer by the relation."""
    row, position = expand_ranges(*index.before(entity, when))
    every = torch.ones(len(position), 1, dtype=torch.bool)
    target = index.targets(entity[row], position[:, None], every).squeeze(1)
    kind, half = index.about(entity[row], position)[0], index.relations // 2
    # A fact of an entity with itself is one link, in its own direction, and true in both.
    same = (kind == relation[row]) | (
        (target == entity[row]) & (kind == (relation[row] + half) % (2 * half))
    )
    linked = torch.zeros(len(entity), dtype=torch.bool)
    linked[row[same & (target == answer[row])]] = True
    return linked.numpy()
