"""Many tasks as one set of padded tensors, each with a small table of the rows it touches.

A task's gradient step moves the embeddings of the entities and relations it meets, and of no
others. So every task gets its own *local* tables, (U, d) and (V, d), gathered from the global ones,
and all ids in its facts and trees are positions in these. Support and queries share the tables:
a row that adaptation has moved is the row that the queries read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.graph.ragged import pack
from metatkgr.graph.sampler import Neighbours
from metatkgr.models.metatkgr.encoder import Hop, Tree

__all__ = ["Local", "PaddedFacts", "SampleNeighbours", "TaskBatch", "TaskFacts", "grow", "localise"]


class SampleNeighbours(Protocol):
    """Finds the neighbours of (Q,) roots; ``graph.sampler.Sampler.sample`` is one."""

    def __call__(self, entity: Tensor, time: Tensor, *, own: bool) -> Neighbours:
        """Neighbours before ``time``; with ``own``, own supports at any time too."""
        ...


class PaddedFacts(NamedTuple):
    """F facts of each of T tasks, with n negatives each, in global ids."""

    entity: Tensor
    """(T, F) int64 the entity that is asked about."""
    relation: Tensor
    """(T, F) int64 directed relation, 0..2R-1."""
    answer: Tensor
    """(T, F) int64 the other end."""
    negatives: Tensor
    """(T, F, n) int64 wrong answers."""
    negative_mask: Tensor
    """(T, F, n) bool, the negatives that count."""
    time: Tensor
    """(T, F) int64 step."""
    mask: Tensor
    """(T, F) bool, the facts that count; the ids of others are ignored."""


class TaskFacts(NamedTuple):
    """F facts of each of T tasks in local ids, ready to be encoded and scored."""

    roots: Tree
    """(T, F, 2 + n) roots at the fact's time: the entity, the answer, the negatives."""
    relation: Tensor
    """(T, F) int64 directed local relation, 0..2V-1."""
    mask: Tensor
    """(T, F) bool, the facts that count."""
    negative_mask: Tensor
    """(T, F, n) bool, the negatives that count."""


class Local(NamedTuple):
    """The different ids of each task, and where each slot's id is among them."""

    ids: Tensor
    """(T, U) int64 global ids, ascending; 0 in padding, U at least 1."""
    mask: Tensor
    """(T, U) bool, False in padding."""
    position: Tensor
    """(S,) int64 column of each slot's id in its task's row of ``ids``."""


def localise(task: Tensor, ids: Tensor, *, tasks: int, size: int) -> Local:
    """Number the ids of each task from 0.

    Args:
        task: (S,) int64 the task each slot belongs to.
        ids: (S,) int64 global ids, 0..size-1.
        tasks: T.
        size: how many global ids there are.
    """
    keys, slot = torch.unique(pack((task, tasks), (ids, size)), return_inverse=True)
    start = torch.searchsorted(keys, torch.arange(tasks + 1, device=keys.device) * size)
    count = start.diff()
    width = max(int(count.max()), 1) if tasks else 1
    column = torch.arange(width, device=keys.device)
    mask = column < count.unsqueeze(1)
    local = keys.new_zeros(tasks, width)
    # Row by row, the used cells come in the order of the sorted keys.
    local[mask] = keys % size
    return Local(local, mask, slot - start[task])


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """The supports and queries of T tasks over shared local tables."""

    entity_ids: Tensor
    """(T, U) int64 global ids of the local entity rows; 0 in padding, which nothing reads."""
    entity_mask: Tensor
    """(T, U) bool, False in padding."""
    relation_ids: Tensor
    """(T, V) int64 global ids, 0..R-1, of the local relation rows."""
    relation_mask: Tensor
    """(T, V) bool, False in padding."""
    support: TaskFacts
    query: TaskFacts
    support_rows: int
    """The supports read only the first so many columns of ``entity_ids``."""

    @classmethod
    def build(
        cls,
        support: PaddedFacts,
        query: PaddedFacts,
        sample: SampleNeighbours,
        *,
        entities: int,
        relations: int,
        layers: int = 1,
        own_in_support: bool = True,
    ) -> TaskBatch:
        """Sample around every root and renumber.

        Answers and negatives see no support of their own before its time, like any candidate.

        Args:
            support, query: T tasks each; the numbers of facts and negatives may differ.
            sample: the neighbour sampler.
            entities: E, the size of the global entity table.
            relations: R, the size of the global relation table.
            layers: L, the depth of the trees.
            own_in_support: whether an entity sees its supports at any time while it is fitted to
                them too; the fact to be predicted is then among its own neighbours. The queries
                always see them.
        """
        if len(support.mask) != len(query.mask):
            raise ValueError(f"{len(support.mask)} supports, but {len(query.mask)} sets of queries")
        parts = [
            _Part.of(facts, sample, layers, own)
            for facts, own in ((support, own_in_support), (query, True))
        ]
        entity_ids, entity_mask, entity = _localise_all(
            [slots for part in parts for slots in part.entities()], entities, first=layers + 1
        )
        # Of an empty batch of supports, one row: a table of none cannot be indexed.
        support_rows = max(
            [1, *(int(local.max()) + 1 for local in entity[: layers + 1] if local.numel())]
        )
        undirected = [(ids % relations, mask) for part in parts for ids, mask in part.relations()]
        relation_ids, relation_mask, rows = _localise_all(undirected, relations)
        width = relation_ids.shape[1]
        directed = [
            row + width * (ids // relations) * mask
            for row, (ids, mask) in zip(
                rows, (slots for part in parts for slots in part.relations()), strict=True
            )
        ]
        done = []
        for number, part in enumerate(parts):
            mine = slice(number * (layers + 1), (number + 1) * (layers + 1))
            done.append(part.finish(entity[mine], directed[mine]))
        return cls(
            entity_ids, entity_mask, relation_ids, relation_mask, done[0], done[1], support_rows
        )

    def __len__(self) -> int:
        return len(self.entity_ids)

    def rows(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The local tables, differentiable with respect to the global ones.

        Args:
            tables: ``entity`` (E, d) and ``relation`` (R, d); other keys are ignored.

        Returns:
            ``entity`` (T, U, d) and ``relation`` (T, V, d).
        """
        return {
            "entity": functional.embedding(self.entity_ids, tables["entity"]),
            "relation": functional.embedding(self.relation_ids, tables["relation"]),
        }


def grow(
    sample: SampleNeighbours, entity: Tensor, time: Tensor, *, layers: int = 1, own: bool = False
) -> Tree:
    """The tree of roots in global ids, to be encoded with the global tables.

    Args:
        sample: the neighbour sampler.
        entity: (Q,) int64 roots.
        time: (Q,) int64 their times.
        layers: L, the depth of the tree.
        own: whether the roots see their own supports at any time.
    """
    everything = torch.ones_like(entity, dtype=torch.bool)
    hops = _grow(sample, entity, time, everything, everything & own, layers)
    ages, position = torch.unique(
        torch.cat([hop.age.reshape(-1) for hop in hops]), return_inverse=True
    )
    split = torch.split(position, [hop.age.numel() for hop in hops])
    return Tree(
        entity,
        ages.to(torch.get_default_dtype()),
        tuple(
            hop._replace(age=index.reshape(hop.age.shape))
            for hop, index in zip(hops, split, strict=True)
        ),
    )


_Slots = tuple[Tensor, Tensor]
"""Ids and whether each counts, both (T, ...)."""


@dataclass(frozen=True, eq=False)
class _Part:
    """The support or the queries on their way from global to local ids."""

    facts: PaddedFacts
    root: Tensor
    """(T, F, 2 + n) int64 global entity."""
    root_mask: Tensor
    """(T, F, 2 + n) bool."""
    hops: list[Hop]
    """In global ids, ages as int64 steps."""

    @classmethod
    def of(cls, facts: PaddedFacts, sample: SampleNeighbours, layers: int, own: bool) -> _Part:
        root = torch.cat([torch.stack([facts.entity, facts.answer], -1), facts.negatives], -1)
        two = facts.mask.unsqueeze(-1).expand(*facts.mask.shape, 2)
        mask = torch.cat([two, facts.negative_mask & facts.mask.unsqueeze(-1)], -1)
        asked = torch.zeros_like(mask)
        asked[..., 0] = own
        time = facts.time.unsqueeze(-1).expand_as(root)
        return cls(facts, root, mask, _grow(sample, root, time, mask, asked, layers))

    def entities(self) -> list[_Slots]:
        return [(self.root, self.root_mask), *((hop.entity, hop.mask) for hop in self.hops)]

    def relations(self) -> list[_Slots]:
        asked = (self.facts.relation, self.facts.mask)
        return [asked, *((hop.relation, hop.mask) for hop in self.hops)]

    def finish(self, entity: list[Tensor], relation: list[Tensor]) -> TaskFacts:
        ages, age = self._localised_ages()
        columns = zip(entity[1:], relation[1:], age, self.hops, strict=True)
        hops = tuple(Hop(e, r, a, hop.mask) for e, r, a, hop in columns)
        negative_mask = self.root_mask[..., 2:]
        return TaskFacts(Tree(entity[0], ages, hops), relation[0], self.facts.mask, negative_mask)

    def _localised_ages(self) -> tuple[Tensor, list[Tensor]]:
        """(T, A) the ages of each task; for each hop, the positions of its ages there."""
        every = torch.cat([hop.age.reshape(-1) for hop in self.hops])
        lowest, highest = (int(end) for end in every.aminmax()) if len(every) else (0, 0)
        slots = [(hop.age - lowest, hop.mask) for hop in self.hops]
        ids, _, age = _localise_all(slots, highest - lowest + 1)
        return (ids + lowest).to(torch.get_default_dtype()), age


def _grow(
    sample: SampleNeighbours,
    entity: Tensor,
    time: Tensor,
    mask: Tensor,
    own: Tensor,
    layers: int,
) -> list[Hop]:
    """The neighbours, their neighbours, … of nodes (...) in global ids; ages as int64 steps.

    Only the nodes of ``mask`` are sampled; those of ``own`` with their own supports at any time.
    """
    hops = []
    for _ in range(layers):
        found, at = [], []
        # No node below the roots is asked about, so none sees its supports before their time.
        for with_own in (True, False):
            where = (mask & (own == with_own)).reshape(-1).nonzero().squeeze(1)
            if with_own and not len(where):
                continue
            roots, moments = entity.reshape(-1)[where], time.reshape(-1)[where]
            found.append(sample(roots, moments, own=with_own))
            at.append(where)
        neighbours, position = Neighbours.cat(found), torch.cat(at)
        columns = []
        for column in (neighbours.entity, neighbours.relation, neighbours.time, neighbours.mask):
            full = column.new_zeros(entity.numel(), column.shape[1])
            full[position] = column
            columns.append(full.reshape(*entity.shape, column.shape[1]))
        next_entity, relation, next_time, next_mask = columns
        age = (time.unsqueeze(-1) - next_time) * next_mask
        hops.append(Hop(next_entity, relation, age, next_mask))
        entity, time, mask, own = next_entity, next_time, next_mask, torch.zeros_like(next_mask)
    return hops


def _localise_all(
    slots: list[_Slots], size: int, first: int = 0
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Local tables of ids and mask, (T, U), over all slots together; and the slots in local ids.

    With ``first``, the ids met in so many slots at the front come first in the tables.
    """
    tasks = len(slots[0][0])
    used = [mask.nonzero(as_tuple=True) for _, mask in slots]
    task = torch.cat([where[0] for where in used])
    ids = torch.cat([ids[where] for (ids, _), where in zip(slots, used, strict=True)])
    lengths = [len(where[0]) for where in used]
    if first:
        keys = pack((task, tasks), (ids, size))
        ids = ids + size * ~torch.isin(keys, keys[: sum(lengths[:first])])
    local = localise(task, ids, tasks=tasks, size=2 * size)
    result = []
    pieces = torch.split(local.position, lengths)
    for (slot, _), where, position in zip(slots, used, pieces, strict=True):
        renumbered = torch.zeros_like(slot)
        renumbered[where] = position
        result.append(renumbered)
    return local.ids % size, local.mask, result
