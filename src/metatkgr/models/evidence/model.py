"""The evidence model: reads what speaks for each answer, and has learned what that is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.models.base import Clue, Explains, register
from metatkgr.models.baselines.translation_training import random_tables, translation_start
from metatkgr.models.evidence.combination import (
    combine,
    contributions,
    initial_weights,
    lifted,
)
from metatkgr.models.evidence.reader import Reader
from metatkgr.models.evidence.reasons import weighed_reasons
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.training import CombinationPhase, transfer_shares
from metatkgr.models.trainable import Phase, TrainableModel
from metatkgr.models.translation import never_itself, relation_vectors, score_all

__all__ = ["EvidenceModel"]

_AT_ONCE = 512
"""Questions read at once; bounds memory."""
_NO_EVIDENCE = -1e3
"""Below every candidate that something speaks for."""
_NO_SHARE, _FREQUENCY = 1e-9, 0.1


@register
class EvidenceModel(TrainableModel[EvidenceSettings], Explains):
    r"""Recurrence, walks, frequency and translation, weighed by what questions have taught.

    Candidates that something speaks for are scored by ``combination``; all others stand below
    them, in the order of PageRank and of how often they stood in this place of the relation.

    Training: TransE on the first fact of each support (so that later ones are new to it), then the
    weights of evidence, then TransE with all K facts.
    """

    name = "evidence"
    settings_type = EvidenceSettings
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (1e-3, 3e-2, "log"),
        "hidden": (0, 16, 32, 64),
        "shrinkage": (1e-3, 1e-1, "log"),
        "support_share": (0.3, 3.0, "log"),
        "dimension": (0, 128),
    }

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Weights in the order of the rules; random vectors."""
        settings = self.settings
        weights = initial_weights(settings, 2 * relations, generator)
        if settings.dimension:
            weights |= random_tables(entities, relations, settings.dimension, generator)
        self.load_state(weights)

    def phases(self, problem: Problem) -> list[Phase]:
        """Vectors of one fact each, weights, vectors of all K."""
        settings, weights = self.settings, self.weights
        weights["evidence.transfer"].data.copy_(transfer_shares(problem.known))
        own = CombinationPhase(weights, problem, settings, self.device, self._similar)
        if not settings.dimension:
            return [own]
        return [
            *translation_start(weights, problem.one_shot, settings),
            own,
            *translation_start(weights, problem.few_shot, settings),
        ]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Keep the public facts."""
        self.visible_ = visible
        return self

    def adapt(self, supports: Supports) -> Self:
        """Index the public facts together with the supports."""
        transfer = self.weights["evidence.transfer"].detach()
        self.reader_ = Reader(self.visible_, supports, transfer, self.settings, self.device)
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) scores of all candidates."""
        entities = self.reader_.entities
        parts = [
            self._score(queries[begin : begin + _AT_ONCE])
            for begin in range(0, len(queries), _AT_ONCE)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, entities, device=self.device)

    def _score(self, queries: Queries) -> Tensor:
        relation, time = (
            torch.from_numpy(column).to(self.device) for column in (queries.relation, queries.time)
        )
        found = self.reader_.read(queries, self._similar(queries), None)
        counts = self.reader_.history.place_counts(queries).float()
        frequency = _FREQUENCY * counts / (1 + counts.amax(1, keepdim=True))
        scores = _NO_EVIDENCE + (found.share + _NO_SHARE).log() + frequency
        weighed = combine(self.weights, found.features, relation, self.settings.prior)
        # What stands there already must not be written twice: a repeated candidate writes its own.
        lowest = scores.gather(1, found.entity)
        values = torch.where(found.mask, weighed, lowest)
        scores = scores.scatter_reduce(1, found.entity, values, "amax")
        if self.settings.repeats_first:
            scores = lifted(scores, found.link, time, found.share)
        return scores

    def reasons(self, queries: Queries, candidate: Tensor) -> list[list[Clue]]:
        """Repeats, contacts, walks and frequency, by what they add to the candidate's score."""
        relation = torch.from_numpy(queries.relation).to(self.device)
        candidate = candidate.to(self.device)
        with torch.no_grad():
            found = self.reader_.read(queries, self._similar(queries), candidate)
        features = found.features[:, :1]
        parts = contributions(self.weights, features, relation)[:, 0].cpu()
        return weighed_reasons(self.reader_.history, queries, candidate, parts)

    def _similar(self, queries: Queries) -> Tensor | None:
        """(Q, E) log-softmax of the translation scores."""
        if not self.settings.dimension:
            return None
        entity, relation = self.weights["entity"], self.weights["relation"]
        who, asked = (
            torch.from_numpy(column).to(self.device)
            for column in (queries.entity, queries.relation)
        )
        scores = score_all(entity[who] + relation_vectors(relation, asked), entity)
        return torch.log_softmax(never_itself(scores, who), 1)
