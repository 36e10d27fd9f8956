from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data import catalog
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.statistics import FEW_FACTS, DatasetStatistics, facts_per_entity

ENTITIES, RELATIONS, STEPS = 8, 2, 12

graphs = st.lists(
    st.tuples(
        st.integers(0, ENTITIES - 1),
        st.integers(0, RELATIONS - 1),
        st.integers(0, ENTITIES - 1),
        st.integers(0, STEPS - 1),
    ),
    min_size=1,
    max_size=40,
)


def graph(rows: list[tuple[int, int, int, int]]) -> Facts:
    return Facts.build(
        *np.array(rows).T,
        entities=Vocabulary.numbered(ENTITIES),
        relations=Vocabulary.numbered(RELATIONS),
        name="random",
    )


def literal(facts: Facts) -> dict[str, object]:
    """The same numbers, counted one fact at a time."""
    rows = list(
        zip(
            facts.subject.tolist(),
            facts.relation.tolist(),
            facts.object.tolist(),
            facts.time.tolist(),
            strict=True,
        )
    )
    end = max(t for *_, t in rows)
    emerged: dict[int, int] = {}
    for s, _, o, t in rows:
        for e in (s, o):
            emerged[e] = min(emerged.get(e, t), t)

    def period(e: int) -> int:
        # Hundredths, so that no cut is rounded.
        return sum(emerged[e] * 100 > cut * end for cut in (40, 65, 75))

    of_fact = [max(period(s), period(o)) for s, _, o, _ in rows]
    new = [e for e in emerged if period(e) > 0]
    counts = [sum(e in (s, o) for s, _, o, _ in rows) for e in new]
    shots = []
    for k in (1, 2, 3):
        tasks = {e: [] for e in emerged if period(e) == 3}
        for row, (s, _, o, _) in enumerate(rows):
            for e in {s, o}:
                if e in tasks and of_fact[row] == 3:
                    tasks[e].append(row)
        support = {row for task in tasks.values() for row in task[:k]}
        queries = {e: [row for row in task if row not in support] for e, task in tasks.items()}
        later = sum(
            rows[row][3] > max(rows[first][3] for first in tasks[e][:k])
            for e, asked in queries.items()
            for row in asked
        )
        counted = (sum(map(bool, queries.values())), sum(map(len, queries.values())))
        shots.append((k, *counted, len(support), later))
    return {
        "facts": len(rows),
        "used": len(emerged),
        "entities": [sum(period(e) == p for e in emerged) for p in range(4)],
        "facts per period": [of_fact.count(p) for p in range(4)],
        "new": len(new),
        "few": {n: sum(c <= n for c in counts) / max(len(new), 1) for n in FEW_FACTS},
        "shots": shots,
    }


@settings(max_examples=150, deadline=None)
@given(graphs)
def test_the_statistics_equal_a_literal_count(rows: list[tuple[int, int, int, int]]) -> None:
    facts = graph(rows)
    ours, theirs = DatasetStatistics.of(facts), literal(facts)
    assert ours.facts == theirs["facts"]
    assert ours.entities_used == theirs["used"]
    assert [period.entities for period in ours.periods] == theirs["entities"]
    assert [period.facts for period in ours.periods] == theirs["facts per period"]
    assert ours.new_entities == theirs["new"]
    assert ours.new_share == pytest.approx(ours.new_entities / ours.entities_used)
    assert ours.few_facts == pytest.approx(theirs["few"])
    assert [
        (task.shots, task.tasks, task.queries, task.support_facts, task.later)
        for task in ours.tasks
    ] == theirs["shots"]


def test_a_fact_with_itself_counts_once() -> None:
    facts = graph([(0, 0, 0, 0), (0, 0, 1, 1)])
    assert facts_per_entity(facts).tolist() == [2, 1, 0, 0, 0, 0, 0, 0]


def test_a_graph_of_one_step_has_no_new_entities_and_says_so() -> None:
    statistics = DatasetStatistics.of(graph([(0, 0, 1, 5)]))
    assert statistics.new_entities == 0
    assert statistics.new_share == 0
    assert statistics.median_facts_per_new_entity == 0
    assert [period.first for period in statistics.periods] == ["5", None, None, None]
    assert ("meta-test (no step)", "0 entities, 0 facts", "") in statistics.table()


def test_the_dates_and_the_unit_come_from_the_calendar() -> None:
    facts = Facts.build(
        [0, 1, 2],
        [0, 0, 0],
        [1, 2, 3],
        [17_532, 17_546, 17_560],
        entities=Vocabulary.numbered(4),
        relations=Vocabulary.numbered(1),
        unit="day",
    )
    statistics = DatasetStatistics.of(facts)
    assert statistics.time_unit == "14 days"
    assert (statistics.first, statistics.last) == ("2018-01-01", "2018-01-29")
    assert statistics.steps == 3
    assert statistics.published is None


def test_the_json_survives_a_round_trip() -> None:
    statistics = DatasetStatistics.of(graph([(0, 0, 1, 0), (1, 1, 2, 5), (2, 0, 3, 9)]))
    plain = statistics.to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["tasks"][2]["shots"] == 3
    assert [period["name"] for period in plain["periods"]] == [
        "background",
        "meta-train",
        "meta-validation",
        "meta-test",
    ]


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "facts", "entities", "task", "share"),
    [
        ("YAGO", 201_089, [1853, 2810, 1440, 4482], (2_442, 70_570, 8_024, 69_912), 0.417),
        ("WIKI", 662_282, [2659, 1017, 1012, 7747], (5_667, 147_674, 18_468, 144_848), 0.613),
        ("ICEWS18", 468_558, [16357, 3337, 1059, 2280], (177, 628, 3_412, 467), 0.098),
    ],
)
def test_the_published_datasets_give_the_protocols_reference_counts(
    name: str,
    facts: int,
    entities: list[int],
    task: tuple[int, int, int, int],
    share: float,
    real_data: Path,
) -> None:
    statistics = DatasetStatistics.of(catalog.load(name, fetch=False), shots=[3])
    assert statistics.facts == facts
    assert [period.entities for period in statistics.periods] == entities
    (three,) = statistics.tasks
    assert (three.tasks, three.queries, three.support_facts, three.later) == task
    published = statistics.published
    assert published is not None
    assert statistics.entities == published.entities
    assert statistics.relations == published.relations
    assert statistics.time_unit == published.time_unit
    assert statistics.share_in_last_quarter == pytest.approx(share, abs=0.011)
    assert ("facts", f"{facts:,}", f"{published.facts:,}") in statistics.table()
