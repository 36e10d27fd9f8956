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
    ends: Mapping[int, tuple[str, str]]
    """Domain and range, by the number of a relation: it stays when others come."""

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
        ends: dict[int, tuple[str, str]] = {}
        for name, pair in pairs.items():
            if len(pair) != 2:
                raise DataError(f"{path}: {name!r} has a domain and a range, not {list(pair)!r}")
            ends[facts.relations.id(name, "relation")] = (str(pair[0]), str(pair[1]))
        return cls(types, ends)

    def allows(
        self, names: GrowingVocabulary, relation: Tensor, entity: Tensor, relations: int
    ) -> Tensor:
        """(Q, M) whether candidates may stand at the far ends of (Q,) directed relations.

        Args:
            names: of the entities.
            relation: (Q,).
            entity: (Q, M) candidates.
            relations: R, as it is now.
        """
        allowed = torch.ones_like(entity, dtype=torch.bool)
        for row, directed in enumerate(relation.tolist()):
            pair = self.ends.get(directed % relations)
            if pair is not None:
                wanted = pair[directed < relations]
                kinds = (self.types.get(names.name(x), wanted) for x in entity[row].tolist())
                allowed[row] = torch.tensor([kind == wanted for kind in kinds])
        return allowed

    def possible(self, name: str, relations: int) -> npt.NDArray[np.bool_]:
        """(2R,) whether an entity may stand at the near end of each directed relation."""
        kind = self.types.get(name)
        pairs = [self.ends.get(number, (kind, kind)) for number in range(relations)]
        near = [*(domain for domain, _ in pairs), *(range_ for _, range_ in pairs)]
        return np.array([kind is None or end == kind for end in near])
