"""MetaTKGR whose tables and graph stay on disk: rows are read where a batch or a block needs them.

Only the encoder is learned, and only it is in memory. Candidates are encoded block by block, with
the rows of the block's entities and of their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from metatkgr.data.facts import IntArray
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.models.metatkgr.adaptation import encoder_part
from metatkgr.models.metatkgr.curriculum import MetaBatch, MetaPhase
from metatkgr.models.metatkgr.encoder import Tree, encode, initial_encoder
from metatkgr.models.metatkgr.model import MetaTKGR
from metatkgr.models.metatkgr.queries import MetaSource
from metatkgr.models.metatkgr.settings import MetaTKGRSettings
from metatkgr.models.metatkgr.trees import grow
from metatkgr.models.trainable import WHOLE, Loss, Part, Phase
from metatkgr.models.translation import never_itself, score_all

__all__ = ["MappedMetaTKGR", "with_rows"]

_NEIGHBOURS = 1 << 16
"""Of a block of candidates: their vectors are in memory, a few times over."""
_SCORES = 1 << 25
"""Numbers in the scores of the questions that are asked together."""


def with_rows(parameters: Mapping[str, Tensor], tree: Tree) -> tuple[dict[str, Tensor], Tree]:
    """The same parameters with the rows of ``entity`` that a tree reads, and the tree over these.

    Args:
        parameters: ``entity`` (E, d), perhaps mapped, and others.
        tree: in global ids.
    """
    slots = [tree.entity, *(hop.entity for hop in tree.hops)]
    ids, place = torch.unique(torch.cat([slot.reshape(-1) for slot in slots]), return_inverse=True)
    places = place.split([slot.numel() for slot in slots])
    root, *others = (place.view(slot.shape) for place, slot in zip(places, slots, strict=True))
    hops = tuple(hop._replace(entity=local) for hop, local in zip(tree.hops, others, strict=True))
    rows = functional.embedding(ids, parameters["entity"])
    return {**parameters, "entity": rows}, tree._replace(entity=root, hops=hops)


class MappedMetaTKGR(MetaTKGR):
    """MetaTKGR over tables that are not its own to change.

    Args:
        settings: of the model; ``learn_tables`` is off and ``candidates`` are shared.
        entity: (E, d) vectors, mapped.
        relation: (R, d) vectors.
    """

    def __init__(self, settings: MetaTKGRSettings, entity: Tensor, relation: Tensor) -> None:
        super().__init__(settings)
        tables = {"entity": entity, "relation": relation}
        self._tables = {k: nn.Parameter(v, requires_grad=False) for k, v in tables.items()}
        self.weights = dict(self._tables)
        self._source: MetaSource | None = None
        self._most = 0
        self._told: Callable[[int], object] = _nobody

    @property
    def entities(self) -> int:
        """E."""
        return len(self._tables["entity"])

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """A random encoder; the tables are there."""
        self.load_state(initial_encoder(self.settings.encoder, generator))

    def state(self) -> dict[str, Tensor]:
        """The encoder."""
        return encoder_part(super().state())

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take an encoder."""
        super().load_state(encoder_part(state))
        self.weights |= self._tables

    def learn_from(
        self, source: MetaSource, *, most: int = 0, told: Callable[[int], object] | None = None
    ) -> None:
        """Say what meta-training reads.

        Args:
            source: the tasks, on disk.
            most: how many tasks an epoch draws from each interval at most; 0: all.
            told: called with the number of tasks of each batch.
        """
        self._source, self._most, self._told = source, most, told or _nobody

    def phases(self, problem: Problem) -> list[Phase]:
        """The start, which is behind us, and meta-training; nothing is read from ``problem``."""
        start: Phase = _Start(self.weights)
        if self.settings.variant == "fine-tuning":
            return [start]
        if self._source is None:
            raise ValueError("say first what to learn from: learn_from(source)")
        phase = _ToldPhase(self.weights, self._source, self.settings, self.device, most=self._most)
        phase.told = self._told
        return [start, phase]

    def together(self, queries: Queries) -> list[IntArray]:
        """Rows of the questions, in groups of one time each: they share the candidates."""
        order = np.argsort(queries.time, kind="stable").astype(np.int64)
        time = queries.time[order]
        groups = np.split(order, np.flatnonzero(time[1:] != time[:-1]) + 1)
        most = max(_SCORES // self.entities, 1)
        return [group[i : i + most] for group in groups for i in range(0, len(group), most)]

    @torch.no_grad()
    def scores(self, queries: Queries) -> Callable[[int, int], Tensor]:
        """(Q, c) scores of candidates ``low`` to ``high``, of questions at one time."""
        moment = int(queries.time[0])
        if (queries.time != moment).any():
            raise ValueError("questions that are asked together are of one time")
        points = self.points(queries)
        scores = torch.empty(len(queries), self.entities)
        settings = self.settings
        size = max(_NEIGHBOURS // settings.budget**settings.layers, 64)
        for low in range(0, self.entities, size):
            high = min(low + size, self.entities)
            scores[:, low:high] = score_all(points, self.candidates(moment, low, high))
        if not settings.answers_itself:
            never_itself(scores, torch.from_numpy(queries.entity))
        return lambda low, high: scores[:, low:high]

    @torch.no_grad()
    def candidates(self, moment: int, low: int, high: int) -> Tensor:
        """(c, d) the entities ``low`` to ``high`` at a moment, with the shared parameters."""
        who = torch.arange(low, high)
        time = torch.full_like(who, moment)
        tree = grow(self.sampler_.sample, who, time, layers=self.settings.layers)
        parameters, tree = with_rows(self.weights, tree)
        return encode(parameters, self.settings.encoder, tree)


def _nobody(_: int) -> None:
    pass


class _ToldPhase(MetaPhase):
    """Meta-training that says how far it is."""

    told: Callable[[int], object]

    def batches(self, generator: torch.Generator) -> Iterator[MetaBatch]:
        for batch in super().batches(generator):
            yield batch
            self.told(len(batch.entity))


class _Start:
    """Stands for the stage that has filled the tables: what follows it has something to better."""

    name = "translation"
    epochs = 0
    learning_rate = 1.0
    patience = 0
    validate_every = 1

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        self._weights = weights

    def parameters(self) -> list[nn.Parameter]:
        return [w for k, w in self._weights.items() if k.startswith("encoder.")]

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        return iter(())

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        raise AssertionError("a stage that is done has no batches")
