"""What a model may learn from: known facts, the meta-train tasks, and meta-validation to select by.

Whatever the visibility, a training sees no query of meta-validation or meta-test. It sees all
supports (they are observed, whenever they happen) and

================  ======================================================================
``entity-split``  the facts of background and meta-train entities, at any time
``frozen``        the facts up to the end of meta-train
``streaming``     the same: what comes later is only *read*, query by query
================  ======================================================================
"""

from __future__ import annotations

import copy
from functools import cached_property

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import Facts
from metatkgr.data.periods import DEFAULT_CUTS, Period, Periods, Shots
from metatkgr.data.tasks import NewEntities, Tasks
from metatkgr.data.visibility import Supports, Visibility, VisibleFacts, public_facts

__all__ = ["Problem"]

_EARLIER_CUTS = ("0.15", DEFAULT_CUTS[0], DEFAULT_CUTS[1])
"""Queries are about who emerged between the first two; what is after the third is not looked at."""


class Problem:
    """All that a training may use, as selections over one graph; each is made at its first use.

    Attributes:
        filter: which other true answers are not to be ranked below the one that is learned:
            'static', those of any time; 'time', those of the query's time.

    Args:
        facts: the whole graph.
        shots: K of the meta-train entities.
        test_shots: K of the meta-validation and meta-test entities.
        visibility: which facts may be learned from.
        seed: of each entity's K, where it is drawn.
    """

    filter = "static"

    def __init__(
        self,
        facts: Facts,
        *,
        shots: Shots,
        test_shots: Shots,
        visibility: Visibility,
        seed: int,
    ) -> None:
        self.shots: int | str = shots.label
        self.visibility = visibility
        self._facts, self._seed = facts, seed
        self._shots = dict.fromkeys(Period, test_shots) | {Period.META_TRAIN: shots}
        self._first: dict[Period, NewEntities] = {}

    @classmethod
    def of(
        cls,
        facts: Facts,
        *,
        shots: int | str | Shots = 3,
        test_shots: int | str | Shots | None = None,
        visibility: Visibility | str = Visibility.ENTITY_SPLIT,
        seed: int = 0,
    ) -> Problem:
        """The problem of learning to forecast the meta-test entities of ``facts``.

        Args:
            facts: the whole graph.
            shots: K, or a range from which each entity's K is drawn.
            test_shots: K of the meta-validation and meta-test entities, where it is another one.
            visibility: which facts may be learned from.
            seed: of each entity's K, where it is drawn.
        """
        wanted = Shots.parse(shots)
        return cls(
            facts,
            shots=wanted,
            test_shots=wanted if test_shots is None else Shots.parse(test_shots),
            visibility=Visibility.parse(visibility) if isinstance(visibility, str) else visibility,
            seed=seed,
        )

    def with_train(self, tasks: Tasks) -> Problem:
        """The same with other tasks in place of the meta-train tasks."""
        other = copy.copy(self)
        other.train = tasks  # as if it had been read before
        return other

    @cached_property
    def train(self) -> Tasks:
        """Meta-train tasks: supports and queries."""
        return self._tasks(Period.META_TRAIN)

    @cached_property
    def validation(self) -> Tasks:
        """Meta-validation tasks: supports to learn from, queries to select by and nothing else."""
        return self._tasks(Period.META_VALIDATION)

    @cached_property
    def validation_supports(self) -> Supports:
        """Those of the meta-validation tasks, for who needs no more of these."""
        return self._supports(Period.META_VALIDATION)

    @property
    def earlier(self) -> Tasks:
        """Tasks of entities that emerged late in the background, as if they were new.

        Their facts are known, so they may teach what becomes of new entities, besides the
        meta-train tasks. Made anew at each use, as a training uses them once.
        """
        periods = Periods.of(self._facts, _EARLIER_CUTS)
        new = NewEntities.of(self._facts, periods, Period.META_TRAIN, self.visibility)
        return new.tasks(self._shots[Period.META_TRAIN], self._seed)

    @cached_property
    def newest(self) -> Supports:
        """The supports of the meta-test entities: observed by all, so they may be learned from."""
        return self._supports(Period.META_TEST)

    @cached_property
    def background(self) -> VisibleFacts:
        """The facts of background entities, and nothing of later ones."""
        nothing = np.zeros(len(self._facts), bool)
        return self._public_before(Period.META_TRAIN, nothing)

    @cached_property
    def known(self) -> VisibleFacts:
        """Facts to learn from, in both directions."""
        return self._learnable(self._shots, Period.META_VALIDATION)

    @cached_property
    def few_shot(self) -> VisibleFacts:
        """The facts of background entities and the supports of all others, meta-train ones too.

        To learn vectors in which those are as new as the entities to come.
        """
        return self._learnable(self._shots, Period.META_TRAIN)

    @cached_property
    def one_shot(self) -> VisibleFacts:
        """The same with only the first fact of each support."""
        return self._learnable(dict.fromkeys(Period, Shots(1, 1)), Period.META_TRAIN)

    @cached_property
    def one_shot_later(self) -> VisibleFacts:
        """The facts of background and meta-train entities, and the first fact of later ones."""
        return self._learnable(dict.fromkeys(Period, Shots(1, 1)), Period.META_VALIDATION)

    @cached_property
    def _periods(self) -> Periods:
        return Periods.of(self._facts)

    def _tasks(self, split: Period) -> Tasks:
        new = NewEntities.of(self._facts, self._periods, split, self.visibility)
        self._first.setdefault(split, new.first(self._shots[split].high))
        return new.tasks(self._shots[split], self._seed)

    def _supports(self, split: Period) -> Supports:
        return self._first_facts(split).supports(self._shots[split], self._seed)

    def _first_facts(self, split: Period) -> NewEntities:
        """The facts of a split's new entities of which supports are cut; all of them are many."""
        if split not in self._first:
            new = NewEntities.of(self._facts, self._periods, split, self.visibility)
            self._first[split] = new.first(self._shots[split].high)
        return self._first[split]

    def _learnable(self, shots: dict[Period, Shots], before: Period) -> VisibleFacts:
        """Facts of the time (or entities) before a period, and supports from it on."""
        observed = np.zeros(len(self._facts), bool)
        for split in (Period.META_TRAIN, Period.META_VALIDATION, Period.META_TEST):
            if split >= before:
                observed |= self._first_facts(split).in_support(shots[split], self._seed)
        return self._public_before(before, observed)

    def _public_before(self, before: Period, observed: npt.NDArray[np.bool_]) -> VisibleFacts:
        """Facts of the time (or entities) before a period, and those observed besides."""
        rule = self.visibility
        if rule is Visibility.STREAMING:  # what comes later is read query by query
            rule = Visibility.FROZEN
        public = public_facts(self._periods, before, rule, np.flatnonzero(observed))
        return VisibleFacts.by_rule(self._facts, public)
