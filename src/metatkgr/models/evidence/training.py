"""Learning how far to trust each kind of evidence, from questions whose answers are known.

Two sources: queries of meta-train tasks; and the supports of *all* new entities, the newest too,
each fact to be foretold from the entity's earlier ones. The newest supports are what a model can
know of the present: relations that hardly existed when meta-train entities appeared occur in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.facts import IntArray
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.novelty import novel_answers
from metatkgr.graph.ragged import expand_ranges
from metatkgr.models.evidence.combination import combine, learned, penalty
from metatkgr.models.evidence.reader import Reader
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.trainable import WHOLE, Loss, Part

__all__ = ["CombinationPhase", "transfer_shares"]

_AT_ONCE = 256
_SHRINK = 5.0
"""So many links without the other relation are added to each count."""

Similar = Callable[[Queries], Tensor | None]
"""(Q, E) log-softmax of the translation scores, if there are any."""


def transfer_shares(known: VisibleFacts) -> Tensor:
    """(2R, 2R) of the pairs linked by one relation, the share also linked by another.

    Shrunk towards zero, for relations with few links.
    """
    entities, relations = len(known.entities), 2 * len(known.relations)
    pair = known.source * entities + known.target
    triples = np.unique(np.stack([pair, known.relation], axis=1), axis=0)
    column, relation = torch.from_numpy(triples.T.copy()).unbind(0)
    low = torch.searchsorted(column, column)
    high = torch.searchsorted(column, column, right=True)
    row, position = expand_ranges(low, high)
    both = torch.bincount(relation[row] * relations + relation[position], minlength=relations**2)
    both = both.view(relations, relations).float()
    return both / (both.diagonal().unsqueeze(1) + _SHRINK)


class Lesson(NamedTuple):
    """Questions with answers, and what was visible when they were asked."""

    visible: VisibleFacts
    supports: Supports
    queries: Queries
    answer: IntArray
    weight: float


class Examples(NamedTuple):
    """Questions as numbers; the answer is the first candidate."""

    features: Tensor
    """(N, C, F)."""
    mask: Tensor
    """(N, C) bool."""
    relation: Tensor
    """(N,)."""
    weight: Tensor
    """(N,)."""


def lessons(problem: Problem, settings: EvidenceSettings, seed: int = 0) -> list[Lesson]:
    """All questions to learn from."""
    found = [_of_queries(problem.train, settings.train_queries, seed)]
    if settings.earlier_queries:
        found.append(_of_queries(problem.earlier, settings.earlier_queries, seed))
    if settings.support_share:
        for supports in (problem.train.supports, problem.validation.supports, problem.newest):
            found += _of_supports(problem.few_shot, supports, settings.support_share)
    return [lesson for lesson in found if len(lesson.queries)]


def _of_queries(tasks: Tasks, size: int, seed: int) -> Lesson:
    """Some queries, half of them novel as far as there are any."""
    generator = np.random.default_rng(seed)
    novel = novel_answers(tasks) if len(tasks.answers) else np.zeros(0, bool)
    kinds = (np.flatnonzero(novel), np.flatnonzero(~novel))
    picked = np.sort(np.concatenate([generator.permutation(kind)[: size // 2] for kind in kinds]))
    question = tasks.answers.question[picked]
    return Lesson(
        tasks.visible, tasks.supports, tasks.questions[question], tasks.answers.answer[picked], 1.0
    )


def _of_supports(visible: VisibleFacts, supports: Supports, weight: float) -> list[Lesson]:
    """Each support fact but an entity's first, by its place in the support."""
    first = np.searchsorted(supports.entity, supports.entity)
    place = np.arange(len(supports)) - first
    found = []
    for number in range(1, int(place.max(initial=0)) + 1):
        asked, before = place == number, place < number
        found.append(
            Lesson(
                visible,
                Supports(*(column[before] for column in _columns(supports))),
                Queries(supports.entity[asked], supports.relation[asked], supports.time[asked]),
                supports.other[asked],
                weight,
            )
        )
    return found


def _columns(supports: Supports) -> tuple[IntArray, ...]:
    return supports.entity, supports.relation, supports.other, supports.time


class CombinationPhase:
    """Learns the weights of evidence by the cross-entropy of the answer among its candidates.

    Args:
        weights: of the model.
        problem: what may be learned from.
        settings: how.
        device: where.
        similar: translation scores, with vectors that have seen one fact of each support only.
    """

    name = "combination"

    def __init__(
        self,
        weights: dict[str, nn.Parameter],
        problem: Problem,
        settings: EvidenceSettings,
        device: torch.device,
        similar: Similar,
    ) -> None:
        self.weights, self.problem, self.settings = weights, problem, settings
        self.device, self.similar = device, similar
        self.epochs, self.learning_rate = settings.epochs, settings.learning_rate
        self.patience, self.validate_every = settings.patience, settings.validate_every
        self._examples: Examples | None = None

    def parameters(self) -> list[nn.Parameter]:
        """The weights that questions teach."""
        return [self.weights[name] for name in learned(self.weights)]

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B,) rows of the examples, in random order."""
        if self._examples is None:
            self._examples = self._read()
        order = torch.randperm(len(self._examples.relation), generator=generator)
        yield from torch.split(order.to(self.device), self.settings.batch_size)

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy of the answer among the candidates that count."""
        assert self._examples is not None
        rows = batch[part.of(len(batch))]
        features, mask, relation, weight = (column[rows] for column in self._examples)
        scores = combine(self.weights, features, relation)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min / 2)
        each = functional.cross_entropy(scores, torch.zeros_like(relation), reduction="none")
        value = (each * weight).sum() / weight.sum().clamp(min=1e-6)
        return Loss(value + penalty(self.weights, self.settings), {}, part.share(len(batch)))

    @torch.no_grad()
    def _read(self) -> Examples:
        """Read the evidence of all questions once; sets the means and deviations of features."""
        parts = []
        for lesson in lessons(self.problem, self.settings):
            reader = Reader(
                lesson.visible,
                lesson.supports,
                self.weights["evidence.transfer"],
                self.settings,
                self.device,
            )
            for begin in range(0, len(lesson.queries), _AT_ONCE):
                rows = slice(begin, begin + _AT_ONCE)
                queries = lesson.queries[rows]
                answer = torch.from_numpy(lesson.answer[rows]).to(self.device)
                found = reader.read(queries, self.similar(queries), answer)
                relation = torch.from_numpy(queries.relation).to(self.device)
                weight = torch.full(relation.shape, lesson.weight, device=self.device)
                parts.append(Examples(found.features, found.mask, relation, weight))
        examples = Examples(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
        counted = examples.features[examples.mask]
        self.weights["evidence.mean"].copy_(counted.mean(0))
        self.weights["evidence.deviation"].copy_(counted.std(0).clamp(min=0.05))
        return examples
