"""Who emerged when: the four periods of the few-shot protocol."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import Facts, IntArray
from metatkgr.errors import UnknownNameError

__all__ = ["DEFAULT_CUTS", "Period", "Periods"]

DEFAULT_CUTS = ("0.40", "0.65", "0.75")
"""Where the time range is cut, as shares of it (decimal strings, so that no cut is rounded)."""


class Period(IntEnum):
    """The four periods, in time order."""

    BACKGROUND = 0
    META_TRAIN = 1
    META_VALIDATION = 2
    META_TEST = 3

    @classmethod
    def parse(cls, name: str) -> Period:
        """The period called ``name``, as in 'meta-test'."""
        by_name = {period.label: period for period in cls}
        if name not in by_name:
            raise UnknownNameError("split", name, by_name)
        return by_name[name]

    @property
    def label(self) -> str:
        """The name used on the command line: 'meta-test'."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, eq=False)
class Periods:
    """The period of every entity and of every fact.

    An entity belongs to the period in which its first fact lies, a fact to the period of its
    latest-emerging entity. A step that falls exactly on a cut belongs to the earlier period.
    """

    last_step: IntArray
    """(4,) last step of each period."""
    of_entity: npt.NDArray[np.int8]
    """(E,) period of each entity; -1 for entities without a fact."""
    of_fact: npt.NDArray[np.int8]
    """(N,) period of each fact."""

    @classmethod
    def of(cls, facts: Facts, cuts: tuple[str, str, str] = DEFAULT_CUTS) -> Periods:
        """Cut the time range of ``facts`` at the shares ``cuts`` of its length."""
        end = facts.steps - 1
        inner = [int(Fraction(cut) * end // 1) for cut in cuts]
        last_step = np.array([*inner, end], np.int64)
        of_entity = np.searchsorted(last_step, facts.emerged_at, side="left").astype(np.int8)
        of_entity[facts.emerged_at < 0] = -1
        of_fact = np.maximum(of_entity[facts.subject], of_entity[facts.object])
        return cls(last_step, of_entity, of_fact)
