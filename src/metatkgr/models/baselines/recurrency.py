r"""Two rules that need no training, and that a trained model has to beat.

Both rank candidates x of a question (e, r, ?, t) lexicographically, by visible facts only:

1. the last step at which e and x were linked by r in this direction;
2. the last step at which they were linked at all;
3. (``paths`` only) the number of walks  e -r-> y <-r- z -r-> x  over the distinct visible links of
   r, which is row e of :math:`M M^\top M` for the binary link matrix M of r;
4. how many facts before t had x in this place of r.

What never happened counts below everything that did.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.history import Evidence, Frontier, History
from metatkgr.models.base import Model, NoSettings, register

__all__ = ["Paths", "Recurrency"]


@register
class Recurrency(Model[NoSettings]):
    """What happened before happens again: recency of the same link, of any link, then frequency."""

    name = "recurrency"

    def prepare(self, visible: VisibleFacts) -> Self:
        """Keep the public facts."""
        self.visible_ = visible
        return self

    def adapt(self, supports: Supports) -> Self:
        """Index the public facts together with the supports."""
        self.history_ = History(self.visible_, supports, self.device)
        time_bits = int(self.history_.steps).bit_length()
        # A score is one integer whose digits are the parts of the order, so no part can be rounded
        # away: two times, then (for `paths`) whatever room is left for walks, then the frequency.
        self._frequency_bits = int(self.history_.largest_place_count).bit_length()
        self._walk_bits = 62 - 2 * time_bits - self._frequency_bits
        if self._walk_bits < 8:
            raise OverflowError(
                f"{self.history_.steps} steps and {self.history_.largest_place_count} facts in one "
                "place leave too little room in a 64-bit score; use a coarser time unit"
            )
        self._contact_shift = self._frequency_bits + self._walk_bits
        self._link_shift = self._contact_shift + time_bits
        return self

    def score(self, queries: Queries) -> Tensor:
        """(Q, E) int64 scores, exact."""
        scores = self.history_.place_counts(queries)
        self._add(scores, self.history_.last_contacts(queries), self._contact_shift)
        self._add(scores, self.history_.last_links(queries), self._link_shift)
        return scores

    @staticmethod
    def _add(scores: Tensor, evidence: Evidence, shift: int) -> None:
        """Write step + 1 into the digits above ``shift``; each cell occurs once."""
        scores[evidence.question, evidence.candidate] += (evidence.step + 1) << shift


@register
class Paths(Recurrency):
    """Recurrency, with shared-neighbour walks before frequency: who is near what e has done."""

    name = "paths"

    def score(self, queries: Queries) -> Tensor:
        """(Q, E) int64 scores; walk counts beyond the room in the score count as equal."""
        scores = super().score(queries)
        walks = self.walks(queries)
        count = walks.count.clamp(max=2**self._walk_bits - 1)
        scores[walks.question, walks.entity] += count << self._frequency_bits
        return scores

    def walks(self, queries: Queries) -> Frontier:
        """Number of walks e -r-> y <-r- z -r-> x to every candidate x that has any.

        M holds the links of r strictly before t. Like the frequency, and unlike the recency parts,
        it takes own support facts only once their time has passed.
        """
        _, relation, time = self.history_.columns(queries)
        inverse = (relation + self.history_.relations // 2) % self.history_.relations
        frontier = self.history_.start(queries)
        for along in (relation, inverse, relation):
            frontier = self.history_.hop(frontier, along, time)
        return frontier
