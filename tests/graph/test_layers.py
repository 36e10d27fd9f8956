"""An index to which facts were appended is the index built anew, to everyone who reads it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.errors import DataError
from metatkgr.graph.layers import GrowingIndex
from metatkgr.graph.mapped import GraphIndex
from metatkgr.graph.sampler import SAMPLERS
from references import RELATIONS, graphs

NOTHING = Supports(*(np.zeros(0, np.int64) for _ in range(4)))


def columns(facts: Facts, rows: slice) -> tuple[np.ndarray, ...]:
    return tuple(c[rows] for c in (facts.subject, facts.relation, facts.object, facts.time))


def renumbered(facts: Facts) -> Facts:
    """The same graph with entities numbered by their first fact: later ones are new."""
    seen: dict[int, int] = {}
    for s, o in zip(facts.subject.tolist(), facts.object.tolist(), strict=True):
        seen.setdefault(s, len(seen))
        seen.setdefault(o, len(seen))
    ends = [np.array([seen[e] for e in c.tolist()]) for c in (facts.subject, facts.object)]
    names = Vocabulary.numbered(len(seen))
    return Facts(ends[0], facts.relation, ends[1], facts.time, names, facts.relations)


def part(facts: Facts, rows: slice) -> Facts:
    some = facts.select(np.arange(len(facts))[rows])
    entities = int(max(some.subject.max(), some.object.max())) + 1
    return Facts(*columns(some, slice(None)), Vocabulary.numbered(entities), facts.relations)


@given(facts=graphs(), cuts=st.lists(st.floats(0.05, 1), min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_it_answers_as_an_index_built_anew(facts: Facts, cuts: list[float]) -> None:
    facts = renumbered(facts)
    bounds = sorted(max(1, int(cut * len(facts))) for cut in cuts)
    growing = GrowingIndex(GraphIndex.of(VisibleFacts.of(part(facts, slice(bounds[0])))))
    for low, high in zip(bounds, [*bounds[1:], len(facts)], strict=True):
        entities = len(part(facts, slice(max(high, 1))).entities)
        growing.append(columns(facts, slice(low, high)), entities=entities)
    anew = GraphIndex.of(VisibleFacts.of(facts))
    assert (len(growing), growing.entities, growing.steps) == (
        len(anew),
        anew.entities,
        anew.steps,
    )
    count, times = len(facts.entities), torch.tensor([-1, *range(facts.steps + 1), 10**9])
    entity, time = torch.arange(count).repeat_interleave(len(times)), times.repeat(count)
    for window in (None, 2):
        for ours, theirs in zip(
            growing.before(entity, time, window), anew.before(entity, time, window), strict=True
        ):
            assert torch.equal(ours, theirs)
    for ours, theirs in zip(growing.since(entity, time), anew.since(entity, time), strict=True):
        assert torch.equal(ours, theirs)
    for name, kind in SAMPLERS.items():
        found = [
            kind(index, NOTHING, budget=4, generator=torch.Generator().manual_seed(1)).sample(
                entity, time
            )
            for index in (growing, anew)
        ]
        for column in ("entity", "relation", "time", "mask"):
            assert torch.equal(*(getattr(f, column) for f in found)), (name, column)


def test_what_cannot_be_appended_is_refused() -> None:
    columns_ = np.array([(0, 0, 1, 0), (2, 1, 0, 4)]).T
    facts = Facts(*columns_, Vocabulary.numbered(3), Vocabulary.numbered(RELATIONS))
    growing = GrowingIndex(GraphIndex.of(VisibleFacts.of(facts)))
    one = np.ones(1, np.int64)
    with pytest.raises(DataError, match="time order, from step 4 on"):
        growing.append((one, one, one, one * 3))
    with pytest.raises(DataError, match="no entity 7: there are 5"):
        growing.append((one, one, one * 7, one * 4), entities=5)
    with pytest.raises(DataError, match="no relation 9"):
        growing.append((one, one * 9, one, one * 4))
    with pytest.raises(DataError, match="cannot have 2"):
        growing.append((one, one, one, one * 4), entities=2)
    assert len(growing) == 4, "what was refused left nothing behind"


@given(facts=graphs(), cut=st.floats(0.05, 1), known=st.integers(1, RELATIONS))
@settings(max_examples=30, deadline=None)
def test_new_relations_move_the_inverse_ones(facts: Facts, cut: float, known: int) -> None:
    """A base written with fewer relations is read as if it had been written with all of them."""
    facts = renumbered(facts)
    low = max(1, int(cut * len(facts)))
    first = part(facts, slice(low))
    known = max(known, int(first.relation.max()) + 1)
    first = Facts(*columns(first, slice(None)), first.entities, Vocabulary.numbered(known))
    growing = GrowingIndex(GraphIndex.of(VisibleFacts.of(first)))
    growing.append(
        columns(facts, slice(low, None)), entities=len(facts.entities), relations=RELATIONS
    )
    anew = GraphIndex.of(VisibleFacts.of(facts))
    assert (len(growing), growing.relations) == (len(anew), anew.relations)
    everyone = torch.arange(len(facts.entities))
    start, end = anew.before(everyone, torch.full_like(everyone, 10**9))
    position = start[:, None] + torch.arange(int((end - start).max()))
    mask = position < end[:, None]
    for ours, theirs in zip(
        growing.read(everyone, position, mask), anew.read(everyone, position, mask), strict=True
    ):
        assert torch.equal(ours, theirs)
    source = everyone[:, None].expand_as(position)[mask]
    for ours, theirs in zip(
        growing.about(source, position[mask]), anew.about(source, position[mask]), strict=True
    ):
        assert torch.equal(ours, theirs)
    with pytest.raises(DataError, match="relations cannot have 0"):
        growing.append([np.zeros(0, np.int64)] * 4, relations=0)
