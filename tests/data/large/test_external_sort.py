"""Sorting on disk gives what sorting in memory gives, whatever the runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.large import external_sort
from metatkgr.data.large.distinct import distinct
from metatkgr.data.large.external_sort import ExternalSort


@given(
    keys=st.lists(st.integers(-5, 5), max_size=80),
    rows=st.integers(1, 20),
    pieces=st.integers(1, 9),
)
@settings(max_examples=40, deadline=None)
def test_rows_come_by_key_and_equal_ones_as_they_came(
    keys: list[int], rows: int, pieces: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sort")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "_SMALLEST_BLOCK", 1)
        sorter = ExternalSort(folder, 2, rows)
        table = np.stack([np.asarray(keys, np.int64), np.arange(len(keys))])
        for part in np.array_split(table, pieces, axis=1):
            sorter.add(*part)
        blocks = list(sorter.merged())
    assert all(block.shape[1] for block in blocks)
    found = np.concatenate([np.zeros((2, 0), np.int64), *blocks], axis=1)
    assert found.T.tolist() == sorted(table.T.tolist())
    assert not [path for path in folder.rglob("*") if path.is_file()], "runs are cleared away"


@given(
    facts=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)),
        max_size=60,
    ),
    rows=st.integers(1, 12),
    size=st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_repeated_facts_are_dropped_and_the_first_stay_in_order(
    facts: list[tuple[int, int, int, int]],
    rows: int,
    size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    facts.sort(key=lambda fact: fact[0])
    table = np.asarray(facts, np.int64).reshape(-1, 4).T
    blocks = [table[:, low : low + size] for low in range(0, len(facts), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "_SMALLEST_BLOCK", 1)
        found = list(distinct(blocks, (3, 2), tmp_path_factory.mktemp("distinct"), rows))
    got = [tuple(row) for block in found for row in block.T.tolist()]
    assert got == list(dict.fromkeys(facts))


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 columns, not 1"):
        ExternalSort(tmp_path, 3, 10).add(np.zeros(2, np.int64))
