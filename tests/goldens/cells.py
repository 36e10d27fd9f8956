"""What is recorded, cell by cell: a name, a function that gives plain values, how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["PARTS", "Cell", "all_cells"]

PARTS = ("readers", "appends", "tasks", "rules", "service", "trained", "scores")
"""One file of records for each."""


@dataclass(frozen=True)
class Cell:
    """One thing that is recorded and checked.

    Args:
        name: ``part/…``; the part says in which file it lies.
        run: computes its value: dictionaries, lists, texts and numbers.
        quick: whether it is checked without ``--all``.
        needs: the published dataset without which it is skipped.
        tolerance: by how much floating-point numbers may differ, those above 1 in relation.
        possible: whether what it needs is there.
    """

    name: str
    run: Callable[[], dict[str, Any]]
    quick: bool = True
    needs: str = ""
    tolerance: float = 1e-9
    possible: Callable[[], bool] = lambda: True

    @property
    def part(self) -> str:
        """The first word of the name."""
        return self.name.partition("/")[0]


def all_cells() -> list[Cell]:
    """Every cell, in the order of the parts."""
    from goldens import appends, corpus_cells, ranks, service, trained

    made = (corpus_cells, appends, ranks, service, trained)
    cells = [cell for module in made for cell in module.cells()]
    return sorted(cells, key=lambda cell: PARTS.index(cell.part))
