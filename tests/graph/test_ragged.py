"""Tools for rows of different length, against the plain way."""

from __future__ import annotations

import pytest
import torch

from metatkgr.graph.ragged import best_of_each, distinct


@pytest.mark.parametrize("count", [0, 1, 300, 5000, 30_000])
def test_distinct_values_are_those_of_torch(count: int) -> None:
    """Both ways: few values are sorted by torch, many by numpy."""
    values = torch.randint(-50, count + 1, (count,), generator=torch.Generator().manual_seed(0))
    values *= 1 << 40
    for mine, theirs in zip(
        distinct(values), torch.unique(values, return_inverse=True), strict=True
    ):
        assert mine.dtype == theirs.dtype == torch.int64
        assert mine.equal(theirs)


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
