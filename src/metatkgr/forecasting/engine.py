"""A model at work on facts that keep arriving: shown them, asked, and asked why."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.data.periods import Period, Periods
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports
from metatkgr.errors import DataError
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.graph import Snapshot
from metatkgr.models.base import Explains, Explanation, Graded, Model
from metatkgr.models.trainable import TrainableModel

__all__ = ["Engine"]


class Engine:
    """Keeps a model in step with snapshots. Not for several threads: the forecaster locks.

    A model is prepared for each snapshot. A ``live`` one is adapted to the first K facts of whoever
    is asked about; any other to those of every entity that emerged in the meta-test period of
    ``facts`` or later: the ones that are new to what it has learned.

    Args:
        model: trained, where it has weights.
        facts: what it was trained on.
        shots: K.
    """

    def __init__(self, model: Model[Any], facts: Facts, shots: int) -> None:
        self.model, self.shots = model, shots
        self._facts = facts
        self._known = len(facts.entities)
        self._last_old_step = int(Periods.of(facts).last_step[Period.META_VALIDATION])
        self._shown = -1

    def calibrate(self) -> Calibration:
        """Fit a calibration to the meta-validation tasks of the facts it was trained on."""
        self._shown = -1
        if isinstance(self.model, TrainableModel):
            self.model.extend(self._known, known=self._known, supports=Supports.none())
        return Calibration.fit(self.model, self._facts, self.shots)

    def show(self, snapshot: Snapshot, entity: int) -> None:
        """Show the model all facts of a snapshot, before questions about an entity.

        Raises:
            DataError: the entity came after the model's facts, and the model cannot learn of it.
        """
        model = self.model
        if model.needs_law and entity >= self._known:
            raise DataError(f"{model.name} cannot speak of entities that came after its facts")
        if self._shown != snapshot.version:
            if model.live:
                self._extend(snapshot)
                model.prepare(snapshot.visible)
            else:
                self._show_all(snapshot)
        if model.live:
            model.adapt(snapshot.supports([entity], self.shots))
        self._shown = snapshot.version

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
        supports = snapshot.supports(snapshot.newcomers(self._last_old_step), self.shots)
        if isinstance(self.model, TrainableModel):
            self.model.extend(len(snapshot.entities), known=self._known, supports=supports)
        self.model.prepare(snapshot.visible).adapt(supports)

    def score(
        self, snapshot: Snapshot, queries: Queries, calibration: Calibration
    ) -> tuple[Tensor, Tensor]:
        """(Q, E) scores and probabilities of all candidates."""
        scores = self.model.score(queries)
        missing = len(snapshot.entities) - scores.shape[1]
        if missing > 0:
            lowest = scores.amin(1, keepdim=True) - 1
            scores = torch.cat([scores, lowest.expand(-1, missing)], 1)
        grades = self.model.grades(queries) if isinstance(self.model, Graded) else None
        return scores, calibration.apply(scores, grades)

    def reasons(self, queries: Queries, answer: Tensor) -> list[list[Explanation]]:
        """What speaks for one candidate of each question; nothing, if the model cannot say."""
        if not isinstance(self.model, Explains) or not len(queries):
            return [[] for _ in range(len(queries))]
        return self.model.reasons(queries, answer)
