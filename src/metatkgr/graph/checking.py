"""Whether the links of an index are ones that its graph can have.

Opening an index reads a page of it, however large it is. That its content is damaged is noticed
where something fails, which is looked into only then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from metatkgr.errors import DataError
from metatkgr.graph.layers import GrowingIndex, LinkLayer
from metatkgr.graph.mapped import GraphIndex

__all__ = ["check_links", "damage_told"]

_AT_ONCE = 1 << 20


def check_links(index: GraphIndex | GrowingIndex, where: str) -> None:
    """Read all links once, some at a time.

    Args:
        index: perhaps a mapped one.
        where: what to call it.

    Raises:
        DataError: keys are not ascending, or a link is of no entity, relation or step there is.
    """
    if isinstance(index, GraphIndex):
        _check_base(index, where)
        return
    _check_base(index.base, where)
    for layer in index.stored:
        _check_part(layer, index.entities, where)


@contextmanager
def damage_told(index: GraphIndex | GrowingIndex, where: str) -> Iterator[None]:
    """Within it, what fails because the index is damaged is an error that says so."""
    try:
        yield
    except (IndexError, RuntimeError, ValueError, OverflowError) as error:
        try:
            check_links(index, where)
        except DataError as found:
            raise found from error
        raise


def _check_base(index: GraphIndex, where: str) -> None:
    _check_part(index, index.entities, where)
    # Ascending keys say where an entity's links begin; the column only spares the search for it.
    for low in range(0, index.entities + 1, _AT_ONCE):
        entity = torch.arange(low, min(low + _AT_ONCE, index.entities + 1))
        found = torch.searchsorted(index.key, entity * index.steps)
        if not torch.equal(found, index.start[entity]):
            raise _damaged(where, "an entity's links are not where it says")


def _check_part(part: GraphIndex | LinkLayer, entities: int, where: str) -> None:
    room, last = entities * part.steps, 0
    for low in range(0, len(part), _AT_ONCE):
        some = slice(low, low + _AT_ONCE)
        key = part.key[some]
        if int(key[0]) < last or bool((key[1:] < key[:-1]).any()):
            raise _damaged(where, "its links are not in the order of their entities and times")
        last = int(key[-1])
        for values, size, what in (
            (key, room, "time"),
            (part.relation[some], part.relations, "relation"),
            (part.target[some], entities, "entity"),
        ):
            if _outside(values, size):
                raise _damaged(where, f"a link is of no {what} there is")


def _outside(values: Tensor, size: int) -> bool:
    return int(values.min()) < 0 or int(values.max()) >= size


def _damaged(where: str, why: str) -> DataError:
    return DataError(
        f"the index of links of {where} is damaged: {why}; make it again: ingest the files anew "
        "with --index"
    )
