"""Records of cells and files of results: what tables and figures are made from."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np

from fuzz.fuzzing import fuzzer, scratch
from fuzz.mutation import damage_bytes, damage_value
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.records import Record, pack
from metatkgr.experiments.results import best_baselines, collected
from studies.collect import collect


@cache
def _record() -> dict[str, Any]:
    subset = {"mrr": 0.5, "hits@1": 0.4, "hits@3": 0.5, "hits@10": 0.6, "mrr_macro": 0.4}
    subset = {**subset, "mrr_ci95": [0.4, 0.6], "share": 1.0}
    metrics = {f: dict.fromkeys(("all", "novel", "later"), subset) for f in ("static", "time")}
    cell = {"dataset": "YAGO", "model": "lan", "shots": 3, "seed": 0, "preset": "default"}
    cell |= {"settings": {}, "visibility": "entity-split", "test_shots": "3", "tiny": False}
    packed = pack(np.array([1, 2, 3]))
    return {
        "cell": cell,
        "training": {"epochs": 2, "seconds": 1.5, "validation_mrr": 0.5, "curve": []},
        "result": {
            "dataset": "YAGO",
            "model": "lan",
            "seed": 0,
            "shots": 3,
            "visibility": "entity-split",
            "metrics": metrics,
            "per_entity": {"queries": packed, "static": packed, "time": packed},
        },
    }


def _written(rng: random.Random, content: Any, name: str) -> Any:
    folder = scratch() / "results"
    folder.mkdir(exist_ok=True)
    text = json.dumps(damage_value(rng, content, rng.choice((0, 1, 1, 2, 4))))
    data = damage_bytes(rng, text.encode()) if rng.random() < 0.3 else text.encode()
    if rng.random() < 0.01:
        data = b"[" * 100_000
    (folder / name).write_bytes(data)
    return folder


@fuzzer(share=9)
def cell_records(rng: random.Random) -> None:
    """The record of a cell, as ``reproduce`` reads it."""
    path = _written(rng, _record(), "cell.json") / "cell.json"
    record = Record.read(path)
    best_baselines([record])
    _told(record)


@fuzzer(share=6)
def result_files(rng: random.Random) -> None:
    """Files of results, as the tables read them: every record is in a table or refused."""
    record = _record()
    packed = dict(record["result"]["per_entity"])
    counts = {"entity-split/3": packed.pop("queries")}
    shared = record | {"result": record["result"] | {"per_entity": packed}}
    content: Any = rng.choice(
        (
            record,
            [record, record],
            {"queries": {}, "records": [record]},
            {"queries": counts, "records": [shared, record]},
        )
    )
    for kept in collected(_written(rng, content, "cell.json") / "cell.json"):
        _told(kept)


def _told(record: Record) -> None:
    """What tables ask of a record."""
    for name in ("static", "time"):
        values = record.values(name)
        assert values is None or all(isinstance(value, float) for value in values)
        record.per_entity(name)
    assert isinstance(record.row.label, str)


@fuzzer(share=1)
def collected_records(rng: random.Random) -> None:
    """Records merged into ``results``: none is lost."""
    results = scratch() / "collected"
    record = damage_value(rng, _record(), rng.choice((0, 1, 1)))
    for path in collect([Record.from_json(record)], results):
        assert results in path.parents
        kept = json.loads(path.read_text())["records"]
        assert any(one["cell"] == Cell.from_json(record["cell"]).to_json() for one in kept)
