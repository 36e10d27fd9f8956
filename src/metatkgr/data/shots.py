"""K, the size of a support: one number for all new entities, or one drawn for each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.errors import SettingsError

__all__ = ["Shots"]

_RANDOM = (1, 5)
"""The range that is meant by 'random'."""
_DIGITS = 9
"""Of a number of shots, at most."""


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
