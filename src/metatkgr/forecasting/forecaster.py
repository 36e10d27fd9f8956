"""The forecaster: what next for this entity, how likely, and why, while facts keep arriving."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metatkgr.data.facts import Facts
from metatkgr.data.periods import Shots
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import as_of
from metatkgr.deadlines import check, holding
from metatkgr.errors import DataError, MetaTKGRError, SettingsError
from metatkgr.forecasting.calibration import Calibration, Chances, KeptCalibration
from metatkgr.forecasting.explain import Forecast, Forecasts, Reason, Verbaliser
from metatkgr.forecasting.incoming import checked_step, rows_of
from metatkgr.forecasting.known import KnownFacts
from metatkgr.forecasting.live import Engine, Snapshot
from metatkgr.forecasting.names import checked_name
from metatkgr.forecasting.ranking import SIDES, Asked, Candidate, Question, answered
from metatkgr.forecasting.schema import Schema
from metatkgr.models.base import Explains, Explanation, Model, TrainableModel
from metatkgr.recent import Recent
from metatkgr.training.opening import OpenModel, open_model

__all__ = ["Forecaster", "Question"]

_REASONED_AT_ONCE = 64
"""Candidates whose reasons are made in one go: who has gone is noticed between."""

_DATES = 3
"""Dates of the past for which a forecaster is kept."""


class Forecaster(KnownFacts):
    """Forecasts about entities that may have appeared a moment ago; nothing is retrained.

    >>> forecaster = Forecaster.load("runs/events")  # doctest: +SKIP
    >>> forecaster.observe([("Acme", "acquires", "Bolt Ltd", "2026-11-02")])  # doctest: +SKIP
    >>> print(forecaster.predict("Acme", "acquires", explain=True))  # doctest: +SKIP

    A query at a time sees every fact strictly before it, and of the query entity its first K
    facts whatever their time; :meth:`at` gives a forecaster that sees nothing later than a date.
    All methods may be called from several threads; each call sees the facts as they were at one
    moment.

    Args:
        model: trained, where it has weights; the forecaster takes it over.
        facts: what is known at first.
        shots: K.
        calibration: turns scores into probabilities; None: it is fitted to the latest queries of
            ``facts`` when the first probability is asked for.
        kept: where a calibration that had to be fitted is kept.
        another: makes the same model once more, for :meth:`at`; None: it is copied.
        learned: whether it was trained on ``facts``; None: if it has weights.
    """

    def __init__(
        self,
        model: Model[Any],
        facts: Facts,
        *,
        shots: int | str = 3,
        calibration: Calibration | None = None,
        kept: KeptCalibration | None = None,
        another: Callable[[], Model[Any]] | None = None,
        learned: bool | None = None,
    ) -> None:
        super().__init__(facts)
        # A table with a row for each relation has none for a new one.
        tabled = isinstance(model, TrainableModel) and "relation" in model.weights
        self.takes_relations = model.live and not tabled
        self.model = model
        self.shots = Shots.parse(shots).high
        self._lock = threading.RLock()  # of the model, which is held for long
        self._engine = self._reasoner = Engine(model, self._graph.snapshot().visible, self.shots)
        self._reasoning = self._lock
        if model.live and isinstance(model, Explains):
            # Reasons take long: they have the model once more, so that forecasts wait for none.
            visible = self._graph.snapshot().visible
            self._reasoner = Engine(_beside(model), visible, self.shots)
            self._reasoning = threading.RLock()
        self._calibration, self._kept = calibration, kept
        self._learned = isinstance(model, TrainableModel) if learned is None else learned
        self._another = another or partial(_another, model)
        self._past = Recent(self._as_of, _DATES)
        self._looking_back = threading.Lock()

    @classmethod
    def load(cls, source: str | Path | OpenModel, *, device: str = "auto") -> Forecaster:
        """The forecaster of a trained run, or of data by the default model.

        Args:
            source: the folder of a run, a name or path of data, or what ``open_model`` opened.
            device: 'cpu', 'cuda', 'cuda:N' or 'auto', a GPU where there is one.

        Raises:
            SettingsError: it was opened with another K than the run's, to which its probabilities
                are calibrated.
        """
        opened = source if isinstance(source, OpenModel) else open_model(source, device=device)
        if opened.folder is not None and str(opened.shots) != str(opened.trained_shots):
            raise SettingsError(f"{opened.folder} is a run: its shots are chosen already")
        kept = KeptCalibration.of(opened)
        calibration = kept.load() if kept is not None else None
        return cls(
            opened.model,
            opened.facts,
            shots=opened.shots,
            calibration=calibration,
            kept=kept,
            another=opened.another,
            learned=opened.folder is not None,
        )

    @classmethod
    def of(
        cls,
        facts: Facts,
        model: Model[Any] | str | None = None,
        *,
        shots: int | str = 3,
        calibration: Calibration | None = None,
    ) -> Forecaster:
        """A forecaster from facts alone, with weights learned on other graphs; or by a model.

        Args:
            facts: what is known at first.
            model: or the name of one that needs no training; None: the default.
            shots: K, how many first facts of an entity it is adapted to.
            calibration: see :class:`Forecaster`.
        """
        if isinstance(model, Model):
            return cls(model, facts, shots=shots, calibration=calibration)
        opened = open_model(facts, model=model, device="cpu")
        how: dict[str, Any] = {"another": opened.another, "learned": False}
        return cls(opened.model, facts, shots=shots, calibration=calibration, **how)

    @property
    def calibration(self) -> Calibration:
        """How scores become probabilities; fitted when first asked for, which takes a moment."""
        with self._lock:
            return self.calibrate() if self._calibration is None else self._calibration

    def calibrate(self) -> Calibration:
        """Fit the calibration anew, and keep it with the run or the ingested folder."""
        with self._lock:
            self._calibration = self._engine.calibrate()
            if self._kept is not None:
                self._kept.save(self._calibration)
            return self._calibration

    def obey(self, schema: Schema | str | Path) -> Forecaster:
        """Leave out what a schema, or a file that holds one, rules out; returns self."""
        if not isinstance(schema, Schema):
            schema = Schema.load(schema, self._trained_on)
        with self._reasoning:
            self._reasoner.schema = schema
        with self._lock:
            self._engine.schema = schema
        with self._looking_back:
            self._past = Recent(self._as_of, _DATES)
        return self

    def at(self, date: Any) -> Forecaster:
        """A forecaster that knows only what had happened by a date, for looking back.

        It sees no later fact, not even an entity's own first ones, and its probabilities are fitted
        to what was known then. The last few dates are kept. Facts that are observed later do not
        reach it.

        Args:
            date: as in :meth:`predict`; what happened on it is known.

        Raises:
            DataError: nothing had happened by then, or the model has learned from later facts.
        """
        step = checked_step(date, self._trained_on.calendar, self._trained_on.steps, "date")
        with holding(self._looking_back):  # who asks about now does not wait for it
            return self._past((step, self.snapshot().version))

    def anew(self, facts: Facts) -> Forecaster:
        """The same model and calibration, told nothing but some facts."""
        how: dict[str, Any] = {"another": self._another, "learned": self._learned}
        made = Forecaster(
            self._once_more(), facts, shots=self.shots, calibration=self.calibration, **how
        )
        made._engine.last_old_step = self._engine.last_old_step
        made._engine.schema = made._reasoner.schema = self._engine.schema
        return made

    def _once_more(self) -> Model[Any]:
        with self._lock:  # nobody shows it facts meanwhile
            return self._another()

    def _as_of(self, when: tuple[int, int]) -> Forecaster:
        step, learned = when[0], self._engine.last_old_step
        if self._learned and step < learned:
            label = self._trained_on.calendar.label
            raise DataError(
                f"{self.model.name} has learned from facts up to {label(learned)}: as of "
                f"{label(step)} it would know the future; take a model that needs no training"
            )
        if self._learned:
            return self.anew(as_of(self.facts, step, names=False))
        how: dict[str, Any] = {"another": self._another, "learned": False}
        made = Forecaster(self._once_more(), as_of(self.facts, step), shots=self.shots, **how)
        made._engine.schema = made._reasoner.schema = self._engine.schema
        return made

    # Queries

    def predict(
        self,
        entity: str,
        relation: str | None = None,
        *,
        at: Any = None,
        side: str = "object",
        top: int = 10,
        within: int | str | None = None,
        explain: bool = False,
        as_of: Any = None,
        what_if: Any = (),
    ) -> Forecasts:
        """The most likely answers, best first.

        Args:
            entity: name, label or alias of the query entity.
            relation: None: its most likely next facts over all relations and both sides.
            at: a date as text or object, or a number: in graphs that count time in plain numbers
                or years one of those, else a step. None: the step after the last fact.
            side: 'object' asks ``entity relation ?``, 'subject' asks ``? relation entity``.
            top: how many.
            within: so many steps from ``at`` on, or a time as '30d': the probability is then that
                the next such fact comes in this time and is with the candidate. None: it is given
                that such a fact happens.
            explain: give the reasons too.
            as_of: answer as somebody would who had seen nothing after this date; see :meth:`at`.
            what_if: facts, as :meth:`observe` takes them, that are supposed for this answer alone.
        """
        supposed = tuple(rows_of(what_if))
        question = Question(entity, relation, at, side, top, within, explain, as_of, supposed)
        (found,) = self.predict_many([question])
        if isinstance(found, MetaTKGRError):
            raise found
        return found

    def predict_many(self, questions: Sequence[Question]) -> list[Forecasts | MetaTKGRError]:
        """The answers to several questions, which together take hardly longer than one.

        All see the same facts. A question that cannot be answered does not spoil the others: in
        the place of its answer is the error that :meth:`predict` would have raised.
        """
        results: dict[int, Forecasts | MetaTKGRError] = {}
        groups: dict[str, list[int]] = {}
        for number, question in enumerate(questions):
            groups.setdefault(repr((question.as_of, question.what_if)), []).append(number)
        for numbers in groups.values():
            first = questions[numbers[0]]
            some = [replace(questions[number], as_of=None) for number in numbers]
            try:
                if first.as_of is not None:
                    found = self.at(first.as_of).predict_many(some)
                else:
                    found = self._answers(some, first.what_if)
            except MetaTKGRError as error:
                found = [error] * len(some)
            results.update(zip(numbers, found, strict=True))
        return [results[number] for number in range(len(questions))]

    def _answers(
        self, questions: Sequence[Question], what_if: tuple[Any, ...]
    ) -> list[Forecasts | MetaTKGRError]:
        """Answers to questions that suppose the same."""
        results: dict[int, Forecasts | MetaTKGRError] = {}
        asked: dict[int, Asked] = {}
        engine, lock = self._engine, self._lock
        if any(question.explain for question in questions):  # by the model that has scored
            engine, lock = self._reasoner, self._reasoning
        with lock:
            snapshot = self.supposing(what_if) if what_if else self.snapshot()
            for number, question in enumerate(questions):
                try:
                    asked[number] = question.understood(snapshot, self._trained_on)
                    engine.check(asked[number].entity)
                except MetaTKGRError as error:
                    asked.pop(number, None)
                    results[number] = error
            if not asked:
                return [results[number] for number in range(len(questions))]
            calibration = self.calibration  # first: a fit shows the model its own tasks
            engine.show(snapshot, [one.entity for one in asked.values()])
            self._keep_up(snapshot)

            def ask(queries: Queries) -> Chances:
                return engine.score(snapshot, queries, calibration)

            askings = [
                one.answers(snapshot, self.shots, calibration.hazard, engine.schema)
                for one in asked.values()
            ]
            found = dict(zip(asked, answered(askings, ask), strict=True))
        explained = [
            (one.entity, candidate)
            for number, one in asked.items()
            for candidate in found[number].best
            if questions[number].explain
        ]
        words = Verbaliser(snapshot)
        told = iter(_in_words(words, explained, self._explanations(snapshot, explained)))
        for number, one in asked.items():
            forecasts = [
                self._forecast(words, c, rank, next(told) if questions[number].explain else ())
                for rank, c in enumerate(found[number].best, 1)
            ]
            query = self._query(words, questions[number], one)
            rest = found[number]
            results[number] = Forecasts(
                query,
                tuple(forecasts),
                rest.other,
                rest.new,
                rest.comes,
                tuple((words.date(step), chance) for step, chance in rest.when),
                calibration.about(),
            )
        return [results[number] for number in range(len(questions))]

    def _query(self, words: Verbaliser, question: Question, asked: Asked) -> dict[str, Any]:
        """A question as it was understood."""
        every = asked.relation is None
        return {
            "entity": words.snapshot.entities.name(asked.entity),
            "label": words.snapshot.entities.label(asked.entity),
            "relation": None if asked.relation is None else words.relation(asked.relation),
            "side": None if every else question.side,
            "at": words.date(asked.step),
            "until": words.date(asked.step + (asked.within or 1) - 1),
            "within": asked.within,
            "top": asked.top,
            "model": self.model.name,
            "shots": self.shots,
        }

    def explain(
        self, entity: str, relation: str, answer: str, *, at: Any = None, side: str = "object"
    ) -> tuple[Reason, ...]:
        """Why a candidate would be the answer; empty where nothing speaks for it.

        Args:
            entity, relation, at, side: as in :meth:`predict`.
            answer: name of the candidate.
        """
        question = Question(entity, relation, at, side)
        with self._reasoning:
            snapshot = self.snapshot()
            asked = question.understood(snapshot, self._trained_on)
            other = snapshot.entities.id(checked_name(answer, "entity"), "entity")
            self._reasoner.check(asked.entity)
        assert asked.relation is not None
        candidate = Candidate(other, asked.relation, asked.step, 0.0, 0.0)
        explained = [(asked.entity, candidate)]
        explanations = self._explanations(snapshot, explained)
        return _in_words(Verbaliser(snapshot), explained, explanations)[0]

    # Inside

    def _keep_up(self, snapshot: Snapshot) -> None:
        """Have nobody hold the index of facts that have been indexed anew since."""
        if self._reasoner.base is snapshot.visible.base:
            return
        if self._reasoning.acquire(blocking=False):  # else it will be shown others soon
            try:
                self._reasoner.show(snapshot, [0])
            finally:
                self._reasoning.release()

    def _explanations(
        self, snapshot: Snapshot, candidates: list[tuple[int, Candidate]]
    ) -> list[list[Explanation]]:
        """Of candidates of query entities, a few at a time."""
        found: list[list[Explanation]] = []
        for begin in range(0, len(candidates), _REASONED_AT_ONCE):
            check()
            some = candidates[begin : begin + _REASONED_AT_ONCE]
            columns = [(who, c.relation, c.step, c.entity) for who, c in some]
            entity, relation, time, answer = np.ascontiguousarray(np.array(columns, np.int64).T)
            queries = Queries(entity, relation, np.minimum(time, snapshot.last_step + 1))
            with self._reasoning:
                self._reasoner.show(snapshot, entity.tolist())
                found += self._reasoner.reasons(queries, torch.from_numpy(answer))
        return found

    def _forecast(
        self, words: Verbaliser, candidate: Candidate, rank: int, reasons: tuple[Reason, ...]
    ) -> Forecast:
        names, base = words.snapshot.entities, len(words.snapshot.first.relations)
        return Forecast(
            entity=names.name(candidate.entity),
            label=names.label(candidate.entity),
            relation=words.relation(candidate.relation),
            side=SIDES[candidate.relation >= base],
            at=words.date(candidate.step),
            score=candidate.score,
            probability=candidate.probability,
            rank=rank,
            reasons=reasons,
        )


def _in_words(
    words: Verbaliser, candidates: list[tuple[int, Candidate]], why: list[list[Explanation]]
) -> list[tuple[Reason, ...]]:
    """What speaks for candidates of query entities."""
    return [
        tuple(words.reason(who, c.relation, c.entity, explanation) for explanation in some)
        for (who, c), some in zip(candidates, why, strict=True)
    ]


def _beside(model: Model[Any]) -> Model[Any]:
    """The same model for another thread: what it looks up and its numbers are there once."""
    if not isinstance(model, TrainableModel):
        return _another(model)
    kept = [getattr(model, "index_", None), *model.parameters(), *model.buffers()]
    return deepcopy(model, {id(one): one for one in kept})


def _another(model: Model[Any]) -> Model[Any]:
    """The same model once more; one without weights has learned nothing."""
    if isinstance(model, TrainableModel):
        return deepcopy(model)
    return type(model)(model.settings, device=model.device)
