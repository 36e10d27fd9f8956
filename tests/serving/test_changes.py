"""Facts over HTTP: taken back, corrected, asked back, supposed, in files, as they were known."""

from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

import metatkgr as mt
from local_service import client_of, started
from metatkgr.data.facts import Facts
from metatkgr.deadlines import StoppedError, stopping
from metatkgr.errors import DataError
from metatkgr.forecasting.explain import Forecasts
from metatkgr.forecasting.exports import export_facts
from metatkgr.forecasting.store import FactStore
from metatkgr.serving.app import create_app
from metatkgr.serving.limits import Limits, ServiceSettings
from metatkgr.serving.schemas import PredictIn

NEW = "Zoltan Newcomer"


@pytest.fixture
def client(world: Facts, tmp_path: Path) -> Iterator[TestClient]:
    app = create_app(started(world, tmp_path / "facts.sqlite"), ServiceSettings())
    with client_of(app) as found:
        yield found


def fact_of(world: Facts, subject: str = NEW, ahead: int = 0) -> dict[str, Any]:
    _, relation, other, _ = world.describe(0)
    time = world.calendar.label(world.steps - 1 + ahead)
    return {"subject": subject, "relation": relation, "object": other, "time": time}


def number_of(client: TestClient, entity: str) -> int:
    (number,) = client.get("/facts", params={"entity": entity}).json()["ids"]
    assert isinstance(number, int)
    return number


def test_a_fact_is_deleted_and_its_history_stays(client: TestClient, world: Facts) -> None:
    fact = fact_of(world)
    client.post("/facts", json=fact | {"source": "desk", "observed": "2018-03-05"})
    number = number_of(client, NEW)
    gone = client.delete(f"/facts/{number}", params={"source": "Ida"})
    assert gone.json() == {"retracted": 1, "unknown": 0, "gone_entities": []}
    assert client.post("/predict", json={"entity": NEW}).status_code == 404
    assert NEW not in [m["name"] for m in client.get("/entities?q=Zoltan").json()["entities"]]
    told, back = client.get(f"/facts/{number}").json()["changes"]
    assert told["fact"] == list(fact.values())
    assert (told["retracted"], told["source"], told["observed"]) == (False, "desk", "2018-03-05")
    assert (back["retracted"], back["source"]) == (True, "Ida")
    assert dt.datetime.fromisoformat(told["received"]) <= dt.datetime.fromisoformat(
        back["received"]
    )
    for again in (client.delete(f"/facts/{number}"), client.get("/facts/999")):
        assert again.status_code == 404
        assert again.json()["error"]["code"] == "unknown_name"
    assert client.put(f"/facts/{number}").status_code == 405


def test_a_fact_of_the_graph_itself_can_be_retracted(client: TestClient, world: Facts) -> None:
    subject, relation, other, date = world.describe(len(world) - 1)
    fact = {"subject": subject, "relation": relation, "object": other, "time": date}
    before = client.get("/facts", params={"entity": subject}).json()
    done = client.post("/facts", json={"facts": [fact], "retract": True})
    assert done.json()["accepted"] == 1
    after = client.get("/facts", params={"entity": subject}).json()
    assert after["total"] == before["total"] - 1
    assert client.post("/facts", json=fact).json()["accepted"] == 1
    assert client.get("/facts", params={"entity": subject}).json()["total"] == before["total"]


def test_a_correction_puts_a_fact_in_the_place_of_another(client: TestClient, world: Facts) -> None:
    wrong = fact_of(world)
    client.post("/facts", json=wrong)
    right = wrong | {"object": world.describe(1)[2], "replaces": number_of(client, NEW)}
    assert client.post("/facts", json=right).json()["accepted"] == 1
    facts = client.get("/facts", params={"entity": NEW}).json()["facts"]
    assert facts == [[right[key] for key in ("subject", "relation", "object", "time")]]
    assert client.post("/facts", json=right | {"replaces": 999.0}).status_code == 404


def test_a_name_with_a_slip_is_asked_back(client: TestClient, world: Facts) -> None:
    known = max(world.entities, key=len)
    slip = known[:-2] + known[-1]
    fact = fact_of(world, slip)
    asked = client.post("/facts", json=fact)
    assert asked.status_code == 409
    assert asked.json()["error"]["code"] == "near_name"
    assert f"did you mean {known!r}" in asked.json()["error"]["hint"]
    assert client.get("/graph").json()["observed"] == 0
    assert client.post("/facts", json=fact | {"confirm_new": True}).json()["new_entities"] == [slip]
    assert client.post("/facts", json=fact).json()["duplicates"] == 1


def test_a_fact_far_ahead_moves_no_forecast_unless_it_is_allowed(
    client: TestClient, world: Facts
) -> None:
    next_date = client.get("/graph").json()["next"]
    far = fact_of(world, ahead=world.steps // 2)
    asked = client.post("/facts", json=far)
    assert asked.status_code == 409
    assert asked.json()["error"]["code"] == "far_date"
    assert client.get("/graph").json()["next"] == next_date
    assert client.post("/facts", json=far | {"allow_far": True}).json()["accepted"] == 1


def test_what_is_supposed_is_in_the_answer_and_nowhere_else(
    client: TestClient, world: Facts
) -> None:
    fact = fact_of(world)
    asked = {"entity": NEW, "relation": fact["relation"], "what_if": [fact]}
    answer = client.post("/predict", json=asked)
    assert answer.json()["forecasts"][0]["entity"] == fact["object"]
    assert client.post("/predict", json={"entity": NEW}).status_code == 404
    assert client.get("/graph").json()["observed"] == 0
    assert client.get("/export").text.splitlines() == ["subject,relation,object,time"]


def test_as_of_a_date_nothing_later_is_seen(client: TestClient, world: Facts) -> None:
    step = world.steps // 2
    date = world.calendar.label(step)
    late = next(n for n, first in enumerate(world.emerged_at) if first > step + 2)
    asked = {"entity": world.entities[late], "as_of": date}
    assert client.post("/predict", json=asked).status_code == 404
    answer = client.post("/predict", json={"entity": world.entities[0], "as_of": date}).json()
    assert answer["query"]["at"] == world.calendar.label(step + 1)


def test_what_was_known_at_a_moment_is_what_had_been_told(client: TestClient, world: Facts) -> None:
    fact = fact_of(world)
    start = dt.datetime.now(dt.UTC).isoformat()
    client.post("/facts", json=fact)
    told = dt.datetime.now(dt.UTC).isoformat()
    then = client.post("/predict", json={"entity": NEW, "top": 5}).json()
    client.delete(f"/facts/{number_of(client, NEW)}")
    known = {"entity": NEW, "top": 5}
    assert client.post("/predict", json=known | {"known_at": start}).status_code == 404
    assert client.post("/predict", json=known | {"known_at": told}).json() == then
    assert client.post("/predict", json=known).status_code == 404
    assert client.post("/predict", json=known | {"known_at": "2018-03-05"}).status_code == 422


def test_files_of_facts_go_in_and_out(client: TestClient, world: Facts, tmp_path: Path) -> None:
    rows = [fact_of(world, f"Import {n}") for n in range(5)]
    text = "subject,relation,object,time\n" + "".join(",".join(r.values()) + "\n" for r in rows)
    done = client.post("/import", json={"format": "csv", "text": text, "source": "a file"})
    assert done.json()["accepted"] == 5, done.text
    out = client.get("/export")
    assert out.headers["content-disposition"] == 'attachment; filename="facts.csv"'
    assert list(csv.DictReader(io.StringIO(out.text))) == rows
    lines = client.get("/export?format=jsonl").text
    assert [json.loads(line) for line in lines.splitlines()] == rows
    table = tmp_path / "facts.parquet"
    table.write_bytes(client.get("/export?format=parquet").content)
    assert len(mt.read_facts(table)) == 5
    client.post("/import", json={"format": "jsonl", "text": lines, "retract": True})
    assert client.get("/graph").json()["observed"] == 0
    encoded = base64.b64encode(table.read_bytes()).decode()
    again = client.post("/import", json={"format": "parquet", "text": encoded})
    assert again.json()["accepted"] == 5, again.text
    wrong = client.post("/import", json={"format": "parquet", "text": "no base64!"})
    assert (wrong.status_code, "base64" in wrong.text) == (400, True)
    client.post("/import", json={"format": "csv", "text": text, "retract": True})
    assert client.get("/graph").json()["observed"] == 0
    log = list(csv.DictReader(io.StringIO(client.get("/export?changes=true").text)))
    told = ["False"] * 5 + ["True"] * 5
    assert [row["retracted"] for row in log] == told + told
    assert {row["source"] for row in log[:5]} == {"a file"}
    bad = client.post("/import", json={"format": "csv", "text": text + "a,b\n"})
    assert bad.status_code == 400
    assert "line 7" in bad.json()["error"]["message"]


def test_newcomers_with_a_single_fact_are_told_and_forecast_in_a_stream(
    client: TestClient, world: Facts
) -> None:
    client.post("/facts", json=fact_of(world, ahead=1))
    first = client.get("/newcomers?limit=1").json()["entities"]
    assert [(match["name"], match["facts"]) for match in first] == [(NEW, 1)]
    since = world.calendar.label(world.steps - 4)
    lines = client.get(f"/newcomers/forecasts?since={since}&top=2").text.splitlines()
    *rows, end = map(json.loads, lines)
    assert end["done"] == end["of"] >= 1
    mine = [row for row in rows if row.get("entity") == NEW]
    assert [row["rank"] for row in mine] == [1, 2]
    rest = client.get(f"/newcomers/forecasts?since={since}&skip={end['of']}").text.splitlines()
    assert [json.loads(line) for line in rest] == [end]


def test_what_was_said_of_a_new_relation_and_taken_back_keeps_nobody_from_starting(
    world: Facts, tmp_path: Path
) -> None:
    facts = [tuple(fact_of(world, f"N {n}").values()) for n in range(30)]
    strange = [(s, f"{'qxzwvk'[n % 6] * 9} {n}", o, t) for n, (s, _, o, t) in enumerate(facts)]
    service = started(world, tmp_path / "s")
    for part in (strange[:15], strange[15:]):
        service.add(part, confirm_new=True)
    told = dt.datetime.now(dt.UTC)
    service.retract(strange[1:])
    with pytest.raises(DataError, match="unknown relation"):
        service.retract([(*facts[0][:1], "never heard of it", *facts[0][2:])])
    service.stop()
    again = started(world, tmp_path / "s")
    assert (again.refused, again.observed) == (0, 1)
    asked = PredictIn(entity="N 20", known_at=told)
    assert isinstance(again.look_back(asked), Forecasts), "more of them than may be told at once"
    again.stop()


def test_new_relations_have_a_quota_so_that_all_that_is_kept_fits(
    world: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, _, other, time = fact_of(world).values()
    for limit, most in ((3, 5000), (200, len(world.relations) + 203)):
        monkeypatch.setattr("metatkgr.serving.service.MOST_RELATIONS", most)
        store = tmp_path / f"s{limit}"
        service = started(world, store, limits=Limits(new_relations=limit))
        rows = [(subject, f"{'qxzw'[n] * 9} {n}", other, time) for n in range(4)]
        for row in rows[:3]:
            service.add([row])
        with pytest.raises(DataError, match="--new-relations"):
            service.add(rows[3:])
        service.add([(subject, rows[0][1], "Another", time)])
        service.stop()
        assert len(FactStore(store)) == 4


def test_free_memory_is_given_back_while_facts_arrive(
    world: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed = threading.Event()
    monkeypatch.setattr("metatkgr.serving.service._TRIM_SECONDS", 0.0)
    monkeypatch.setattr("metatkgr.serving.service._trim", trimmed.set)
    service = started(world, tmp_path / "s", poll_seconds=0.01)
    assert trimmed.wait(60)
    service.stop()


def test_a_small_file_of_very_many_facts_is_refused_at_once(
    client: TestClient, world: Facts
) -> None:
    name, relation, *_ = world.describe(0)
    row = f"{name},{relation},A club,0001-01-01,9999-12-31\n"
    for rows in (1, 14):  # 14: what a file of the user's own might well take
        text = "subject,relation,object,start,end\n" + rows * row
        answer = client.post("/import", json={"format": "csv", "text": text})
        assert (answer.status_code, "memory" in answer.text) == (400, True), answer.text
        assert "serve --import-bytes" in answer.text
        assert "/import.csv" not in answer.text
    count = 60_000
    last = world.calendar.label(world.steps - 1)
    columns = [[name] * count, [relation] * count, [str(n) for n in range(count)], [last] * count]
    table = pa.table(dict(zip(("subject", "relation", "object", "time"), columns, strict=True)))
    pq.write_table(table, buffer := io.BytesIO(), compression="zstd")
    text = base64.b64encode(buffer.getvalue()).decode()
    answer = client.post("/import", json={"format": "parquet", "text": text})
    assert (answer.status_code, "60,000 facts" in answer.text) == (400, True), answer.text
    assert "serve --import-facts" in answer.text


def test_who_runs_a_service_says_how_much_a_file_may_hold(world: Facts, tmp_path: Path) -> None:
    rows = "".join(",".join(fact_of(world, f"Import {n}").values()) + "\n" for n in range(9))
    text = "subject,relation,object,time\n" + rows
    for most, code in ((8, 400), (9, 200)):
        limits = Limits(import_facts=most)
        service = started(world, tmp_path / str(most), limits=limits)
        client = client_of(create_app(service, ServiceSettings(limits=limits)))
        assert client.post("/import", json={"format": "csv", "text": text}).status_code == code
        service.stop()


def test_what_took_too_long_to_check_is_not_kept(world: Facts, tmp_path: Path) -> None:
    service = started(world, tmp_path / "facts.sqlite")
    facts = [tuple(fact_of(world, f"Late {n}").values()) for n in range(20)]
    for first in (5, 25, 40):  # among the facts, among their names, when all are checked
        looks = iter(range(1000))
        with pytest.raises(StoppedError), stopping(lambda looks=looks, n=first: next(looks) >= n):
            service.add(facts)
        assert len(service.store) == 0
    with pytest.raises(StoppedError), stopping(lambda: True):
        service.retract(facts)
    service.stop()


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_moment_at_the_end_of_the_calendar_is_refused(client: TestClient, moment: str) -> None:
    assert client.post("/predict", json={"entity": NEW, "known_at": moment}).status_code == 422


def test_a_file_is_not_written_to_its_end_for_who_has_gone(tmp_path: Path) -> None:
    looks = iter([False] * 10)
    with FactStore(tmp_path / "s") as store:
        store.add([(f"S {number}", "r", "o", "2020") for number in range(20)])
        with stopping(lambda: next(looks, True)), pytest.raises(StoppedError):
            export_facts(store, tmp_path / "facts.csv")
        assert not (tmp_path / "facts.csv").exists()
        assert export_facts(store, tmp_path / "facts.csv") == 20
