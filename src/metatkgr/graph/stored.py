"""The index of links beside the facts of a folder, and the links of facts that came later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from metatkgr.data.folder import FactFolder
from metatkgr.errors import DataError
from metatkgr.graph.checking import damage_told
from metatkgr.graph.layers import GrowingIndex
from metatkgr.graph.mapped import GraphIndex

__all__ = ["index_of", "open_index"]


def open_index(folder: FactFolder) -> GraphIndex | GrowingIndex:
    """The index beside the facts; what it does not cover is put beside it in memory.

    Raises:
        DataError: there is none, or it is damaged, or of other facts.
    """
    links = folder.links()
    if links is None:
        raise DataError(
            f"{folder.folder} has no index of links: its entities and steps are too many"
        )
    base = GraphIndex(
        torch.from_numpy(links.key),
        torch.from_numpy(links.relation).long(),
        torch.from_numpy(links.target).long(),
        torch.from_numpy(links.start),
        links.entities,
        links.relations,
        links.steps,
    )
    entities, relations = len(folder.entities), len(folder.relations)
    later = len(folder) - links.facts
    if not later and (base.entities, base.relations) == (entities, 2 * relations):
        return base
    recent = folder.read(links.facts, len(folder))
    return GrowingIndex(base).append(recent, entities=entities, relations=relations)


@contextmanager
def index_of(folder: FactFolder) -> Iterator[GraphIndex | GrowingIndex]:
    """The index beside the facts; within it, what fails because of its content is told as that."""
    index = open_index(folder)
    with damage_told(index, str(folder.folder)):
        yield index
