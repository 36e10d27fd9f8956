"""A forecaster at work: the facts it knows, and a model that is kept in step with them.

The first are the base of the temporal index, and indexed once. The arrivals are few, lie in columns
ordered by time and name (so that the order in which they came does not matter), and are its recent
layer, indexed anew when someone asks; when they have become many, they join the base. A snapshot of
them never changes; a ``LiveGraph`` takes facts in, an :class:`Engine` shows them to a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.orders import inverse
from metatkgr.data.periods import Period, Periods
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import DataError
from metatkgr.evaluation.evaluator import in_chunks
from metatkgr.forecasting.calibrating import fit_calibration
from metatkgr.forecasting.calibration import Calibration, Chances, Scored
from metatkgr.forecasting.hazard import fit_hazard
from metatkgr.forecasting.kinds import Standing
from metatkgr.forecasting.names import GrowingVocabulary
from metatkgr.forecasting.schema import Schema
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.base import Explains, Explanation, Model, TrainableModel

__all__ = ["Engine", "Snapshot"]

_CELLS = 1 << 22
"""Scores computed in one go, by a model that scores everybody; bounds memory."""
_AT_ONCE = 16
"""Queries in one go at least."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All facts at one moment of the forecaster's life; never changes."""

    visible: VisibleFacts
    """The first facts, which are indexed once, and those that arrived since."""
    entities: GrowingVocabulary
    version: int
    """Another for every change, and for all that is only supposed."""

    @property
    def parts(self) -> tuple[Facts, ...]:
        """The facts that are indexed once and, where there are any, those that arrived since."""
        recent = self.visible.recent
        return (self.visible.base,) if recent is None else (self.visible.base, recent)

    @property
    def first(self) -> Facts:
        """The facts that are indexed once; its vocabulary may be smaller than ``entities``."""
        return self.visible.base

    @cached_property
    def index(self) -> TemporalIndex:
        """All facts by their entities."""
        return TemporalIndex.of(self.visible)

    @property
    def last_step(self) -> int:
        """Step of the last fact."""
        return max(int(facts.time[-1]) for facts in self.parts if len(facts))

    def links(self, entity: int, last: int | None = None, before: int | None = None) -> IntArray:
        """(3, n) directed relation, other end and step of an entity's facts, oldest first.

        Args:
            entity: whose.
            last: only the last so many; None: all.
            before: only those before a step; None: all.
        """
        end = self.last_step + 1 if before is None else before
        most = len(self.visible) if last is None else last
        facts = self.index.last_facts(torch.tensor([entity]), torch.tensor([end]), most)
        return np.stack([facts.relation.numpy(), facts.target.numpy(), facts.time.numpy()])

    def supports(self, entities: Sequence[int], shots: int) -> Supports:
        """The first ``shots`` facts of some entities."""
        entity = torch.from_numpy(np.unique(np.array(entities, np.int64)))
        facts = self.index.first_facts(entity, shots)
        columns = (entity[facts.row], facts.relation, facts.target, facts.time)
        return Supports(*(column.numpy() for column in columns))

    def newcomers(self, after: int) -> list[int]:
        """The entities whose first fact came after a step; all have one."""
        first = self.index.first_seen
        emerged: list[int] = ((first > after) & (first <= self.last_step)).nonzero()[:, 0].tolist()
        return emerged

    @cached_property
    def facts(self) -> Facts:
        """All facts as one."""
        return replace(self.visible.facts(), entities=self.entities)

    def relation_counts(self, before: int) -> IntArray:
        """(R,) how many facts of each relation there are before a step."""
        relation = torch.arange(len(self.visible.relations))
        counts = self.index.slots.facts_before(relation, torch.full_like(relation, before))
        return np.asarray(counts.numpy())

    def again(self, before: int) -> npt.NDArray[np.float64]:
        """(2R,) of the facts of each directed relation, the share that was nobody's first such."""
        slots, relation = self.index.slots, torch.arange(self.index.relations)
        step = torch.full_like(relation, before)
        near = inverse(relation, self.index.relations)
        facts = slots.facts_before(relation, step).double()
        holders = slots.above(near, step, torch.zeros_like(step))
        return np.asarray(((facts - holders + 0.5) / (facts + 1)).numpy())

    def seen(self, entities: Sequence[int]) -> list[tuple[int, int, int]]:
        """How many facts each of some entities has, and the steps of its first and last."""
        entity = torch.tensor(entities, dtype=torch.int64)
        end = torch.full_like(entity, self.last_step + 1)
        columns = (
            self.index.facts_before(entity, end),
            self.index.first_step_of(entity),
            self.index.last_step_of(entity, end),
        )
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def recent(self, entity: int, before: int, most: int) -> tuple[IntArray, IntArray]:
        """(n,) directed relations and steps of an entity's last facts before a step."""
        facts = self.index.last_facts(torch.tensor([entity]), torch.tensor([before]), most)
        return facts.relation.numpy(), facts.time.numpy()


class Engine:
    """Keeps a model in step with snapshots. Not for several threads: the forecaster locks.

    A model is prepared for each snapshot. A ``live`` one is adapted to the first K facts of the
    query entity; any other to those of every entity that emerged in the meta-test period of
    ``visible`` or later: the ones that are new to what it has learned.

    Args:
        model: trained, where it has weights.
        visible: what it was trained on.
        shots: K.
    """

    def __init__(self, model: Model[Any], visible: VisibleFacts, shots: int) -> None:
        self.model, self.shots = model, shots
        self._visible, self._relations = visible, visible.relations
        self._known = len(visible.entities)
        self.last_old_step = int(Periods.last_steps(visible.base)[Period.META_VALIDATION])
        """Of what a trained model has learned from."""
        self.schema: Schema | None = None
        """What it rules out is no answer."""
        self.base = visible.base
        """Of the snapshot that was shown last, whose index is held."""
        self._shown = -1
        self._adapted: frozenset[int] = frozenset()
        """The entities whose first facts the model and the history know."""

    def calibrate(self) -> Calibration:
        """Fit a calibration to the latest queries of the facts it was trained on."""
        self._shown = -1
        if len(self._relations) > len(self._visible.relations):  # the model has made room
            base = replace(self._visible.base, relations=self._relations)
            self._visible = VisibleFacts.of(base)
        if isinstance(self.model, TrainableModel):
            self.model.extend(self._known, known=self._known, supports=Supports.none())
        fitted = fit_calibration(self.model, self._visible, self.shots)
        return replace(fitted, hazard=fit_hazard(self._visible))

    def check(self, entity: int) -> None:
        """Refuse a query entity of which the model cannot learn.

        Raises:
            DataError: it came after the model's facts.
        """
        if self.model.needs_law and entity >= self._known:
            raise DataError(f"{self.model.name} cannot speak of entities that came after its facts")

    def show(self, snapshot: Snapshot, entities: Sequence[int]) -> None:
        """Show the model all facts of a snapshot, before queries about some entities."""
        model, self._relations = self.model, snapshot.visible.relations
        if self._shown != snapshot.version:
            if model.live:
                self._extend(snapshot)
                model.prepare(snapshot.visible)
            else:
                self._show_all(snapshot)
            self._adapted = frozenset()
        # Who explains what it has just scored need not be adapted, nor read, again.
        if not self._adapted.issuperset(entities):
            supports = snapshot.supports(entities, self.shots)
            if model.live:
                model.adapt(supports)
            self._history = History(snapshot.index, supports)
            self._adapted = frozenset(entities)
        self._shown, self.base = snapshot.version, snapshot.visible.base

    def _extend(self, snapshot: Snapshot) -> None:
        """Rows for entities that came after training, where the model has a row for each."""
        model = self.model
        if isinstance(model, TrainableModel) and not model.entity_weights.keys().isdisjoint(
            model.weights
        ):
            newcomers = range(self._known, len(snapshot.entities))
            supports = snapshot.supports(newcomers, self.shots)
            model.extend(len(snapshot.entities), known=self._known, supports=supports)

    def _show_all(self, snapshot: Snapshot) -> None:
        supports = snapshot.supports(snapshot.newcomers(self.last_old_step), self.shots)
        if isinstance(self.model, TrainableModel):
            self.model.extend(len(snapshot.entities), known=self._known, supports=supports)
        self.model.prepare(snapshot.visible).adapt(supports)

    def score(self, snapshot: Snapshot, queries: Queries, calibration: Calibration) -> Chances:
        """The first candidates of each query with their probabilities.

        What lies ahead of all facts is asked as of now, as it was when the calibration was fitted.
        """
        parts: list[Chances] = []
        now = np.minimum(queries.time, snapshot.last_step + 1)
        leads, queries = torch.from_numpy(queries.time - now), replace(queries, time=now)

        def look(begin: int, end: int) -> None:
            some, lead = queries[begin:end], leads[begin:end]
            scores: Any = self.model.score(some)
            if isinstance(scores, Tensor):
                missing = len(snapshot.entities) - scores.shape[1]
                if missing > 0:
                    lowest = scores.amin(1, keepdim=True) - 1
                    scores = torch.cat([scores, lowest.expand(-1, missing)], 1)
            scored = Scored.of(scores)
            standing = Standing.of(
                self._history, some, scored.value, scored.entity, calibration.scale, lead
            )
            if self.schema is not None:
                relation = torch.from_numpy(some.relation)
                many = len(snapshot.visible.relations)
                allowed = self.schema.allows(snapshot.entities, relation, scored.entity, many)
                standing = standing.only(allowed)
            parts.append(calibration.apply(scored, standing))

        # A live model never learns from what it has scored: a tenth of the time is saved.
        with torch.inference_mode(self.model.live):
            in_chunks(len(queries), max(_CELLS // len(snapshot.entities), _AT_ONCE), look)
            return parts[0] if len(parts) == 1 else Chances.cat(parts)

    def reasons(self, queries: Queries, answer: Tensor) -> list[list[Explanation]]:
        """What speaks for one candidate of each query; nothing, if the model cannot say."""
        if not isinstance(self.model, Explains) or not len(queries):
            return [[] for _ in range(len(queries))]
        with torch.inference_mode(self.model.live):
            return self.model.reasons(queries, answer)
