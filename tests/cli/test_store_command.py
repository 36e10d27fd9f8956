"""Facts of a store from files and into files, and a schema that a service obeys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import metatkgr as mt
from command_line import Run
from metatkgr.cli.options import Reading
from metatkgr.cli.serve import Kept, _Opening
from metatkgr.serving.limits import Limits


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "kept"))
    rows = [f"p{n},plays for,club {n % 3},{n}" for n in range(30)]
    path = tmp_path / "events.csv"
    path.write_text("subject,relation,object,time\n" + "\n".join(rows), encoding="utf-8")
    return path


def test_files_of_facts_go_into_a_store_and_come_out(
    run: Run, events: Path, tmp_path: Path
) -> None:
    more = tmp_path / "more.csv"
    more.write_text(
        "subject,relation,object,time\nzoe,plays for,club 1,31\nyan,plays for,club 2,32\n",
        encoding="utf-8",
    )
    words = ("store", "import", str(events), str(more), "--source", "desk", "--json", "-")
    taken = run(*words)
    assert taken.code == 0, taken.err
    assert json.loads(taken.out) == {"accepted": 2, "duplicates": 0, "new_entities": 2}
    for kind in ("csv", "jsonl", "parquet"):
        out = tmp_path / f"told.{kind}"
        told = run("store", "export", str(events), "--out", str(out), "--json", "-")
        assert json.loads(told.out)["rows"] == 2, told.err
        facts = mt.read_facts(out)
        assert {facts.describe(row)[0] for row in range(2)} == {"zoe", "yan"}
        # What came out goes in again: known, or taken back.
        again = run("store", "import", str(events), str(out), "--json", "-")
        assert json.loads(again.out)["duplicates"] == 2, again.err
    gone = run("store", "import", str(events), str(out), "--retract", "--json", "-")
    assert json.loads(gone.out) == {"retracted": 2, "unknown": 0}
    log = tmp_path / "log.csv"
    run("store", "export", str(events), "--out", str(log), "--changes")
    assert log.read_text(encoding="utf-8").count("desk") == 2
    near = tmp_path / "near.csv"
    near.write_text("subject,relation,object,time\np1,plays for,clubb 1,33\n", encoding="utf-8")
    refused = run("store", "import", str(events), str(near))
    assert refused.code == 2
    assert "club 1" in refused.err


def test_a_service_obeys_a_schema(events: Path, tmp_path: Path) -> None:
    kinds = {f"p{n}": "player" for n in range(30)} | {f"club {n}": "club" for n in range(3)}
    schema = tmp_path / "schema.json"
    ends = {"plays for": ["player", "club"]}
    schema.write_text(json.dumps({"types": kinds, "relations": ends}), encoding="utf-8")
    words = {"model": "paths", "device": "cpu", "schema": schema}
    reading = Reading({}, Path("bad-rows.json"))
    opening = _Opening(str(events), words, reading, Kept(), Limits(), None)
    service, _ = opening(0, again=False)
    try:
        # A relation that comes while it runs moves the numbers of all inverse ones.
        service.forecaster.observe([("p1", "met", "p2", 31)])
        for side, wanted in (("object", "club"), ("subject", "player")):
            entity = "p1" if side == "object" else "club 1"
            found = service.forecaster.predict(entity, "plays for", side=side, top=40)
            assert {kinds[one.entity] for one in found if one.probability > 0} == {wanted}
    finally:
        service.stop()
