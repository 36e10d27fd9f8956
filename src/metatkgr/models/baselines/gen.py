r"""GEN (graph extrapolation networks): I-GEN and its stochastic extension T-GEN. Time is ignored.

A vector of an unseen entity is computed from its support facts by a graph network that was
meta-trained on entities which are new in the same way (``gen_network`` has the equations), and is
then scored like any other: :math:`s(e, r, x) = -\lVert z_e + h_r - z_x \rVert^2`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.models.base import register
from metatkgr.models.baselines.gen_network import Unseen, initial_layer
from metatkgr.models.baselines.gen_training import (
    GENPhase,
    IGENSettings,
    TGENSettings,
    Vectors,
    askers_at,
    strangers_at,
)
from metatkgr.models.common.scores import mask_query_entity, relation_vectors, score_all
from metatkgr.models.common.translation import random_tables, translation_start
from metatkgr.models.trainable import Phase, TrainableModel

__all__ = ["IGEN", "TGEN"]

_CACHE_BYTES = 1 << 30
"""Vectors of unseen entities that are kept, for as many moments as fit."""
_NOISE_SEED = 20
"""T-GEN's samples at evaluation: the same for everyone, always."""

SettingsT = TypeVar("SettingsT", bound=IGENSettings)


class _GEN(TrainableModel[SettingsT]):
    """What I-GEN and T-GEN share."""

    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (1e-5, 1e-2, "log"),
        "bases": (1, 4, 16),
        "translation_epochs": (20, 40, 80),
        "translation_rate": (1e-3, 1e-2, "log"),
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "paper": {"message": "printed", "loss": "hinge", "negatives": 32, "learn_tables": True},
    }

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Random tables (the translation stage fills them) and a network that corrects nothing."""
        d = self.settings.dimension
        state = random_tables(entities, relations, d, generator)
        for layer in self._layers():
            zero = self.settings.residual or layer != "first"
            made = initial_layer(relations, self.settings.bases, d, zero=zero, generator=generator)
            state |= {f"{layer}.{name}": value for name, value in made.items()}
        self.set_weights(state | self._scalars())

    def _layers(self) -> tuple[str, ...]:
        return ("first",)

    def _scalars(self) -> dict[str, Tensor]:
        return {}

    def phases(self, problem: Problem) -> list[Phase]:
        """TransE on what is known of new entities at first, then meta-training."""
        settings, weights = self.settings, self.weights
        known = problem.one_shot if settings.one_shot else problem.few_shot
        own = GENPhase(weights, problem.train, settings, self.device)
        return [*translation_start(weights, known, settings), own]

    def prepare(self, visible: VisibleFacts) -> Self:
        """Nothing: what is known of old entities is in their vectors."""
        return self

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports; vectors are computed from those visible at the moment asked about."""
        entities = len(self.weights["entity"])
        self.unseen_ = Unseen(supports, entities=entities, device=self.device)
        self._moments: dict[int, Vectors] = {}
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) scores; all unseen entities have the vectors of the question's moment."""
        table, unseen = self.weights["entity"], self.unseen_
        asked = torch.from_numpy(queries.entity).to(self.device)
        relation = torch.from_numpy(queries.relation).to(self.device)
        translation = relation_vectors(self.weights["relation"], relation)
        points = torch.empty(len(queries), table.shape[1], device=self.device)
        # Old entities do not change: all their scores at once, those of new ones moment by moment.
        columns: list[tuple[Tensor, Tensor]] = []
        for moment in np.unique(queries.time):
            rows = torch.from_numpy(np.flatnonzero(queries.time == moment)).to(self.device)
            strangers = self._strangers_at(int(moment))
            askers = askers_at(self.weights, self.settings, unseen, strangers, asked[rows])
            points[rows] = askers.mean + translation[rows]
            scores = score_all(points[rows], strangers.mean)
            columns.append((rows, scores + self._spread(strangers, askers, asked[rows])))
        scores = score_all(points, table)
        for rows, values in columns:
            scores[rows.unsqueeze(1), unseen.entity] = values
        return mask_query_entity(scores, asked)

    def _strangers_at(self, moment: int) -> Vectors:
        """All unseen entities at a moment; the last moments are kept."""
        if moment not in self._moments:
            size = 12 * self.unseen_.entity.numel() * self.settings.dimension
            while self._moments and (len(self._moments) + 1) * size > _CACHE_BYTES:
                del self._moments[next(iter(self._moments))]
            self._moments[moment] = strangers_at(self.weights, self.settings, self.unseen_, moment)
        return self._moments[moment]

    def _spread(self, strangers: Vectors, askers: Vectors, asked: Tensor) -> Tensor | float:
        """(n, N) what uncertainty adds to the scores of unseen candidates."""
        return 0.0


@register
class IGEN(_GEN[IGENSettings]):
    r"""I-GEN: an unseen entity is what its support facts say, computed by a relational network.

    .. math:: z_i = \frac{1}{|N_i|} \sum_{(r, j) \in N_i} (x_j - h_r) + W_r [x_j \Vert h_r],
              \qquad W_r = \sum_b a_{rb} B_b

    over the supports of i that are visible, without a weight for i itself. Where this differs from
    its authors' code: (1) :math:`W_r` starts at zero and corrects the mean of :math:`x_j - h_r`,
    since a full matrix learns the meta-train entities by heart (``message=printed`` is theirs);
    (2) a softmax over all entities instead of a hinge with 32 negatives, which teaches more
    (``loss=hinge negatives=32``); (3) tables initialised by TransE and scored as translations,
    with only the supports of new entities in them; an unseen neighbour counts with its row there,
    where theirs has nothing; (4) all unseen candidates have computed vectors, at a question's
    moment from the supports before it, where theirs computes those of one task at a time.
    The preset ``paper`` undoes (1) and (2).
    """

    name = "igen"
    settings_type = IGENSettings


@register
class TGEN(_GEN[TGENSettings]):
    r"""T-GEN: I-GEN, then a stochastic layer over the links among unseen entities.

    .. math:: z_i \sim \mathcal{N}(\mu_i, \mathrm{diag}(\sigma_i^2)), \qquad
              s(e, r, x) = -\frac{1}{S} \sum_s \lVert z_e^s + h_r - z_x^s \rVert^2

    with μ and log σ² of ``gen_network.second_layer``. Training draws once for each entity and
    batch. Evaluation averages S = 10 draws that belong to an entity and never change (separate ones
    for asking and for being a candidate, as in training); centred, so that their mean is μ. What
    sampling adds is then :math:`-\overline{\lVert \epsilon_e - \epsilon_x \rVert^2}` with the
    deviations ε, and is computed for unseen candidates only: old ones have none, and a question's
    own part shifts all its scores alike. Differences from its authors' code are those of
    :class:`IGEN`, and: the second layer starts as the identity (γ and W zero), with its self-weight
    fixed at one.
    """

    name = "tgen"
    settings_type = TGENSettings
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **_GEN.tuning,
        "log_variance": (-8.0, -3.0, "linear"),
    }

    def _layers(self) -> tuple[str, ...]:
        return ("first", "mean", "variance")

    def _scalars(self) -> dict[str, Tensor]:
        return {"gate": torch.zeros(1), "bias": torch.full((1,), self.settings.log_variance)}

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports, and draw each unseen entity's samples."""
        super().adapt(supports)
        entities, d = self.weights["entity"].shape
        shape = (self.settings.samples, entities, d)
        generator = torch.Generator().manual_seed(_NOISE_SEED)
        new = self.unseen_.entity.cpu()

        def centred() -> Tensor:
            drawn = torch.randn(shape, generator=generator)[:, new]
            return (
                drawn.to(self.device) if not len(drawn) else (drawn - drawn.mean(0)).to(self.device)
            )

        self.noise_, self.own_noise_ = centred(), centred()
        return self

    def _spread(self, strangers: Vectors, askers: Vectors, asked: Tensor) -> Tensor | float:
        """(n, N) mean over the samples of 2 ε_e · ε_x - ‖ε_x‖²."""
        count = self.settings.samples
        if strangers.log_variance is None or askers.log_variance is None:
            return 0.0
        if not count:
            return -strangers.log_variance.exp().sum(1)
        # Scaled so that a product over samples and dimensions is the mean over samples.
        scale = 1 / math.sqrt(count)
        theirs = scale * self.noise_ * (strangers.log_variance / 2).exp()  # (S, N, d)
        place = self.unseen_.place[asked]
        new = (place >= 0).view(1, -1, 1)
        own = scale * self.own_noise_[:, place.clamp(min=0)] * new
        own = own * (askers.log_variance / 2).exp()
        theirs, own = (side.transpose(0, 1).flatten(1) for side in (theirs, own))
        return 2 * (own @ theirs.T) - theirs.square().sum(1)
