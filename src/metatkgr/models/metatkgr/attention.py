"""What an encoded entity looks at, as reasons for its forecasts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from metatkgr.graph.index import GraphIndex
from metatkgr.models.base import Clue, Link
from metatkgr.models.metatkgr.encoder import EncoderSettings, attention
from metatkgr.models.metatkgr.task_batch import TaskBatch

__all__ = ["attention_clues"]

_SHOWN = 5
"""Neighbours that are told."""


def attention_clues(
    adapted: Mapping[str, Tensor],
    settings: EncoderSettings,
    batch: TaskBatch,
    questions: list[tuple[int, int, int, int]],
    index: GraphIndex,
) -> list[list[Clue]]:
    """The neighbours that the asking entity of each question looks at most.

    Args:
        adapted: the parameters of each task.
        settings: of the encoder.
        batch: the tasks with their questions.
        questions: task, place among the task's questions, entity and time of each.
        index: from which the neighbours were sampled.
    """
    share = attention(adapted, settings, batch.query.roots)[..., 0, :]  # (T, F, b)
    hop, width = batch.query.roots.hops[0], batch.relation_ids.shape[1]
    result = []
    for task, place, entity, time in questions:
        there = hop.mask[task, place, 0]
        weight = share[task, place][there]
        other = batch.entity_ids[task][hop.entity[task, place, 0][there]].tolist()
        directed = hop.relation[task, place, 0][there]
        relation = batch.relation_ids[task][directed % width]
        relation = relation + index.relations // 2 * (directed // width)
        age = batch.query.roots.ages[task][hop.age[task, place, 0][there]].long()
        clues = []
        for slot in torch.argsort(weight, descending=True, stable=True)[:_SHOWN].tolist():
            step, along = time - int(age[slot]), int(relation[slot])
            source = _source(index, other[slot], along, step, [entity, *other[:slot]])
            clues.append(
                Clue(
                    "attention",
                    float(weight[slot]),
                    (Link(source, along, other[slot], step),),
                    1,
                )
            )
        result.append(clues)
    return result


def _source(index: GraphIndex, target: int, relation: int, step: int, reached: list[int]) -> int:
    """From which of the entities reached before a sampled link starts, in the order of reaching.

    A sampler that goes on from the neighbours does not say whose link it took.
    """
    inverse = (relation + index.relations // 2) % index.relations
    who = torch.tensor([target, target], device=index.device)
    when = torch.tensor([step, step + 1], device=index.device)
    low, high = index.before(who, when)[1].tolist()
    same = index.relation[low:high] == inverse
    ends = set(index.target[low:high][same].tolist())
    # One that is not public is in the asking entity's own support.
    return next((entity for entity in reached if entity in ends), reached[0])
