r"""LAN, the logic attention network: an entity is what its neighbours say about the question.

For a question with relation q about entity i, and the distinct links i -r_j-> e_j visible then:

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
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.sampler import Neighbours, RecentSampler
from metatkgr.models.base import register
from metatkgr.models.baselines.lan_attention import (
    aggregate,
    first_links,
    first_supports,
    logic_weights,
    project,
    rule_table,
)
from metatkgr.models.baselines.lan_training import LANSettings, LogicAttentionPhase
from metatkgr.models.common.scores import mask_query_entity, relation_vectors, score_all
from metatkgr.models.trainable import Phase, TrainableModel

__all__ = ["LAN", "LANSettings"]

_SLOTS_AT_ONCE = 1 << 20
"""How many neighbours of candidates are read in one go; bounds memory."""
_NOBODY = Supports(*(np.zeros(0, np.int64) for _ in range(4)))


@register
class LAN(TrainableModel[LANSettings]):
    """Attention over neighbours, guided by which relation tends to imply which."""

    rules: Tensor
    name = "lan"
    counted = frozenset({"rules"})
    settings_type = LANSettings
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (5e-4, 1e-2, "log"),
        "batch_size": (256, 512, 1024),
        "loss": ("softmax", "margin"),
        "seen_share": (0.2, 0.8, "linear"),
    }

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Small random vectors; no rule is known yet."""
        d = self.settings.dimension

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator) / math.sqrt(d)

        self.set_weights(
            {
                "entity": random(entities, d),
                "relation": random(relations, d),
                "normal": random(2 * relations, d),
                "query": random(2 * relations, d),
                "attention": random(2 * relations, d),
                "mix_query": random(d, d),
                "mix_neighbour": random(d, d),
                "rules": torch.zeros(2 * relations, 2 * relations),
            }
        )

    def phases(self, problem: Problem) -> list[Phase]:
        """Count the rules, then one phase."""
        self.rules.copy_(rule_table(problem.known))
        return [LogicAttentionPhase(self, problem.known)]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Index the public links, each once."""
        self.index_ = GraphIndex.of(first_links(visible), device=self.device)
        return self

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports."""
        self.sampler_ = self.sampler(self.index_, first_supports(supports))
        return self

    def sampler(self, index: GraphIndex, supports: Supports = _NOBODY) -> RecentSampler:
        """Reads the newest links of an entity."""
        return RecentSampler(index, supports, budget=self.settings.neighbours)

    def inverse(self, relation: Tensor) -> Tensor:
        """r + R for r and r for r + R."""
        count = len(self.weights["relation"])
        return (relation + count) % (2 * count)

    def encode(
        self,
        sampler: RecentSampler,
        entity: Tensor,
        relation: Tensor,
        time: Tensor,
        *,
        own: bool = False,
    ) -> Tensor:
        """(N, d) the vectors o of N entities for the questions (N,) asked of them."""
        found = sampler.sample(entity, time, own=own)
        messages = project(self.weights, found)
        logic = logic_weights(self.rules, found, relation)
        alone = self.weights["entity"][entity]
        return aggregate(
            self.weights, messages, found.mask, relation, logic, alone, self.settings.normalise
        )

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) negative squared distances."""
        table = self.weights["entity"]
        scores = torch.empty(len(queries), len(table), device=self.device)
        if len(queries) == 0:
            return scores
        who, relation, time = (
            torch.from_numpy(column).to(self.device)
            for column in (queries.entity, queries.relation, queries.time)
        )
        asked = self.encode(self.sampler_, who, relation, time, own=True)
        asked = asked + relation_vectors(self.weights["relation"], relation)
        if self.settings.candidates == "input":
            return mask_query_entity(score_all(asked, table), who)
        for moment in np.unique(queries.time):
            rows = np.flatnonzero(queries.time == moment)
            self._score_moment(scores, asked, queries.relation, rows, int(moment))
        return mask_query_entity(scores, who)

    def _score_moment(
        self, scores: Tensor, asked: Tensor, relation: np.ndarray, rows: np.ndarray, moment: int
    ) -> None:
        """Fill the rows of one time: neighbours once, attention once for each relation."""
        entities = len(self.weights["entity"])
        groups = [
            (int(r), torch.from_numpy(rows[relation[rows] == r]).to(self.device))
            for r in np.unique(relation[rows])
        ]
        size = max(_SLOTS_AT_ONCE // self.settings.neighbours, 1)
        for begin in range(0, entities, size):
            block = torch.arange(begin, min(begin + size, entities), device=self.device)
            found = self.sampler_.sample(block, torch.full_like(block, moment), own=False)
            width = max(int(found.mask.sum(1).max()), 1)
            found = Neighbours(
                *(
                    column[:, :width]
                    for column in (found.entity, found.relation, found.time, found.mask)
                )
            )
            messages = project(self.weights, found)
            alone = self.weights["entity"][block]
            for asked_relation, members in groups:
                backwards = self.inverse(torch.full_like(block, asked_relation))
                logic = logic_weights(self.rules, found, backwards)
                vectors = aggregate(
                    self.weights,
                    messages,
                    found.mask,
                    backwards,
                    logic,
                    alone,
                    self.settings.normalise,
                )
                scores[members, begin : begin + len(block)] = score_all(asked[members], vectors)
