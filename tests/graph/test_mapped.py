"""The index holds every link once, in time order, and comes back from disk without being read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file, save_file

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.visibility import VisibleFacts
from metatkgr.errors import DataError
from metatkgr.graph.mapped import GraphIndex
from references import graphs

ABOUT = {"format": "metatkgr graph index", "version": "1"}


def drawn() -> Facts:
    #  0 --0 (t=0)--> 1,  2 --1 (t=1)--> 0,  1 --1 (t=1)--> 1
    columns = np.array([(0, 0, 1, 0), (2, 1, 0, 1), (1, 1, 1, 1)]).T
    return Facts(*columns, Vocabulary.numbered(3), Vocabulary.numbered(2))


@given(facts=graphs())
@settings(max_examples=10, deadline=None)
def test_a_saved_index_is_the_same_index(
    facts: Facts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("index") / "deeper" / "graph.safetensors"
    index = GraphIndex.of(VisibleFacts.of(facts))
    index.save(path)
    again = GraphIndex.open(path)
    for name in ("key", "relation", "target", "start"):
        assert torch.equal(getattr(again, name), getattr(index, name))
    sizes = (again.entities, again.relations, again.steps)
    assert sizes == (index.entities, index.relations, index.steps)
    assert [file.name for file in path.parent.iterdir()] == ["graph.safetensors"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_opening_a_large_index_does_not_read_it(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    links, entities = 4_000_000, 1000
    each = links // entities
    zeros = torch.zeros(links, dtype=torch.int64)
    key = (torch.arange(entities)[:, None] * (each + 1) + torch.arange(each)).view(-1)
    start = torch.arange(entities + 1) * each
    GraphIndex(key, zeros, zeros.clone(), start, entities, 2, each + 1).save(path)
    program = (
        "import sys, torch\n"
        "from metatkgr.graph.mapped import GraphIndex\n"
        "def resident():\n"
        "    words = open('/proc/self/statm').read().split()\n"
        "    return int(words[1]) * 4096 / 1e6\n"
        "import safetensors.torch\n"
        "torch.searchsorted(torch.arange(9), torch.arange(3))\n"
        "before = resident()\n"
        "index = GraphIndex.open(sys.argv[1])\n"
        "print(resident() - before)\n"
        "low, high = index.before(torch.tensor([7]), torch.tensor([99]))\n"
        "assert int(high - low) == 99\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True
    )
    assert path.stat().st_size > 90e6
    assert float(done.stdout) < 8, f"opening 96 MB took {done.stdout.strip()} MB of memory"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.safetensors.*build it again"):
        GraphIndex.open(tmp_path / "nowhere.safetensors")
    with pytest.raises(DataError, match="build it again"):
        GraphIndex.open(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "graph.safetensors"
    GraphIndex.of(VisibleFacts.of(drawn())).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match=r"graph\.safetensors.*build it again"):
        GraphIndex.open(path)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    path.write_text("s,r,o,t\n" * 100)
    with pytest.raises(DataError, match="damaged or not a graph index"):
        GraphIndex.open(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(DataError, match="not a graph index"):
        GraphIndex.open(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2"}, "version 2, this program reads version 1"),
        ({"steps": "many"}, "damaged"),
        ({"entities": "7"}, "do not fit together"),
    ],
)
def test_an_index_of_another_kind_is_refused(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    path = tmp_path / "graph.safetensors"
    GraphIndex.of(VisibleFacts.of(drawn())).save(path)
    sizes = {"entities": "3", "relations": "4", "steps": "3"}
    save_file(load_file(path), path, {**ABOUT, **sizes, **changes})
    with pytest.raises(DataError, match=message):
        GraphIndex.open(path)


def test_columns_that_are_missing_or_short_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.safetensors"
    GraphIndex.of(VisibleFacts.of(drawn())).save(path)
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    about = {**ABOUT, "entities": "3", "relations": "4", "steps": "3"}
    save_file({**tensors, "target": tensors["target"][:-1].clone()}, path, about)
    with pytest.raises(DataError, match="do not fit together"):
        GraphIndex.open(path)
    del tensors["target"]
    save_file(tensors, path, about)
    with pytest.raises(DataError, match="damaged"):
        GraphIndex.open(path)


def test_moves_between_devices() -> None:
    index = GraphIndex.of(VisibleFacts.of(drawn()), device="cpu")
    assert torch.equal(index.to("cpu").key, index.key)
    assert index.to("meta").device.type == "meta"
