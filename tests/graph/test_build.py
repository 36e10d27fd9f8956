"""An index built on disk in small blocks has the same bits as one built in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data import sources
from metatkgr.data.facts import Facts
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import DataError
from metatkgr.graph import build
from metatkgr.graph.build import Block, build_index
from metatkgr.graph.mapped import GraphIndex
from references import graphs


def built(facts: Facts, folder: Path, at_once: int) -> GraphIndex:
    def blocks(rows: int) -> Iterator[Block]:
        for low in range(0, len(facts), rows):
            part = facts.select(np.arange(low, min(low + rows, len(facts))))
            columns = (part.subject, part.relation, part.object, part.time)
            subject, relation, other, time = (column.astype(np.int64) for column in columns)
            yield subject, relation, other, time

    return build_index(
        folder / "index.safetensors",
        blocks,
        entities=len(facts.entities),
        relations=len(facts.relations),
        steps=facts.steps,
        at_once=at_once,
    )


def check_same(ours: GraphIndex, theirs: GraphIndex) -> None:
    for name in ("key", "relation", "target", "start"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    sizes = ("entities", "relations", "steps")
    assert [getattr(ours, s) for s in sizes] == [getattr(theirs, s) for s in sizes]


@given(facts=graphs(), at_once=st.integers(1, 50))
@settings(max_examples=25, deadline=None)
def test_the_arrays_are_those_of_the_index_in_memory(
    facts: Facts, at_once: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("built")
    check_same(built(facts, folder, at_once), GraphIndex.of(VisibleFacts.of(facts)))
    assert [file.name for file in folder.iterdir()] == ["index.safetensors"]


def test_a_world_in_many_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_ENTITIES_AT_ONCE", 37)
    facts = sources.load("world:20000")
    check_same(built(facts, tmp_path, 1000), GraphIndex.of(VisibleFacts.of(facts)))


def test_a_key_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="63 bits"):
        build_index(tmp_path / "x", lambda _: [], entities=2**40, relations=1, steps=2**40)
