"""What a model may learn from: known facts, the meta-train tasks, and meta-validation to select by.

Whatever the visibility, a training sees no query of meta-validation or meta-test. It sees all
supports (they are observed, whenever they happen) and

================  ======================================================================
``entity-split``  the facts of background and meta-train entities, at any time
``frozen``        the facts up to the end of meta-train
``streaming``     the same: what comes later is only *read*, question by question
================  ======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metatkgr.data.facts import Facts
from metatkgr.data.periods import DEFAULT_CUTS, Period, Periods
from metatkgr.data.shots import Shots
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Supports, Visibility, VisibleFacts, public_facts

__all__ = ["Problem"]

_EARLIER_CUTS = ("0.15", DEFAULT_CUTS[0], DEFAULT_CUTS[1])
"""Who emerged between the first two is asked about; what is after the third is not looked at."""


@dataclass(frozen=True, eq=False)
class Problem:
    """All that a training may use."""

    known: VisibleFacts
    """Facts to learn from, in both directions."""
    few_shot: VisibleFacts
    """The facts of background entities and the supports of all others, meta-train entities too: to
    learn vectors in which those are as new as the entities to come."""
    one_shot: VisibleFacts
    """The same with only the first fact of each support."""
    train: Tasks
    """Meta-train tasks: supports and queries."""
    validation: Tasks
    """Meta-validation tasks: supports to learn from, queries to select by and nothing else."""
    earlier: Tasks
    """Tasks of entities that emerged late in the background, as if they were new: their facts are
    known, so they may teach what becomes of new entities, besides the meta-train tasks."""
    newest: Supports
    """The supports of the meta-test entities: observed by all, so they may be learned from too."""
    shots: int | str
    visibility: Visibility

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
        later = wanted if test_shots is None else Shots.parse(test_shots)
        visibility = Visibility.parse(visibility) if isinstance(visibility, str) else visibility
        periods = Periods.of(facts)

        def tasks(split: Period, first: Shots | None = None) -> Tasks:
            shots = first or (wanted if split is Period.META_TRAIN else later)
            return Tasks.build(
                facts, shots=shots, visibility=visibility, split=split, periods=periods, seed=seed
            )

        rule = Visibility.FROZEN if visibility is Visibility.STREAMING else visibility

        def learnable(first: Shots | None, before: Period) -> VisibleFacts:
            """Facts of the time (or entities) before a period, and supports from it on."""
            observed = np.zeros(len(facts), bool)
            for split in range(before, Period.META_TEST + 1):
                observed[tasks(Period(split), first).support_facts] = True
            public = public_facts(facts, periods, before, rule, observed)
            return VisibleFacts.of(facts.select(public))

        return cls(
            learnable(None, Period.META_VALIDATION),
            learnable(None, Period.META_TRAIN),
            learnable(Shots(1, 1), Period.META_TRAIN),
            tasks(Period.META_TRAIN),
            tasks(Period.META_VALIDATION),
            Tasks.build(
                facts,
                shots=wanted,
                visibility=visibility,
                split=Period.META_TRAIN,
                periods=Periods.of(facts, _EARLIER_CUTS),
                seed=seed,
            ),
            tasks(Period.META_TEST).supports,
            wanted.label,
            visibility,
        )
