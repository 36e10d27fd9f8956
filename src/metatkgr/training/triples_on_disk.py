"""TransE on a graph larger than memory: tables on disk, a step that touches its batch alone.

The same score and the same softmax over sampled entities as ``models.baselines`` use, without what
grows with the graph: triples are not made distinct first (a fact that is told often counts often),
facts are read block by block in random order, and the optimiser is Adagrad on the rows of the
batch, whose memory is one number per row and lies on disk beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.data.facts import IntArray
from metatkgr.errors import SettingsError
from metatkgr.models.translation import relation_vectors, score_all, translation_score
from metatkgr.training.row_table import RowTable

__all__ = ["DiskTripleSettings", "DiskTriples", "StoredFacts"]

_TINY = 1e-10


@dataclass(frozen=True, kw_only=True)
class DiskTripleSettings:
    """Settings of a training on disk."""

    dimension: int = 64
    """d, the length of the vectors."""
    batch_size: int = 1024
    """Facts in a batch; each is asked in both directions."""
    negatives: int = 256
    """Entities in the softmax besides the answer, drawn anew for each batch."""
    learning_rate: float = 0.1
    """Of Adagrad."""
    block: int = 1 << 18
    """Facts read at once; batches are drawn from within a block."""

    def __post_init__(self) -> None:
        for name in ("dimension", "batch_size", "negatives", "block"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise SettingsError(f"learning_rate must be above 0, not {self.learning_rate}")


class StoredFacts(Protocol):
    """What is asked of facts on disk; ``FactStore`` and ``LearnableFacts`` have it."""

    @property
    def entities(self) -> Sized:
        """The names of the entities."""

    @property
    def relations(self) -> Sized:
        """The names of the relations."""

    def __len__(self) -> int:
        """Rows that can be read; not all need hold a fact that may be learned from."""

    def read(self, low: int, high: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Subjects, relations, objects and steps of the facts in rows ``low`` to ``high``."""


class DiskTriples:
    """A training of entity and relation vectors.

    Args:
        store: the facts.
        folder: for the tables; made where it is missing. Tables that are there are gone on with.
        settings: how to learn.
        seed: of the first vectors and of everything drawn.
    """

    def __init__(
        self,
        store: StoredFacts,
        folder: str | Path,
        settings: DiskTripleSettings | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.store, self.settings = store, settings or DiskTripleSettings()
        self.generator = torch.Generator().manual_seed(seed)
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        d = self.settings.dimension
        self.entity = self._table("entity", len(store.entities), d, random=True)
        self.relation = self._table("relation", len(store.relations), d, random=True)
        self._memory = {
            "entity": self._table("entity-squares", len(store.entities), 1, random=False),
            "relation": self._table("relation-squares", len(store.relations), 1, random=False),
        }

    def _table(self, name: str, rows: int, width: int, *, random: bool) -> RowTable:
        path = self._folder / f"{name}.safetensors"
        generator = self.generator if random else None
        if not path.exists():
            return RowTable.create(path, rows, width, generator)
        table = RowTable(path, width)
        if len(table) < rows:  # entities that have come since
            new = torch.zeros(rows - len(table), width)
            if generator is not None:
                new = torch.randn(new.shape, generator=generator) * width**-0.5
            table.append(new)
        return table

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(B,) subjects, relations, objects of one pass; blocks and rows in random order."""
        size, batch = self.settings.block, self.settings.batch_size
        blocks = -(-len(self.store) // size)
        for number in torch.randperm(blocks, generator=self.generator).tolist():
            low = number * size
            columns = self.store.read(low, min(low + size, len(self.store)))[:3]
            subject, relation, other = (torch.from_numpy(column) for column in columns)
            order = torch.randperm(len(subject), generator=self.generator)
            for part in torch.split(order, batch):
                yield subject[part], relation[part], other[part]

    def step(self, subject: Tensor, relation: Tensor, other: Tensor) -> float:
        """Learn from (B,) facts, in both directions; the loss before the step."""
        count = len(self.store.relations)
        source, target = torch.cat([subject, other]), torch.cat([other, subject])
        directed = torch.cat([relation, relation + count])
        rivals = torch.randint(
            len(self.store.entities), (self.settings.negatives,), generator=self.generator
        )
        ids, local = torch.unique(torch.cat([subject, other, rivals]), return_inverse=True)
        sizes = [len(subject), len(other), len(rivals)]
        places = local.split(sizes)
        used, kind = torch.unique(relation, return_inverse=True)
        entities = self.entity.read(ids).requires_grad_()
        relations = self.relation.read(used).requires_grad_()
        vector = relation_vectors(relations, torch.cat([kind, kind + len(used)]))
        asking = entities[torch.cat(places[:2])]
        right = translation_score(asking, vector, entities[torch.cat(places[1::-1])])
        wrong = score_all(asking + vector, entities[places[2]])  # (2B, n)
        # Neither the answer itself nor the asking entity is a wrong answer.
        drawn = rivals[None, :]
        own = (drawn == target[:, None]) | (drawn == source[:, None])
        wrong = wrong.masked_fill(own, torch.finfo(wrong.dtype).min / 2)
        scores = torch.cat([right[:, None], wrong], 1)
        loss = functional.cross_entropy(scores, torch.zeros(len(directed), dtype=torch.int64))
        found = torch.autograd.grad(loss, (entities, relations))
        self._learn("entity", self.entity, ids, entities.detach(), found[0])
        self._learn("relation", self.relation, used, relations.detach(), found[1])
        return float(loss.detach())

    def _learn(
        self, name: str, table: RowTable, ids: Tensor, rows: Tensor, gradient: Tensor
    ) -> None:
        """Adagrad with one number per row: the mean of the squares of its gradients, summed up."""
        memory = self._memory[name]
        squares = memory.read(ids) + gradient.square().mean(1, keepdim=True)
        memory.write(ids, squares)
        rate = self.settings.learning_rate
        table.write(ids, rows - rate * gradient / (squares + _TINY).sqrt())

    def fit(self, epochs: int = 1) -> list[float]:
        """Learn from all facts; the mean loss of each epoch."""
        losses = []
        for _ in range(epochs):
            each = np.asarray([self.step(*batch) for batch in self.batches()])
            losses.append(float(each.mean()))
        return losses
