r"""Which visible facts carry a forecast: each is left out in turn, and the loss is its weight.

The facts looked at are those that the asking entity and the candidate are encoded from. Facts of
one link (the same subject, relation and object at several times) are left out together: one of them
alone would be replaced by its own repetition. In a world w without a link, both are sampled anew:
facts that were out of budget come in, what was reached only through the link is gone. With the
encodings of that world,

.. math:: \text{weight}_w = 1 - p_w / p, \qquad
          p = \operatorname{softmax}_x(-\lVert h_e(t) + h_r - h_x(t) \rVert^2)

so a weight of .12 says: without this link the candidate would be 12 % less likely. Held as they
are: the other candidates, the parameters adapted to the support (one fact less hardly moves them),
and the rows of entities that were there in training, which learned from the link and cannot forget
it. The row of an entity that came later is made of its first facts, and is made anew without the
link. Where no link matters, that is said, and whose vectors lie nearest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.data.visibility import Supports
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.sampler import Neighbours, Sampler
from metatkgr.models.base import Clue
from metatkgr.models.common.neighbourhood import grow
from metatkgr.models.common.scores import (
    mask_query_entity,
    relation_vectors,
    score_all,
    translation_score,
)
from metatkgr.models.metatkgr.encoder import encode
from metatkgr.models.metatkgr.nearby import Nearby, Triple, as_neighbours
from metatkgr.models.metatkgr.settings import MetaTKGRSettings

__all__ = ["LeaveOneOut", "Parameters"]

_SHOWN = 5
"""Links that are told, at most."""
_LEAST = 0.01
"""A link without which the candidate would lose less of its probability is no reason."""
_NEAREST = 3
"""Entities that are named where no fact carries a forecast."""

Parameters = Mapping[str, Tensor]
"""``encoder.*``, and whole tables ``entity`` (E, d) and ``relation`` (R, d)."""


@dataclass(frozen=True, eq=False)
class _Worlds:
    """One entity as it is, and without each link that it is encoded from."""

    place: dict[Triple, int]
    """Row of ``vectors`` without a link; row 0 is the entity as it is."""
    vectors: Tensor
    """(1 + W, d)."""


class LeaveOneOut:
    """Explains forecasts of one model over one graph.

    Args:
        settings: of the model.
        index: the public facts.
        supports: the first facts of the new entities.
        sampler: the model's.
        trained: entities that have a row from training; later ones from their first facts.
    """

    def __init__(
        self,
        settings: MetaTKGRSettings,
        index: GraphIndex,
        supports: Supports,
        sampler: Sampler,
        trained: int,
    ) -> None:
        self.settings, self.index, self.supports = settings, index, supports
        self.sampler, self.trained = sampler, trained

    def clues(
        self,
        entity: int,
        time: int,
        questions: list[tuple[int, int]],
        own: Parameters,
        shared: Parameters,
        candidates: Tensor,
    ) -> list[list[Clue]]:
        """What carries each of some candidates of one entity at one time.

        Args:
            entity: who asks.
            time: when.
            questions: relation and candidate of each.
            own: the parameters adapted to the entity, its rows written into the tables.
            shared: those that candidates are encoded with.
            candidates: (E, d) all of them, encoded.
        """
        near = Nearby(self.index, self.supports, self.settings, time)
        asking = self._worlds([entity], near, own, own=True)[entity]
        answers = sorted({answer for _, answer in questions})
        answering = self._worlds(answers, near, shared, own=False)
        result: list[list[Clue]] = [[] for _ in questions]
        for relation in sorted({relation for relation, _ in questions}):
            directed = torch.tensor(relation, device=self.index.device)
            asked = asking.vectors + relation_vectors(own["relation"], directed)
            rivals = score_all(asked, candidates).double()
            if not self.settings.answers_itself:
                mask_query_entity(rivals, torch.full((len(asked),), entity, device=rivals.device))
            total = torch.logsumexp(rivals, 1)
            for number, (of, answer) in enumerate(questions):
                if of == relation:
                    against = _others(total, rivals[:, answer])
                    found = _clues(near, asking, asked, answering[answer], against)
                    if not found:
                        alike = self._nearest(asking.vectors[0], candidates, time, entity, answer)
                        found = [Clue("vectors", 1.0, (), 0, alike)]
                    result[number] = found
        return result

    def _nearest(
        self, vector: Tensor, candidates: Tensor, time: int, entity: int, answer: int
    ) -> tuple[int, ...]:
        """The entities whose vectors are nearest to that of the asking one, of those seen yet."""
        everyone = torch.arange(len(candidates), device=candidates.device)
        low, high = self.index.before(everyone, torch.full_like(everyone, time))
        far = (candidates - vector).square().sum(1)
        far[low == high] = torch.inf
        far[torch.tensor([entity, answer], device=far.device)] = torch.inf
        near = torch.topk(far, min(_NEAREST, len(far)), largest=False)
        return tuple(
            who
            for who, distance in zip(near.indices.tolist(), near.values.tolist(), strict=True)
            if distance < torch.inf
        )

    def _worlds(
        self, entities: list[int], near: Nearby, parameters: Parameters, *, own: bool
    ) -> dict[int, _Worlds]:
        """Entities as they are, and without each link that they are encoded from."""
        places, rows, samples = [], [], []
        for entity in entities:
            seen = near.sample(entity, own=own)
            triples = list(dict.fromkeys(map(near.triple, seen)))
            places.append({triple: world for world, triple in enumerate(triples, 1)})
            samples.append(seen)
            samples += [near.sample(entity, own=own, without=triple) for triple in triples]
            rows.append(self._rows(entity, triples, parameters))
        # Every world has a root of its own, behind the rows that all share.
        base = parameters["entity"]
        table = torch.cat([base, *rows])
        root = torch.arange(len(base), len(table), device=base.device)
        first = [as_neighbours(samples, self.settings.budget, base.device)]

        def sample(entity: Tensor, time: Tensor, *, own: bool | Tensor) -> Neighbours:
            return first.pop() if first else self.sampler.sample(entity, time, own=own)

        when = torch.full_like(root, near.time)
        tree = grow(sample, root, when, layers=self.settings.layers)
        vectors = encode({**parameters, "entity": table}, self.settings.encoder, tree)
        parts = torch.split(vectors, [1 + len(place) for place in places])
        return {
            entity: _Worlds(place, part)
            for entity, place, part in zip(entities, places, parts, strict=True)
        }

    def _rows(self, entity: int, triples: list[Triple], parameters: Parameters) -> Tensor:
        """(1 + W, d) the entity's row of the table, as it is and without each link."""
        table, half = parameters["entity"], self.index.relations // 2
        rows = table[entity].expand(1 + len(triples), -1)
        support = self.supports.of(entity)
        if entity < self.trained or not len(support):
            return rows
        relation, other = support.relation.tolist(), support.other.tolist()
        own = [
            (entity, r, x) if r < half else (x, r - half, entity)
            for r, x in zip(relation, other, strict=True)
        ]
        device = table.device
        left = torch.tensor([[of != triple for of in own] for triple in triples], device=device)
        left = left.reshape(len(triples), len(own)).to(table)
        places = table[torch.tensor(other, device=device)] - relation_vectors(
            parameters["relation"], torch.tensor(relation, device=device)
        )
        count = left.sum(1, keepdim=True)
        mean = torch.where(count > 0, left @ places / count.clamp(min=1), table.mean(0))
        # By the difference, so that what adaptation did to the row stays.
        return torch.cat([rows[:1], rows[1:] + mean - places.mean(0)])


def _clues(
    near: Nearby, asking: _Worlds, asked: Tensor, answering: _Worlds, against: Tensor
) -> list[Clue]:
    """The links without which a candidate would lose most.

    Args:
        near: what is visible.
        asking: the asking entity.
        asked: (1 + W, d) its translations by the relation.
        answering: the candidate.
        against: (1 + W,) logarithm of what speaks for all other candidates.
    """
    triples = list(dict.fromkeys([*asking.place, *answering.place]))
    here, there = (
        torch.tensor([0, *(worlds.place.get(triple, 0) for triple in triples)]).to(asked.device)
        for worlds in (asking, answering)
    )
    score = translation_score(asked[here], torch.zeros(()).to(asked), answering.vectors[there])
    chance = functional.logsigmoid(score.double() - against[here])
    lost = -torch.expm1(chance[1:] - chance[0])
    weight, order = torch.sort(lost, descending=True, stable=True)
    best = zip(weight[:_SHOWN].tolist(), order[:_SHOWN].tolist(), strict=True)
    told = [(value, near.facts(triples[number])) for value, number in best if value >= _LEAST]
    return [Clue("fact", value, facts, len(facts)) for value, facts in told]


def _others(total: Tensor, one: Tensor) -> Tensor:
    """log(exp(total) - exp(one)): all scores but one, from the logarithm of their sum."""
    share = (one - total).clamp(max=-1e-12)
    return total + torch.log(-torch.expm1(share))
