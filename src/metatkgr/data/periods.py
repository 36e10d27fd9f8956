"""The few-shot protocol in two choices: the four periods, and K, the size of a support."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import Facts, IntArray
from metatkgr.errors import SettingsError, UnknownNameError

__all__ = ["DEFAULT_CUTS", "Period", "Periods", "Shots"]

DEFAULT_CUTS = ("0.40", "0.65", "0.75")
"""Where the time range is cut, as shares of it (decimal strings, so that no cut is rounded)."""

_RANDOM = (1, 5)
"""The range that is meant by 'random'."""
_DIGITS = 9
"""Of a number of shots, at most."""


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
        last_step = cls.last_steps(facts, cuts)
        of_entity = np.searchsorted(last_step, facts.emerged_at, side="left").astype(np.int8)
        of_entity[facts.emerged_at < 0] = -1
        of_fact = np.maximum(of_entity[facts.subject], of_entity[facts.object])
        return cls(last_step, of_entity, of_fact)

    @staticmethod
    def last_steps(facts: Facts, cuts: tuple[str, str, str] = DEFAULT_CUTS) -> IntArray:
        """(4,) last step of each period alone, for which no fact but the last is looked at."""
        end = facts.steps - 1
        return np.array([*(int(Fraction(cut) * end // 1) for cut in cuts), end], np.int64)


@dataclass(frozen=True)
class Shots:
    """How many first facts of a new entity are known: K, or K drawn evenly from a range."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low < 1:
            raise SettingsError(f"shots must be at least 1, not {self.low}")
        if self.high < self.low:
            raise SettingsError(
                f"shots go from few to many: write {self.high}-{self.low}, not "
                f"{self.low}-{self.high}"
            )
        if self.high >= 10**_DIGITS:
            raise SettingsError(f"no entity has 10^{_DIGITS} first facts or more: choose fewer")

    @classmethod
    def parse(cls, text: Shots | int | str) -> Shots:
        """From 3, '3', '1-5' or 'random' (1-5)."""
        if isinstance(text, Shots):
            return text
        if isinstance(text, int | np.integer) and not isinstance(text, bool):
            return cls(int(text), int(text))
        if not isinstance(text, str):
            raise SettingsError(f"shots are a number, a range as 1-5, or 'random', not {text!r}")
        plain = text.strip().lower()
        if plain == "random":
            return cls(*_RANDOM)
        first, dash, last = plain.partition("-")
        numbers = [first, last] if dash else [first, first]
        if not all(number.strip().isdecimal() for number in numbers):
            raise SettingsError(f"shots are a number, a range as 1-5, or 'random', not {text!r}")
        if max(map(len, numbers)) > _DIGITS:
            raise SettingsError(f"no entity has so many first facts: {text[:40]!r}")
        return cls(*map(int, numbers))

    @property
    def label(self) -> int | str:
        """K as a number; a range as text, 'random' where it is 1-5."""
        if self.low == self.high:
            return self.low
        return "random" if (self.low, self.high) == _RANDOM else f"{self.low}-{self.high}"

    def of_entities(self, count: int, seed: int = 0) -> int | IntArray:
        """K of each of ``count`` entities.

        An entity's K follows from the seed and its number alone, so that training and evaluation,
        and every split, agree on who has how many.

        Returns:
            One number for all, or (E,) numbers.
        """
        if self.low == self.high:
            return self.low
        generator = np.random.default_rng([seed, 0x5407])
        return generator.integers(self.low, self.high + 1, count, dtype=np.int64)
