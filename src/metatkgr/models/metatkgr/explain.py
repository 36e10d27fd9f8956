r"""Which visible facts carry a forecast: each is left out in turn, and the loss is its weight.

The facts looked at are those that the query entity and the candidate are encoded from. Facts of one
link (the same subject, relation and object at several times) are left out together: one of them
alone would be replaced by its own repetition. Without a link w, both entities are sampled anew:
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
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import Neighbours, Sampler
from metatkgr.models.base import Explanation, Link
from metatkgr.models.common.leave_one_out import lost, weighed
from metatkgr.models.common.neighbourhood import grow
from metatkgr.models.common.scores import (
    mask_query_entity,
    relation_vectors,
    score_all,
    translation_score,
)
from metatkgr.models.metatkgr.encoder import TemporalEncoder, encode
from metatkgr.models.metatkgr.settings import MetaTKGRSettings

__all__ = ["LeaveOneOut", "LinkReader", "Parameters", "Triple", "as_neighbours"]

_SHOWN = 5
"""Links that are named, at most."""
_LEAST = 0.01
"""A link without which the candidate would lose less of its probability is no reason."""
_NEAREST = 3
"""Entities that are named where no fact carries a forecast."""
_WIDER = 4
"""So many budgets of an entity's facts are read: where some are left out, older ones come in."""

Parameters = Mapping[str, Tensor]
"""``encoder.*``, and whole tables ``entity`` (E, d) and ``relation`` (R, d)."""

Triple = tuple[int, int, int]
"""Subject, relation and object: a link, whatever its times."""


class LinkReader:
    """The facts around an entity at one time, read one by one, as if some link had never been.

    What is collected is what ``graph.sampler`` collects, in the same order. That one does it for
    thousands of roots at once; this one for a few, says from where each fact was reached, and can
    leave a link out. Draws of the sampler 'uniform' cannot be repeated: the most recent facts stand
    for them.

    Args:
        index: the public facts.
        supports: an entity's own are visible to it at any time, where ``own`` says so.
        settings: sampler, budget and window.
        time: before which to look.
    """

    def __init__(
        self, index: TemporalIndex, supports: Supports, settings: MetaTKGRSettings, time: int
    ) -> None:
        self.index, self.supports, self.settings, self.time = index, supports, settings, time
        self._half = index.relations // 2
        self._links: dict[tuple[int, bool], list[Link]] = {}

    def links(self, entity: int, *, own: bool = False) -> list[Link]:
        """The most recent visible links of an entity, the latest first."""
        key = (entity, own)
        if key not in self._links:
            support = self._support(entity) if own else []
            self._links[key] = (support + self._public(entity))[: _WIDER * self.settings.budget]
        return self._links[key]

    def _public(self, entity: int) -> list[Link]:
        index = self.index
        source = torch.tensor([entity], device=index.device)
        time = torch.tensor([self.time], device=index.device)
        low, high = (int(end) for end in index.before(source, time, self.settings.window or None))
        count = min(high - low, _WIDER * self.settings.budget)
        position = high - 1 - torch.arange(count, device=index.device).unsqueeze(0)
        columns = index.read(source, position, torch.ones_like(position, dtype=torch.bool))
        rows = torch.cat(columns).T.tolist()
        return [Link(entity, relation, target, then) for target, relation, then in rows]

    def _support(self, entity: int) -> list[Link]:
        """The first facts of an entity that are not public yet."""
        support = self.supports.of(entity)
        columns = (support.relation.tolist(), support.other.tolist(), support.time.tolist())
        return [
            Link(entity, relation, other, time)
            for relation, other, time in reversed(list(zip(*columns, strict=True)))
            # Of a fact of an entity with itself, the fact's own direction.
            if time >= self.time and (other != entity or relation < self._half)
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
        collected: list[Link] = []
        queue, expanded = [entity], set[int]()
        for source in queue:
            for link in self.links(source, own=own and source == entity):
                if link.target in expanded or self.triple(link) == without:
                    continue
                collected.append(link)
                if len(collected) == budget:
                    return collected
                if onwards and link.target not in queue:
                    queue.append(link.target)
            expanded.add(source)
        return collected

    def triple(self, link: Link) -> Triple:
        """The fact behind a directed link, whatever its time."""
        if link.relation < self._half:
            return (link.source, link.relation, link.target)
        return (link.target, link.relation - self._half, link.source)

    def facts(self, triple: Triple) -> tuple[Link, ...]:
        """The visible facts of a link that were read, the latest first."""
        times = {
            link.time
            for end in (triple[0], triple[2])
            for own in (False, True)
            for link in self._links.get((end, own), ())
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


@dataclass(frozen=True, eq=False)
class _Counterfactuals:
    """One entity as it is, and without each link that it is encoded from."""

    row: dict[Triple, int]
    """Row of ``vectors`` without a link; row 0 is the entity as it is."""
    vectors: Tensor
    """(1 + W, d)."""


class LeaveOneOut:
    """Explains forecasts of one model over one graph.

    Args:
        encoder: of the model.
        settings: of the model.
        index: the public facts.
        supports: the first facts of the new entities.
        sampler: the model's.
        trained: entities that have a row from training; later ones from their first facts.
    """

    def __init__(
        self,
        encoder: TemporalEncoder,
        settings: MetaTKGRSettings,
        index: TemporalIndex,
        supports: Supports,
        sampler: Sampler,
        trained: int,
    ) -> None:
        self.encoder, self.settings = encoder, settings
        self.index, self.supports = index, supports
        self.sampler, self.trained = sampler, trained

    def explanations(
        self,
        entity: int,
        time: int,
        queries: list[tuple[int, int]],
        adapted: Parameters,
        shared: Parameters,
        candidates: Tensor,
    ) -> list[list[Explanation]]:
        """What carries each of some candidates of one entity at one time.

        Args:
            entity: the query entity.
            time: when.
            queries: relation and candidate of each.
            adapted: the parameters adapted to the entity, its rows written into the tables.
            shared: those that candidates are encoded with.
            candidates: (E, d) all of them, encoded.
        """
        reader = LinkReader(self.index, self.supports, self.settings, time)
        query_entity = self._left_out([entity], reader, adapted, own=True)[entity]
        answers = self._left_out(sorted({x for _, x in queries}), reader, shared, own=False)
        result: list[list[Explanation]] = [[] for _ in queries]
        for relation in sorted({relation for relation, _ in queries}):
            directed = torch.tensor(relation, device=self.index.device)
            translated = query_entity.vectors + relation_vectors(adapted["relation"], directed)
            scores = score_all(translated, candidates).double()
            if not self.settings.answers_itself:
                mask_query_entity(scores, torch.full((len(scores),), entity, device=scores.device))
            total = torch.logsumexp(scores, 1)
            for number, (of, answer) in enumerate(queries):
                if of == relation:
                    rest = _all_but_one(total, scores[:, answer])
                    explanations = _explanations_of(
                        reader, query_entity, translated, answers[answer], rest
                    )
                    if not explanations:
                        nearest = self._nearest(
                            query_entity.vectors[0], candidates, time, (entity, answer)
                        )
                        explanations = [Explanation("vectors", 1.0, (), 0, nearest)]
                    result[number] = explanations
        return result

    def _nearest(
        self, vector: Tensor, candidates: Tensor, time: int, ends: tuple[int, int]
    ) -> tuple[int, ...]:
        """The entities with the vectors nearest to one, of those seen yet and not at its ends."""
        everyone = torch.arange(len(candidates), device=candidates.device)
        low, high = self.index.before(everyone, torch.full_like(everyone, time))
        distance = (candidates - vector).square().sum(1)
        distance[low == high] = torch.inf
        distance[torch.tensor(ends, device=distance.device)] = torch.inf
        nearest = torch.topk(distance, min(_NEAREST, len(distance)), largest=False)
        pairs = zip(nearest.indices.tolist(), nearest.values.tolist(), strict=True)
        return tuple(other for other, far in pairs if far < torch.inf)

    def _left_out(
        self, entities: list[int], reader: LinkReader, parameters: Parameters, *, own: bool
    ) -> dict[int, _Counterfactuals]:
        """Entities as they are, and without each link that they are encoded from."""
        row_of, rows, samples = [], [], []
        for entity in entities:
            links = reader.sample(entity, own=own)
            triples = list(dict.fromkeys(map(reader.triple, links)))
            row_of.append({triple: row for row, triple in enumerate(triples, 1)})
            samples.append(links)
            samples += [reader.sample(entity, own=own, without=triple) for triple in triples]
            rows.append(self._rows(entity, triples, parameters))
        # Every world has a root of its own, behind the rows that all share.
        base = parameters["entity"]
        table = torch.cat([base, *rows])
        root = torch.arange(len(base), len(table), device=base.device)
        first = [as_neighbours(samples, self.settings.budget, base.device)]

        def sample(entity: Tensor, time: Tensor, *, own: bool | Tensor) -> Neighbours:
            return first.pop() if first else self.sampler.sample(entity, time, own=own)

        time = torch.full_like(root, reader.time)
        tree = grow(sample, root, time, layers=self.settings.layers)
        vectors = encode(self.encoder, {**parameters, "entity": table}, tree)
        parts = torch.split(vectors, [1 + len(row) for row in row_of])
        each = zip(entities, row_of, parts, strict=True)
        return {entity: _Counterfactuals(row, part) for entity, row, part in each}

    def _rows(self, entity: int, triples: list[Triple], parameters: Parameters) -> Tensor:
        """(1 + W, d) the entity's row of the table, as it is and without each link."""
        table, half = parameters["entity"], self.index.relations // 2
        rows = table[entity].expand(1 + len(triples), -1)
        support = self.supports.of(entity)
        if entity < self.trained or not len(support):
            return rows
        relation, other = support.relation.tolist(), support.other.tolist()
        first_triples = [
            (entity, r, x) if r < half else (x, r - half, entity)
            for r, x in zip(relation, other, strict=True)
        ]
        device = table.device
        kept = torch.tensor([[x != triple for x in first_triples] for triple in triples])
        kept = kept.reshape(len(triples), len(first_triples)).to(table)
        implied = table[torch.tensor(other, device=device)] - relation_vectors(
            parameters["relation"], torch.tensor(relation, device=device)
        )
        count = kept.sum(1, keepdim=True)
        mean = torch.where(count > 0, kept @ implied / count.clamp(min=1), table.mean(0))
        # By the difference, so that what adaptation did to the row stays.
        return torch.cat([rows[:1], rows[1:] + mean - implied.mean(0)])


def _explanations_of(
    reader: LinkReader,
    query_entity: _Counterfactuals,
    translated: Tensor,
    answer: _Counterfactuals,
    rest: Tensor,
) -> list[Explanation]:
    """The links without which a candidate would lose most, or gain.

    Args:
        reader: what is visible.
        query_entity: with and without its links.
        translated: (1 + W, d) its translations by the relation.
        answer: the candidate, with and without its links.
        rest: (1 + W,) logarithm of what speaks for all other candidates.
    """
    triples = list(dict.fromkeys([*query_entity.row, *answer.row]))
    here, there = (
        torch.tensor([0, *(end.row.get(triple, 0) for triple in triples)]).to(translated.device)
        for end in (query_entity, answer)
    )
    nowhere = torch.zeros(()).to(translated)
    score = translation_score(translated[here], nowhere, answer.vectors[there])
    chance = functional.logsigmoid(score.double() - rest[here])
    change = (chance[1:] - chance[0]).tolist()
    best = sorted(range(len(change)), key=lambda number: -abs(lost(change[number])))[:_SHOWN]
    named = [number for number in best if abs(lost(change[number])) >= _LEAST]
    facts = (reader.facts(triples[number]) for number in named)
    found = (Explanation("fact", 0.0, some, len(some)) for some in facts)
    return weighed(zip(found, (change[number] for number in named), strict=True))


def _all_but_one(total: Tensor, one: Tensor) -> Tensor:
    """log(exp(total) - exp(one)): all scores but one, from the logarithm of their sum."""
    share = (one - total).clamp(max=-1e-12)
    return total + torch.log(-torch.expm1(share))
