"""The index of links in a folder of facts: a base, and a layer for facts that came later.

A layer holds the links of some consecutive facts by (source, time) and no number per entity, so
writing one costs what its facts cost. When the layers have come to a quarter of the base, it is
built anew (``manifest.layers_to_keep``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from metatkgr.data.large.columns import TableWriter
from metatkgr.data.large.external_sort import ExternalSort
from metatkgr.data.large.growth import WORK, Grown
from metatkgr.data.large.manifest import INDEX, IndexFiles, Layer, layers_to_keep, numbered
from metatkgr.data.large.store import FactStore
from metatkgr.errors import DataError
from metatkgr.files import atomic_path, check_file
from metatkgr.graph.build import Block, build_index
from metatkgr.graph.checking import damage_told
from metatkgr.graph.layers import GrowingIndex, LinkLayer
from metatkgr.graph.mapped import GraphIndex, index_header

__all__ = ["IndexGrowth", "has_index", "index_of", "open_index", "write_layer"]

_LINKS = ("key", "relation", "target")
_AT_ONCE = 1 << 22


def has_index(store: FactStore) -> bool:
    """Whether there is an index beside the facts."""
    return _files(store) is not None


def open_index(store: FactStore) -> GraphIndex | GrowingIndex:
    """The index beside the facts.

    Raises:
        DataError: there is none, or it is of other facts.
    """
    files = _files(store)
    if files is None:
        raise DataError(
            f"{store.folder} has no index of links; make it with 'metatkgr data ingest … --index'"
        )
    path = store.folder / numbered(INDEX, files.base.number)
    base = GraphIndex.open(path)
    entities, relations = len(store.entities), len(store.relations)
    first = files.base.size
    if base.steps > store.steps + 1 or not first <= len(base) <= 2 * first:
        raise DataError(f"{path} is the index of other facts; make it again")
    if not files.layers and (base.entities, base.relations) == (entities, 2 * relations):
        return base
    if not store.manifest.grown or base.entities > entities or base.relations > 2 * relations:
        raise DataError(f"{path} is the index of other facts; make it again")
    layers = [
        _open_layer(store.folder / numbered(INDEX, part.number), 2 * relations, store.steps - 1)
        for part in files.layers
    ]
    return GrowingIndex(base, layers, entities=entities, relations=relations)


@contextmanager
def index_of(store: FactStore) -> Iterator[GraphIndex | GrowingIndex]:
    """The index beside the facts; within it, what fails because of its content is told as that."""
    index = open_index(store)
    with damage_told(index, str(store.folder)):
        yield index


def _files(store: FactStore) -> IndexFiles | None:
    if store.manifest.grown:
        return store.manifest.index
    return IndexFiles(Layer(0, len(store))) if (store.folder / INDEX).is_file() else None


class IndexGrowth:
    """Has the index of a folder grow with its facts (the ``index`` of ``data.large.append``).

    Args:
        wanted: build one where there is none.
        compact: make one file of it.
        at_once: how many links may be in memory at a time.
    """

    def __init__(
        self, *, wanted: bool = False, compact: bool = False, at_once: int = _AT_ONCE
    ) -> None:
        self._wanted, self._compact, self._at_once = wanted, compact, at_once

    def __call__(self, grown: Grown) -> IndexFiles | None:
        """Write what is new of the index; what it is made of now."""
        old, added = grown.before.index, grown.after.facts - grown.before.facts
        if old is None:
            return self._base(grown) if self._wanted else None
        parts = (old.base, *old.layers)
        if grown.moved or (self._compact and old.layers):
            return self._base(grown)
        if not added:
            return old
        keep = layers_to_keep(parts, added)
        if keep == 0:
            return self._base(grown)
        low = sum(part.size for part in parts[:keep])
        after = grown.after
        assert after.entities is not None
        assert after.relations is not None
        write_layer(
            grown.folder / numbered(INDEX, grown.number),
            grown.blocks(low, max(self._at_once // 2, 1)),
            entities=after.entities.count,
            relations=after.relations.count,
            steps=after.steps,
            at_once=self._at_once,
        )
        return IndexFiles(old.base, (*parts[1:keep], Layer(grown.number, after.facts - low)))

    def _base(self, grown: Grown) -> IndexFiles:
        after = grown.after
        assert after.entities is not None
        assert after.relations is not None
        build_index(
            grown.folder / numbered(INDEX, grown.number),
            lambda rows: grown.blocks(0, rows),
            entities=after.entities.count,
            relations=after.relations.count,
            steps=after.steps,
            at_once=self._at_once,
        )
        return IndexFiles(Layer(grown.number, after.facts))


def write_layer(
    path: str | Path,
    blocks: Iterable[Block],
    *,
    entities: int,
    relations: int,
    steps: int,
    at_once: int = _AT_ONCE,
) -> None:
    """Write the links of some facts, sorted on disk.

    Args:
        path: where the layer goes.
        blocks: the facts, in time order.
        entities: E.
        relations: R, not counting inverse ones.
        steps: one more than the last step of a fact.
        at_once: how many links may be in memory at a time (a few copies of them are).
    """
    path, steps = Path(path), steps + 1  # as in an index, one step stays free
    if entities * steps >= 2**63:
        raise DataError(
            f"a key over {entities:,} entities and {steps:,} steps does not fit into 63 bits: "
            "choose a coarser time unit"
        )
    with tempfile.TemporaryDirectory(prefix=WORK, dir=path.parent) as work:
        links, count = ExternalSort(Path(work), 3, at_once), 0
        for subject, relation, other, time in blocks:
            source = np.stack([subject, other], axis=1).reshape(-1)
            target = np.stack([other, subject], axis=1).reshape(-1)
            directed = np.stack([relation, relation + relations], axis=1).reshape(-1)
            once = np.ones(len(source), bool)
            once[1::2] = subject != other  # a fact of an entity with itself is one link
            key = source * steps + np.repeat(time, 2)
            links.add(key[once], directed[once], target[once])
            count += int(np.count_nonzero(once))
        about = index_header(entities, 2 * relations, steps)
        with (
            atomic_path(path) as temporary,
            TableWriter(temporary, dict.fromkeys(_LINKS, count), about) as table,
        ):
            position = 0
            for block in links.merged():
                for name, column in zip(_LINKS, block, strict=True):
                    table.write(name, position, column)
                position += block.shape[1]


def _open_layer(path: Path, most: int, last: int) -> LinkLayer:
    """A layer of an index.

    Args:
        path: its file.
        most: 2R of the whole graph; a layer may have been written when there were fewer.
        last: the last step of the whole graph; the same.
    """
    from safetensors import SafetensorError, safe_open

    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            key, relation, target = (file.get_tensor(name) for name in _LINKS)
            relations, steps = int(about["relations"]), int(about["steps"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"cannot read {path} ({str(error)[:200]}): the folder has grown since it was opened, "
            "then open it again, or it is damaged, then ingest everything anew"
        ) from error
    columns = (key, relation, target)
    fits = all(column.shape == (len(key),) for column in columns if column.dim())
    if not fits or any(column.dtype != torch.int64 or not column.dim() for column in columns):
        raise DataError(f"{path} is damaged: its columns do not fit together; ingest anew")
    if not (0 < relations <= most and relations % 2 == 0 and 0 < steps <= last + 2):
        raise DataError(f"{path} is of other facts, or damaged; ingest everything anew")
    return LinkLayer(key, relation, target, relations, steps)
