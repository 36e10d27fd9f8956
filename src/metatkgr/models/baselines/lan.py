r"""LAN, the logic attention network: an entity is what its neighbours say about the query.

For a query with relation q about entity i, and the distinct links i -r_j-> e_j visible then:

.. math::
    T_r(e) &= h_e - (w_r \cdot h_e) w_r, \qquad \lVert w_r \rVert = 1 \\
    \beta_j &= \operatorname{softmax}_j \; v_q \cdot \tanh(W [z_q ; T_{r_j}(e_j)]) \\
    \lambda_j &= P(r_j \Rightarrow q) \,/\, \max_{r' \in N(i), r' \ne r_j} P(r' \Rightarrow r_j) \\
    o_i(q) &= \sum_j \alpha_j T_{r_j}(e_j) \Big/ \sum_j \alpha_j, \qquad \alpha_j=\beta_j+\lambda_j

P(a => b) is the share, among the known entities with relation a, of those that also have b. What
another relation of the neighbourhood implies anyway is damped by the maximum, which is 1 where
there is no other relation. The score is a translation, s(i, q, x) = -‖o_i(q) + h_q - o_x(q⁻¹)‖².

Where this departs from its authors, and why:

* Weights are divided by their sum (``normalise``): the λ of many neighbours add up, and lengths
  that grow with the number of neighbours say nothing to a distance.
* The maximum is taken to be at least 0.1, or one rare relation would drown all others.
* An entity without visible neighbours is its own vector h; links between new entities are kept.
* Softmax cross-entropy by default; their margin loss is ``loss="margin"``. Both have the authors'
  second term, which scores the vectors h themselves. Squared distance instead of their L1.
* By default a candidate x is its own vector h_x, which meta-validation prefers by far (YAGO .92
  against .46) and which needs no neighbours; ``candidates="aggregated"`` gives the score above.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import Neighbours, RecentSampler
from metatkgr.models.base import WHOLE, Loss, ModelPhase, Part, Phase, TrainableModel
from metatkgr.models.common.scores import (
    l2_logits,
    mask_query_entity,
    mask_query_logits,
    relation_vectors,
    score_all,
    translation_score,
)
from metatkgr.models.registry import register
from metatkgr.settings import Amount, Count, Rate, Sample, Settings, Share

__all__ = ["LAN", "LANSettings"]

_SLOTS_AT_ONCE = 1 << 20
"""How many neighbours of candidates are read in one go; bounds memory."""
_LEAST_DAMPING = 0.1
"""The smallest number that a rule's probability is divided by."""
_NOBODY = Supports.none()


@dataclass(frozen=True)
class LANSettings(Settings):
    """Settings of LAN."""

    dimension: Count = 128
    """Length of the vectors."""
    neighbours: Sample = 64
    """Links of an entity that are read, the newest first."""
    candidates: Literal["input", "aggregated"] = "input"
    """How an answer is represented: 'input', its own h, or 'aggregated' from its neighbours too."""
    normalise: bool = True
    """Whether the weights of the neighbours are divided by their sum."""
    epochs: Count = 30
    """Passes over the known triples, or over as many as ``steps`` batches hold."""
    steps: Count = 200
    """At most so many batches in an epoch."""
    batch_size: Count = 512
    """Triples in a batch."""
    learning_rate: Rate = 0.002
    """Of Adam."""
    loss: Literal["softmax", "margin"] = "softmax"
    """'softmax' cross-entropy, or the authors' 'margin'."""
    margin: Rate = 1.0
    """How much better the right answer has to be, with the margin loss."""
    negatives: Count = 32
    """Wrong answers of each query; the softmax over 'input' candidates takes all entities."""
    seen_share: Share = 0.5
    """Share of the training queries whose own fact is among the visible links, as a support is:
    they teach to repeat; the others, which see only what was before their fact, teach to infer."""
    patience: Amount = 4
    """Validations without a better MRR before training stops; 0: train all epochs."""
    validate_every: Count = 3
    """Epochs between validations."""


def rule_table(known: VisibleFacts) -> Tensor:
    """P(a => b): the share, among entities with relation a, of those that also have b.

    Returns:
        (2R, 2R) float; row a, column b; zeros in the row of a relation that nobody has.
    """
    has = np.zeros((len(known.entities), 2 * len(known.relations)), np.float32)
    has[known.source, known.relation] = 1
    both = torch.from_numpy(has).T @ torch.from_numpy(has)
    return both / both.diagonal().clamp(min=1).unsqueeze(1)


def logic_weights(rules: Tensor, neighbours: Neighbours, relation: Tensor) -> Tensor:
    """λ_j = P(r_j => q) / max over the other relations r' of the neighbourhood of P(r' => r_j).

    Args:
        rules: (2R, 2R) of :func:`rule_table`.
        neighbours: of N entities, b slots each.
        relation: (N,) the directed relation q of each query.

    Returns:
        (N, b) weights, 0 in empty slots.
    """
    linked, mask = neighbours.relation, neighbours.mask
    implied = rules[linked, relation.unsqueeze(1)]
    # (N, b, b): how surely the relation of slot k implies that of slot j
    other = (linked.unsqueeze(1) != linked.unsqueeze(2)) & mask.unsqueeze(1)
    surely = rules.T[linked.unsqueeze(2), linked.unsqueeze(1)] * other
    damping = surely.amax(2).clamp(min=_LEAST_DAMPING)
    damping = torch.where(other.any(2), damping, torch.ones_like(damping))
    return implied / damping * mask


@register
class LAN(TrainableModel[LANSettings]):
    """Attention over neighbours, guided by which relation tends to imply which."""

    name = "lan"
    settings_type = LANSettings
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (5e-4, 1e-2, "log"),
        "batch_size": (256, 512, 1024),
        "loss": ("softmax", "margin"),
        "seen_share": (0.2, 0.8, "linear"),
    }
    counted = frozenset({"rules"})

    entity: nn.Parameter
    """(E, d) h."""
    relation: nn.Parameter
    """(R, d) h_q of the score."""
    normal: nn.Parameter
    """(2R, d) w, of any length."""
    query: nn.Parameter
    """(2R, d) z."""
    attention: nn.Parameter
    """(2R, d) v."""
    mix_query: nn.Parameter
    mix_neighbour: nn.Parameter
    """(d, d) the two halves of W."""
    rules: Tensor
    """(2R, 2R) P, counted when training begins."""

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Small random vectors; no rule is known yet."""
        d = self.settings.dimension
        rows = {"entity": entities, "relation": relations}
        rows |= dict.fromkeys(("normal", "query", "attention"), 2 * relations)
        rows |= {"mix_query": d, "mix_neighbour": d}
        state = {
            name: torch.randn(count, d, generator=generator) / math.sqrt(d)
            for name, count in rows.items()
        }
        self.set_weights(state | {"rules": torch.zeros(2 * relations, 2 * relations)})

    def phases(self, problem: Problem) -> list[Phase]:
        """Count the rules, then one phase."""
        self.rules.copy_(rule_table(problem.known))
        return [LogicAttentionPhase(self, problem.known)]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Index the public links, each once."""
        self.index_ = TemporalIndex.of(first_links(visible), device=self.device)
        return self

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports."""
        self.sampler_ = self.sampler(self.index_, first_supports(supports))
        return self

    def sampler(self, index: TemporalIndex, supports: Supports = _NOBODY) -> RecentSampler:
        """Reads the newest links of an entity."""
        return RecentSampler(index, supports, budget=self.settings.neighbours)

    def inverse(self, relation: Tensor) -> Tensor:
        """r + R for r and r for r + R."""
        count = len(self.relation)
        return (relation + count) % (2 * count)

    def project(self, neighbours: Neighbours) -> Tensor:
        """(N, b, d) T_r(e) = h_e - (w_r · h_e) w_r of every slot."""
        normal = functional.embedding(neighbours.relation, functional.normalize(self.normal))
        vector = functional.embedding(neighbours.entity, self.entity)
        return vector - (vector * normal).sum(-1, keepdim=True) * normal

    def aggregate(
        self, entity: Tensor, neighbours: Neighbours, messages: Tensor, relation: Tensor
    ) -> Tensor:
        """o of every entity: what its neighbours say about the query.

        Args:
            entity: (N,) who they are; without neighbours an entity is its own h.
            neighbours: of each entity, b slots.
            messages: (N, b, d) of ``project``.
            relation: (N,) the directed relation q of each query.

        Returns:
            (N, d) vectors.
        """
        mask = neighbours.mask
        query = functional.embedding(relation, self.query @ self.mix_query)
        hidden = torch.tanh(query.unsqueeze(1) + messages @ self.mix_neighbour)
        score = (hidden @ functional.embedding(relation, self.attention).unsqueeze(2)).squeeze(2)
        # A large finite negative: -inf in a row without neighbours would give NaN.
        lowest = torch.finfo(score.dtype).min / 2
        share = torch.softmax(score.masked_fill(~mask, lowest), -1) * mask
        share = share + logic_weights(self.rules, neighbours, relation)
        if self.settings.normalise:
            share = share / share.sum(-1, keepdim=True).clamp(min=1e-9)
        message = (share.unsqueeze(1) @ messages).squeeze(1)
        return torch.where(mask.any(1, keepdim=True), message, self.entity[entity])

    def encode(
        self,
        sampler: RecentSampler,
        entity: Tensor,
        relation: Tensor,
        time: Tensor,
        *,
        own: bool = False,
    ) -> Tensor:
        """(N, d) the vectors o of N entities for the (N,) queries about them."""
        neighbours = sampler.sample(entity, time, own=own)
        return self.aggregate(entity, neighbours, self.project(neighbours), relation)

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) negative squared distances."""
        scores = torch.empty(len(queries), len(self.entity), device=self.device)
        if len(queries) == 0:
            return scores
        entity, relation, time = self.columns(queries)
        points = self.encode(self.sampler_, entity, relation, time, own=True)
        points = points + relation_vectors(self.relation, relation)
        if self.settings.candidates == "input":
            return mask_query_entity(score_all(points, self.entity), entity)
        for t in np.unique(queries.time):
            rows = np.flatnonzero(queries.time == t)
            self._score_aggregated(scores, points, queries.relation, rows, int(t))
        return mask_query_entity(scores, entity)

    def _score_aggregated(
        self, scores: Tensor, points: Tensor, relation: np.ndarray, rows: np.ndarray, t: int
    ) -> None:
        """Fill the rows of one time: neighbours once, attention once for each relation."""
        entities = len(self.entity)
        groups = [
            (int(r), torch.from_numpy(rows[relation[rows] == r]).to(self.device))
            for r in np.unique(relation[rows])
        ]
        size = max(_SLOTS_AT_ONCE // self.settings.neighbours, 1)
        for begin in range(0, entities, size):
            block = torch.arange(begin, min(begin + size, entities), device=self.device)
            neighbours = self.sampler_.sample(block, torch.full_like(block, t), own=False)
            width = max(int(neighbours.mask.sum(1).max()), 1)
            columns = (neighbours.entity, neighbours.relation, neighbours.time, neighbours.mask)
            neighbours = Neighbours(*(column[:, :width] for column in columns))
            messages = self.project(neighbours)
            for directed, members in groups:
                backwards = self.inverse(torch.full_like(block, directed))
                vectors = self.aggregate(block, neighbours, messages, backwards)
                scores[members, begin : begin + len(block)] = score_all(points[members], vectors)


class LogicAttentionPhase(ModelPhase[LAN]):
    """Learns all tables from known facts, each seen from what was visible before it (or with it).

    Args:
        model: whose weights are learned.
        known: the facts.
    """

    name = "logic-attention"

    def __init__(self, model: LAN, known: VisibleFacts) -> None:
        super().__init__(model)
        links = np.stack([known.source, known.relation, known.target], axis=1)
        triples, member = np.unique(links, axis=0, return_inverse=True)
        self.triples = torch.from_numpy(triples)
        # The occurrences of each triple lie side by side, so that one can be drawn.
        member = member.reshape(-1)
        order = np.argsort(member, kind="stable")
        self.time = torch.from_numpy(known.time[order])
        self.start = torch.from_numpy(np.searchsorted(member[order], np.arange(len(triples) + 1)))
        self.sampler = model.sampler(TemporalIndex.of(first_links(known), device=model.device))

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """Distinct triples, each at a time drawn from those at which it happened.

        Yields:
            (B,) query entities, directed relations, answers, and times before which neighbours are
            seen; (B, n) wrong answers, among which the right one may be by chance.
        """
        settings, device = self.model.settings, self.model.device
        count, size = len(self.triples), settings.batch_size
        order = torch.randperm(count, generator=generator)[: settings.steps * size]
        many = self.start[1:] - self.start[:-1]
        drawn = (torch.rand(count, generator=generator) * many).long().clamp(max=many - 1)
        seen = torch.rand(count, generator=generator) < settings.seen_share
        time = self.time[self.start[:-1] + drawn] + seen.long()
        columns = [column.to(device) for column in (*self.triples[order].unbind(1), time[order])]
        for begin in range(0, len(order), size):
            batch = [column[begin : begin + size] for column in columns]
            shape = (len(batch[0]), settings.negatives)
            wrong = torch.randint(len(self.model.entity), shape, generator=generator)
            yield *batch, wrong.to(device)

    def loss(
        self, batch: tuple[Tensor, ...], generator: torch.Generator, part: Part = WHOLE
    ) -> Loss:
        """The loss of aggregated vectors and, as its authors have it, of the vectors themselves."""
        size = len(batch[0])
        source, relation, target, time, wrong = (column[part.of(size)] for column in batch)
        model, settings = self.model, self.model.settings
        vector = relation_vectors(model.relation, relation)
        points = model.encode(self.sampler, source, relation, time) + vector
        plain = model.entity[source] + vector
        if settings.candidates == "input" and settings.loss == "softmax":
            logits = l2_logits(torch.cat([points, plain]), model.entity)
            answer = target.repeat(2)
            logits = mask_query_logits(logits, source.repeat(2), answer)
            total = functional.cross_entropy(logits, answer, reduction="sum")
            return Loss(total / max(len(source), 1), {}, part.share(size))
        options = torch.cat([target.unsqueeze(1), wrong], dim=1)
        rows = model.entity[options]
        usable = options[:, 1:] != target.unsqueeze(1)
        total = self._ranking(plain, rows, usable)
        if settings.candidates == "aggregated":
            shape = options.shape
            rows = model.encode(
                self.sampler,
                options.flatten(),
                model.inverse(relation).unsqueeze(1).expand(shape).flatten(),
                time.unsqueeze(1).expand(shape).flatten(),
            ).view(*shape, -1)
        total = total + self._ranking(points, rows, usable)
        return Loss(total / max(len(source), 1), {}, part.share(size))

    def _ranking(self, points: Tensor, rows: Tensor, usable: Tensor) -> Tensor:
        """Loss of (B, d) points and (B, 1 + n, d) answers, the right one first; a sum."""
        scores = translation_score(points.unsqueeze(1), torch.zeros_like(points[:1]), rows)
        if self.model.settings.loss == "margin":
            short = functional.relu(self.model.settings.margin - scores[:, :1] + scores[:, 1:])
            return (short * usable).sum() / max(usable.shape[1], 1)
        wrong = scores[:, 1:].masked_fill(~usable, -math.inf)
        return -torch.log_softmax(torch.cat([scores[:, :1], wrong], 1), 1)[:, 0].sum()


def first_links(visible: VisibleFacts) -> VisibleFacts:
    """Each link once, at its first time: it is visible before t if and only if that time is."""
    facts = visible.facts()
    rows = _first_rows(facts.subject, facts.relation, facts.object)
    return VisibleFacts.of(facts.select(rows))


def first_supports(supports: Supports) -> Supports:
    """Each link of a support once, at its first time."""
    return supports[_first_rows(supports.entity, supports.relation, supports.other)]


def _first_rows(*columns: np.ndarray) -> np.ndarray:
    """The row in which each different combination comes first, ascending."""
    return np.sort(np.unique(np.stack(columns, axis=1), axis=0, return_index=True)[1])
