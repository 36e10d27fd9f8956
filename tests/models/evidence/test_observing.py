"""A model that was told of facts later scores as one that knew them from the start."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.graph.layer import LinkLayer
from metatkgr.models.evidence.model import EvidenceModel
from metatkgr.models.evidence.reader import Candidates, Reader
from metatkgr.models.evidence.settings import EvidenceSettings
from references import ENTITIES, RELATIONS, dense, graphs

GUESS = Calibration()


def evidence(entities: int, relations: int, **settings: Any) -> EvidenceModel:
    """With weights that nobody has learned."""
    model = EvidenceModel(EvidenceSettings(**settings))
    model.build(entities, relations, torch.Generator().manual_seed(0))
    weight = model.evidence.relation
    weight.data.copy_(torch.rand(weight.shape, generator=torch.Generator().manual_seed(1)))
    return model


def supports_of(facts: Facts, shots: int) -> Supports:
    links = VisibleFacts.of(facts)
    order = np.argsort(links.source, kind="stable")
    source = links.source[order]
    kept = order[np.arange(len(source)) - np.searchsorted(source, source) < shots]
    return Supports(links.source[kept], links.relation[kept], links.target[kept], links.time[kept])


def questions_at(times: list[int], every: int) -> Queries:
    grid = np.meshgrid(np.arange(ENTITIES), np.arange(2 * RELATIONS), np.array(times))
    return Queries(*(axis.ravel()[::every] for axis in grid))


@pytest.mark.parametrize("dimension", [0, 4])
@given(facts=graphs(), known=st.integers(1, ENTITIES), draw=st.data(), shots=st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_observing_equals_preparing_with_all_facts(
    dimension: int, facts: Facts, known: int, draw: st.DataObject, shots: int
) -> None:
    model, other = (evidence(ENTITIES, RELATIONS, dimension=dimension) for _ in range(2))
    supports = supports_of(facts, shots)
    times = [0, int(facts.time[len(facts) // 2]), facts.steps, facts.steps + 9]
    questions = questions_at(times, every=5)
    wanted = dense(model.prepare(VisibleFacts.of(facts)).adapt(supports), questions)
    # Who has a number from `known` on came later; of the others some facts did.
    late = np.array(draw.draw(st.lists(st.booleans(), min_size=len(facts), max_size=len(facts))))
    late |= np.maximum(facts.subject, facts.object) >= known
    first = replace(facts.select(~late), entities=Vocabulary(facts.entities.names[:known]))
    begun = VisibleFacts.of(first)
    if draw.draw(st.booleans()):
        some = facts.select(late & (np.arange(len(facts)) % 2 == 0))
        dense(other.prepare(begun.grown(some)).adapt(supports), questions)
    other.prepare(begun.grown(facts.select(late)))
    # Counts that fade are added up layer by layer, which rounds differently.
    torch.testing.assert_close(
        dense(other.adapt(supports), questions), wanted, rtol=1e-5, atol=1e-4
    )
    asked = questions[np.arange(0, len(questions), 9)]
    answer = torch.from_numpy(asked.entity[::-1].copy())
    for mine, theirs in zip(
        other.reasons(asked, answer), model.reasons(asked, answer), strict=True
    ):
        assert [replace(why, weight=0.0) for why in mine] == [
            replace(why, weight=0.0) for why in theirs
        ]
        weights = [why.weight for why in theirs]
        assert [why.weight for why in mine] == pytest.approx(weights, abs=1e-5)


@cache
def world() -> Facts:
    return simulate(facts=3000, seed=4)


@pytest.mark.parametrize("dimension", [0, 8])
def test_a_live_forecaster_knows_newcomers_like_one_that_begins_with_them(dimension: int) -> None:
    facts = world()
    old = facts.select(np.arange(2600))
    # As when it was trained: of the entities, those that had appeared.
    seen = np.zeros(len(facts.entities), bool)
    seen[old.subject] = seen[old.object] = True
    number = np.cumsum(seen) - 1
    names = [name for name, known in zip(facts.entities.names, seen, strict=True) if known]
    old = replace(
        old,
        subject=number[old.subject],
        object=number[old.object],
        entities=Vocabulary(names),
        law=None,
    )
    late = [
        (facts.entities[s], facts.relations[r], facts.entities[o], facts.calendar.label(t))
        for s, r, o, t in zip(
            *(c[2600:].tolist() for c in (facts.subject, facts.relation, facts.object, facts.time)),
            strict=True,
        )
    ]

    def forecaster() -> Forecaster:
        model = evidence(len(names), len(facts.relations), dimension=dimension)
        return Forecaster(model, old, calibration=GUESS)

    live, at_once = forecaster(), forecaster()
    for begin in range(0, len(late), 80):
        live.observe(late[begin : begin + 80])
        live.predict(late[begin][0], late[begin][1])
    at_once.observe(late)
    assert len(live.facts.entities) > len(names)
    newcomers = {row[0] for row in late} - set(names)
    for who in [*sorted(newcomers)[:5], late[0][2]]:
        for relation in facts.relations[:2]:
            mine, theirs = (f.predict(who, relation, top=20) for f in (live, at_once))
            assert mine.to_json() == theirs.to_json()
            assert mine.forecasts[0].entity in facts.entities


def test_a_fact_is_taken_in_without_indexing_the_others_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = world()
    model = evidence(len(facts.entities), len(facts.relations))
    begun = VisibleFacts.of(facts.select(np.arange(2999)))
    model.prepare(begun)
    sizes: list[int] = []
    made = LinkLayer.__init__

    def counted(self: LinkLayer, links: VisibleFacts | Supports, **sizes_: Any) -> None:
        sizes.append(len(links))
        made(self, links, **sizes_)

    monkeypatch.setattr(LinkLayer, "__init__", counted)
    model.prepare(begun.grown(facts.select(np.arange(2999, 3000))))
    who = facts.subject[-1:].astype(np.int64)
    model.adapt(supports_of(facts, 3).of(int(who[0])))
    asked = facts.relation[-1:].astype(np.int64)
    model.score(Queries(who, asked, np.array([facts.steps])))
    assert sizes == [2], "the links of one fact, and nothing else"


def test_a_forecast_reads_once_for_its_answers_and_their_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = world()
    model = evidence(len(facts.entities), len(facts.relations))
    forecaster = Forecaster(model, facts, calibration=GUESS)
    reads: list[int] = []
    read = Reader.read

    def counted(self: Reader, queries: Queries, *others: Any, **named: Any) -> Candidates:
        if not named:  # what is left out is read beside it
            reads.append(len(queries))
        return read(self, queries, *others, **named)

    monkeypatch.setattr(Reader, "read", counted)
    name, relation = facts.entities[int(facts.subject[-1])], facts.relations[0]
    answers = forecaster.predict(name, relation, top=5, explain=True)
    assert reads == [1]
    assert forecaster.explain(name, relation, answers[0].entity) == answers[0].reasons
    assert reads == [1], "asked again about the same entity, before anything has arrived"
    forecaster.observe([(name, relation, "Somebody new", facts.calendar.label(facts.steps))])
    forecaster.predict(name, relation, top=5, explain=True)
    assert reads == [1, 1]
