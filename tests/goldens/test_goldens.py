"""The quickest of what was recorded is as it was; all of it: ``make goldens``."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldens.cells import Cell, all_cells
from goldens.check import differences
from goldens.running import computed, read_records

RECORDED = Path(__file__).parent / "recorded"
QUICKEST = ("appends/several", "readers/bad-all-kinds", "tasks/world", "rules/world")
"""None with weights: how a processor adds is not the same everywhere."""
CELLS = [cell for cell in all_cells() if cell.quick and cell.name.startswith(QUICKEST)]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_cell_is_as_it_was_recorded(cell: Cell) -> None:
    record = read_records(RECORDED / f"{cell.part}.json")[cell.name]
    assert list(differences(record, computed(cell)[0], cell.tolerance)) == []


def test_differences_are_told_by_their_place() -> None:
    old = {"ranks": ["a", "b"], "mrr": 0.5, "gone": 1}
    new = {"ranks": ["a", "c"], "mrr": 0.5 + 1e-12, "more": 2}
    assert list(differences(old, new, 1e-9)) == [
        "ranks[1]: 'b' -> 'c'",
        "gone is gone: 1",
        "more is new: 2",
    ]
    assert list(differences({"mrr": 0.5}, {"mrr": 0.5001}, 1e-9)) == ["mrr: 0.5 -> 0.5001"]


def test_the_records_are_small() -> None:
    assert sum(path.stat().st_size for path in RECORDED.iterdir()) < 200_000
