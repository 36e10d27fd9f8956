"""The table of left-out graphs is the one of the results, and nobody learns from test graphs."""

from __future__ import annotations

import json
from pathlib import Path

from metatkgr.data.sources import TEST_GRAPHS
from metatkgr.models.evidence.pretrained import FILES, Pretrained
from studies.pretraining import families, markdown

ROOT = Path(__file__).parent.parent.parent


def test_the_page_shows_the_results() -> None:
    made = markdown(json.loads((ROOT / "results" / "pretraining.json").read_text("utf-8")))
    assert made in (ROOT / "docs" / "pretrained.md").read_text("utf-8")
    assert len(made.splitlines()) == 2 + 3 * len(families())


def test_the_package_has_learned_from_all_development_graphs_and_no_test_graph() -> None:
    graphs = {graph.name for graph in Pretrained.read(FILES / "all.safetensors").graphs}
    assert graphs == {name for names in families().values() for name in names}
    assert graphs.isdisjoint(TEST_GRAPHS)
