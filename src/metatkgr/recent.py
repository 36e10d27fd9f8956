"""Values that are dear to make, kept for the keys asked for last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Recent"]

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A bounded cache: makes the value of a key, and forgets the one least recently asked for.

    Unlike ``functools.lru_cache`` on a method it belongs to its owner, ends with it, and makes room
    before it makes a value, so that no more than the bound is ever held.

    Args:
        make: the value of a key.
        most: how many are kept; at least one is.
    """

    def __init__(self, make: Callable[[Key], Value], most: int) -> None:
        self._make, self._most = make, max(most, 1)
        self._values: dict[Key, Value] = {}

    def __call__(self, key: Key) -> Value:
        """The value of ``key``, kept or made."""
        if key in self._values:
            value = self._values.pop(key)
        else:
            while len(self._values) >= self._most:
                del self._values[next(iter(self._values))]
            value = self._make(key)
        self._values[key] = value  # last in order: forgotten last
        return value

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forget everything, as when what the values were made from has changed."""
        self._values.clear()
