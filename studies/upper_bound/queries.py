"""Novel queries of meta-test, with all that is visible of their answers: for upper bounds only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.answers import TrueAnswers, novel_answers, true_answers
from metatkgr.data.facts import IntArray
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.pagerank import PageRank
from metatkgr.graph.ragged import expand_ranges
from metatkgr.models.evidence.model import EvidenceModel
from metatkgr.models.evidence.reader import Candidates
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.training.loop import train

__all__ = ["POINTERS", "Novel", "NovelEvidence", "draw_novel", "read_evidence"]

POINTERS = {
    "seen": "the answer occurs in a visible fact before the question",
    "place": "it stood in this place of the relation before",
    "path1": "it was linked to e, by another relation or in the other direction",
    "path2": "a path of at most 2 links leads to it",
    "path3": "a path of at most 3 links leads to it",
    "path12": "a path of at most 12 links leads to it",
    "path3_place": "a path of at most 3 links, and it stood in this place",
    "first10": "among the first 10 by PageRank of those that stood in this place",
    "first50": "among the first 50 of these",
    "first10_any": "among the first 10 by PageRank of all entities",
    "first50_any": "among the first 50 of these",
    "candidate": "among the candidates that the evidence model weighs",
}
"""Kinds of visible evidence that may point at an answer."""
_WALKS = (1, 2, 3, 12)
_AT_ONCE = 128
_OF_ONE_LINK = 3


@dataclass(frozen=True, eq=False)
class Novel:
    """Novel answers: no visible fact had linked them to e by r."""

    queries: Queries
    answer: IntArray
    """(N,)."""
    weight: npt.NDArray[np.float64]
    """(N,) how many novel queries of the split each one stands for."""
    share: float
    """Of all queries of the split, how many are novel."""


@dataclass(frozen=True, eq=False)
class NovelEvidence:
    """The features of the candidates of novel queries; the gold answer is the first candidate."""

    entity: IntArray
    """(N,) e."""
    weight: npt.NDArray[np.float64]
    """(N,)."""
    relation: Tensor
    """(N,) directed."""
    features: Tensor
    """(N, C, F)."""
    mask: Tensor
    """(N, C) bool: the candidates that count, without other true answers (static filter)."""
    reached: Tensor
    """(N,) bool: whether the answer would be a candidate if one did not know it."""
    pointed: dict[str, npt.NDArray[np.bool_]]
    """Of each kind of :data:`POINTERS` (N,): whether it points at the answer."""


def draw_novel(tasks: Tasks, most: int, seed: int = 0) -> Novel:
    """Novel answers of the tasks, at most three of one link and ``most`` in all.

    A link is queried year after year; what is left out is made up for by weights.
    """
    novel = novel_answers(tasks)
    rows = np.flatnonzero(novel)
    queries = tasks.questions[tasks.answers.question]
    entities, answer = len(tasks.facts.entities), tasks.answers.answer
    link = ((queries.relation * entities + queries.entity) * entities + answer)[rows]
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(rows))
    order = order[np.argsort(link[order], kind="stable")]
    ordered = link[order]
    nth = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    count = np.searchsorted(ordered, ordered, side="right") - np.searchsorted(ordered, ordered)
    kept = np.flatnonzero(nth < _OF_ONE_LINK)
    chosen = np.sort(generator.permutation(kept)[:most])
    weight = (count / np.minimum(count, _OF_ONE_LINK))[chosen] * len(kept) / max(len(chosen), 1)
    picked = rows[order[chosen]]
    # By time, so that neighbours share their walks.
    by_time = np.lexsort([queries.entity[picked], queries.relation[picked], queries.time[picked]])
    picked, weight = picked[by_time], weight[by_time]
    return Novel(queries[picked], answer[picked], weight, float(novel.mean()))


@torch.no_grad()
def read_evidence(
    tasks: Tasks, problem: Problem, novel: Novel, settings: EvidenceSettings, device: torch.device
) -> NovelEvidence:
    """What is visible of each query's candidates and of its gold answer.

    Args:
        tasks: of meta-test.
        problem: the training problem of the same facts.
        novel: queries of these tasks.
        settings: how many candidates; whether there are vectors, which are learned first.
        device: where to compute.
    """
    model = EvidenceModel(replace(settings, epochs=0), device=device)
    if settings.dimension:
        with torch.enable_grad():
            train(model, problem, seed=0)
    else:
        relations = len(tasks.facts.relations)
        model.build(len(tasks.facts.entities), relations, torch.Generator().manual_seed(0))
    reader = model.prepare(tasks.visible).adapt(tasks.supports).reader_
    true = true_answers(VisibleFacts.of(tasks.facts), novel.queries, "static").to(device)
    seen_since = _first_seen(tasks, device)
    parts: list[tuple[Tensor, ...]] = []
    pointed: list[dict[str, Tensor]] = []
    for begin in range(0, len(novel.queries), _AT_ONCE):
        rows = slice(begin, begin + _AT_ONCE)
        queries = novel.queries[rows]
        relation, time, answer, entity = (
            torch.from_numpy(np.ascontiguousarray(column)).to(device)
            for column in (queries.relation, queries.time, novel.answer[rows], queries.entity)
        )
        candidates = _padded(reader.read(queries, model.similar(queries), answer), answer)
        row, dropped = _other_true(true, rows, answer)
        table = torch.zeros(len(queries), reader.entities, dtype=torch.bool, device=device)
        table[row, dropped] = True
        mask = candidates.mask & ~table.gather(1, candidates.entity)
        mask[:, 0] = True
        reached = candidates.covered
        parts.append((relation, candidates.features, mask, reached))
        table[torch.arange(len(queries), device=device), entity] = True
        pointed.append(
            _pointed(
                _shares(reader.index, tasks.supports, entity, time),
                _seen_in_slot(reader.index, relation, time),
                table,
                answer,
                seen_since[answer] < time,
                reached,
            )
        )
    relation, features, mask, reached = (torch.cat(column) for column in zip(*parts, strict=True))
    return NovelEvidence(
        novel.queries.entity,
        novel.weight,
        relation,
        features,
        mask,
        reached,
        {kind: torch.cat([part[kind] for part in pointed]).cpu().numpy() for kind in POINTERS},
    )


class _Padded(NamedTuple):
    """C candidates of each of Q queries, the gold answer first."""

    entity: Tensor
    """(Q, C)."""
    features: Tensor
    """(Q, C, F)."""
    mask: Tensor
    """(Q, C) False for padding."""
    covered: Tensor
    """(Q,) whether the answer would be a candidate if one did not know it."""


def _padded(candidates: Candidates, answer: Tensor) -> _Padded:
    row, gold = candidates.query, candidates.entity == answer[candidates.query]
    order = torch.argsort((~gold).long(), stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    row = row[order]
    place = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    shape = (len(answer), int(place.max()) + 1)
    entity = torch.zeros(shape, dtype=torch.int64, device=row.device)
    mask = torch.zeros(shape, dtype=torch.bool, device=row.device)
    features = torch.zeros(*shape, candidates.features.shape[1], device=row.device)
    entity[row, place], mask[row, place] = candidates.entity[order], True
    features[row, place] = candidates.features[order]
    return _Padded(entity, features, mask, candidates.covered[gold])


def _shares(index: TemporalIndex, supports: Supports, entity: Tensor, time: Tensor) -> Tensor:
    """(4, Q, E) shares of walks of so many steps as ``_WALKS`` says, none of them stopped."""
    table = torch.zeros(len(_WALKS), len(entity), index.entities, device=index.device)
    for number, steps in enumerate(_WALKS):
        pagerank = PageRank(index.neighbours, supports, steps=steps, threshold=1e-12)
        walks = pagerank.walks(entity, time)
        table[number, walks.row, walks.entity] = walks.far
    return table


def _seen_in_slot(index: TemporalIndex, relation: Tensor, time: Tensor) -> Tensor:
    """(Q, E) who was seen in the relation slots of queries before their time."""
    rows = torch.arange(len(relation), device=index.device).repeat_interleave(index.entities)
    entity = torch.arange(index.entities, device=index.device).repeat(len(relation))
    count = index.slots.usage(entity, relation[rows], time[rows]).count
    return count.view(len(relation), -1) > 0


def _pointed(
    shares: Tensor,
    seen_in_slot: Tensor,
    dropped: Tensor,
    answer: Tensor,
    seen: Tensor,
    reached: Tensor,
) -> dict[str, Tensor]:
    """Whether each kind of evidence points at the answers.

    Args:
        shares: (4, Q, E) of walks of at most so many steps as ``_WALKS`` says.
        seen_in_slot: (Q, E) who was seen in this relation slot before.
        dropped: (Q, E) who is not counted: other true answers, and e.
        answer, seen, reached: (Q,).
    """

    def at(table: Tensor) -> Tensor:
        return table.gather(-1, answer.unsqueeze(1)).squeeze(1)

    def rank_by(scores: Tensor) -> Tensor:
        """(Q,) rank of the answer, infinite where its score is nothing."""
        own = at(scores).unsqueeze(1)
        others = scores.masked_fill(dropped, -1.0)
        better, equal = (others > own).sum(1), (others == own).sum(1)
        rank = 1 + better + (equal - 1).clamp(min=0) / 2
        return torch.where(own.squeeze(1) > 0, rank, torch.inf)

    near = [at(share) > 0 for share in shares]
    rank_in_slot, rank_of_all = rank_by(shares[-1] * seen_in_slot), rank_by(shares[-1])
    in_slot = at(seen_in_slot)
    return {
        "seen": seen | near[0],
        "place": in_slot,
        "path1": near[0],
        "path2": near[1],
        "path3": near[2],
        "path12": near[3],
        "path3_place": near[2] & in_slot,
        "first10": rank_in_slot <= 10,
        "first50": rank_in_slot <= 50,
        "first10_any": rank_of_all <= 10,
        "first50_any": rank_of_all <= 50,
        "candidate": reached,
    }


def _other_true(true: TrueAnswers, rows: slice, answer: Tensor) -> tuple[Tensor, Tensor]:
    """Query and entity of the true answers other than the gold answer."""
    row, position = expand_ranges(true.start[rows], true.stop[rows])
    entity = true.entity[position]
    other = entity != answer[row]
    return row[other], entity[other]


def _first_seen(tasks: Tasks, device: torch.device) -> Tensor:
    """(E,) first step at which each entity is in a public fact."""
    first = np.full(len(tasks.facts.entities), np.iinfo(np.int64).max)
    np.minimum.at(first, tasks.visible.target, tasks.visible.time)
    return torch.from_numpy(first).to(device)
