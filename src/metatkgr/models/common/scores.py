"""Relations as translations: the scores that TransE, MetaTKGR and others share.

    s(e, r, x) = -‖h_e + h_r - h_x‖²

The squared distance is written out: ``torch.cdist`` cannot be differentiated twice.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.data.visibility import Supports

__all__ = [
    "l2_logits",
    "mask_query_entity",
    "mask_query_logits",
    "new_entity_rows",
    "relation_vectors",
    "rows_of",
    "score_all",
    "translation_score",
]


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]``: (N, d) and (...) to (..., d); or (T, N, d) and (T, ...) to (T, ..., d)."""
    if table.dim() == 3:
        tasks, rows, _ = table.shape
        start = torch.arange(0, tasks * rows, max(rows, 1), device=index.device)
        index = index + start.reshape(-1, *[1] * (index.dim() - 1))
        table = table.flatten(0, 1)
    return functional.embedding(index, table)


def relation_vectors(table: Tensor, directed: Tensor) -> Tensor:
    """Vectors of directed relations; the inverse of r is r + R and has the vector of r, negated.

    A translation backwards is the negative translation, so one table serves both directions.

    Args:
        table: (R, d) one row per relation; or (T, V, d), those of each task.
        directed: (...) int64, 0..2R-1; or (T, ...), 0..2V-1.

    Returns:
        (..., d) vectors; or (T, ..., d).
    """
    return rows_of(torch.cat([table, -table], -2), directed)


def translation_score(entity: Tensor, relation: Tensor, answer: Tensor) -> Tensor:
    """-‖entity + relation - answer‖² over the last axis; all (..., d), which may broadcast."""
    return -(entity + relation - answer).square().sum(-1)


def score_all(translated: Tensor, candidates: Tensor) -> Tensor:
    """Score every candidate: -‖q‖² - ‖c‖² + 2 q·c, one matrix product.

    Not centred first, though that would lose fewer digits: entities without neighbours are all the
    zero vector, and only products with exact zeros are sure to tie to the last bit.

    Args:
        translated: (..., Q, d) q = h_e(t) + h_r of each query.
        candidates: (..., C, d) h_x(t) of each candidate.

    Returns:
        (..., Q, C) scores.
    """
    length = translated.square().sum(-1).unsqueeze(-1) + candidates.square().sum(-1).unsqueeze(-2)
    return 2 * (translated @ candidates.transpose(-1, -2)) - length


def l2_logits(translated: Tensor, candidates: Tensor) -> Tensor:
    """Logits for a softmax over all candidates: 2 q·c - ‖c‖², as ``score_all`` but for -‖q‖².

    That part is the same for all candidates of a query, so that a softmax does not see it. The rest
    is one product with a bias: a third of the passes over a (Q, C) matrix, which is what learning
    with all entities as negatives waits for.

    Args:
        translated: (Q, d).
        candidates: (C, d).

    Returns:
        (Q, C).
    """
    return torch.addmm(-candidates.square().sum(-1), 2 * translated, candidates.T)


def new_entity_rows(
    known: Tensor, relation: Tensor | None, supports: Supports, entities: int
) -> Tensor:
    """Rows for entities that came after training: where their first facts would have them be.

        h_e = mean over the facts (e, r, x) of e's support of  h_x - h_r

    with h_r negated for an inverse r. Where there is no fitting table of relations, h_r is zero;
    where x has no row yet, and for an entity without support, the mean of all rows stands in.
    New entities that know each other are placed one after the other, by number.

    Args:
        known: (E, d) the trained table.
        relation: (R, d) translations of the relations, if there are any.
        supports: first facts; those of trained entities are ignored.
        entities: E', with the new ones.

    Returns:
        (E' - E, d).
    """
    trained = len(known)
    table = torch.cat([known, known.mean(0).expand(entities - trained, *known.shape[1:])])
    fits = relation is not None and known.dim() == 2 and relation.shape[1:] == known.shape[1:]
    first = int(np.searchsorted(supports.entity, trained))
    for entity in np.unique(supports.entity[first:]).tolist():
        own = supports.of(entity)
        points = table[torch.from_numpy(own.other).to(known.device)]
        if fits and relation is not None:
            directed = torch.from_numpy(own.relation).to(known.device)
            points = points - relation_vectors(relation, directed)
        table[entity] = points.mean(0)
    return table[trained:]


def mask_query_entity(scores: Tensor, entity: Tensor) -> Tensor:
    """Rank the query entity below every other candidate, in place.

    Where relations are short, h_e + h_r is nearest to h_e itself: an answer that graphs hardly ever
    give, in the way of all that they do give.

    Args:
        scores: (Q, E) scores of all candidates.
        entity: (Q,) the query entities.

    Returns:
        ``scores``.
    """
    # Below its own query's scores, so that a query's scores do not depend on others.
    lowest = scores.amin(1, keepdim=True) - 1
    return scores.scatter_(1, entity.unsqueeze(1), lowest)


def mask_query_logits(logits: Tensor, entity: Tensor, answer: Tensor) -> Tensor:
    """Take the query entity out of a softmax over all entities, in place; see the above.

    Args:
        logits: (B, E).
        entity: (B,) the query entities.
        answer: (B,) the gold answers; where one is the query entity itself, nothing changes.

    Returns:
        ``logits``, the query entity's very low.
    """
    # Added, not written: the backward of a sum is free, and the softmax of such a logit is zero.
    lowest = torch.finfo(logits.dtype).min / 2
    penalty = (entity != answer).to(logits.dtype) * lowest
    return logits.scatter_add_(1, entity.unsqueeze(1), penalty.unsqueeze(1))
