"""A given schema: of which type the ends of a relation are. What it rules out is no answer.

A JSON file::

    {"types": {"Ana": "player", "FC Ost": "club"},
     "relations": {"plays for": ["player", "club"]}}

An entity without a type, as a newcomer is, may stand anywhere; so may anybody in a relation that is
not named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.errors import DataError
from metatkgr.files import read_json
from metatkgr.forecasting.names import GrowingVocabulary

__all__ = ["Schema"]


@dataclass(frozen=True)
class Schema:
    """Types of entities, and of the domain and the range of relations."""

    types: Mapping[str, str]
    """By the name of an entity."""
    ends: Mapping[int, str]
    """What the far end of a directed relation is."""
    relations: int
    """R."""

    @classmethod
    def load(cls, path: str | Path, facts: Facts) -> Schema:
        """Read a file.

        Raises:
            DataError: it is no schema of this graph.
        """
        content = read_json(Path(path))
        try:
            types = {str(name): str(kind) for name, kind in content["types"].items()}
            pairs = {str(name): tuple(ends) for name, ends in content["relations"].items()}
        except (KeyError, TypeError, AttributeError):
            raise DataError(
                f'{path} is no schema: write {{"types": {{NAME: TYPE}}, "relations": '
                "{RELATION: [DOMAIN, RANGE]}}"
            ) from None
        ends: dict[int, str] = {}
        for name, pair in pairs.items():
            if len(pair) != 2:
                raise DataError(f"{path}: {name!r} has a domain and a range, not {list(pair)!r}")
            number = facts.relations.id(name, "relation")
            ends[number + len(facts.relations)], ends[number] = map(str, pair)
        return cls(types, ends, len(facts.relations))

    def allows(self, names: GrowingVocabulary, relation: Tensor, entity: Tensor) -> Tensor:
        """(Q, M) whether candidates may stand at the far ends of (Q,) directed relations."""
        allowed = torch.ones_like(entity, dtype=torch.bool)
        for row, directed in enumerate(relation.tolist()):
            wanted = self.ends.get(directed)
            if wanted is not None:
                kinds = (self.types.get(names.name(x), wanted) for x in entity[row].tolist())
                allowed[row] = torch.tensor([kind == wanted for kind in kinds])
        return allowed

    def possible(self, name: str) -> npt.NDArray[np.bool_]:
        """(2R,) whether an entity may stand at the near end of each directed relation."""
        kind = self.types.get(name)
        mirrored = [(n + self.relations) % (2 * self.relations) for n in range(2 * self.relations)]
        near = [self.ends.get(number) for number in mirrored]
        return np.array([kind is None or end in (None, kind) for end in near])
