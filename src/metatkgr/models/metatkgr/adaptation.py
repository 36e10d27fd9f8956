"""Inner loop: fit the encoder and a task's rows to its support, for all tasks at once.

    φ_e = φ - η ∂L(f_φ, S_e)/∂φ     for every task e, one or several such steps

φ are the ``encoder.*`` parameters and the embedding rows the task touches, in one dictionary by the
names that they are saved under. What comes out is differentiable in turn: the loss of the adapted
parameters on the queries has a gradient with respect to the parameters before adaptation.

A task's gradient step moves the embeddings of the entities and relations it meets, and of no
others. So every task gets its own *local* tables, (U, d) and (V, d), gathered from the global ones,
and all ids in its facts and trees are positions in these. Support and queries share the tables:
a row that adaptation has moved is the row that the queries read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.graph.ragged import pack
from metatkgr.models.common.few_shot import PaddedFacts, RankingLoss, inner_step, ranking_loss
from metatkgr.models.common.neighbourhood import Hop, SampleNeighbours, Tree, grow_hops
from metatkgr.models.common.scores import relation_vectors, translation_score
from metatkgr.models.metatkgr.encoder import TemporalEncoder, encode, encoder_part
from metatkgr.models.metatkgr.settings import MetaTKGRSettings

__all__ = ["Local", "TaskBatch", "TaskFacts", "adapt", "localise", "loss_of", "task_loss"]


def loss_of(settings: MetaTKGRSettings) -> RankingLoss:
    """The loss that the settings ask for."""
    return partial(
        ranking_loss,
        loss=settings.loss,
        margin=settings.margin,
        reduction=settings.reduction,
    )


def task_loss(
    encoder: TemporalEncoder,
    parameters: Mapping[str, Tensor],
    facts: TaskFacts,
    loss: RankingLoss,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The loss of each task's facts, or of one task's.

    Args:
        encoder: the layers.
        parameters: of T tasks, see :func:`encode`; of one task, without the task axis.
        facts: F facts of each of T tasks; of one task, without the task axis.
        loss: which loss.
        generator: draws the dropout; None switches it off.

    Returns:
        (T,) losses, or a number; zero for a task without facts.
    """
    vectors = encode(encoder, parameters, facts.roots, generator=generator)  # (T, F, 2 + n, d)
    entity, others = torch.split(vectors, [1, vectors.shape[-2] - 1], -2)
    relation = relation_vectors(parameters["relation"], facts.relation).unsqueeze(-2)
    score = translation_score(entity, relation, others)  # (T, F, 1 + n)
    positive, negative = torch.split(score, [1, score.shape[-1] - 1], -1)
    return loss(positive.squeeze(-1), negative, facts.mask, facts.negative_mask)


def adapt(
    encoder: TemporalEncoder,
    weights: Mapping[str, Tensor],
    batch: TaskBatch,
    loss: RankingLoss,
    *,
    learning_rate: float,
    steps: int = 1,
    second_order: bool = True,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Parameters of every task after gradient steps on its support.

    Args:
        encoder: the layers.
        weights: ``encoder.*`` and the tables, shared by the tasks.
        batch: T tasks; their supports are fitted to.
        loss: which loss.
        learning_rate: η.
        steps: how many gradient steps; 0 adapts nothing.
        second_order: whether the result keeps the gradients' own derivatives, see ``inner_step``.
        generator: draws the dropout; None switches it off.

    Returns:
        All parameters with a leading task axis: ``encoder.*`` (T, ...), ``entity`` (T, U, d),
        ``relation`` (T, V, d).
    """
    if steps < 0:
        raise ValueError(f"{steps} inner steps; give 0 or more")

    rows = batch.rows(weights)
    near, far = rows["entity"], None
    if batch.support_rows < near.shape[1]:
        # What no support reads has no gradient, and knowing so saves most of the work. Split, not
        # two slices: its backward is one concatenation, not two sums with zeros.
        near, far = torch.split(near, [batch.support_rows, near.shape[1] - batch.support_rows], 1)
    shared = encoder_part(weights)
    adapted = {key: value.expand(len(batch), *value.shape) for key, value in shared.items()}
    adapted |= {"entity": near, "relation": rows["relation"]}

    def support_loss(parameters: dict[str, Tensor]) -> Tensor:
        return task_loss(encoder, parameters, batch.support, loss, generator=generator)

    for _ in range(steps):
        adapted = inner_step(
            adapted, support_loss, learning_rate=learning_rate, second_order=second_order
        )
    if far is not None:
        adapted["entity"] = torch.cat([adapted["entity"], far], 1)
    return adapted


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

    def some(self, tasks: slice, facts: int) -> TaskFacts:
        """The first so many facts of some tasks."""
        roots = self.roots.each(lambda column: column[tasks, :facts])
        roots = roots._replace(ages=self.roots.ages[tasks])
        return TaskFacts(roots, *(column[tasks, :facts] for column in self[1:]))


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
        parts = _Part.sampled(((support, own_in_support), (query, True)), sample, layers)
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
        return cls(
            entity_ids,
            entity_mask,
            relation_ids,
            relation_mask,
            parts[0].renumbered(entity[: layers + 1], directed[: layers + 1]),
            parts[1].renumbered(entity[layers + 1 :], directed[layers + 1 :]),
            support_rows,
        )

    def __len__(self) -> int:
        return len(self.entity_ids)

    def split(self, sizes: Sequence[int]) -> list[TaskBatch]:
        """Consecutive tasks as batches of their own, no wider than their tasks need.

        The facts that count must stand first among those of a task.

        Args:
            sizes: tasks in each, T in all.
        """
        # One look at the device for all of them.
        needs = torch.stack(
            [
                self.entity_mask.sum(1),
                _last_row(self.support) + 1,
                self.support.mask.sum(1),
                self.query.mask.sum(1),
            ],
            1,
        ).cpu()
        batches, end = [], 0
        for size in sizes:
            tasks = slice(end, end := end + size)
            most = needs[tasks].amax(0).clamp(min=1).tolist() if size else [1, 1, 1, 1]
            width, rows, supports, queries = most
            batches.append(
                TaskBatch(
                    self.entity_ids[tasks, :width],
                    self.entity_mask[tasks, :width],
                    self.relation_ids[tasks],
                    self.relation_mask[tasks],
                    self.support.some(tasks, supports),
                    self.query.some(tasks, queries),
                    rows,
                )
            )
        return batches

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

    def write_back(
        self, tables: Mapping[str, Tensor], adapted: Mapping[str, Tensor], task: int
    ) -> dict[str, Tensor]:
        """One task's parameters, its rows written into copies of the global tables.

        Args:
            tables: ``entity`` (E, d) and ``relation`` (R, d); other keys are ignored.
            adapted: of all tasks, (T, ...) each: ``entity``, ``relation`` and any others.
            task: whose parameters.
        """
        parameters = {key: value[task] for key, value in adapted.items()}
        for name, ids, mask in (
            ("entity", self.entity_ids, self.entity_mask),
            ("relation", self.relation_ids, self.relation_mask),
        ):
            used = mask[task]
            table = tables[name].clone()
            table[ids[task][used]] = parameters[name][used]
            parameters[name] = table
        return parameters


_Slots = tuple[Tensor, Tensor]
"""Ids and whether each counts, both (T, ...)."""


@dataclass(frozen=True, eq=False)
class _Part:
    """The support or the queries on their way from global to local ids."""

    facts: PaddedFacts
    root_mask: Tensor
    """(T, F, 2 + n) bool."""
    tree: Tree
    """(T, F, 2 + n) roots in global ids; the ages of the hops are steps, not positions yet."""

    @classmethod
    def sampled(
        cls, parts: Sequence[tuple[PaddedFacts, bool]], sample: SampleNeighbours, layers: int
    ) -> list[_Part]:
        """Facts, and whether query entities see their supports at any time; all sampled at once."""
        masks, flat = [], []
        for facts, own in parts:
            root = torch.cat([torch.stack([facts.entity, facts.answer], -1), facts.negatives], -1)
            two = facts.mask.unsqueeze(-1).expand(*facts.mask.shape, 2)
            mask = torch.cat([two, facts.negative_mask & facts.mask.unsqueeze(-1)], -1)
            sees_support = torch.zeros_like(mask)
            sees_support[..., 0] = own
            time = facts.time.unsqueeze(-1).expand_as(root)
            masks.append(mask)
            flat.append([column.reshape(-1) for column in (root, time, mask, sees_support)])
        entity, time, mask, sees_support = (torch.cat(x) for x in zip(*flat, strict=True))
        hops = grow_hops(sample, entity, time, mask, sees_support, layers)
        trees = Tree(entity, entity.new_zeros(0), tuple(hops)).split([m.numel() for m in masks])
        return [
            cls(facts, mask, tree.reshape(mask.shape))
            for (facts, _), mask, tree in zip(parts, masks, trees, strict=True)
        ]

    def entities(self) -> list[_Slots]:
        return [
            (self.tree.entity, self.root_mask),
            *((hop.entity, hop.mask) for hop in self.tree.hops),
        ]

    def relations(self) -> list[_Slots]:
        of_facts = (self.facts.relation, self.facts.mask)
        return [of_facts, *((hop.relation, hop.mask) for hop in self.tree.hops)]

    def renumbered(self, entity: list[Tensor], relation: list[Tensor]) -> TaskFacts:
        """The facts with these local ids; the different ages of each task are numbered too."""
        steps = torch.cat([hop.age.reshape(-1) for hop in self.tree.hops])
        lowest, highest = (int(end) for end in steps.aminmax()) if len(steps) else (0, 0)
        slots = [(hop.age - lowest, hop.mask) for hop in self.tree.hops]
        ids, _, age = _localise_all(slots, highest - lowest + 1)
        ages = (ids + lowest).to(torch.get_default_dtype())  # (T, A)
        columns = zip(entity[1:], relation[1:], age, self.tree.hops, strict=True)
        hops = tuple(Hop(e, r, a, hop.mask) for e, r, a, hop in columns)
        negative_mask = self.root_mask[..., 2:]
        return TaskFacts(Tree(entity[0], ages, hops), relation[0], self.facts.mask, negative_mask)


def _last_row(facts: TaskFacts) -> Tensor:
    """(T,) the largest local entity id that a task's facts read; 0 where they read none."""
    slots = [facts.roots.entity, *(hop.entity for hop in facts.roots.hops)]
    tasks = len(facts.mask)
    return torch.stack(
        [
            slot.reshape(tasks, -1).amax(1) if slot.numel() else slot.new_zeros(tasks)
            for slot in slots
        ]
    ).amax(0)


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
