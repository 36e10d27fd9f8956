"""The graph as a row of snapshots: the facts of each step, and each entity's active steps.

Two views of the same facts, for models that read a history step by step:

* :class:`Snapshots`: all facts of a step as one small graph; several of them side by side are one
  graph of disjoint copies, so that many steps are worked on at once.
* :class:`ActiveSteps`: for an entity the steps in which it had facts, as *nodes* (entity, step)
  with links to the entities it met there.

Both apply the time bound of ``data.visibility``: a snapshot is handed out only for queries later
than its step, and own supports that are not public yet only for their owner's queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.ragged import expand_ranges, pack

__all__ = ["ActiveSteps", "DisjointGraph", "Snapshots"]


@dataclass(frozen=True, eq=False)
class DisjointGraph:
    """B snapshots as one graph. Entity e of copy b is node b·E + e; relations likewise, b·2R + r.

    An absent snapshot is a copy without links.
    """

    source: Tensor
    """(L,) node a link starts from."""
    relation: Tensor
    """(L,) directed relation, numbered by copy."""
    target: Tensor
    """(L,) node a link leads to."""
    share: Tensor
    """(L, 1) one over the number of links that lead to the target: a sum with it is a mean."""
    member_relation: Tensor
    """(M,) relation of the data, b·R + r, of each distinct (relation, entity) pair."""
    member_entity: Tensor
    """(M,) node at either end of the relation."""
    member_share: Tensor
    """(M, 1) one over the number of members of the relation."""


class Snapshots:
    """The facts of every step that has any, in both directions.

    Args:
        visible: the facts.
        device: where the columns live; the few numbers per step stay on the CPU, so that the size
            of a graph is known without waiting for the device.
    """

    def __init__(self, visible: VisibleFacts, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.entities, self.relations = len(visible.entities), len(visible.relations)
        time = torch.from_numpy(np.ascontiguousarray(visible.time))
        source, relation, target = (
            torch.from_numpy(np.ascontiguousarray(column))
            for column in (visible.source, visible.relation, visible.target)
        )
        self.steps, snapshot = torch.unique_consecutive(time, return_inverse=True)
        self.start = torch.searchsorted(snapshot, torch.arange(len(self.steps) + 1))
        sizes = (len(self.steps), self.entities)
        _, pair, degree = torch.unique(
            pack((snapshot, sizes[0]), (target, sizes[1])), return_inverse=True, return_counts=True
        )
        # The inverse of a fact has the same relation of the data and the two ends the other way
        # round: the sources of all links are the ends of all facts.
        kind = pack(
            (snapshot, sizes[0]), (relation % max(self.relations, 1), max(self.relations, 1))
        )
        member = torch.unique(
            pack((kind, sizes[0] * max(self.relations, 1)), (source, self.entities))
        )
        member_kind = member // max(self.entities, 1)
        _, group, size = torch.unique_consecutive(
            member_kind, return_inverse=True, return_counts=True
        )
        self.member_start = torch.searchsorted(
            member_kind, torch.arange(len(self.steps) + 1) * max(self.relations, 1)
        )
        self.source, self.relation, self.target = (
            column.to(self.device) for column in (source, relation, target)
        )
        self.share = (1.0 / degree[pair].float()).unsqueeze(1).to(self.device)
        self.member_relation = (member_kind % max(self.relations, 1)).to(self.device)
        self.member_entity = (member % max(self.entities, 1)).to(self.device)
        self.member_share = (1.0 / size[group].float()).unsqueeze(1).to(self.device)

    def __len__(self) -> int:
        return len(self.steps)

    def window(self, time: Tensor, length: int) -> Tensor:
        """The last snapshots strictly before each time.

        Args:
            time: (B,) int64, on the CPU.
            length: m, how many.

        Returns:
            (B, m) numbers of snapshots on the CPU, oldest first; -1 where there are fewer.
        """
        end = torch.searchsorted(self.steps, time)
        return (end[:, None] - length + torch.arange(length)).clamp(min=-1)

    def graph(self, snapshot: Tensor) -> DisjointGraph:
        """Some snapshots side by side.

        Args:
            snapshot: (B,) numbers of snapshots on the CPU; -1 for a copy without links.
        """
        copy, link = self._rows(self.start, snapshot)
        node, kind = copy * self.entities, copy * (2 * self.relations)
        group, member = self._rows(self.member_start, snapshot)
        return DisjointGraph(
            self.source[link] + node,
            self.relation[link] + kind,
            self.target[link] + node,
            self.share[link],
            self.member_relation[member] + group * self.relations,
            self.member_entity[member] + group * self.entities,
            self.member_share[member],
        )

    def _rows(self, start: Tensor, snapshot: Tensor) -> tuple[Tensor, Tensor]:
        """(copy, position) of all rows of the snapshots, on the device."""
        there = snapshot >= 0
        known = snapshot.clamp(min=0)
        low = start[known] * there if len(self) else torch.zeros_like(known)
        high = start[known + 1] * there if len(self) else low
        copy, position = expand_ranges(low, high)
        return (
            copy.to(self.device, non_blocking=True),
            position.to(self.device, non_blocking=True),
        )


class ActiveSteps:
    """Nodes (entity, step) for every step in which an entity had facts, by entity and time.

    Three kinds of nodes share one numbering:

    1. *public*: an entity in a step with all its public facts there;
    2. *own*: a new entity in a step with its own support facts there, for its own queries at or
       before that step, which may see nothing else of it;
    3. *lonely*: an entity without links: whom a new entity met in such a step, since what else that
       one did then is not visible.

    Args:
        index: the public facts.
        supports: the first facts of the new entities; None for nobody's.
    """

    def __init__(self, index: TemporalIndex, supports: Supports | None = None) -> None:
        self.index = index
        self.own = TemporalIndex.of_supports(
            Supports.none() if supports is None else supports,
            entities=index.entities,
            relations=index.relations,
            device=index.device,
        )
        links, own = index.by_time, self.own.by_time
        key, self._node, count = _groups(links.key)
        own_key, self._own_node, own_count = _groups(own.key)
        everyone = torch.arange(index.entities, device=index.device)
        self.first_own, self.first_lonely = len(key), len(key) + len(own_key)
        self.entity = torch.cat([key // links.steps, own_key // own.steps, everyone])
        """(N,) whom each node is about."""
        self.time = torch.cat([key % links.steps, own_key % own.steps, everyone * 0])
        """(N,) its step; 0 for lonely nodes."""
        self.high = torch.cat([count, own_count]).cumsum(0)
        self.high = torch.cat([self.high, everyone * 0])
        self.degree = torch.cat([count, own_count, everyone * 0])
        """(N,) number of links; those of node n end before ``high[n]``."""
        self.relation = torch.cat([links.relation, own.relation]).long()
        """(D,) directed relation of each link."""
        met = torch.searchsorted(key, links.target.long() * links.steps + links.key % links.steps)
        self.met = torch.cat([met, own.target.long() + self.first_lonely])
        """(D,) node of the other end, in the same step."""

    def before(self, entity: Tensor, time: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """The last active steps that a query about an entity may see.

        Args:
            entity: (Q,) int64.
            time: (Q,) int64; public steps are strictly before it.
            length: m, how many; own steps that are not public yet count as the most recent.

        Returns:
            node: (Q, m), oldest first, and mask: (Q, m); the empty slots come first.
        """
        low, high = (self._node[position] for position in self.index.before(entity, time))
        own_low, own_high = (self._own_node[position] for position in self.own.since(entity, time))
        rank = torch.arange(length - 1, -1, -1, device=entity.device)
        late = (own_high - own_low)[:, None]
        public = high[:, None] - 1 - (rank - late)
        own = self.first_own + own_high[:, None] - 1 - rank
        mask = (rank < late) | (public >= low[:, None])
        return torch.where(rank < late, own, public) * mask, mask

    def links(self, node: Tensor, cap: int) -> tuple[Tensor, Tensor]:
        """The links of some nodes, at most ``cap`` each: those whose rows came last.

        Args:
            node: (U,) nodes.
            cap: the most links of one node.

        Returns:
            row: (L,) position in ``node``, non-decreasing, and link: (L,) position of the link.
        """
        high = self.high[node]
        return expand_ranges(high - self.degree[node].clamp(max=cap), high)


def _groups(key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Runs of equal keys: the key of each, the run at every position and after the end; sizes."""
    runs, member, count = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
    end = torch.full((1,), len(runs), dtype=torch.int64, device=key.device)
    return runs, torch.cat([member, end]), count
