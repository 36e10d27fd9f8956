"""A folder to which files were appended is the one that reading them all at once makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from growing_folders import NAMED, add, check_index, check_same, write
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.folder import FactFolder
from metatkgr.data.index_writer import links_on_disk
from metatkgr.data.ingest import compact, ingest
from metatkgr.data.manifest import StoredLinks
from metatkgr.data.visibility import VisibleFacts


@pytest.fixture(autouse=True, scope="module")
def no_power_is_lost() -> Iterator[None]:
    """What ``faults`` tests need not be waited for here."""
    with patch("os.fsync", lambda _: None):
        yield


names = st.sampled_from(["ann", "bob", "cleo", "Åsa", "dan", "eve", "finn", "gus"])
kinds = st.sampled_from(["knows", "likes", "meets"])
facts_of_a_file = st.lists(
    st.tuples(names, kinds, names, st.integers(0, 8)), min_size=1, max_size=12
)


@dataclass
class Files:
    """What is read, in order, and how."""

    rows: list[list[tuple[str, str, str, int]]]
    in_order: bool
    stride: int
    squeeze: bool


several = st.builds(
    Files,
    st.lists(facts_of_a_file, min_size=2, max_size=6),
    st.booleans(),
    st.sampled_from([1, 3]),
    st.booleans(),
)


@given(files=several)
@settings(max_examples=10, deadline=None)
def test_it_is_the_folder_of_all_rows_at_once(
    files: Files, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_growth(files, tmp_path_factory.mktemp("append"))


@pytest.mark.slow
@given(files=several)
@settings(max_examples=300, deadline=None)
def test_many_are_the_folders_of_all_rows_at_once(
    files: Files, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_growth(files, tmp_path_factory.mktemp("append"))


@given(rows=facts_of_a_file, drawn=st.data())
@settings(max_examples=10, deadline=None)
def test_what_is_visible_of_a_folder_is_indexed_on_disk_as_in_memory(
    rows: list[tuple[str, str, str, int]],
    drawn: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("selection")
    ingest([write(place / "facts.csv", *map(joined, rows))], place / "facts", NAMED)
    count = len(FactFolder(place / "facts"))
    public = np.array(drawn.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    made: list[StoredLinks | None] = []

    def noted(visible: VisibleFacts) -> StoredLinks | None:
        made.append(links_on_disk(visible))
        return made[-1]

    with (
        patch("metatkgr.graph.layer._LARGE", 1),
        patch("metatkgr.data.index_writer.links_on_disk", noted),
    ):
        check_index(place / "facts", public)
    assert [stored and stored.facts for stored in made] == [public.sum()] * bool(public.any())


def joined(row: tuple[str, str, str, int]) -> str:
    return ",".join(map(str, row))


def check_growth(told: Files, place: Path) -> None:
    files = told.rows
    if told.in_order:
        every = sorted((row for file in files for row in file), key=lambda row: row[3])
        sizes = np.cumsum([0, *map(len, files)])
        files = [every[a:b] for a, b in pairwise(sizes)]
    paths = [
        write(place / f"{number}.csv", *(f"{s},{r},{o},{t * told.stride}" for s, r, o, t in rows))
        for number, rows in enumerate(files)
    ]
    whole = ingest(paths, place / "whole", NAMED)
    first = ingest(paths[:1], place / "grown", NAMED)
    added = repeated = 0
    for path in paths[1:]:
        done = add(path, place / "grown")
        added, repeated = added + done.added, repeated + done.repeated
        check_index(place / "grown")
    if told.squeeze:
        compact(place / "grown", rows=2)
        manifest = FactFolder(place / "grown").manifest
        assert manifest.index is not None
        assert manifest.index.covers == manifest.facts
        assert manifest.entities.order.covers == manifest.entities.count
        check_index(place / "grown")
    check_same(place / "grown", place / "whole")
    assert first.facts + added == whole.facts
    assert first.repeated + repeated == whole.repeated
