"""Learning the weights of the ranker, from queries whose answers are known.

Two sources: queries of meta-train tasks; and the supports of *all* new entities, the newest too,
each fact to be foretold from the entity's earlier ones. The newest supports are what a model can
know of the present: relations that hardly existed when meta-train entities appeared occur in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from metatkgr.data.facts import IntArray
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.history import History, novel_answers
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.ragged import expand_ranges
from metatkgr.models.evidence.ranker import Ranker
from metatkgr.models.evidence.reader import Candidates, PublicFacts, Reader
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.trainable import WHOLE, Loss, Part

__all__ = [
    "ExampleSet",
    "Examples",
    "RankerPhase",
    "answer_loss",
    "example_sets",
    "relation_co_occurrence",
]

_AT_ONCE = 256
_OF_ONE_LINK = 3
"""Queries about one link, at most."""
_SHRINK = 5.0
"""So many links without the other relation are added to each count."""

Similar = Callable[[Queries], Tensor | None]
"""(Q, E) log-softmax of the translation scores, if there are any."""


def relation_co_occurrence(known: VisibleFacts) -> Tensor:
    """(2R, 2R) of the pairs linked by one relation, the share also linked by another.

    Shrunk towards zero, for relations with few links.
    """
    entities, relations = len(known.entities), 2 * len(known.relations)
    source, relation, target = TemporalIndex.of(known).pairs.distinct()
    pair, order = torch.sort(source * entities + target)
    relation = relation[order]
    low = torch.searchsorted(pair, pair)
    high = torch.searchsorted(pair, pair, right=True)
    row, position = expand_ranges(low, high)
    both = torch.bincount(relation[row] * relations + relation[position], minlength=relations**2)
    both = both.view(relations, relations).float()
    return both / (both.diagonal().unsqueeze(1) + _SHRINK)


class ExampleSet(NamedTuple):
    """Queries with answers, and what is visible to them."""

    visible: VisibleFacts
    supports: Supports
    queries: Queries
    answer: IntArray
    weight: float


class Examples(NamedTuple):
    """Queries with the features of their candidates; the answer is the first candidate."""

    features: Tensor
    """(N, C, F)."""
    mask: Tensor
    """(N, C) bool."""
    relation: Tensor
    """(N,)."""
    weight: Tensor
    """(N,)."""


def example_sets(problem: Problem, settings: EvidenceSettings, seed: int = 0) -> list[ExampleSet]:
    """All training examples, before their features are read."""
    generator = np.random.default_rng(seed)
    sets = [_of_queries(problem.train, settings.train_queries, settings, generator)]
    if settings.earlier_queries:
        size = settings.earlier_queries
        sets.append(_of_queries(problem.earlier, size, settings, generator))
    if settings.support_share:
        for visible, supports in _all_supports(problem):
            sets += _of_supports(visible, supports, settings, generator)
    return [examples for examples in sets if len(examples.queries)]


def _all_supports(problem: Problem) -> list[tuple[VisibleFacts, Supports]]:
    """The supports of each split, and the public facts for queries about them.

    As in meta-test, the facts of entities that were new before are public by then.
    """
    return [
        (problem.few_shot, problem.train.supports),
        (problem.known, problem.validation.supports),
        (problem.known, problem.newest),
    ]


def _of_queries(
    tasks: Tasks, size: int, settings: EvidenceSettings, generator: np.random.Generator
) -> ExampleSet:
    """Some queries: novel ones, or half of them where repeats have to be ranked too."""
    novel = novel_answers(tasks) if len(tasks.answers) else np.zeros(0, bool)
    kinds = [np.flatnonzero(novel)]
    if not settings.repeats_first:
        kinds.append(np.flatnonzero(~novel))
    queries = tasks.questions[tasks.answers.question]
    entities, answer = len(tasks.facts.entities), tasks.answers.answer
    link = (queries.relation * entities + queries.entity) * entities + answer
    few = [_few_of_each(generator.permutation(kind), link) for kind in kinds]
    picked = np.sort(np.concatenate([rows[: size // len(kinds)] for rows in few]))
    return ExampleSet(tasks.visible, tasks.supports, queries[picked], answer[picked], 1.0)


def _few_of_each(rows: IntArray, link: IntArray) -> IntArray:
    """The rows without the fourth and later ones of a link: years of one job teach one thing."""
    order = np.argsort(link[rows], kind="stable")
    ordered = link[rows][order]
    kept = np.zeros(len(rows), bool)
    kept[order] = np.arange(len(rows)) - np.searchsorted(ordered, ordered) < _OF_ONE_LINK
    return rows[kept]


def _of_supports(
    visible: VisibleFacts,
    supports: Supports,
    settings: EvidenceSettings,
    generator: np.random.Generator,
) -> list[ExampleSet]:
    """Each support fact but an entity's first, by its ordinal in the support."""
    first = np.searchsorted(supports.entity, supports.entity)
    ordinal = np.arange(len(supports)) - first
    sets = []
    for number in range(1, int(ordinal.max(initial=0)) + 1):
        before = Supports(*(column[ordinal < number] for column in _columns(supports)))
        rows = np.flatnonzero(ordinal == number)
        queries = Queries(supports.entity[rows], supports.relation[rows], supports.time[rows])
        answer = supports.other[rows]
        if settings.repeats_first:
            novel = ~_linked(History(TemporalIndex.of(visible), before), queries, answer)
            rows = np.flatnonzero(novel)
        else:
            rows = np.arange(len(rows))
        rows = np.sort(generator.permutation(rows)[: settings.support_queries])
        sets.append(
            ExampleSet(visible, before, queries[rows], answer[rows], settings.support_share)
        )
    return sets


def _linked(history: History, queries: Queries, answer: IntArray) -> npt.NDArray[np.bool_]:
    """(Q,) whether e was visibly linked to the answer by r before."""
    links = history.last_links(queries)
    known = (links.query * history.entities + links.candidate).numpy()
    return np.isin(np.arange(len(answer)) * history.entities + answer, known)


def _columns(supports: Supports) -> tuple[IntArray, ...]:
    return supports.entity, supports.relation, supports.other, supports.time


def answer_loss(ranker: Ranker, examples: Examples) -> Tensor:
    r"""Cross-entropy of the answer among the candidates that count, a weighted mean over queries.

    .. math:: \frac{1}{\sum_i \omega_i} \sum_i \omega_i \sum_m
        \Bigl( \log \sum_{x} e^{s_m(x)} - s_m(a_i) \Bigr)

    Summed over the members m: each learns as if it were alone. Candidates that do not count, and
    queries without weight, are not computed: of real examples that is half of all rows.
    """
    weighty = torch.nonzero(examples.weight > 0).squeeze(1)
    features, mask, relation, weight = (column[weighty] for column in examples)
    query, candidate = torch.nonzero(mask, as_tuple=True)
    rows = features[query, candidate].unsqueeze(1)
    counted = ranker.member_logits(rows, relation[query]).squeeze(2)
    logits = counted.new_full((len(counted), *mask.shape), torch.finfo(counted.dtype).min / 2)
    logits[:, query, candidate] = counted
    each = -torch.log_softmax(logits, 2)[..., 0].sum(0)
    return (each * weight).sum() / weight.sum().clamp(min=1e-6)


class RankerPhase:
    """Learns the ranker by the cross-entropy of the answer among its candidates.

    Args:
        ranker: of the model.
        problem: what may be learned from.
        settings: how.
        device: where.
        similar: translation scores, with vectors that have seen one fact of each support only.
    """

    name = "combination"

    def __init__(
        self,
        ranker: Ranker,
        problem: Problem,
        settings: EvidenceSettings,
        device: torch.device,
        similar: Similar,
    ) -> None:
        self.ranker, self.problem, self.settings = ranker, problem, settings
        self.device, self.similar = device, similar
        self.epochs, self.learning_rate = settings.epochs, settings.learning_rate
        self.patience, self.validate_every = settings.patience, settings.validate_every
        self._examples: Examples | None = None

    def parameters(self) -> list[nn.Parameter]:
        """The weights that examples teach."""
        names = ("shared", "relation", "inner", "bias", "outer")
        known = dict(self.ranker.named_parameters())
        return [known[name] for name in names if name in known]

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
        value = answer_loss(self.ranker, Examples(*(column[rows] for column in self._examples)))
        return Loss(value + self.ranker.penalty(self.settings), {}, part.share(len(batch)))

    @torch.no_grad()
    def _read(self) -> Examples:
        """Read the features of all examples once; sets their means and deviations."""
        parts = []
        self._known = TemporalIndex.of(self.problem.known, device=self.device).pairs
        indexed: VisibleFacts | None = None
        public: PublicFacts | None = None
        for examples in example_sets(self.problem, self.settings):
            if public is None or examples.visible is not indexed:
                public = None  # before the next one is made: one index at a time
                indexed, public = examples.visible, PublicFacts(examples.visible, self.device)
            parts += self._read_set(public, examples)
        read = Examples(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
        counted = read.features[read.mask]
        self.ranker.mean.copy_(counted.mean(0))
        self.ranker.deviation.copy_(counted.std(0).clamp(min=0.05))
        return read

    def _read_set(self, public: PublicFacts, examples: ExampleSet) -> list[Examples]:
        reader = Reader(public, examples.supports, self.ranker.transfer, self.settings)
        parts = []
        for rows in reader.batches(examples.queries, _AT_ONCE):
            queries = examples.queries[rows]
            answer = torch.from_numpy(examples.answer[rows]).to(self.device)
            candidates = reader.read(queries, self.similar(queries), answer)
            relation = torch.from_numpy(queries.relation).to(self.device)
            weight = torch.full(relation.shape, examples.weight, device=self.device)
            covered = (candidates.entity[:, 1:] == answer.unsqueeze(1)).any(1)
            weight = torch.where(covered, weight, weight * self.settings.missed_share)
            mask = candidates.mask & ~self._true_already(queries, candidates)
            mask[:, 0] = True
            parts.append(Examples(candidates.features, mask, relation, weight))
        return parts

    def _true_already(self, queries: Queries, candidates: Candidates) -> Tensor:
        """(Q, C) other answers that are known to be true at some time: not to be ranked below."""
        entity, relation = (
            torch.from_numpy(column).to(self.device).unsqueeze(1)
            for column in (queries.entity, queries.relation)
        )
        slot = entity * self._known.relations + relation
        return self._known.exist(slot.expand_as(candidates.entity), candidates.entity)
