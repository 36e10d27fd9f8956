"""What a model may see. Every model, sampler, rule and calibration goes through this file.

For a query of entity e at time t, exactly these facts are visible:

1. e's own support, whatever its time;
2. of the *public* facts, those with time strictly before t.

Which facts are public depends on the visibility:

================  ==========================================================================
``entity-split``  facts whose entities are all older than the period; and every support
``frozen``        facts up to the end of the previous period; and every support
``streaming``     everything
================  ==========================================================================

A model is handed :class:`VisibleFacts` (the public facts; hidden ones are not in it at all) and the
:class:`Supports`, and reads both through the look-ups of ``graph``: ``History`` for evidence about
pairs, ``GraphIndex`` and the samplers for neighbours. These apply the time bound; a contract test
changes the future under every registered model and demands the same scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Facts, IntArray, Vocabulary
from metatkgr.data.periods import Period, Periods
from metatkgr.errors import UnknownNameError

__all__ = ["Supports", "Visibility", "VisibleFacts", "public_facts"]


class Visibility(StrEnum):
    """The three answers to 'what may a model see?'."""

    ENTITY_SPLIT = "entity-split"
    FROZEN = "frozen"
    STREAMING = "streaming"

    @classmethod
    def parse(cls, name: str) -> Visibility:
        """The visibility called ``name``."""
        try:
            return cls(name)
        except ValueError:
            raise UnknownNameError("visibility", name, [v.value for v in cls]) from None


def public_facts(
    facts: Facts,
    periods: Periods,
    split: Period,
    visibility: Visibility,
    in_support: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """(N,) mask of the facts that anyone may see once their time has passed.

    Args:
        facts: the whole graph.
        periods: its periods.
        split: the period whose new entities are being forecast.
        visibility: which rule applies.
        in_support: (N,) mask of the facts in anyone's support.
    """
    if visibility is Visibility.STREAMING:
        return np.ones(len(facts), bool)
    if visibility is Visibility.FROZEN:
        public = facts.time <= periods.last_step[split - 1]
    else:
        public = periods.of_fact < split
    return np.asarray(public | in_support)


@dataclass(frozen=True, eq=False)
class VisibleFacts:
    """The public facts, each in both directions: (s, r, o) and (o, r + R, s), R relations.

    Rows are in time order. This is the only place where inverse relations are made.
    """

    source: IntArray
    """(D,) entity the link starts from."""
    relation: IntArray
    """(D,) directed relation, 0..2R-1; r + R is the inverse of r."""
    target: IntArray
    """(D,) entity the link leads to."""
    time: IntArray
    """(D,) step, non-decreasing."""
    entities: Vocabulary
    relations: Vocabulary
    """The R relations as the data has them (directed relations number 2R)."""
    calendar: Calendar
    law: Any = None
    """The generating law, where the facts are simulated (only the oracle reads it)."""

    @classmethod
    def of(cls, facts: Facts) -> VisibleFacts:
        """Every fact of ``facts``, in both directions (a self-link too: both name e's place)."""
        count = len(facts.relations)
        source = np.stack([facts.subject, facts.object], axis=1).reshape(-1)
        relation = np.stack([facts.relation, facts.relation + count], axis=1).reshape(-1)
        target = np.stack([facts.object, facts.subject], axis=1).reshape(-1)
        time = np.repeat(facts.time, 2)
        return cls(
            source,
            relation,
            target,
            time,
            facts.entities,
            facts.relations,
            facts.calendar,
            facts.law,
        )

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, eq=False)
class Supports:
    """The first K facts of every new entity, seen from that entity.

    A support fact between two new entities may be in one support or in both; it has one row for
    each entity that owns it (two for a fact of an entity with itself: one per direction).
    Rows are grouped by entity and in time order inside a group.
    """

    entity: IntArray
    """(S,) the new entity that owns the fact."""
    relation: IntArray
    """(S,) directed relation, from the entity's side."""
    other: IntArray
    """(S,) the other end."""
    time: IntArray
    """(S,) step."""

    def __len__(self) -> int:
        return len(self.entity)

    def of(self, entity: int) -> Supports:
        """The support of one entity."""
        rows = slice(*np.searchsorted(self.entity, [entity, entity + 1]))
        return Supports(self.entity[rows], self.relation[rows], self.other[rows], self.time[rows])
