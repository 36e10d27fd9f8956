"""Folders of facts that have grown: how they are made here, and what they must be equal to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from metatkgr.data.facts import Facts
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import Appended, append
from metatkgr.data.orders import DECAYS
from metatkgr.data.readers import ReadOptions
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import SAMPLERS

NOBODY = Supports(*(np.zeros(0, np.int64) for _ in range(4)))
NAMED = ReadOptions(name="events")


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(["s,r,o,t", *rows]) + "\n", encoding="utf-8")
    return path


def add(path: Path, folder: Path, **options: Any) -> Appended:
    return append([path], folder, ReadOptions(**options), rows=3)


def check_same(folder: Path, other: Path) -> None:
    """The facts, names and calendars of two folders are the same."""
    ours, theirs = FactFolder(folder), FactFolder(other)
    check_facts(ours.facts(), theirs.facts())
    assert (ours.steps, len(ours)) == (theirs.steps, len(theirs))
    for found, names in ((ours.entities, theirs.entities), (ours.relations, theirs.relations)):
        assert [found.id(name) for name in names] == list(range(len(names)))
        assert "nobody" not in found


def check_facts(ours: Facts, theirs: Facts) -> None:
    for column in ("subject", "relation", "object", "time"):
        assert np.array_equal(getattr(ours, column), getattr(theirs, column)), column
    assert tuple(ours.entities) == tuple(theirs.entities)
    assert tuple(ours.relations) == tuple(theirs.relations)
    assert (ours.calendar, ours.name) == (theirs.calendar, theirs.name)


def look_ups(
    index: TemporalIndex, entity: torch.Tensor, relation: torch.Tensor, time: torch.Tensor
) -> Iterator[torch.Tensor]:
    """What an index says of entities, relations and times."""
    yield index.first_step_of(entity)
    yield index.last_step_of(entity, time)
    usage = index.slots.usage(entity, relation, time, DECAYS)
    yield from (usage.count, usage.last, *usage.decayed)
    yield from index.slots.count_ranks(relation, time, usage.count)
    yield from index.slots.recent(relation, time, 3)
    yield index.neighbours.degree(entity, time)
    yield from index.neighbours.expand(entity, time, 2)
    for along in (relation, None):
        links = index.pairs.latest_links(entity, along, time, 3)
        yield from (getattr(links, name) for name in ("row", "relation", "target", "first", "last"))
    slot = entity * index.relations + relation
    for target in range(index.entities):
        yield index.pairs.last_step(slot, torch.full_like(slot, target), time)
    found = torch.stack(index.pairs.distinct(), 1).tolist()
    yield torch.tensor(sorted(found))


def check_index(folder: Path, public: npt.NDArray[np.bool_] | None = None) -> None:
    """The index of a folder, or of some of its facts, answers as one of them made in memory."""
    store = FactFolder(folder)
    facts = store.facts()
    ours = TemporalIndex.of(VisibleFacts.of(facts, public))
    theirs = TemporalIndex.of(VisibleFacts.of(replace(facts), public))  # a copy knows no folder
    assert (len(ours), ours.entities, ours.relations) == (
        len(theirs),
        theirs.entities,
        theirs.relations,
    )
    times = torch.arange(-1, facts.steps + 2)
    entity = torch.arange(len(facts.entities)).repeat_interleave(len(times))
    time = times.repeat(len(facts.entities))
    for window in (None, 2):
        for a, b in zip(
            ours.before(entity, time, window), theirs.before(entity, time, window), strict=True
        ):
            assert torch.equal(a, b)
    relation = torch.arange(len(entity)) % ours.relations
    for a, b in zip(
        *(list(look_ups(index, entity, relation, time)) for index in (ours, theirs)), strict=True
    ):
        assert torch.allclose(a, b) if a.is_floating_point() else torch.equal(a, b)
    for name, kind in SAMPLERS.items():
        found = [
            kind(index, NOBODY, budget=4, generator=torch.Generator().manual_seed(1)).sample(
                entity, time
            )
            for index in (ours, theirs)
        ]
        for column in ("entity", "relation", "time", "mask"):
            assert torch.equal(*(getattr(f, column) for f in found)), (name, column)
