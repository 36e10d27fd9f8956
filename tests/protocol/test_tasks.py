"""Periods, tasks and visibility agree with the literal protocol on random graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.periods import Period, Periods
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import SettingsError, UnknownNameError
from references import META_TEST, RELATIONS, Fact, LiteralProtocol, graphs, tuples

settings_of_a_task = {
    "shots": st.integers(1, 3),
    "visibility": st.sampled_from(["entity-split", "frozen", "streaming"]),
    "split": st.sampled_from([Period.META_TRAIN, Period.META_VALIDATION, Period.META_TEST]),
}


def both(facts: Facts, **options: object) -> tuple[Tasks, LiteralProtocol]:
    literal = dict(options, split=int(options["split"]))  # type: ignore[call-overload]
    return (
        Tasks.build(facts, **options),  # type: ignore[arg-type]
        LiteralProtocol(tuples(facts), RELATIONS, **literal),  # type: ignore[arg-type]
    )


def undirected(links: VisibleFacts) -> set[Fact]:
    columns = (links.source, links.relation, links.target, links.time)
    rows = zip(*(c.tolist() for c in columns), strict=True)
    return {(s, r, o, t) for s, r, o, t in rows if r < RELATIONS}


@given(facts=graphs(), **settings_of_a_task)
@settings(max_examples=150, deadline=None)
def test_queries_are_those_of_the_literal_protocol(facts: Facts, **options: object) -> None:
    tasks, literal = both(facts, **options)
    question = tasks.answers.question
    found = sorted(
        zip(
            tasks.questions.entity[question].tolist(),
            tasks.questions.relation[question].tolist(),
            tasks.questions.time[question].tolist(),
            tasks.answers.answer.tolist(),
            strict=True,
        )
    )
    expected = sorted((q.entity, q.relation, q.time, q.answer) for q in literal.queries())
    assert found == expected
    assert tasks.count == sum(bool(task.queries) for task in literal.tasks.values())
    later = {
        (q.entity, q.time): q.time > max(f[3] for f in literal.tasks[q.entity].support)
        for q in literal.queries()
    }
    pairs = zip(
        tasks.questions.entity[question].tolist(),
        tasks.questions.time[question].tolist(),
        strict=True,
    )
    assert [later[pair] for pair in pairs] == tasks.answers.later.tolist()


@given(facts=graphs(), **settings_of_a_task)
@settings(max_examples=150, deadline=None)
def test_no_query_is_anyones_support(facts: Facts, **options: object) -> None:
    tasks, literal = both(facts, **options)
    assert not set(tasks.answers.fact.tolist()) & set(tasks.support_facts.tolist())
    rows = tuples(facts)
    assert {rows[i] for i in tasks.support_facts} == literal.in_support


@given(facts=graphs(), **settings_of_a_task)
@settings(max_examples=150, deadline=None)
def test_visible_are_public_facts_before_t_and_the_own_support(
    facts: Facts, **options: object
) -> None:
    tasks, literal = both(facts, **options)
    public = undirected(tasks.visible)
    for query in literal.queries():
        mine = tasks.supports.of(query.entity)
        own = set()
        for relation, other, time in zip(mine.relation, mine.other, mine.time, strict=True):
            if relation < RELATIONS:
                own.add((query.entity, int(relation), int(other), int(time)))
            else:
                own.add((int(other), int(relation) - RELATIONS, query.entity, int(time)))
        seen = {fact for fact in public if fact[3] < query.time} | own
        assert seen == set(literal.visible(query.entity, query.time))
        assert all(fact[3] < query.time or fact in own for fact in seen)
        assert len(own) <= int(str(options["shots"]))


def test_a_boundary_step_belongs_to_the_earlier_period() -> None:
    # steps 0..20: cuts at exactly 8, 13, 15
    times = [0, 8, 9, 13, 14, 15, 16, 20]
    facts = Facts.build(
        range(8),
        [0] * 8,
        range(8),
        times,
        entities=Vocabulary.numbered(8),
        relations=Vocabulary.numbered(1),
    )
    assert facts.steps == 21
    periods = Periods.of(facts)
    assert periods.of_entity.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert periods.last_step.tolist() == [8, 13, 15, 20]


def test_an_entity_without_facts_has_no_period() -> None:
    facts = Facts.build(
        [0], [0], [1], [5], entities=Vocabulary.numbered(3), relations=Vocabulary.numbered(1)
    )
    assert Periods.of(facts).of_entity.tolist() == [0, 0, -1]


def test_a_fact_of_an_entity_with_itself_gives_one_query_on_the_object_side() -> None:
    rows = [(0, 0, 1, 0), (2, 0, 1, 18), (2, 0, 2, 19), (2, 0, 2, 20)]
    facts = Facts.build(
        *zip(*rows, strict=True),
        entities=Vocabulary.numbered(3),
        relations=Vocabulary.numbered(1),
    )
    tasks = Tasks.build(facts, shots=1)
    assert tasks.split == META_TEST
    assert tasks.questions.relation.tolist() == [0, 0]
    assert tasks.answers.answer.tolist() == [2, 2]
    # as a support fact it shows both directions
    two = Tasks.build(facts, shots=2)
    assert two.supports.relation.tolist() == [0, 0, 1]


def test_shots_may_differ_from_entity_to_entity() -> None:
    rows = [(0, 0, 1, 0)] + [(2 + i % 2, 0, 1, 17 + i // 2) for i in range(8)]
    facts = Facts.build(
        *zip(*rows, strict=True),
        entities=Vocabulary.numbered(4),
        relations=Vocabulary.numbered(1),
    )
    tasks = Tasks.build(facts, shots=np.array([1, 1, 1, 3]))
    assert np.bincount(tasks.supports.entity, minlength=4).tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"shots": 0}, SettingsError),
        ({"split": "background"}, SettingsError),
        ({"split": "meta-tset"}, UnknownNameError),
        ({"visibility": "entity_split"}, UnknownNameError),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, object], error: type) -> None:
    facts = Facts.build(
        [0], [0], [1], [0], entities=Vocabulary.numbered(2), relations=Vocabulary.numbered(1)
    )
    with pytest.raises(error):
        Tasks.build(facts, **options)  # type: ignore[arg-type]
