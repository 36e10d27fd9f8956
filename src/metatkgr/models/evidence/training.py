"""Learning the weights of the ranker, from queries whose answers are known.

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

from metatkgr.data.answers import TrueAnswers, first_linked, novel_answers, true_answers
from metatkgr.data.facts import IntArray
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import DataError
from metatkgr.graph.nearby import NearbyIndex
from metatkgr.graph.ragged import expand_ranges, found, pack
from metatkgr.models.base import WHOLE, Loss, Part, ShareOut
from metatkgr.models.evidence.pretrained import NONE
from metatkgr.models.evidence.ranker import Ranker
from metatkgr.models.evidence.reader import Candidates, Reader, reading_batches, translated
from metatkgr.models.evidence.settings import EvidenceSettings

__all__ = [
    "ExampleReader",
    "ExampleSet",
    "Examples",
    "RankerPhase",
    "answer_loss",
    "example_sets",
]

_OF_ONE_LINK = 3
"""Queries about one link, at most."""


class ExampleSet(NamedTuple):
    """Queries with answers, and what is visible to them."""

    visible: VisibleFacts
    supports: Supports
    queries: Queries
    answer: IntArray
    weight: float


class Examples(NamedTuple):
    """n queries with the features of their candidates, of N in all."""

    features: Tensor
    """(N, F)."""
    start: Tensor
    """(n + 1,) where the candidates of each query begin."""
    answer: Tensor
    """(n,) which candidate is the gold answer, counted from the query's first."""
    relation: Tensor
    """(n,)."""
    weight: Tensor
    """(n,)."""

    def some(self, rows: Tensor) -> Examples:
        """Some queries."""
        low, high = self.start[rows], self.start[rows + 1]
        _, position = expand_ranges(low, high)
        start = torch.cat([low.new_zeros(1), (high - low).cumsum(0)])
        columns = (column[rows] for column in (self.answer, self.relation, self.weight))
        return Examples(self.features[position], start, *columns)

    def to(self, device: torch.device) -> Examples:
        """The same on a device."""
        return Examples(*(column.to(device) for column in self))

    @classmethod
    def cat(cls, parts: list[Examples]) -> Examples:
        """Several as one."""
        size = torch.cat([part.start.diff() for part in parts])
        start = torch.cat([size.new_zeros(1), size.cumsum(0)])
        columns = zip(*((p.features, p.answer, p.relation, p.weight) for p in parts), strict=True)
        features, answer, relation, weight = (torch.cat(column) for column in columns)
        return cls(features, start, answer, relation, weight)


def example_sets(problem: Problem, settings: EvidenceSettings, seed: int) -> list[ExampleSet]:
    """All training examples, before their features are read."""
    generator = np.random.default_rng(seed)
    if problem.filter == "time":  # as they come: how often old answers return is to be learned
        return [_as_they_come(problem.train, settings.train_queries, generator)]
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
        (problem.known, problem.validation_supports),
        (problem.known, problem.newest),
    ]


def _of_queries(
    tasks: Tasks, size: int, settings: EvidenceSettings, generator: np.random.Generator
) -> ExampleSet:
    """Some queries: novel ones, or half of them where repeats have to be ranked too."""
    novel = novel_answers(tasks)
    kinds = [np.flatnonzero(novel)]
    if not settings.repeats_first:
        kinds.append(np.flatnonzero(~novel))
    drawn = [generator.permutation(kind) for kind in kinds]
    few = [_few_of_each(rows, tasks, size // len(kinds)) for rows in drawn]
    picked = np.sort(np.concatenate(few))
    queries = tasks.questions[tasks.answers.question[picked]]
    supports = _own(tasks.supports, queries)
    return ExampleSet(tasks.visible, supports, queries, tasks.answers.answer[picked], 1.0)


def _as_they_come(tasks: Tasks, size: int, generator: np.random.Generator) -> ExampleSet:
    """Some queries, each as likely as any other."""
    picked = np.sort(generator.permutation(len(tasks.answers))[:size])
    queries = tasks.questions[tasks.answers.question[picked]]
    return ExampleSet(tasks.visible, tasks.supports, queries, tasks.answers.answer[picked], 1.0)


def _few_of_each(rows: IntArray, tasks: Tasks, most: int) -> IntArray:
    """The first rows without the fourth and later ones of a link: years of one job teach one thing.

    Args:
        rows: of the answers of tasks, in the order in which they were drawn.
        tasks: whose they are.
        most: so many of them.
    """
    entities, looked_at, kept = len(tasks.facts.entities), 0, rows[:0]
    while len(kept) < most and looked_at < len(rows):
        # Whether a row is kept depends on those before it alone.
        looked_at = max(2 * looked_at, 2 * most)
        some = rows[:looked_at]
        queries, answer = tasks.questions[tasks.answers.question[some]], tasks.answers.answer[some]
        link = (queries.relation * entities + queries.entity) * entities + answer
        order = np.argsort(link, kind="stable")
        ordered, few = link[order], np.zeros(len(some), bool)
        few[order] = np.arange(len(some)) - np.searchsorted(ordered, ordered) < _OF_ONE_LINK
        kept = some[few]
    return kept[:most]


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
        before = supports[ordinal < number]
        rows = np.flatnonzero(ordinal == number)
        queries = Queries(supports.entity[rows], supports.relation[rows], supports.time[rows])
        answer = supports.other[rows]
        if settings.repeats_first:
            rows = np.flatnonzero(first_linked(visible, before, queries, answer) >= queries.time)
        else:
            rows = np.arange(len(rows))
        rows = np.sort(generator.permutation(rows)[: settings.support_queries])
        queries, answer = queries[rows], answer[rows]
        own = _own(before, queries)
        sets.append(ExampleSet(visible, own, queries, answer, settings.support_share))
    return sets


def _own(supports: Supports, queries: Queries) -> Supports:
    """The supports of query entities: nobody else's are read, and there are many."""
    return supports[np.isin(supports.entity, queries.entity)]


def answer_loss(ranker: Ranker, examples: Examples) -> Tensor:
    r"""Cross-entropy of the answer among the candidates that count, a weighted mean over queries.

    .. math:: \frac{1}{\sum_i \omega_i} \sum_i \omega_i \sum_m
        \Bigl( \log \sum_{x} e^{s_m(x)} - s_m(a_i) \Bigr)

    Summed over the members m: each learns as if it were alone.
    """
    size = examples.start.diff()
    row = torch.repeat_interleave(torch.arange(len(size), device=size.device), size)
    place = torch.arange(len(row), device=size.device) - examples.start[row]
    counted = ranker.member_logits(examples.features, examples.relation[row])
    shape = (len(counted), len(size), int(size.max()))
    logits = counted.new_full(shape, torch.finfo(counted.dtype).min / 2)
    logits[:, row, place] = counted
    answer = examples.answer.expand(len(counted), -1).unsqueeze(2)
    each = -torch.log_softmax(logits, 2).gather(2, answer).squeeze(2).sum(0)
    return (each * examples.weight).sum() / examples.weight.sum().clamp(min=1e-6)


class RankerPhase:
    """Learns the ranker by the cross-entropy of the answer among its candidates.

    Args:
        ranker: of the model.
        problem: what may be learned from.
        settings: how.
        device: where.
        vectors: that have seen one fact of each support only; None: there are none.
        share_out: reads the examples, here or on other machines.
    """

    name = "combination"

    def __init__(
        self,
        ranker: Ranker,
        problem: Problem,
        settings: EvidenceSettings,
        device: torch.device,
        vectors: Callable[[], tuple[Tensor, Tensor] | None],
        share_out: ShareOut = map,
    ) -> None:
        self.ranker, self.problem, self.settings = ranker, problem, settings
        self.device, self.vectors, self.share_out = device, vectors, share_out
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
            # Its first seed, not a number drawn from it: a training that goes on has drawn already.
            self._examples = self._read(generator.initial_seed())
        order = torch.randperm(len(self._examples.relation), generator=generator)
        yield from torch.split(order.to(self.device), self.settings.batch_size)

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy of the answer among the candidates that count."""
        assert self._examples is not None
        rows = batch[part.of(len(batch))]
        value = answer_loss(self.ranker, self._examples.some(rows))
        return Loss(value + self.ranker.penalty(self.settings), {}, part.share(len(batch)))

    def _read(self, seed: int) -> Examples:
        """Draw examples and read their features once; sets their means and deviations."""
        sets = example_sets(self.problem, self.settings, seed)
        known, vectors = self.problem.known, self.vectors()
        timed = self.problem.filter == "time"
        read = ExampleReader(sets, known, self.settings, self.device, vectors, timed)
        parts = [part.to(self.device) for part in self.share_out(read, read.pieces())]
        del read, sets  # and what was read of the graph: weights are learned without it
        if not parts:
            raise DataError("there is no query to learn from: no entity has more facts than one")
        found = Examples.cat(parts)
        if self.settings.start == NONE:  # else the weights go with the scale they were learned on
            self.ranker.set_scale(found.features.mean(0), found.features.std(0))
        return found


def _true_answers(sets: list[ExampleSet], known: VisibleFacts, name: str) -> list[TrueAnswers]:
    """What is known to be true, for the queries of each set."""
    some = [(e.queries.entity, e.queries.relation, e.queries.time) for e in sets]
    if not some:
        return []
    columns = [np.concatenate(column) for column in zip(*some, strict=True)]
    true, found_, end = true_answers(known, Queries(*columns), name), [], 0
    for examples in sets:
        begin, end = end, end + len(examples.queries)
        found_.append(true[begin:end])
    return found_


class ExampleReader:
    """Reads the features of some examples at a time; can travel to other machines.

    Args:
        sets: the examples.
        known: facts that are known to be true at some time.
        settings: how.
        device: to read on.
        vectors: of the entities and of the relations; None: there are none.
        timed: whether only those are left out that are true at the query's time.
    """

    def __init__(
        self,
        sets: list[ExampleSet],
        known: VisibleFacts,
        settings: EvidenceSettings,
        device: torch.device,
        vectors: tuple[Tensor, Tensor] | None = None,
        timed: bool = False,
    ) -> None:
        self.sets, self.settings = sets, settings
        self.device, self.vectors = device, vectors
        self._entities = len(known.entities)
        self._true = _true_answers(sets, known, "time" if timed else "static")
        self._reader: tuple[int, Reader] | None = None

    def pieces(self) -> list[tuple[int, slice]]:
        """Which set, and which rows of it."""
        return [
            (number, rows)
            for number, examples in enumerate(self.sets)
            for rows in reading_batches(len(examples.queries), self.device)
        ]

    @torch.no_grad()
    def __call__(self, piece: tuple[int, slice]) -> Examples:
        """The examples of one piece."""
        number, rows = piece
        examples, reader = self.sets[number], self._reader_of(number)
        queries = examples.queries[rows]
        answer = torch.from_numpy(examples.answer[rows]).to(self.device)
        candidates = reader.read(queries, translated(self.vectors, queries), answer)
        true = self._true[number][rows].to(self.device)
        return self._examples_of(queries, answer, candidates, true, examples.weight)

    def _reader_of(self, number: int) -> Reader:
        """Of a set; kept while pieces of the same one come."""
        if self._reader is None or self._reader[0] != number:
            examples = self.sets[number]
            if self._reader and self.sets[self._reader[0]].visible is not examples.visible:
                self._reader = None  # of a large graph two indices at once are too many
            index = NearbyIndex.or_whole(examples.visible, device=self.device)
            self._reader = number, Reader(index, examples.supports, self.settings)
        return self._reader[1]

    def _examples_of(
        self,
        queries: Queries,
        answer: Tensor,
        candidates: Candidates,
        true: TrueAnswers,
        weight: float,
    ) -> Examples:
        """Queries that teach: without weight, and other true answers, left out."""
        relation = torch.from_numpy(queries.relation).to(self.device)
        row = candidates.query
        gold = candidates.entity == answer[row]
        missed = gold & ~candidates.covered
        weights = torch.full(relation.shape, weight, device=self.device)
        weights[row[missed]] *= self.settings.missed_share
        # Other answers that are known to be true are not to be ranked below.
        query, position = expand_ranges(true.start, true.stop)
        sizes = len(relation), self._entities
        place, listed = found(
            pack((row, sizes[0]), (candidates.entity, sizes[1])),
            pack((query, sizes[0]), (true.entity[position], sizes[1])),
        )
        also_true = torch.zeros_like(gold)
        also_true[place[listed]] = True
        kept = (gold | ~also_true) & (weights > 0)[row]
        row, gold = row[kept], gold[kept]
        taught, size = torch.unique_consecutive(row, return_counts=True)
        start = torch.cat([size.new_zeros(1), size.cumsum(0)])
        place = torch.nonzero(gold).squeeze(1) - start[:-1]
        features = candidates.features[kept]
        return Examples(features, start, place, relation[taught], weights[taught])
