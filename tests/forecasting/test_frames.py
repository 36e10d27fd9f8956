"""Facts and forecasts as frames and graphs of other libraries."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import metatkgr as mt
from metatkgr.errors import DataError
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.frames import to_networkx, to_pandas, to_polars, to_pyg


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_facts_go_out_and_come_back(library: str) -> None:
    pytest.importorskip(library)
    facts = mt.load("world:2000")
    frame = {"pandas": to_pandas, "polars": to_polars}[library](facts)
    assert list(frame.columns) == ["subject", "relation", "object", "time"]
    back = mt.read_facts(frame, unit="week")
    assert [back.describe(row) for row in range(50)] == [facts.describe(row) for row in range(50)]
    assert len(back) == len(facts)
    observer = mt.Forecaster.of(
        "paths", facts.select(np.arange(1500)), calibration=Calibration("table")
    )
    assert observer.observe(frame).accepted == 500
    assert observer.observe(frame).accepted == 0
    assert len(observer.facts) == len(facts)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_forecasts_become_frames(library: str) -> None:
    pytest.importorskip(library)
    facts = mt.load("world:2000")
    forecaster = mt.Forecaster.of("paths", facts, calibration=Calibration("table"))
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
    for module, make in (("torch_geometric", to_pyg), ("pandas", to_pandas)):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(DataError, match="pip install"):
            make(facts)
