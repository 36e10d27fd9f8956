"""The oracle: scores by the law that generated the facts, an upper bound on a simulated world."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.data.world.law import Law
from metatkgr.errors import DataError
from metatkgr.models.base import Model
from metatkgr.models.registry import register
from metatkgr.settings import NoSettings

__all__ = ["Oracle"]

_NEVER, _MISPLACED = -1_000.0, -2_000.0


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
