"""The facts around an entity at one time, read one by one, as if some link had never been.

What is collected is what ``graph.sampler`` collects, in the same order. That one does it for
thousands of roots at once; this one for a few, says from where each fact was reached, and can leave
a link out. Draws of the sampler 'uniform' cannot be repeated: the most recent facts stand for them.
"""

from __future__ import annotations

import torch

from metatkgr.data.visibility import Supports
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.sampler import Neighbours
from metatkgr.models.base import Link
from metatkgr.models.metatkgr.settings import MetaTKGRSettings

__all__ = ["Nearby", "Triple", "as_neighbours"]

_WIDER = 4
"""So many budgets of an entity's facts are read: where some are left out, older ones come in."""

Triple = tuple[int, int, int]
"""Subject, relation and object: a link, whatever its times."""


class Nearby:
    """What is visible at a time.

    Args:
        index: the public facts.
        supports: an entity's own are visible to it at any time, where asked for.
        settings: sampler, budget and window.
        time: before which to look.
    """

    def __init__(
        self, index: GraphIndex, supports: Supports, settings: MetaTKGRSettings, time: int
    ) -> None:
        self.index, self.supports, self.settings, self.time = index, supports, settings, time
        self._read: dict[tuple[int, bool], list[Link]] = {}

    def links(self, entity: int, *, own: bool = False) -> list[Link]:
        """The most recent visible links of an entity, the latest first."""
        key = (entity, own)
        if key not in self._read:
            found = self._public(entity)
            if own:
                found = self._own(entity) + found
            self._read[key] = found[: _WIDER * self.settings.budget]
        return self._read[key]

    def _public(self, entity: int) -> list[Link]:
        index = self.index
        who = torch.tensor([entity], device=index.device)
        when = torch.tensor([self.time], device=index.device)
        low, high = (int(end) for end in index.before(who, when, self.settings.time_window))
        count = min(high - low, _WIDER * self.settings.budget)
        position = high - 1 - torch.arange(count, device=index.device).unsqueeze(0)
        found = index.read(who, position, torch.ones_like(position, dtype=torch.bool))
        columns = torch.cat(found).T.tolist()  # target, relation, time
        return [Link(entity, relation, target, time) for target, relation, time in columns]

    def _own(self, entity: int) -> list[Link]:
        """The first facts of an entity that are not public yet."""
        own = self.supports.of(entity)
        columns = zip(own.relation.tolist(), own.other.tolist(), own.time.tolist(), strict=True)
        return [
            Link(entity, relation, other, time)
            for relation, other, time in reversed(list(columns))
            # Of a fact of an entity with itself, the fact's own direction.
            if time >= self.time and (other != entity or relation < self.index.relations // 2)
        ]

    def sample(self, entity: int, *, own: bool, without: Triple | None = None) -> list[Link]:
        """Up to a budget of facts around an entity, in the order in which they are reached.

        Args:
            entity: the root.
            own: whether it sees its own support at any time.
            without: a link that is left out.
        """
        budget = self.settings.budget
        onwards = self.settings.sampler == "bfs"
        found: list[Link] = []
        queue, taken = [entity], set[int]()
        for source in queue:
            for link in self.links(source, own=own and source == entity):
                if link.target in taken or self.triple(link) == without:
                    continue
                found.append(link)
                if len(found) == budget:
                    return found
                if onwards and link.target not in queue:
                    queue.append(link.target)
            taken.add(source)
        return found

    def triple(self, link: Link) -> Triple:
        """The fact behind a directed link, whatever its time."""
        half = self.index.relations // 2
        if link.relation < half:
            return (link.source, link.relation, link.target)
        return (link.target, link.relation - half, link.source)

    def facts(self, triple: Triple) -> tuple[Link, ...]:
        """The visible facts of a link that were read, the latest first."""
        times = {
            link.time
            for end in (triple[0], triple[2])
            for own in (False, True)
            for link in self._read.get((end, own), ())
            if self.triple(link) == triple
        }
        return tuple(Link(*triple, time) for time in sorted(times, reverse=True))


def as_neighbours(samples: list[list[Link]], budget: int, device: torch.device) -> Neighbours:
    """Samples in the form that a sampler gives."""
    padded = [
        [
            *((x.target, x.relation, x.time, 1) for x in links),
            *[(0, 0, 0, 0)] * (budget - len(links)),
        ]
        for links in samples
    ]
    entity, relation, time, mask = torch.tensor(padded, device=device).unbind(2)
    return Neighbours(entity, relation, time, mask.bool())
