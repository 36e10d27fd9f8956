"""DuckDB gives what sorting and numbering in memory give, also when it has to use the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.engine import Engine
from metatkgr.data.facts import Facts
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import ingest
from metatkgr.data.manifest import INDEX
from metatkgr.data.orders import DECAYS
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import DataError
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.layer import TimeOrder
from references import graphs

FACT = ("subject", "relation", "object", "time")
rows_of_facts = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)),
    min_size=1,
    max_size=60,
)


def tables(rows: np.ndarray, size: int) -> Iterator[dict[str, Any]]:
    """(N, 4) facts, some at a time."""
    for low in range(0, len(rows), size):
        part = rows[low : low + size]
        columns = dict(zip(FACT, part.T, strict=True))
        yield columns | {"row": np.arange(low, low + len(part))}


def in_order(facts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Each once, by time, those of one time as they came."""
    return sorted(dict.fromkeys(facts), key=lambda fact: fact[3])


def listed(blocks: Iterator[list[np.ndarray]]) -> list[tuple[int, ...]]:
    return [row for block in blocks for row in zip(*(c.tolist() for c in block), strict=True)]


@given(facts=rows_of_facts, size=st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_repeated_facts_are_dropped_and_the_first_stay_in_order(
    facts: list[tuple[int, ...]], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Engine(tmp_path_factory.mktemp("engine"), 10) as engine:
        assert listed(engine.facts(tables(np.asarray(facts), size))) == in_order(facts)


@given(old=rows_of_facts, new=rows_of_facts)
@settings(max_examples=25, deadline=None)
def test_what_is_there_already_is_left_out(
    old: list[tuple[int, ...]],
    new: list[tuple[int, ...]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    old = in_order(old)
    fresh = [fact for fact in in_order(new) if fact not in old]
    with Engine(tmp_path_factory.mktemp("engine"), 10) as engine:
        rows = ({**t, "row": t["row"] + len(old)} for t in tables(np.asarray(new), 7))
        counts = engine.keep_fresh(rows, tables(np.asarray(old), 5), 2)
        assert counts == (len(fresh), sum(fact[3] < 2 for fact in fresh))
        assert listed(engine.fresh()) == fresh
        both = listed(engine.fresh(tables(np.asarray(old), 5)))
    assert both == sorted([*old, *fresh], key=lambda fact: fact[3])


def test_more_facts_of_one_time_than_fit_into_memory_are_sorted_on_disk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = np.stack([rng.integers(0, 2**31 - 2, 10**6) for _ in range(3)], axis=1)
    rows = np.concatenate([rows, rows[::-1]])  # each is repeated, far from itself
    rows = np.concatenate([rows, np.zeros((len(rows), 1), np.int64)], axis=1)
    with Engine(tmp_path, 1000) as engine:
        engine._run("SET memory_limit = '64MB'")
        found = np.concatenate([np.stack(b, axis=1) for b in engine.facts(tables(rows, 50_000))])
    assert np.array_equal(found, rows[: 10**6])
    assert capfd.readouterr().out == "", "nothing but results is printed"
    assert not list(tmp_path.iterdir()), "what was on the disk is cleared away"


@given(
    pieces=st.lists(st.lists(st.text(min_size=1, max_size=3), max_size=6, unique=True), min_size=1)
)
@settings(max_examples=25, deadline=None)
def test_names_are_numbered_by_first_appearance(
    pieces: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pieces = [[n.encode("utf-8", "replace").decode() for n in names] for names in pieces]
    every = [name for names in pieces for name in names]
    known = list(dict.fromkeys(every))
    with Engine(tmp_path_factory.mktemp("engine"), 3) as engine:
        first = 0
        for names in pieces:
            engine.see("entities", first, names)
            first += len(names)
        assert engine.number("entities", (), 0) == len(known)
        ids = [i for block in engine.ids("entities") for i in block.tolist()]
        texts = list(engine.new_names("entities", 0))
        order = [i for block in engine.in_order(texts) for i in block.tolist()]
    assert ids == [known.index(name) for name in every]
    named = [
        text[low:high].tobytes().decode()
        for bounds, text in texts
        for low, high in pairwise(bounds)
    ]
    assert named == known
    assert [known[i] for i in order] == sorted(known, key=str.encode)


def test_what_fails_while_duckdb_reads_is_raised_as_it_is(tmp_path: Path) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from tables(np.zeros((3, 4), np.int64), 2)
        raise DataError("mine")

    with Engine(tmp_path, 10) as engine, pytest.raises(DataError, match=r"^mine$"):
        list(engine.facts(failing()))


@given(facts=graphs(), rows=st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_the_links_are_those_of_the_index_in_memory(
    facts: Facts, rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("links")
    columns = (facts.subject, facts.relation, facts.object, facts.time)
    lines = [f"e{s},r{r},e{o},{t}" for s, r, o, t in zip(*columns, strict=True)]
    (place / "facts.csv").write_text("\n".join(["s,r,o,t", *lines]) + "\n")
    ingest([place / "facts.csv"], place / "facts", rows=rows)
    folder = FactFolder(place / "facts")
    ours, theirs = folder.links(), TemporalIndex.of(VisibleFacts.of(replace(folder.facts())))
    assert ours is not None
    (layer,) = theirs._layers
    pairs, ordinals = layer.pairs, layer.usage.ordinals()
    expected = {name: getattr(layer.by_time, name) for name in ("key", "relation", "target")}
    expected |= {"start": layer.by_time.start, "link": pairs.link, "link_start": pairs._start}
    expected |= {"link_time": pairs.time, "usage_time": layer.usage.time}
    expected |= dict(zip(("slot_order", "slot_first"), pairs.since_by_slot, strict=True))
    expected |= dict(zip(("entity_order", "entity_first"), pairs.since_by_entity, strict=True))
    expected |= {f"usage_sum_{decay:.0f}": layer.usage.sums(decay) for decay in DECAYS}
    near, slots = layer.neighbours, layer.slots
    kinds = torch.arange(layer.entities + 1)
    rows = torch.searchsorted(near.pairs()[0], kinds) if near.start is None else near.start
    expected |= {"neighbour_start": rows, "neighbour": near.target}
    expected |= {"neighbour_first": near.first, "neighbour_order": near.by_target}
    expected |= {"filler_start": slots.start, "filler_time": slots.time}
    expected |= {"filler_object": slots.object, "filler_subject": slots.subject}
    expected |= {"ordinal_cell": ordinals._cell, "ordinal_start": ordinals._start}
    expected |= {"ordinal_time": ordinals._time}
    assert set(expected) == set(INDEX)
    for name, column in expected.items():
        if name.startswith("usage_sum"):
            assert np.allclose(ours.columns[name], column), name
        else:
            assert np.array_equal(ours.columns[name], column), name
            assert ours.columns[name].dtype == column.numpy().dtype, name
    assert (ours.entities, ours.relations, ours.steps, ours.facts) == (
        theirs.entities,
        theirs.relations,
        theirs.steps,
        len(folder),
    )


def test_a_key_that_does_not_fit_leaves_the_folder_without_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metatkgr.data.index_writer._LARGEST_KEY", 8)
    (tmp_path / "a.csv").write_text("s,r,o,t\na,r,b,1\nb,r,c,7\n")
    ingest([tmp_path / "a.csv"], tmp_path / "facts")
    assert FactFolder(tmp_path / "facts").links() is None


def test_the_links_of_a_folder_are_read_where_they_lie(tmp_path: Path) -> None:
    """Nothing is copied: a page is read when a link on it is asked for."""
    (tmp_path / "facts.csv").write_text("s,r,o,t\na,r,b,0\nb,r,c,1\n")
    ingest([tmp_path / "facts.csv"], tmp_path / "facts")
    stored = FactFolder(tmp_path / "facts").links()
    assert stored is not None
    order = TimeOrder.mapped(stored, stored.relations, torch.device("cpu"))
    for name in ("key", "relation", "target", "start"):
        column = stored.columns[name]
        assert not column.flags.owndata
        assert getattr(order, name).data_ptr() == column.ctypes.data
    # Where relations have come since, inverse ones have other numbers: found when they are read.
    more = TimeOrder.mapped(stored, stored.relations + 2, torch.device("cpu"))
    assert more.relations_of(torch.tensor([3, 0])).tolist() == [2, 0]
    assert more.stored_relation.data_ptr() == order.stored_relation.data_ptr()
    assert (more.relation - order.relation).tolist() == [0, 1, 0, 1]
    assert order.relation.tolist() == [0, 1, 0, 1]
