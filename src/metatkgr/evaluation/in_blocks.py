"""Ranks on a graph larger than memory: true answers from the index, candidates block by block.

The same ranks as ``evaluation.ranking`` gives, without a table of all facts or of all scores: the
true answers of a question are among the links of its entity, and a rank is a count, which adds up
over blocks of candidates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from metatkgr.errors import DataError
from metatkgr.evaluation.filters import FILTERS, TrueAnswers
from metatkgr.evaluation.ranking import check_finite
from metatkgr.graph.index import LinkIndex
from metatkgr.graph.ragged import expand_ranges, pack

__all__ = ["best_in_blocks", "ranks_in_blocks", "true_answers_of"]

Scores = Callable[[int, int], Tensor]
"""(Q, c) scores of the candidates ``low`` to ``high``, not included."""

_AFTER_ALL = 1 << 62
"""Later than any step."""
_BLOCK = 1 << 14
"""Candidates scored at once: their vectors (4 MB at d = 64) stay in a processor's cache."""


def true_answers_of(
    index: LinkIndex, entity: Tensor, relation: Tensor, time: Tensor, name: str
) -> TrueAnswers:
    """The true answers of questions under the filter ``name``; reads the askers' links alone.

    Args:
        index: all facts of the graph; also those that no model may see.
        entity, relation, time: (Q,) the questions.
        name: 'static' or 'time'.
    """
    if name not in FILTERS:
        raise ValueError(f"unknown filter {name!r}; choose one of {FILTERS}")
    if name == "time":
        low, high = index.before(entity, time + 1, window=2)  # at this time
    else:
        low, high = index.before(entity, torch.full_like(time, _AFTER_ALL))
    row, position = expand_ranges(low, high)
    linked, every = position[:, None], torch.ones(len(position), 1, dtype=torch.bool)
    target = index.targets(entity[row], linked, every).squeeze(1)
    if len(target) and not 0 <= int(target.min()) <= int(target.max()) < index.entities:
        raise DataError("the index of links is damaged: a link leads to no entity there is")
    kind, _ = index.about(entity[row], position)
    # A fact of an entity with itself is one link, in its own direction, and true in both.
    half = index.relations // 2
    same = kind == relation[row]
    same |= (target == entity[row]) & (kind == (relation[row] + half) % (2 * half))
    row, target = row[same], target[same]
    cell = torch.unique(pack((row, len(entity)), (target, index.entities)))
    bounds = torch.searchsorted(cell, torch.arange(len(entity) + 1) * index.entities)
    return TrueAnswers(bounds[:-1], bounds[1:], cell % index.entities)


def ranks_in_blocks(
    scores: Scores,
    entities: int,
    question: Tensor,
    answer: Tensor,
    filters: list[TrueAnswers],
    *,
    block: int = _BLOCK,
) -> list[Tensor]:
    """Ranks of answers, one list of ranks for each filter.

    Args:
        scores: the scores of a range of candidates.
        entities: E.
        question: (A,) row of each answer's question.
        answer: (A,) entity ids.
        filters: what each filter drops, for the same questions.
        block: how many candidates are scored at once.

    Returns:
        One (A,) float64 tensor of ranks for each filter.
    """
    dropped = [expand_ranges(true.start[question], true.stop[question]) for true in filters]
    others = [true.entity[at] for true, (_, at) in zip(filters, dropped, strict=True)]
    value = torch.empty(len(answer))
    taken = [torch.empty(len(other)) for other in others]
    # Two passes: a count needs the answer's own score first. Scoring twice costs less than keeping
    # all scores, and only the blocks with answers are scored in the first.
    wanted = torch.cat([answer, *others])
    for number in torch.unique(wanted // block).tolist():
        low, high = number * block, min((number + 1) * block, entities)
        part = scores(low, high)
        check_finite(part)
        value = value.to(part.dtype)
        here = (answer >= low) & (answer < high)
        value[here] = part[question[here], answer[here] - low]
        for k, (other, (row, _)) in enumerate(zip(others, dropped, strict=True)):
            taken[k] = taken[k].to(part.dtype)
            here = (other >= low) & (other < high)
            taken[k][here] = part[question[row[here]], other[here] - low]
    better, equal = torch.zeros_like(answer), torch.zeros_like(answer)
    for low in range(0, entities, block):
        part = scores(low, min(low + block, entities))
        check_finite(part)
        rows = part[question]
        better += (rows > value[:, None]).sum(1)
        equal += (rows == value[:, None]).sum(1)
    ranks = []
    for score, other, (row, _) in zip(taken, others, dropped, strict=True):
        counts = other != answer[row]
        above = torch.zeros_like(better).index_add_(0, row, (counts & (score > value[row])).long())
        level = torch.zeros_like(equal).index_add_(0, row, (counts & (score == value[row])).long())
        ranks.append(1 + (better - above).double() + (equal - 1 - level).double() / 2)
    return ranks


def best_in_blocks(
    scores: Scores, entities: int, count: int, *, block: int = _BLOCK
) -> tuple[Tensor, Tensor]:
    """The best candidates of each question.

    Args:
        scores: the scores of a range of candidates.
        entities: E.
        count: how many to find; all where there are fewer.
        block: how many candidates are scored at once.

    Returns:
        (Q, n) scores, the best first, and (Q, n) entity ids; of equal scores the smallest ids
        are kept.
    """
    best: tuple[Tensor, Tensor] | None = None
    for low in range(0, entities, block):
        part = scores(low, min(low + block, entities))
        ids = torch.arange(low, low + part.shape[1]).expand_as(part)
        if best is not None:
            part, ids = torch.cat([best[0], part], 1), torch.cat([best[1], ids], 1)
        # Sorted, not `topk`, which does not say which of equal scores it takes; a few of a block
        # can be among the best at all.
        few = part.topk(min(count, part.shape[1]), 1).values[:, -1:]
        kept = (part >= few).any(0)
        part, ids = part[:, kept], ids[:, kept]
        order = torch.sort(part, dim=1, descending=True, stable=True).indices[:, :count]
        best = part.gather(1, order), ids.gather(1, order)
    if best is None:
        raise ValueError("there are no candidates")
    return best
