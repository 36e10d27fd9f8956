"""The evidence model: candidate generation, features, and a ranker that orders the candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.models.base import Explains, Explanation, Graded, register
from metatkgr.models.common.explanations import ranker_reasons
from metatkgr.models.common.scores import mask_query_entity, relation_vectors, score_all
from metatkgr.models.common.translation import random_tables, translation_start
from metatkgr.models.evidence.features import KINDS, columns_of
from metatkgr.models.evidence.ranker import (
    COUNTED,
    MOST_AGE,
    REPEAT_BOOST,
    Ranker,
    boost_repeats,
    initial_weights,
)
from metatkgr.models.evidence.reader import PublicFacts, Reader
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.training import RankerPhase, relation_co_occurrence
from metatkgr.models.trainable import Phase, TrainableModel

__all__ = ["EvidenceModel"]

_AT_ONCE = 512
"""Queries read at once, at most."""
_NO_EVIDENCE = -1e3
"""Below every candidate that something speaks for."""
_NO_SHARE, _FREQUENCY = 1e-9, 0.1
_SHARES = (1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""Where grades of ranked candidates begin: shares of a softmax over such candidates."""
_STRENGTHS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
"""Where grades of repeats begin: shares of 1 / (1 + steps since the last time) over all repeats."""
_UNKNOWN = 0.01
"""Added to that sum, so that a lone repeat of long ago is no strong one."""


@register
class EvidenceModel(TrainableModel[EvidenceSettings], Graded, Explains):
    r"""Re-ranks candidates from recurrence, walks, frequency and translation with a small ensemble.

    Candidates that something speaks for are scored by ``ranker``; all others stand below them, in
    the order of PageRank and of how often they filled this slot of the relation.

    Training: TransE on the first fact of each support (so that later ones are new to it), then the
    weights of evidence, then TransE with all K facts.
    """

    name = "evidence"
    settings_type = EvidenceSettings
    live = True
    counted = frozenset(f"evidence.{name}" for name in COUNTED)
    grade_kinds = (1 + len(_SHARES), 1 + len(_STRENGTHS))
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (1e-3, 3e-2, "log"),
        "hidden": (0, 16, 32, 64),
        "shrinkage": (1e-3, 3e-1, "log"),
        "support_share": (0.3, 3.0, "log"),
        "dimension": (0, 128),
    }

    def __init__(
        self, settings: EvidenceSettings | None = None, *, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(settings, device=device)
        self.evidence = Ranker()

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Weights in the order of the rules; random vectors."""
        settings = self.settings
        weights = initial_weights(settings, 2 * relations, generator)
        weights = {f"evidence.{name}": value for name, value in weights.items()}
        if settings.dimension:
            weights |= random_tables(entities, relations, settings.dimension, generator)
        self.set_weights(weights)

    def phases(self, problem: Problem) -> list[Phase]:
        """Vectors of one fact each, weights, vectors of all K."""
        settings, weights = self.settings, self.weights
        self.evidence.transfer.copy_(relation_co_occurrence(problem.known))
        own = RankerPhase(self.evidence, problem, settings, self.device, self.similar)
        if not settings.dimension:
            return [own]
        return [
            *translation_start(weights, problem.one_shot, settings),
            own,
            *translation_start(weights, problem.few_shot, settings),
        ]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Index the public facts."""
        self.public_ = PublicFacts(visible, self.device)
        return self

    def adapt(self, supports: Supports) -> Self:
        """Index the supports, beside the public facts."""
        self.reader_ = Reader(self.public_, supports, self.evidence.transfer, self.settings)
        self._scored: tuple[Queries | None, Tensor] = (None, torch.zeros(2, 0))
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) scores of all candidates."""
        none, nothing = (0, self.reader_.entities), (2, 0)
        empty = torch.zeros(none, device=self.device), torch.zeros(nothing, device=self.device)
        parts = [self._score(queries[rows]) for rows in self.reader_.batches(queries, _AT_ONCE)]
        scores, totals = zip(*(parts or [empty]), strict=True)
        self._scored = queries, torch.cat(totals, 1)
        return torch.cat(scores)

    def _score(self, queries: Queries) -> tuple[Tensor, Tensor]:
        """(Q, E) scores; and (2, Q) what a grade is a share of: of ranked ones, of repeats."""
        relation, time = (
            torch.from_numpy(column).to(self.device) for column in (queries.relation, queries.time)
        )
        candidates = self.reader_.read(queries, self.similar(queries), None)
        counts = self.reader_.history.slot_counts(queries).float()
        frequency = _FREQUENCY * counts / (1 + counts.amax(1, keepdim=True))
        scores = _NO_EVIDENCE + (candidates.share + _NO_SHARE).log() + frequency
        ranked = self.evidence(candidates.features, relation, self.settings.prior)
        # What stands there already must not be written twice: a repeated candidate writes its own.
        lowest = scores.gather(1, candidates.entity)
        values = torch.where(candidates.mask, ranked, lowest)
        scores = scores.scatter_reduce(1, candidates.entity, values, "amax")
        repeats = torch.zeros(len(queries), dtype=torch.float64, device=self.device)
        if self.settings.repeats_first:
            scores = boost_repeats(scores, candidates.link, time, candidates.share)
            values = torch.where(
                candidates.link.gather(1, candidates.entity) < 0, values, _NO_EVIDENCE
            )
            age = (time.unsqueeze(1) - candidates.link).clamp(min=0)
            repeats = ((candidates.link >= 0) / (1.0 + age.double())).sum(1)
        return scores, torch.stack([torch.logsumexp(values, 1).double(), repeats])

    def grades(self, queries: Queries) -> Tensor:
        """(Q, 23) scores at which better evidence begins.

        Ranked at all, then by the share of exp(score) among all that are ranked; a repeat, then
        by its share of 1 / (1 + age) among all repeats: old ones and one of many are weak.
        """
        if self._scored[0] is not queries:
            self.score(queries)
        level, total = self._scored[1].unsqueeze(-1)
        shares, strengths = (
            torch.tensor(values, dtype=torch.float64, device=self.device)
            for values in (_SHARES, _STRENGTHS)
        )
        ranked = torch.cat([torch.full_like(level, _NO_EVIDENCE / 2), level + shares.log()], 1)
        # The oldest age with that share; a hair is added for what rounding takes.
        age = (1 / (strengths * (_UNKNOWN + total)) - 1 + 1e-9).floor().clamp(-1, MOST_AGE)
        repeats = REPEAT_BOOST - torch.cat([torch.full_like(total, MOST_AGE), age], 1)
        starts = torch.cat([ranked, repeats], 1).cummax(1).values
        return starts if self.settings.repeats_first else starts.float()

    def reasons(self, queries: Queries, candidate: Tensor) -> list[list[Explanation]]:
        """Repeats, contacts, walks and frequency, by what they add to the candidate's score."""
        relation = torch.from_numpy(queries.relation).to(self.device)
        candidate = candidate.to(self.device)
        with torch.no_grad():
            candidates = self.reader_.read(queries, self.similar(queries), candidate)
        features = candidates.features[:, :1]
        parts = self.evidence.contributions(features, relation)[:, 0].cpu()
        contributed = [
            {kind: float(row[columns_of(kind)].sum()) for kind in KINDS} for row in parts
        ]
        return ranker_reasons(self.reader_.history, queries, candidate, contributed)

    def similar(self, queries: Queries) -> Tensor | None:
        """(Q, E) log-softmax of the translation scores; None where there are no vectors."""
        if not self.settings.dimension:
            return None
        entity, relation = self.weights["entity"], self.weights["relation"]
        who, directed = (
            torch.from_numpy(column).to(self.device)
            for column in (queries.entity, queries.relation)
        )
        scores = score_all(entity[who] + relation_vectors(relation, directed), entity)
        return torch.log_softmax(mask_query_entity(scores, who), 1)
