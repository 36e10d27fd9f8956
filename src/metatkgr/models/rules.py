r"""Three rules that need no training, and that a trained model has to beat; and the oracle.

The rules rank the candidates x of a query (e, r, ?, t) lexicographically, by visible facts only:

1. the last step at which e and x were linked by r in this direction;
2. the last step at which they were linked at all;
3. ``paths``: the number of walks  e -r-> y <-r- z -r-> x  over the distinct visible links of r,
   which is row e of :math:`M M^\top M` for the binary link matrix M of r;
   ``pagerank``: x's share of personalised PageRank from e, if x ever filled this slot of r, and a
   hundredth of the share that is not known, divided among the fillers of the slot by their facts;
   ``recurrency``: nothing;
4. how many facts before t had x in this slot of r.

What never happened counts below everything that did. The oracle scores by the law that generated
the facts, an upper bound on a simulated world.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.data.world.law import Law
from metatkgr.errors import DataError
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.pagerank import THRESHOLD, PageRank, Walks
from metatkgr.graph.pairs import PairSteps
from metatkgr.models.base import Explains, Explanation, Model
from metatkgr.models.common.explanations import supporting
from metatkgr.models.common.leave_one_out import Deletions, by_weight
from metatkgr.models.common.listed import ListedScores
from metatkgr.models.registry import register
from metatkgr.settings import NoSettings, Range, Sample, Settings

__all__ = ["Oracle", "PageRankRule", "PageRankSettings", "Paths", "Recurrency"]

_REACHED = 512
"""Candidates by PageRank, the nearest; so many that filled the slot or not."""
_UNKNOWN = 0.01
"""What part of the unknown share is given to who filled the slot; chosen on meta-validation."""
_LEAST = 1e-15
"""What a fact counts at least, so that frequency decides between those that no walk reaches."""
_MOST_NEAR = 0.9
"""Walks alone never outweigh a contact."""
_NEVER, _MISPLACED = -1_000.0, -2_000.0
"""What the oracle gives to those of the right kind that cannot be the answer, and to all others."""

SettingsT = TypeVar("SettingsT")


class _Rule(Model[SettingsT], Explains):
    """What all rules read: the public facts, and the supports beside them."""

    live = True

    def prepare(self, visible: VisibleFacts) -> Self:
        """Take the public facts; they are indexed when they are first read."""
        self.index_ = TemporalIndex.of(visible, device=self.device)
        return self

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports beside the public facts."""
        self.history_ = History(self.index_, supports)
        return self


@register
class Recurrency(_Rule[NoSettings]):
    """What happened before happens again: recency of the same link, of any link, then frequency."""

    name = "recurrency"
    _walks = False
    """Whether walks are part of the order."""

    def score(self, queries: Queries) -> ListedScores:
        """Whole numbers, exact; comparable within a query."""
        history = self.history_
        contacts = history.last_contacts(queries)
        digits = self._digits(queries, contacts)
        parts = [
            _Part(part.query, part.candidate, (part.step + 1) << shift[part.query])
            for part, shift in (
                (contacts, digits.contact),
                (history.last_links(queries), digits.link),
            )
        ]
        parts += self._walk_part(queries, digits)
        one = torch.ones_like(digits.link)
        return _listed(history, queries, parts, torch.zeros_like(one), one)

    def _walk_part(self, queries: Queries, digits: _Digits) -> list[_Part]:
        """The part between contact and frequency; this rule has none."""
        return []

    def reasons(self, queries: Queries, candidate: Tensor) -> list[list[Explanation]]:
        """The parts of the order that a candidate has, by how far it falls without them."""
        found = supporting(self.history_, queries, candidate, walks=self._walks)
        deletions, first = Deletions.of(self.history_, queries, candidate, found)
        asked = deletions.queries
        digits = self._digits(asked, self.history_.last_contacts(asked))
        score = deletions.usage().count
        score = score + (deletions.last_steps(same=False) + 1 << digits.contact)
        score = score + (deletions.last_steps(same=True) + 1 << digits.link)
        if self._walks:
            walks = deletions.walks()
            ends = walks.entity == deletions.answer[walks.query]
            row = walks.query[ends]
            score = score.index_add(0, row, digits.walks(row, walks.count[ends]))
        return by_weight(found, _log_chances(self.score(queries), deletions, score, first), first)

    def _digits(self, queries: Queries, contacts: PairSteps) -> _Digits:
        """Where the parts of each query's scores go.

        The widths depend on what is visible to the query only: were they taken from the whole
        graph, the future would show in the scores, though not in their order.
        """
        time = torch.from_numpy(queries.time).to(self.device)
        latest = time.scatter_reduce(0, contacts.query, contacts.step, "amax")
        time_bits = _bit_length(latest + 1)
        frequency_bits = _bit_length(self.history_.facts_before(queries))
        digits = _Digits(frequency_bits, 62 - 2 * time_bits, 62 - time_bits)
        if bool((digits.frequency >= digits.contact).any()):
            raise OverflowError(
                f"{self.history_.steps:,} steps leave too little room in a 64-bit score for counts "
                f"of up to {int(self.history_.facts_before(queries).max()):,} facts; use a coarser "
                "time unit"
            )
        return digits


@dataclass(frozen=True, eq=False)
class _Digits:
    """A score is one integer whose digits are the parts of the order: no part is rounded away.

    From the right: the frequency, the walks (of ``paths``), the last contact, the last link.
    """

    frequency: Tensor
    """(Q,) bits of the frequency; where the walks begin."""
    contact: Tensor
    """(Q,) where the last contact begins."""
    link: Tensor
    """(Q,) where the last link begins."""

    def walks(self, query: Tensor, count: Tensor) -> Tensor:
        """(L,) what walks of queries score; those beyond the room count as equal."""
        shift = self.frequency[query]
        room = (1 << (self.contact[query] - shift)) - 1
        return torch.minimum(count, room) << shift


def _bit_length(number: Tensor) -> Tensor:
    """Bits that a whole number from 0 to 2⁵³ needs."""
    return torch.frexp(number.double()).exponent.long()


@register
class Paths(Recurrency):
    """Recurrency, with shared-neighbour walks before frequency: who is near what e has done."""

    name = "paths"
    _walks = True

    def _walk_part(self, queries: Queries, digits: _Digits) -> list[_Part]:
        """Walk counts."""
        walks = self.history_.walks(queries)
        return [_Part(walks.query, walks.entity, digits.walks(walks.query, walks.count))]


@dataclass(frozen=True)
class PageRankSettings(Settings):
    """Settings of the rule."""

    restart: Annotated[float, Range(above=0, below=1)] = 0.15
    """Probability that the walk starts again at each step."""
    steps: Sample = 12
    """Steps of the walk."""
    threshold: Annotated[float, Range(above=0, below=1)] = THRESHOLD
    """Walkers stop where they would reach each neighbour with a smaller share than this."""


@register
class PageRankRule(_Rule[PageRankSettings]):
    """Recurrency, with personalised PageRank before frequency."""

    name = "pagerank"
    settings_type = PageRankSettings

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports beside the public facts; walks see both."""
        super().adapt(supports)
        settings = self.settings
        self.pagerank_ = PageRank(
            self.index_.neighbours,
            supports,
            restart=settings.restart,
            steps=settings.steps,
            threshold=settings.threshold,
        )
        return self

    def score(self, queries: Queries) -> ListedScores:
        """Whole numbers for the past, the fraction for the walk, in float64."""
        history = self.history_
        entity, relation, time = history.columns(queries)
        reached = self.pagerank_.reached(entity, time, _REACHED)
        unknown = self._unknown(queries, reached)
        usage = self.index_.slots.usage(reached.entity, relation[reached.row], time[reached.row])
        filled = usage.count > 0
        row = reached.row[filled]
        near = reached.far[filled].double().clamp(max=_MOST_NEAR)
        contacts, links = history.last_contacts(queries), history.last_links(queries)
        weight = self._latest(queries, contacts)[links.query] * (links.step + 1)
        parts = [
            _Part(row, reached.entity[filled], near),
            _Part(contacts.query, contacts.candidate, (contacts.step + 1).double()),
            _Part(links.query, links.candidate, weight.double()),
        ]
        return _listed(history, queries, parts, torch.zeros_like(unknown), unknown)

    def _unknown(self, queries: Queries, reached: Walks) -> Tensor:
        """(Q,) what one fact in the slot scores, of the share that is not known."""
        facts = self.history_.facts_before(queries).clamp(min=1)
        return (_UNKNOWN * reached.lost.double() / facts).clamp(min=_LEAST)

    def _latest(self, queries: Queries, contacts: PairSteps) -> Tensor:
        """(Q,) what a step of a last link scores: it outweighs any last contact.

        Both count from what a query can see.
        """
        _, _, time = self.history_.columns(queries)
        return time.scatter_reduce(0, contacts.query, contacts.step, "amax") + 2

    def reasons(self, queries: Queries, candidate: Tensor) -> list[list[Explanation]]:
        """The parts of the order that a candidate has, by how far it falls without them.

        Of walks, those neighbours that it shares with the entity: through them most walkers come.
        """
        history, candidate = self.history_, candidate.to(self.device)
        found = supporting(history, queries, candidate, walks=False, shared=True)
        deletions, first = Deletions.of(history, queries, candidate, found)
        if not len(deletions):
            return []
        asked, usage = deletions.queries, deletions.usage()
        reached = deletions.reached(self.pagerank_, _REACHED)
        near = torch.zeros(len(deletions), dtype=torch.float64, device=self.device)
        near[reached.row] = reached.far.double().clamp(max=_MOST_NEAR)
        latest = self._latest(asked, history.last_contacts(asked))
        # What a fact in the slot scores is the query's, as all others score it too.
        unknown = self._unknown(asked, reached)[first]
        score = unknown[_query_of(first, deletions)] * usage.count + near * (usage.count > 0)
        score = score + (deletions.last_steps(same=False) + 1).double()
        score = score + (latest * (deletions.last_steps(same=True) + 1)).double()
        return by_weight(found, _log_chances(self.score(queries), deletions, score, first), first)


def _query_of(first: Tensor, deletions: Deletions) -> Tensor:
    """(W,) to which query each deletion belongs, by (Q,) the first of each."""
    row = torch.arange(len(deletions), device=first.device)
    return torch.bucketize(row, first, right=True) - 1


def _log_chances(
    scores: ListedScores, deletions: Deletions, score: Tensor, first: Tensor
) -> Tensor:
    """(W,) logarithm of 1 / rank, were each candidate to score this and all others what they do.

    Args:
        scores: of the Q queries.
        deletions: W of them.
        score: (W,) what the candidate scores in each.
        first: (Q,) the rows in which nothing is left out.
    """
    better, equal = scores.counts(_query_of(first, deletions), deletions.answer, score)
    return -(1 + better + equal.double() / 2).log()


class _Part(NamedTuple):
    """What some candidates score for one reason."""

    query: Tensor
    """(L,)."""
    entity: Tensor
    """(L,) a (query, entity) pair occurs once."""
    score: Tensor
    """(L,)."""


def _listed(
    history: History, queries: Queries, parts: list[_Part], offset: Tensor, slope: Tensor
) -> ListedScores:
    """The sum of parts and of what everybody scores for filling the slot."""
    _, relation, time = history.columns(queries)
    cells = [part.query * history.entities + part.entity for part in parts]
    cell = torch.unique(torch.cat(cells))
    query, entity = cell // history.entities, cell % history.entities
    slots = history.index.slots
    count = slots.usage(entity, relation[query], time[query]).count
    score = offset[query] + slope[query] * count
    for one, part in zip(cells, parts, strict=True):
        score.index_add_(0, torch.searchsorted(cell, one), part.score)
    return ListedScores(
        query,
        entity,
        score,
        slots=slots,
        relation=relation,
        time=time,
        entities=history.entities,
        offset=offset,
        slope=slope,
    )


@register
class Oracle(Model[NoSettings]):
    """Score of x for (e, r, ?, t): log P(x answers | all before t), exact under the world's law.

    It knows more than any honest forecaster: the whole state of the world before t, hidden facts
    included (see ``data.world.law``), whatever the visibility; and nothing of t itself or later.

    Entities that cannot be the answer score less than any that can: those of the kind that fills
    this slot of r (a club where the answer is a club) -1,000, all others -2,000.
    """

    name = "oracle"
    needs_law = True

    def prepare(self, visible: VisibleFacts) -> Self:
        """Take the law out of the simulated facts."""
        if not isinstance(visible.law, Law):
            raise DataError(
                "the oracle needs a simulated world, whose law is known; these facts have none "
                "(make some with 'metatkgr data simulate' or metatkgr.data.world.simulate)"
            )
        self.law_ = visible.law
        return self

    def adapt(self, supports: Supports) -> Self:
        """Nothing to learn: the law knows the supports already."""
        return self

    def score(self, queries: Queries) -> Tensor:
        """(Q, E) log-probabilities, float64."""
        probability = self.law_.probabilities(queries)
        scores = np.full(probability.shape, _MISPLACED)
        for relation in np.unique(queries.relation):
            rows = np.flatnonzero(queries.relation == relation)
            scores[np.ix_(rows, np.flatnonzero(self.law_.fills_slot(int(relation))))] = _NEVER
        np.log(probability, out=scores, where=probability > 0)
        return torch.from_numpy(scores).to(self.device)
