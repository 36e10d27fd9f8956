"""The facts around one split's tasks, read block by block: what is public, and what is asked.

For models that look further than the asking entities: an index of these facts
(``graph.build.build_index``) shows a sampler what :attr:`Tasks.visible` would, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.large.split import StoredSplit, among
from metatkgr.data.periods import Period
from metatkgr.data.visibility import public_facts

__all__ = ["SplitFacts"]

Block = tuple[IntArray, IntArray, IntArray, IntArray]


class SplitFacts:
    """Facts of a folder, chosen by the tasks of one split.

    Args:
        split: the protocol.
        period: whose new entities are asked about.
    """

    def __init__(self, split: StoredSplit, period: Period) -> None:
        self._split, self._period = split, period
        self._supports = split.support_rows(period)

    def public(self, rows: int) -> Iterator[Block]:
        """Subjects, relations, objects and steps of the public facts, those of ``Tasks.visible``.

        Args:
            rows: of the folder, looked at in one go.
        """
        split = self._split
        for low, high in self._ranges(rows):
            part = split.part(low, high)
            observed = among(part.row, self._supports)
            public = public_facts(
                part.facts, part.periods, self._period, split.visibility, observed
            )
            yield _columns(part.facts.select(public))

    def asked(self, rows: int) -> Iterator[Block]:
        """The same of the facts behind the queries; one between two new entities comes once.

        Seen from a new entity of the split, these are its queries and no others.
        """
        for low, high in self._ranges(rows):
            part = self._split.part(low, high)
            place = self._split.asked(part, self._period, self._supports)[3]
            yield _columns(part.facts.select(np.unique(place)))

    def _ranges(self, rows: int) -> Iterator[tuple[int, int]]:
        count = len(self._split.store)
        return ((low, min(low + rows, count)) for low in range(0, count, rows))


def _columns(facts: Facts) -> Block:
    return facts.subject, facts.relation, facts.object, facts.time
