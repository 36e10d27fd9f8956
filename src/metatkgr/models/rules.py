r"""Three rules that need no training, and that a trained model has to beat.

All rank the candidates x of a query (e, r, ?, t) lexicographically, by visible facts only:

1. the last step at which e and x were linked by r in this direction;
2. the last step at which they were linked at all;
3. ``paths``: the number of walks  e -r-> y <-r- z -r-> x  over the distinct visible links of r,
   which is row e of :math:`M M^\top M` for the binary link matrix M of r;
   ``pagerank``: x's share of personalised PageRank from e, if x ever filled this slot of r;
   ``recurrency``: nothing;
4. how many facts before t had x in this slot of r.

What never happened counts below everything that did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.pagerank import PageRank, Transitions
from metatkgr.graph.pairs import PairSteps
from metatkgr.models.base import Explains, Explanation, Graded, Model, register
from metatkgr.models.common.explanations import rule_reasons
from metatkgr.settings import NoSettings, Range, Sample, Settings

__all__ = ["PageRankRule", "PageRankSettings", "Paths", "Recurrency"]

_TIE = 2.0**-30
"""What frequency may add at most: less than a share that matters, more than a rounding error."""


@register
class Recurrency(Model[NoSettings], Graded, Explains):
    """What happened before happens again: recency of the same link, of any link, then frequency."""

    name = "recurrency"
    live = True
    grade_kinds = (3, 2, 2, 5)
    _walks = False
    """Whether walks are part of the order."""

    def prepare(self, visible: VisibleFacts) -> Self:
        """Take the public facts; they are indexed when they are first read."""
        self.index_ = TemporalIndex.of(visible, device=self.device)
        return self

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports beside the public facts."""
        self.history_ = History(self.index_, supports)
        self._scored: tuple[Queries | None, _Digits] = (None, _Digits.none())
        return self

    def score(self, queries: Queries) -> Tensor:
        """(Q, E) int64 scores, exact; comparable within a query."""
        scores = self.history_.slot_counts(queries)
        contacts = self.history_.last_contacts(queries)
        digits = self._digits(queries, contacts)
        for evidence, shift in (
            (contacts, digits.contact),
            (self.history_.last_links(queries), digits.link),
        ):
            rows = evidence.query
            scores[rows, evidence.candidate] += (evidence.step + 1) << shift[rows]
        self._add_walks(scores, queries, digits)
        self._scored = queries, digits
        return scores

    def _add_walks(self, scores: Tensor, queries: Queries, digits: _Digits) -> None:
        """The part between contact and frequency; this rule has none."""

    def grades(self, queries: Queries) -> Tensor:
        """(Q, 12) scores at which better evidence begins.

        In this slot of r at all, in 1 % and in 10 % of its facts; one walk, eight walks; a
        contact, one in the last 4 steps; the same link, in the last 64, 16 and 4 steps, or as
        late as can be.
        """
        scored, digits = self._scored
        if scored is not queries:
            digits = self._digits(queries, self.history_.last_contacts(queries))
        time = torch.from_numpy(queries.time).to(self.device)
        facts, one = self.history_.facts_before(queries), torch.ones_like(time)
        walk, contact, link = digits.frequency, digits.contact, digits.link

        def within(steps: int) -> Tensor:
            return (time - steps + 1).clamp(min=1)

        frequency = [one, (facts // 100).clamp(min=1), (facts // 10).clamp(min=1)]
        walks = [torch.minimum(one << (walk + bits), one << contact) for bits in (0, 3)]
        contacts = [one << contact, within(4) << contact]
        links = [one << link, *(within(steps) << link for steps in (64, 16, 4, 1))]
        return torch.cummax(torch.stack([*frequency, *walks, *contacts, *links], 1), 1).values

    def reasons(self, queries: Queries, candidate: Tensor) -> list[list[Explanation]]:
        """The parts of the order that a candidate has, first things first."""
        return rule_reasons(self.history_, queries, candidate, walks=self._walks)

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

    @classmethod
    def none(cls) -> _Digits:
        """Of no query."""
        nothing = torch.zeros(0, dtype=torch.int64)
        return cls(nothing, nothing, nothing)


def _bit_length(number: Tensor) -> Tensor:
    """Bits that a whole number from 0 to 2⁵³ needs."""
    return torch.frexp(number.double()).exponent.long()


@register
class Paths(Recurrency):
    """Recurrency, with shared-neighbour walks before frequency: who is near what e has done."""

    name = "paths"
    _walks = True

    def _add_walks(self, scores: Tensor, queries: Queries, digits: _Digits) -> None:
        """Add walk counts; those beyond the room in the score count as equal."""
        walks = self.history_.walks(queries)
        shift = digits.frequency[walks.query]
        room = (1 << (digits.contact[walks.query] - shift)) - 1
        scores[walks.query, walks.entity] += torch.minimum(walks.count, room) << shift


@dataclass(frozen=True)
class PageRankSettings(Settings):
    """Settings of the rule."""

    restart: Annotated[float, Range(above=0, below=1)] = 0.15
    """Probability that the walk starts again at each step."""
    steps: Sample = 12
    """Steps of the walk."""


@register
class PageRankRule(Model[PageRankSettings]):
    """Recurrency, with personalised PageRank before frequency."""

    name = "pagerank"
    settings_type = PageRankSettings

    def prepare(self, visible: VisibleFacts) -> Self:
        """Index the public facts."""
        self.index_ = TemporalIndex.of(visible, device=self.device)
        self.transitions_ = Transitions(self.index_.neighbours)
        return self

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports beside the public facts."""
        restart, steps = self.settings.restart, self.settings.steps
        self.history_ = History(self.index_, supports)
        self.pagerank_ = PageRank(self.transitions_, supports, restart=restart, steps=steps)
        return self

    def score(self, queries: Queries) -> Tensor:
        """(Q, E) float64 scores: whole numbers for the past, the fraction for the walk."""
        counts = self.history_.slot_counts(queries)
        frequency = counts / self.history_.facts_before(queries).clamp(min=1).unsqueeze(1).double()
        near = self.pagerank_.shares(queries).double() * (counts > 0)
        scores = near.clamp(max=1 - 2 * _TIE) + _TIE * frequency
        contacts = self.history_.last_contacts(queries)
        time = torch.from_numpy(queries.time).to(self.device)
        # A last link outweighs any last contact; both count from what this query can see.
        latest = time.scatter_reduce(0, contacts.query, contacts.step, "amax") + 2
        scores[contacts.query, contacts.candidate] += contacts.step + 1
        links = self.history_.last_links(queries)
        weight = latest[links.query] * (links.step + 1)
        scores[links.query, links.candidate] += weight
        return scores
