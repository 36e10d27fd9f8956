"""The evidence model: candidate generation, features, and a ranker that orders the candidates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import SettingsError
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.base import Explains, Explanation, register
from metatkgr.models.common.explanations import ranker_reasons
from metatkgr.models.common.listed import ListedScores
from metatkgr.models.common.translation import random_tables, translation_start
from metatkgr.models.evidence.features import KINDS, columns_of
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
from metatkgr.models.trainable import Phase, TrainableModel

__all__ = ["EvidenceModel"]

_UNLISTED = -1e12
"""Where those begin that nothing speaks for; more often in the slot is higher."""
_KEPT = 64
"""Queries whose features are kept until there are other supports."""


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
        self._read: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
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
        reader = self.reader_
        _, relation, time = reader.columns(queries)
        candidates = reader.read(queries, self.similar(queries))
        self._keep(queries, candidates)
        row = candidates.query
        ranked = self.evidence(candidates.features, relation[row], self.settings.prior)
        cell, scores = row * reader.entities + candidates.entity, ranked.double()
        if self.settings.repeats_first:
            known = candidates.repeats
            (link, share), again = known.values, known.cell // reader.entities
            # Old partners are no candidates, but repeats all the same.
            new = candidates.link < 0
            cell, row = torch.cat([cell[new], known.cell]), torch.cat([row[new], again])
            scores = torch.cat([scores[new], repeat_scores(link, time[again], share)])
        return first + row, cell % reader.entities, scores

    def reasons(self, queries: Queries, candidate: Tensor) -> list[list[Explanation]]:
        """Repeats, contacts, walks and frequency, by what they add to the candidate's score."""
        relation = torch.from_numpy(queries.relation).to(self.device)
        candidate = candidate.to(self.device)
        parts = self.evidence.contributions(self._features(queries, candidate), relation).cpu()
        sums = [parts[:, columns_of(kind)].sum(1).tolist() for kind in KINDS]
        contributed = [dict(zip(KINDS, row, strict=True)) for row in zip(*sums, strict=True)]
        return ranker_reasons(self.reader_.history, queries, candidate, contributed)

    def _keep(self, queries: Queries, candidates: Candidates) -> None:
        """Keep the candidates and features of a few queries, who may be asked for reasons."""
        if len(queries) + len(self._read) > _KEPT:
            return
        end = torch.bincount(candidates.query, minlength=len(queries)).cumsum(0).tolist()
        for key, begin, stop in zip(_keys(queries), [0, *end], end, strict=False):
            self._read[key] = candidates.entity[begin:stop], candidates.features[begin:stop]

    @torch.no_grad()
    def _features(self, queries: Queries, candidate: Tensor) -> Tensor:
        """(Q, F) features of one candidate of each query, as they were scored or read now."""
        asked: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for row, key in enumerate(_keys(queries)):
            asked[key].append(row)
        found: dict[int, Tensor] = {}
        for key, rows in asked.items():
            entity, features = self._read.get(key, (candidate[:0], candidate[:0]))
            # Ascending, and each once.
            at, place = torch.nonzero(candidate[rows].unsqueeze(1) == entity).T.tolist()
            found |= zip((rows[one] for one in at), features[place], strict=True)
        rest = np.array([row for row in range(len(queries)) if row not in found], np.int64)
        if len(rest):
            some, wanted = queries[rest], candidate[torch.from_numpy(rest).to(self.device)]
            read = self.reader_.read(some, self.similar(some), wanted)
            chosen = read.features[read.entity == wanted[read.query]]
            found |= dict(zip(rest.tolist(), chosen, strict=True))
        return torch.stack([found[row] for row in range(len(queries))])

    def similar(self, queries: Queries) -> Similar | None:
        """Log-softmax of the translation scores over candidates; None: there are no vectors."""
        return translated(self.vectors(), queries)

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        """(E, d) of the entities and (2R, d) of the relations; None: there are none."""
        if not self.settings.dimension:
            return None
        return self.weights["entity"].detach(), self.weights["relation"].detach()
