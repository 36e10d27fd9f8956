"""The evidence model: candidate generation, features, and a ranker that orders the candidates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import SettingsError
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.ragged import some_rows
from metatkgr.models.base import Explains, Explanation, Phase, TrainableModel
from metatkgr.models.common.explanations import supporting
from metatkgr.models.common.leave_one_out import Deletions, by_weight
from metatkgr.models.common.listed import ListedScores
from metatkgr.models.common.translation import random_tables, translation_start
from metatkgr.models.evidence.pretrained import NONE, SHARED, pretrained_for
from metatkgr.models.evidence.ranker import (
    COUNTED,
    Ranker,
    initial_weights,
    repeat_scores,
)
from metatkgr.models.evidence.reader import (
    Candidates,
    Reader,
    Similar,
    reading_batches,
    translated,
)
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.training import RankerPhase
from metatkgr.models.registry import register

__all__ = ["EvidenceModel"]

_UNLISTED = -1e12
"""Where those begin that nothing speaks for; more often in the slot is higher."""
_KEPT = 64
"""Queries whose scores are kept until there are other supports."""


def _keys(queries: Queries) -> Iterator[tuple[int, ...]]:
    columns = (queries.entity, queries.relation, queries.time)
    return zip(*(column.tolist() for column in columns), strict=True)


@register
class EvidenceModel(TrainableModel[EvidenceSettings], Explains):
    r"""Re-ranks candidates from recurrence, walks, frequency and translation with a small ensemble.

    Candidates that something speaks for are scored by ``ranker``; all others stand below them, by
    how often they filled this slot of the relation.

    Training: TransE on the first fact of each support (so that later ones are new to it), then the
    weights of evidence, then TransE with all K facts.
    """

    name = "evidence"
    settings_type = EvidenceSettings
    live = True
    shares_out = True
    counted = frozenset(f"evidence.{name}" for name in COUNTED)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "extrapolation": {"start": NONE, "repeats_first": False, "train_queries": 10_000},
    }
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (1e-3, 3e-2, "log"),
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

    @property
    def pretrained(self) -> bool:
        """Whether the setting ``start`` names weights."""
        return self.settings.start != NONE

    @torch.no_grad()
    def load_pretrained(self, facts: Facts) -> None:
        """Take the weights of the setting ``start``, learned on other graphs than ``facts``."""
        found = pretrained_for(self.settings.start, facts)
        if "relation" not in dict(self.evidence.named_parameters()):
            self.build(len(facts.entities), len(facts.relations), torch.Generator().manual_seed(0))
        members, hidden = found.weights["outer"].shape
        if self.settings.members > members or self.settings.hidden != hidden:
            raise SettingsError(
                f"the weights to start from have {members} members and hidden={hidden}; leave "
                "these settings as they are, or start without: --set start=none"
            )
        for name in SHARED:
            known, value = getattr(self.evidence, name), found.weights[name]
            # Of the ensemble as many as are wanted.
            known.data.copy_(value if name in COUNTED else value[: self.settings.members])

    def phases(self, problem: Problem) -> list[Phase]:
        """Vectors of one fact each, weights, vectors of all K."""
        settings, weights = self.settings, self.weights
        own = RankerPhase(
            self.evidence, problem, settings, self.device, self.vectors, self.share_out
        )
        if not settings.dimension:
            return [own]
        return [
            *translation_start(weights, problem.one_shot, settings),
            own,
            *translation_start(weights, problem.few_shot, settings),
        ]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Take the public facts; they are indexed when they are first read."""
        self.index_ = TemporalIndex.of(visible, device=self.device)
        self._make_room(self.index_.relations)
        return self

    @torch.no_grad()
    def _make_room(self, relations: int) -> None:
        """Weights of relations that came since: nothing is particular to them yet."""
        known = self.evidence.relation.detach()
        if len(known) < relations:
            forth, back = known.chunk(2)
            new = known.new_zeros((relations - len(known)) // 2, known.shape[1])
            self.set_weights({"evidence.relation": torch.cat([forth, new, back, new])})

    def adapt(self, supports: Supports) -> Self:
        """Index the supports, beside the public facts."""
        self.reader_ = Reader(self.index_, supports, self.settings)
        self._scored: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> ListedScores:
        """Scores of the candidates, of all repeats and of who else is near, in float64."""
        _, relation, time = self.reader_.history.columns(queries)
        batches = reading_batches(len(queries), self.device)
        parts = [self._score(queries[rows], rows.start) for rows in batches]
        nothing = torch.zeros(0, dtype=torch.int64, device=self.device)
        columns = zip(*(parts or [(nothing, nothing, nothing.double())]), strict=True)
        query, entity, score = (torch.cat(column) for column in columns)
        one = torch.ones_like(time, dtype=torch.float64)
        return ListedScores(
            query,
            entity,
            score,
            slots=self.index_.slots,
            relation=relation,
            time=time,
            entities=self.reader_.entities,
            offset=_UNLISTED * one,
            slope=one,
        )

    def _score(self, queries: Queries, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Query, entity and score, (L,) each."""
        candidates = self.reader_.read(queries, self.similar(queries))
        row, entity, scores = self._ranked(candidates, queries)
        self._keep(queries, row, entity, scores)
        return first + row, entity, scores

    def _ranked(self, candidates: Candidates, queries: Queries) -> tuple[Tensor, Tensor, Tensor]:
        """Query, entity and score of candidates and of all repeats, (L,) each."""
        entities, (_, relation, time) = self.reader_.entities, self.reader_.columns(queries)
        row = candidates.query
        asked = relation.index_select(0, row)
        ranked = self.evidence(candidates.features, asked, self.settings.prior)
        cell, scores = row * entities + candidates.entity, ranked.double()
        if self.settings.repeats_first:
            known = candidates.repeats
            (link, share), again = known.values, known.cell // entities
            # Old partners are no candidates, but repeats all the same.
            cell, row, scores = some_rows(candidates.link < 0, cell, row, scores)
            cell, row = torch.cat([cell, known.cell]), torch.cat([row, again])
            repeats = repeat_scores(link, time.index_select(0, again), share)
            scores = torch.cat([scores, repeats])
        return row, cell % entities, scores

    @torch.no_grad()
    def reasons(self, queries: Queries, candidate: Tensor) -> list[list[Explanation]]:
        """Repeats, contacts, walks and frequency, by how far the candidate falls without them."""
        history, candidate = self.reader_.history, candidate.to(self.device)
        found = supporting(history, queries, candidate, walks=True, shared=True)
        deletions, first = Deletions.of(history, queries, candidate, found)
        if not len(deletions):
            return []
        similar = self.similar(deletions.queries)
        read = self.reader_.read(deletions.queries, similar, deletions=deletions)
        row, entity, scores = self._ranked(read, deletions.queries)
        row, scores = some_rows(entity == deletions.answer.index_select(0, row), row, scores)
        score = torch.zeros(len(deletions), dtype=torch.float64, device=self.device)
        score.index_copy_(0, row, scores)
        rest = self._rest(queries, candidate)
        rest = rest.repeat_interleave(torch.tensor([1 + len(some) for some in found]))
        return by_weight(found, functional.logsigmoid(score - rest.to(self.device)), first)

    def _keep(self, queries: Queries, row: Tensor, entity: Tensor, scores: Tensor) -> None:
        """Keep the scores of a few queries, who may be asked for reasons."""
        if len(queries) + len(self._scored) > _KEPT:
            return
        for number, key in enumerate(_keys(queries)):
            which = row == number
            self._scored[key] = entity[which], scores[which]

    def _rest(self, queries: Queries, candidate: Tensor) -> Tensor:
        """(Q,) logarithm of what speaks for all other candidates of each query."""
        keys = list(_keys(queries))
        missing = [number for number, key in enumerate(keys) if key not in self._scored]
        fresh: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        if missing:
            row, entity, scores = self._score(queries[np.array(missing, np.int64)], 0)
            for place, number in enumerate(missing):
                fresh[keys[number]] = entity[row == place], scores[row == place]
        groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, key in enumerate(keys):
            groups[key].append(number)
        result = torch.zeros(len(keys), dtype=torch.float64, device=self.device)
        for key, numbers in groups.items():
            entity, scores = fresh.get(key) or self._scored[key]
            rows = torch.tensor(numbers, device=self.device)
            others = entity != candidate.index_select(0, rows).unsqueeze(1)
            rest = torch.where(others, scores, -torch.inf).logsumexp(1)
            # Where nobody else is a candidate, all are alike.
            result[rows] = torch.where(others.any(1), rest, 0.0)
        return result

    def similar(self, queries: Queries) -> Similar | None:
        """Log-softmax of the translation scores over candidates; None: there are no vectors."""
        return translated(self.vectors(), queries)

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        """(E, d) of the entities and (2R, d) of the relations; None: there are none."""
        if not self.settings.dimension:
            return None
        return self.weights["entity"].detach(), self.weights["relation"].detach()
