"""The index of links that a folder of facts holds, mapped from disk.

What the columns are is said in ``data.index_writer``, which writes them; ``graph`` looks things up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from metatkgr.data.columns import Column
from metatkgr.data.manifest import AGAIN, INDEX, Links
from metatkgr.errors import DataError

__all__ = ["EVERY", "StoredLinks"]

EVERY = 8
"""A decayed count is kept at every such link: an eighth of the bytes for a few more exponentials
in a look-up."""

_STARTS = {
    "start": "key",
    "link_start": "link_time",
    "neighbour_start": "neighbour",
    "filler_start": "filler_time",
    "ordinal_start": "ordinal_time",
}
"""Columns that say where something begins in others: from 0 to the length of these."""
_ASCENDING = {"key", "link", "ordinal_cell", *_STARTS}


@dataclass(frozen=True, eq=False)
class StoredLinks:
    """The index of the links of the first facts of a folder."""

    columns: Mapping[str, npt.NDArray[Any]]
    """By their names in ``manifest.INDEX``."""
    facts: int
    """How many facts these are the links of; those of later ones are to be put beside them."""
    entities: int
    """E, when they were written; there may be more now."""
    relations: int
    """2R, the same."""
    steps: int
    """One more than there were: the last one stays free."""

    @classmethod
    def open(cls, folder: Path, part: Links) -> Self:
        """Map the columns.

        Raises:
            DataError: they are not those of one index.
        """
        columns = {
            name: Column(folder / part.file(name), dtype=part.dtype(name)).map() for name in INDEX
        }
        links = cls(columns, part.covers, part.entities, part.relations, part.steps)
        fits = part.covers <= len(columns["key"]) <= 2 * part.covers and all(
            len(columns[name]) == length for name, (length, _) in links._expected().items()
        )
        # Looked at only where they are as long as they should be.
        if not fits or any(
            int(columns[name][0]) != 0 or int(columns[name][-1]) != len(columns[of])
            for name, of in _STARTS.items()
        ):
            raise DataError(f"the index of {folder} is damaged, or that of other facts; {AGAIN}")
        return links

    def _expected(self) -> dict[str, tuple[int, int]]:
        """The length of each column, and what all of its values are less than."""
        names = ("key", "link", "neighbour", "ordinal_cell")
        links, distinct, pairs, cells = (len(self.columns[name]) for name in names)
        entities, relations, facts, steps = self.entities, self.relations, self.facts, self.steps
        sums = (2 * facts // EVERY, 2 * facts + 1)
        return {
            "key": (links, entities * steps),
            "start": (entities + 1, links + 1),
            "relation": (links, relations),
            "target": (links, entities),
            "link": (distinct, entities * relations * entities),
            "link_start": (distinct + 1, 2 * facts + 1),
            "link_time": (2 * facts, steps - 1),
            "slot_order": (distinct, distinct),
            "slot_first": (distinct, steps - 1),
            "entity_order": (distinct, distinct),
            "entity_first": (distinct, steps - 1),
            "usage_time": (2 * facts, steps - 1),
            "usage_sum_2": sums,
            "usage_sum_10": sums,
            "usage_sum_50": sums,
            "neighbour_start": (entities + 1, pairs + 1),
            "neighbour": (pairs, entities),
            "neighbour_first": (pairs, steps - 1),
            "neighbour_order": (pairs, pairs),
            "filler_start": (relations // 2 + 1, facts + 1),
            "filler_object": (facts, entities),
            "filler_subject": (facts, entities),
            "filler_time": (facts, steps - 1),
            "ordinal_cell": (cells, 2 * facts * relations),
            "ordinal_start": (cells + 1, 2 * facts + 1),
            "ordinal_time": (2 * facts, steps - 1),
        }

    def check(self, rows: int) -> str | None:
        """Look at all values once, ``rows`` at a time; what is wrong with them."""
        for name, (_, size) in self._expected().items():
            column, last = self.columns[name], 0
            for low in range(0, len(column), rows):
                values = np.asarray(column[low : low + rows])
                if not (values.min() >= 0 and values.max() < size):
                    return f"a value of {name!r} in its index is none that there can be"
                if name in _ASCENDING:
                    if values[0] < last or bool((values[1:] < values[:-1]).any()):
                        return f"{name!r} in its index is not in order"
                    last = values[-1]
        key, start = self.columns["key"], self.columns["start"]
        for low in range(0, self.entities + 1, rows):
            entity = np.arange(low, min(low + rows, self.entities + 1))
            # Ascending keys say where an entity's links begin; the column spares the search for it.
            if not np.array_equal(np.searchsorted(key, entity * self.steps), start[entity]):
                return "an entity's links are not where it says"
        return None
