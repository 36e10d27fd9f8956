"""Facts and forecasts as frames and graphs of other libraries."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import metatkgr as mt
from metatkgr.data.facts import Facts
from metatkgr.data.frames import (
    to_arrow,
    to_networkx,
    to_pandas,
    to_polars,
    to_pyg,
    to_pykeen,
)
from metatkgr.data.readers import read_facts_with_report
from metatkgr.errors import DataError
from metatkgr.forecasting.calibration import Calibration


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_facts_go_out_and_come_back(library: str) -> None:
    pytest.importorskip(library)
    facts = mt.load("world:2000")
    frame = {"pandas": to_pandas, "polars": to_polars}[library](facts)
    assert list(frame.columns) == ["subject", "relation", "object", "time"]
    back = mt.read_facts(frame, unit="week")
    assert [back.describe(row) for row in range(50)] == [facts.describe(row) for row in range(50)]
    assert len(back) == len(facts)
    observer = mt.Forecaster.of(facts.select(np.arange(1500)), "paths", calibration=Calibration())
    assert observer.observe(frame).accepted == 500
    assert observer.observe(frame).accepted == 0
    assert len(observer.facts) == len(facts)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_forecasts_become_frames(library: str) -> None:
    pytest.importorskip(library)
    facts = mt.load("world:2000")
    forecaster = mt.Forecaster.of(facts, "paths", calibration=Calibration())
    found = forecaster.predict(facts.entities[0], facts.relations[0], top=5, explain=True)
    frame = getattr(found, f"to_{library}")()
    assert list(frame["rank"]) == [1, 2, 3, 4, 5]
    assert list(frame["entity"]) == [forecast.entity for forecast in found]
    assert "probability" in frame.columns


def test_a_networkx_graph_has_every_fact() -> None:
    pytest.importorskip("networkx")
    facts = mt.load("world:2000")
    graph = to_networkx(facts)
    assert graph.number_of_edges() == len(facts)
    assert graph.number_of_nodes() == len(facts.entities)
    subject, relation, other, date = facts.describe(7)
    edges = graph.get_edge_data(subject, other).values()
    assert {"relation": relation, "time": date, "step": int(facts.time[7])} in edges


def test_a_geometric_graph_has_every_fact() -> None:
    pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    facts = mt.load("world:2000")
    events, graph = to_pyg(facts), to_pyg(facts, temporal=False)
    assert events.num_events == len(facts)
    assert graph.edge_index.shape == (2, len(facts))
    assert graph.num_nodes == len(facts.entities)
    assert graph.edge_time.tolist() == facts.time.tolist()


def test_a_library_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = mt.load("world:2000")
    for module, make in (
        ("torch_geometric", to_pyg),
        ("pandas", to_pandas),
        ("pykeen", to_pykeen),
        ("pyarrow", to_arrow),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(DataError, match="pip install"):
            make(facts)


def test_the_triples_of_pykeen_are_the_facts_without_their_times() -> None:
    pytest.importorskip("pykeen", reason="PyKEEN is not installed")
    facts = mt.load("world:2000")
    factory = to_pykeen(facts)
    columns = (facts.subject.tolist(), facts.relation.tolist(), facts.object.tolist())
    assert {tuple(row) for row in factory.mapped_triples.tolist()} == set(
        zip(*columns, strict=True)
    )
    assert factory.num_triples < len(facts)
    assert factory.num_entities == len(facts.entities)
    assert factory.entity_to_id[facts.entities[3]] == 3
    assert factory.relation_to_id[facts.relations[1]] == 1


# In -----------------------------------------------------------------------------------------------

ROWS = [
    {"subject": "Ann", "relation": "knows", "object": "Bob", "time": "2018-01-01"},
    {"subject": "Bob", "relation": "likes", "object": "Cid", "time": "2018-01-03"},
    {"subject": "Ann", "relation": "likes", "object": "Bob", "time": "2018-01-02"},
]


def described(facts: Facts) -> list[tuple[str, str, str, str]]:
    return [facts.describe(row) for row in range(len(facts))]


class Stream:
    """Gives an Arrow stream and nothing else."""

    def __init__(self, table: object) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)  # type: ignore[attr-defined]


def sources() -> dict[str, object]:
    """The same three facts in every form that is at hand."""
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist(ROWS)
    found: dict[str, object] = {
        "dictionaries": ROWS,
        "other keys": [dict(zip(("head", "rel", "tail", "ts"), row.values())) for row in ROWS],  # noqa: B905
        "a generator": (row for row in ROWS),
        "a stream": Stream(table),
        "a reader": table.to_reader(),
        "record batch": table.to_batches()[0],
    }
    try:
        import duckdb

        found["duckdb"] = duckdb.from_arrow(table)
    except ImportError:
        pass
    try:
        import networkx

        graph = networkx.MultiDiGraph()
        for row in ROWS:
            graph.add_edge(row["subject"], row["object"], key=row["relation"], when=row["time"])
        found["networkx by key"] = graph
        plain = networkx.DiGraph()
        for row in (ROWS[0], ROWS[1]):
            plain.add_edge(row["subject"], row["object"], type=row["relation"], date=row["time"])
        found["networkx, a pair"] = plain
    except ImportError:
        pass
    return found


def test_whatever_holds_facts_in_memory_is_read_and_observed() -> None:
    expected = described(mt.read_facts([tuple(row.values()) for row in ROWS]))
    for name, source in sources().items():
        wanted = [row for row in expected if row[3] != "2018-01-02"] if "pair" in name else expected
        assert described(mt.read_facts(source)) == wanted, name
    begin = [*ROWS, {"subject": "A", "relation": "knows", "object": "B", "time": "2017-12-31"}]
    for name, source in sources().items():
        forecaster = mt.Forecaster.of(mt.read_facts(begin), "paths", calibration=Calibration())
        observed = forecaster.observe(source)
        assert (observed.accepted, observed.duplicates) == (0, 2 if "pair" in name else 3), name


def test_graphs_go_out_and_come_back() -> None:
    facts = mt.load("world:2000")
    pytest.importorskip("networkx")
    back = mt.read_facts(to_networkx(facts), unit="week")
    assert sorted(described(back)) == sorted(described(facts))
    assert described(mt.read_facts(to_arrow(facts), unit="week")) == described(facts)


def test_events_of_pytorch_geometric_are_read_by_their_numbers() -> None:
    pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    facts = mt.load("world:2000")
    for temporal in (True, False):
        back = mt.read_facts(to_pyg(facts, temporal=temporal), ids=True)
        for column in ("subject", "relation", "object", "time"):
            assert np.array_equal(getattr(back, column), getattr(facts, column)), column
    events = to_pyg(facts)
    events.msg = events.msg.repeat(1, 2)
    with pytest.raises(DataError, match="has no relation: it may be in edge_type"):
        mt.read_facts(events)


def test_what_is_wrong_with_rows_in_memory_is_told() -> None:
    networkx = pytest.importorskip("networkx")
    with pytest.raises(DataError, match="undirected"):
        mt.read_facts(networkx.Graph([("a", "b")]))
    graph = networkx.MultiDiGraph()
    graph.add_edge("a", "b", relation="r", time=1)
    graph.add_edge("a", "c", relation="r", time="soon")
    facts, report = read_facts_with_report(graph, skip_bad_rows=True)
    assert (len(facts), [row.text() for row in report.first]) == (
        1,
        ["graph, row 2, column 'time': 'soon': not an integer, a date or a datetime"],
    )
    with pytest.raises(DataError, match="gives no Arrow stream"):
        mt.read_facts(Stream(None))
    _, report = read_facts_with_report([ROWS[0], {"subject": "a"}, 5], skip_bad_rows=True)
    assert [(row.number, row.column, row.reason) for row in report.first] == [
        (2, "relation", "no name"),
        (3, "subject", "not a dictionary but a int"),
    ]
