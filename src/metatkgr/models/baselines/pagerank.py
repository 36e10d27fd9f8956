"""A rule that sees further than paths: what happened before, then who is near in the whole graph.

Ranks candidates x of a question (e, r, ?, t) lexicographically, by visible facts only:

1. the last step at which e and x were linked by r in this direction;
2. the last step at which they were linked at all;
3. x's share of personalised PageRank from e, if x ever stood in this place of r;
4. how many facts before t had x in this place of r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.history import History
from metatkgr.graph.pagerank import PageRank
from metatkgr.models.base import Model, register

__all__ = ["PageRankRule", "PageRankSettings"]

_TIE = 2.0**-30
"""What frequency may add at most: less than a share that matters, more than a rounding error."""


@dataclass(frozen=True)
class PageRankSettings:
    """Settings of the rule."""

    restart: float = 0.15
    """Probability that the walk starts again at each step."""
    steps: int = 12
    """Steps of the walk."""

    def __post_init__(self) -> None:
        if not 0 < self.restart < 1:
            raise ValueError(f"restart must be between 0 and 1, not {self.restart}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")


@register
class PageRankRule(Model[PageRankSettings]):
    """Recurrency, with personalised PageRank before frequency."""

    name = "pagerank"
    settings_type = PageRankSettings

    def prepare(self, visible: VisibleFacts) -> Self:
        """Keep the public facts."""
        self.visible_ = visible
        return self

    def adapt(self, supports: Supports) -> Self:
        """Index the public facts together with the supports."""
        settings = self.settings
        self.history_ = History(self.visible_, supports, self.device)
        self.pagerank_ = PageRank(
            self.visible_,
            supports,
            self.device,
            restart=settings.restart,
            steps=settings.steps,
        )
        return self

    def score(self, queries: Queries) -> Tensor:
        """(Q, E) float64 scores: whole numbers for the past, the fraction for the walk."""
        counts = self.history_.place_counts(queries)
        frequency = counts / self.history_.facts_before(queries).clamp(min=1).unsqueeze(1).double()
        near = self.pagerank_.shares(queries).double() * (counts > 0)
        scores = near.clamp(max=1 - 2 * _TIE) + _TIE * frequency
        contacts = self.history_.last_contacts(queries)
        asked = torch.from_numpy(queries.time).to(self.device)
        # A last link outweighs any last contact; both count from what this question can see.
        latest = asked.scatter_reduce(0, contacts.question, contacts.step, "amax") + 2
        scores[contacts.question, contacts.candidate] += contacts.step + 1
        links = self.history_.last_links(queries)
        weight = latest[links.question] * (links.step + 1)
        scores[links.question, links.candidate] += weight
        return scores
