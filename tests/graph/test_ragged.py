"""Tools for rows of different length, against the plain way."""

from __future__ import annotations

import pytest
import torch

from metatkgr.graph.ragged import ascending, best_of_each, distinct, in_order_of


def some_values(count: int, seed: int = 0) -> torch.Tensor:
    """Whole numbers, some below 0 and some again and again."""
    return torch.randint(-50, count + 1, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("room", [0, 40])
@pytest.mark.parametrize("count", [0, 1, 300, 5000, 30_000])
def test_distinct_values_are_those_of_torch(count: int, room: int) -> None:
    """All ways: a few, many, and many that leave no room for their positions."""
    values = some_values(count) << room
    for mine, theirs in zip(
        distinct(values), torch.unique(values, return_inverse=True), strict=True
    ):
        assert mine.dtype == theirs.dtype == torch.int64
        assert mine.equal(theirs)


@pytest.mark.parametrize("room", [0, 40])
@pytest.mark.parametrize("count", [0, 1, 300, 5000, 30_000])
def test_values_in_order_are_those_of_a_stable_sort(count: int, room: int) -> None:
    values = some_values(count) << room
    for mine, theirs in zip(ascending(values), torch.sort(values, stable=True), strict=True):
        assert mine.dtype == theirs.dtype == torch.int64
        assert mine.equal(theirs)


@pytest.mark.parametrize("count", [0, 1, 50, 5000])
def test_rows_are_ordered_by_the_first_column_then_by_the_next(count: int) -> None:
    columns = [some_values(count, seed) // 20 for seed in range(3)]
    rows = list(zip(*(column.tolist() for column in columns), range(count), strict=True))
    order = [place for *_, place in sorted(rows)]
    assert in_order_of(*columns).tolist() == order
    assert in_order_of(*(column.int() for column in columns)).tolist() == order


@pytest.mark.parametrize("most", [0, 1, 3, 40])
@pytest.mark.parametrize("rows", [1, 7])
def test_the_best_of_each_row_are_the_first_of_the_largest(most: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    row = torch.randint(rows, (200,), generator=generator).sort().values
    for value in (torch.randint(9, (200,), generator=generator), torch.randn(200).float()):
        expected = []
        for number in range(rows):
            places = torch.nonzero(row == number).flatten().tolist()
            places.sort(key=lambda place: -float(value[place]))
            expected += sorted(places[:most])
        assert best_of_each(most, row, value).tolist() == expected
    assert best_of_each(most, row[:0], row[:0]).tolist() == []
