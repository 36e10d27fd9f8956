"""Entities without a row: encoded from their links, then adapted by gradient steps.

The background entities have vectors z, learned by TransE; nobody else has. For an entity e with the
links f = (e, r, x), at time t and of age_f, and a fixed random vector u_e,

    z_e = (g u_e + Σ_f a_f (z_x - h_r)) / (g + Σ_f a_f),     a_f = (1 + age_f)^-λ

is where they would have it be (a_f less where x has no row); in several rounds, since partners may
have no row either. Then it is fitted to foretell each of its links, among x and some contrast
entities C, by S steps

    p_f = softmax(-τ ‖z_e + h_r - z_c‖² + slot(r, c))        over c in {x} and C
    v ← μ_s v + mean_f (z_x - Σ_c p_fc z_c),   z_e ← z_e + α_s v

of gradient descent on the cross-entropy (its factor 2τ is part of α). In the support loss a link is
left out of the z_e that foretells it. The relations move too, h_r by ρ_s and the mean over all
links by r. A candidate x of a query (e, r, ?, t) is scored by

    w · -‖z_e + h_r - z_x‖²  +  Σ_f η [x_f = x] (1 + age_f)^-k  +  slot(r, x)

where the second part is an output memory, written by the same links, with rates η and k for links
by r, by its inverse and by others; and slot(r, x) = κ₁ log(1 + n) + κ₂ [n > 0] for an x that n
entities have been linked to by r. All of g, u's length, λ, τ, α_s, μ_s, ρ_s, w, η, k, κ are learned
by the outer loop, through the steps: some forty numbers, none of which knows an entity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.models.common.few_shot import fixed_negatives
from metatkgr.models.common.scores import relation_vectors, score_all
from metatkgr.models.metatkgr.links import Links, Moment, Walks, kinds_of, spread

__all__ = [
    "STEPWISE",
    "Vectors",
    "adapt_everyone",
    "adapt_own",
    "initial",
    "query_scores",
    "unit_vectors",
]

STEPWISE = ("step", "momentum", "relation_step")
"""What is learned of each inner step."""
_DRAWS = 1 << 16
"""Different values of an entry of u."""


class Vectors(NamedTuple):
    """All entities and relations at a time."""

    entity: Tensor
    """(E, d)."""
    relation: Tensor
    """(R, d)."""
    start: Tensor
    """(E, d) rows, and u where there is none."""


def initial(steps: int) -> dict[str, Tensor]:
    """What the outer loop learns, by name, before it has learned; S is ``steps``."""
    return {
        "prior": torch.tensor([-2.5]),  # g, by softplus
        "length": torch.tensor([0.0]),  # of u, by exp
        "fade": torch.tensor([-1.0]),  # λ, by softplus
        "trust": torch.tensor(
            [-2.0, 0.0]
        ),  # in partners without a row, first and later, by sigmoid
        "sharpness": torch.tensor([0.0]),  # τ, by exp
        "step": torch.full((steps,), -0.5),  # α, by softplus
        "momentum": torch.full((steps,), -2.0),  # μ, by sigmoid
        "relation_step": torch.full((steps,), -2.0),  # ρ, by softplus
        "weight": torch.tensor([-1.0]),  # w, by exp
        "memory": torch.tensor([8.0, 3.0, 3.0]),  # η: by the relation, its inverse, others
        "memory_fade": torch.tensor([0.3, 0.3, 0.3]),  # k, by softplus
        "slot": torch.tensor([0.2, 2.0]),  # κ
    }


def slot_bias(learned: Mapping[str, Tensor], filled: Tensor) -> Tensor:
    """slot(r, x) of an x that so many entities have been linked to by r."""
    often, ever = learned["slot"].unbind()
    bias: Tensor = often * torch.log1p(filled) + ever * (filled > 0)
    return bias


def adapt_everyone(
    learned: Mapping[str, Tensor],
    entity: Tensor,
    relation: Tensor,
    has_row: Tensor,
    unit: Tensor,
    moment: Moment,
    *,
    rounds: int,
    leave_out: bool,
) -> Vectors:
    """All who have no row and have been seen, adapted together, and the relations with them.

    Args:
        learned: see :func:`initial`.
        entity: (E, d) from training; what it holds of entities without a row is not read.
        relation: (R, d) from training.
        has_row: (E,) bool.
        unit: (E, d) u, see :func:`unit_vectors`.
        moment: what is visible.
        rounds: how often vectors are passed on to partners.
        leave_out: whether a link is left out of the vector that foretells it.
    """
    start = _starts(learned, entity, has_row, unit)
    vectors, relation = _adapt(
        learned,
        Vectors(start, relation, start),
        has_row,
        moment,
        moment.links,
        moment.entity,
        rounds=rounds,
        leave_out=leave_out,
        together=True,
    )
    return Vectors(start.index_copy(0, moment.entity, vectors), relation, start)


def adapt_own(
    learned: Mapping[str, Tensor],
    adapted: Vectors,
    has_row: Tensor,
    moment: Moment,
    links: Links,
    entity: Tensor,
    *,
    leave_out: bool,
) -> Tensor:
    """(n, d) vectors of query entities, each adapted to its own links among all others.

    Who has a row keeps it.

    Args:
        learned: see :func:`initial`.
        adapted: everybody at the time, from :func:`adapt_everyone`.
        has_row: (E,) bool.
        moment: what everybody sees.
        links: of the query entities.
        entity: (n,) who they are; one of them may occur with several sets of links.
        leave_out: whether a link is left out of the vector that foretells it.
    """
    vectors, _ = _adapt(
        learned,
        adapted,
        has_row,
        moment,
        links,
        entity,
        rounds=1,
        leave_out=leave_out,
        together=False,
    )
    return torch.where(has_row[entity].unsqueeze(1), adapted.entity[entity], vectors)


def query_scores(
    learned: Mapping[str, Tensor],
    adapted: Vectors,
    moment: Moment,
    vectors: Tensor,
    relation: Tensor,
    links: Links,
    walks: Walks | None = None,
) -> Tensor:
    """(Q, E) scores of all candidates of queries at one time.

    Args:
        learned: see :func:`initial`.
        adapted: everybody at the time.
        moment: what everybody sees.
        vectors: (Q, d) of the query entities.
        relation: (Q,) directed.
        links: of the query entities, a row for each query.
        walks: of the queries.
    """
    translated = vectors + relation_vectors(adapted.relation, relation)
    scores = learned["weight"].exp() * score_all(translated, adapted.entity)
    kind = kinds_of(links.relation, relation[links.row], len(adapted.relation))
    fade = functional.softplus(learned["memory_fade"])[kind]
    memory = learned["memory"][kind] * torch.exp(-fade * torch.log1p(links.age))
    # In place: the table is the largest thing here, and nothing above wants it back.
    scores.index_put_((links.row, links.target), memory, accumulate=True)
    # Queries by one relation share what has stood in its slot.
    kinds, row = torch.unique(relation, return_inverse=True)
    everyone = torch.arange(scores.shape[1], device=scores.device)
    scores.add_(slot_bias(learned, moment.fillers(kinds.unsqueeze(1), everyone))[row])
    if walks is None:
        return scores
    reached = spread(learned, walks)
    return scores.index_put_((reached.query, reached.entity), reached.value, accumulate=True)


def unit_vectors(entity: Tensor, dimension: int) -> Tensor:
    """(n, d) u of entities: 1 long in the mean, and a function of nothing but their numbers."""
    draw = fixed_negatives(entity, torch.zeros_like(entity), dimension, _DRAWS)
    # Evenly between -1 and 1 has a variance of 1/3; u has the length 1, as rows begin with.
    unit: Tensor = (draw * (2 / _DRAWS) - 1).float() * (3 / dimension) ** 0.5
    return unit


def _starts(learned: Mapping[str, Tensor], entity: Tensor, has_row: Tensor, unit: Tensor) -> Tensor:
    """(E, d) rows; and u around their mean, of a learned length, where there is none."""
    known = has_row.unsqueeze(1)
    mean = (entity * known).sum(0) / has_row.sum().clamp(min=1)
    return torch.where(known, entity, mean + learned["length"].exp() * unit)


def _adapt(
    learned: Mapping[str, Tensor],
    start: Vectors,
    has_row: Tensor,
    moment: Moment,
    links: Links,
    entity: Tensor,
    *,
    rounds: int,
    leave_out: bool,
    together: bool,
) -> tuple[Tensor, Tensor]:
    """(n, d) vectors of entities, and (R, d) relations.

    Args:
        together: whether the entities are each other's partners and the relations move as well;
            else each is adapted alone, to partners as they are.
    """
    count, relation = len(entity), start.relation
    unit = start.start[entity]
    others = torch.unique(torch.cat([links.target, moment.contrast]))
    if together:
        others = others[~torch.isin(others, entity)]
    fixed = start.entity[others]
    place = torch.full_like(has_row, -1, dtype=torch.int64)
    place[others] = torch.arange(count, count + len(others), device=place.device)
    if together:
        place[entity] = torch.arange(count, device=place.device)
    target, contrast = place[links.target], place[moment.contrast]

    fade = functional.softplus(learned["fade"])
    share = torch.exp(-fade * torch.log1p(links.age))
    trust = torch.sigmoid(learned["trust"])
    old, g = has_row[links.target], functional.softplus(learned["prior"])
    vectors = unit
    for number in range(rounds):
        weight = share * torch.where(old, 1.0, trust[0 if together and number == 0 else 1])
        implied = torch.cat([vectors, fixed])[target] - relation_vectors(relation, links.relation)
        messages = weight.unsqueeze(1) * implied
        length = links.sums(weight, count)
        parts = links.sums(messages, count)
        vectors = (g * unit + parts) / (g + length).unsqueeze(1)
    if not len(learned["step"]):
        return vectors, relation

    foretelling = vectors[links.row]
    if leave_out:
        rest = (g * unit + parts)[links.row] - messages
        foretelling = rest / (g + length[links.row] - weight).unsqueeze(1)
    # Leaving the link itself out of what its target's slot has seen, too.
    filled = (moment.fillers(links.relation, links.target) - 1).clamp(min=0)
    right_bias = slot_bias(learned, filled)
    kinds, kind = torch.unique(links.relation, return_inverse=True)
    wrong_bias = slot_bias(learned, moment.fillers(kinds.unsqueeze(1), moment.contrast))[kind]
    lowest = torch.finfo(vectors.dtype).min / 2
    # Each contrast entity stands for many: without this the softmax is too easy.
    wrong_bias = wrong_bias + math.log(max(moment.seen, 1) / max(len(contrast), 1))
    wrong_bias = wrong_bias.masked_fill(contrast == target.unsqueeze(1), lowest)
    own_count = links.sums(torch.ones_like(links.age), count).clamp(min=1).unsqueeze(1)
    half = len(relation)
    backwards, forth = links.relation >= half, links.relation % half
    uses = torch.bincount(forth, minlength=half).clamp(min=1).unsqueeze(1)
    tau, moved = learned["sharpness"].exp(), torch.zeros_like(vectors)
    speed, relation_speed = torch.zeros_like(vectors), torch.zeros_like(relation)
    for step, momentum, relation_step in zip(
        functional.softplus(learned["step"]),
        torch.sigmoid(learned["momentum"]),
        functional.softplus(learned["relation_step"]),
        strict=True,
    ):
        table = torch.cat([vectors + moved, fixed])
        right, wrong = table[target], table[contrast]
        point = foretelling + moved[links.row] + relation_vectors(relation, links.relation)
        right_score = right_bias - tau * (point - right).square().sum(1)
        wrong_score = wrong_bias + tau * score_all(point, wrong)
        chance = torch.softmax(torch.cat([right_score.unsqueeze(1), wrong_score], 1), 1)
        descent = right - chance[:, :1] * right - chance[:, 1:] @ wrong
        speed = momentum * speed + links.sums(descent, count) / own_count
        moved = moved + step * speed
        if together:
            towards = torch.where(backwards.unsqueeze(1), -descent, descent)
            mean = torch.zeros_like(relation).index_add(0, forth, towards) / uses
            relation_speed = momentum * relation_speed + mean
            relation = relation + relation_step * relation_speed
    return vectors + moved, relation
