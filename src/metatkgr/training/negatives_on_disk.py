"""Who stood in which place of which relation, in a file: wrong answers without the facts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from metatkgr.data.facts import IntArray
from metatkgr.data.large.columns import TableWriter
from metatkgr.errors import DataError
from metatkgr.files import atomic_path, check_file
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.negatives import Negatives

__all__ = ["MappedNegatives", "build_places"]

_LINKS_AT_ONCE = 1 << 22


class MappedNegatives(Negatives):
    """Draws the same wrong answers as :class:`Negatives`, from a file of :func:`build_places`.

    Args:
        path: the file.
        entities: E.
        kind: as of :class:`Negatives`.
        relations: R.

    Raises:
        DataError: it is no such file, or of other facts.
    """

    def __init__(self, path: Path, entities: int, kind: str, relations: int) -> None:
        self.kind, self.entities = kind, entities
        check_file(path)
        try:
            with safe_open(path, framework="pt") as file:
                self._target, self._start = file.get_tensor("target"), file.get_tensor("start")
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            raise DataError(f"cannot read {path}: {error}; remove it and go on") from error
        target, start = self._target, self._start
        fits = (
            target.dtype == start.dtype == torch.int64
            and target.dim() == 1
            and start.shape == (2 * relations + 1,)
            and (int(start[0]), int(start[-1])) == (0, len(target))
            and bool((start[1:] >= start[:-1]).all())
            and (not len(target) or 0 <= int(target.min()) <= int(target.max()) < entities)
        )
        if not fits:
            raise DataError(f"{path} is damaged, or of other facts; remove it and go on")


def build_places(path: Path, index: GraphIndex, at_once: int = _LINKS_AT_ONCE) -> None:
    """Write the distinct (relation, entity at its far end) of all links, in this order.

    Args:
        path: the file.
        index: the links, perhaps mapped.
        at_once: how many of them are in memory at a time.
    """
    count = np.zeros(index.relations, np.int64)
    for relation, _ in _places(index, at_once):
        count += np.bincount(relation, minlength=index.relations)
    start = np.concatenate([[0], np.cumsum(count)])
    filled = start[:-1].copy()
    lengths = {"target": int(start[-1]), "start": len(start)}
    with atomic_path(path) as temporary, TableWriter(temporary, lengths, {}) as table:
        table.write("start", 0, start)
        for relation, target in _places(index, at_once):
            bounds = np.searchsorted(relation, np.arange(index.relations + 1))
            for number in np.flatnonzero(np.diff(bounds)).tolist():
                part = target[bounds[number] : bounds[number + 1]]
                table.write("target", int(filled[number]), part)
                filled[number] += len(part)


def _places(index: GraphIndex, at_once: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Relations and entities, each pair once; those of a relation ascend from part to part."""
    half, last = index.relations // 2, np.full(index.relations, -1)
    for low in range(0, len(index), at_once):
        part = slice(low, low + at_once)
        source = index.key[part].numpy() // index.steps
        relation, target = index.relation[part].numpy(), index.target[part].numpy()
        # Who a link starts from stands at the far end of its inverse, and links come by source.
        pair = (relation + half) % index.relations * index.entities + source
        own = target == source  # the index has one direction of these, and they are both
        pair = np.unique(np.concatenate([pair, relation[own] * index.entities + source[own]]))
        relation, target = pair // index.entities, pair % index.entities
        new = target > last[relation]
        relation, target = relation[new], target[new]
        last[relation] = target
        yield relation, target
