"""The HTTP interface: what it answers, and what it says when it cannot."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

import postgres_server
from command_line import Run
from local_service import app_of, client_of, listening, measured, started
from metatkgr.data.facts import Facts
from metatkgr.errors import DataError, SettingsError
from metatkgr.forecasting.explain import Match, Observed
from metatkgr.forecasting.store import FactStore, StoreError
from metatkgr.serving import schemas
from metatkgr.serving.app import create_app
from metatkgr.serving.limits import Limits, ServiceSettings, is_loopback
from metatkgr.serving.server import Server, listen, url_of

NEW = "Zoltan Newcomer"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite"


@pytest.fixture
def client(world: Facts, store: Path) -> Iterator[TestClient]:
    with client_of(create_app(started(world, store), ServiceSettings())) as found:
        yield found


def first_fact(world: Facts) -> dict[str, str]:
    _, relation, other, _ = world.describe(0)
    return {
        "subject": NEW,
        "relation": relation,
        "object": other,
        "time": world.calendar.label(world.steps - 1),
    }


def test_a_newcomer_is_forecast_from_its_first_fact(client: TestClient, world: Facts) -> None:
    fact = first_fact(world)
    added = client.post("/facts", json=fact)
    assert added.json() == {"accepted": 1, "duplicates": 0, "new_entities": [NEW]}
    asked = {"entity": NEW, "relation": fact["relation"], "top": 3, "explain": True}
    answer = client.post("/predict", json=asked).json()
    best = answer["forecasts"][0]
    assert best["entity"] == fact["object"]
    assert best["reasons"][0]["facts"] == [list(fact.values())]
    assert [f["rank"] for f in answer["forecasts"]] == [1, 2, 3]
    assert all(0 <= f["probability"] <= 1 for f in answer["forecasts"])
    why = client.post(
        "/explain", json={"entity": NEW, "relation": fact["relation"], "answer": fact["object"]}
    )
    assert why.json()["reasons"][0]["text"]


def test_what_is_written_as_it_is_is_what_the_description_says(
    client: TestClient, world: Facts
) -> None:
    """FastAPI does not check these answers again; checked here, they stay the same to the byte."""
    name = world.entities[0]
    facts = {"facts": [first_fact(world)]}
    answers: list[tuple[httpx.Response, Any]] = [
        (client.post("/facts", json=facts), Observed),
        (client.get("/facts", params={"entity": name}), schemas.TimelineOut),
        (client.get("/facts", params={"entity": NEW}), schemas.TimelineOut),
        (client.get("/entities", params={"q": name[:3]}), schemas.EntitiesOut),
    ]
    for answer, form in answers:
        checked = TypeAdapter(form).validate_json(answer.content, strict=True)
        assert TypeAdapter(form).dump_json(checked) == answer.content
        assert answer.headers["content-type"] == "application/json"
    page = client.get("/").headers
    assert page.get_list("cache-control") == ["no-cache"]  # its own, not one more


def test_without_a_relation_any_next_fact_is_forecast(client: TestClient, world: Facts) -> None:
    answer = client.post("/predict", json={"entity": world.entities[0], "within": 3}).json()
    assert answer["query"]["relation"] is None
    assert len(answer["forecasts"]) == 10
    subject = {"entity": world.entities[0], "relation": world.relations[0], "side": "subject"}
    answer = client.post("/predict", json=subject).json()
    assert {f["side"] for f in answer["forecasts"]} == {"subject"}
    assert sum(f["probability"] for f in answer["forecasts"]) + answer["other"] == pytest.approx(1)
    answer = client.post("/predict", json=subject | {"within": "2w"}).json()
    total = sum(f["probability"] for f in answer["forecasts"]) + answer["other"]
    assert total == pytest.approx(answer["comes"])
    assert answer["comes"] < 1


def test_quality_tells_how_far_off_probabilities_are_at_every_rank(client: TestClient) -> None:
    told = client.get("/quality").json()["calibration"]
    if told["queries"]:
        assert 0 <= told["ece_ranks"] <= 1
        stated, seen = (sum(row[column] for row in told["ranks"]) for column in (1, 2))
        assert (stated, seen) == pytest.approx((1, 1))


def test_facts_are_there_after_a_restart(world: Facts, store: Path) -> None:
    fact = first_fact(world)
    with client_of(create_app(started(world, store), ServiceSettings())) as client:
        client.post("/facts", json={"facts": [fact, fact | {"object": "Someone New"}]})
        again = client.post("/facts", json=fact).json()
        assert again == {"accepted": 0, "duplicates": 1, "new_entities": []}
    with client_of(create_app(started(world, store), ServiceSettings())) as client:
        found = client.get("/facts", params={"entity": NEW}).json()
        assert found["total"] == 2
        assert client.get("/graph").json()["observed"] == 2


def test_the_names_of_new_entities_have_a_quota_that_outlives_a_restart(
    world: Facts, store: Path
) -> None:
    fact, limits = first_fact(world), Limits(new_names_bytes=3 * (400 + 64))
    names = [letter * 400 for letter in "abcdef"]
    service = started(world, store, limits=limits)
    with client_of(create_app(service, ServiceSettings(limits=limits))) as client:
        for name in names[:2]:
            told = client.post("/facts", json=fact | {"subject": name, "object": world.entities[0]})
            assert told.status_code == 200
    service = started(world, store, limits=limits)
    with client_of(create_app(service, ServiceSettings(limits=limits))) as client:
        many = {"facts": [fact | {"subject": name} for name in names]}
        refused = client.post("/facts", json=many)
        assert refused.status_code == 400
        assert "bytes that this service keeps for them" in refused.text
        known = fact | {"subject": names[0], "object": world.entities[1]}
        assert client.post("/facts", json=known).json()["accepted"] == 1
        assert client.get("/graph").json()["observed"] == 3


def test_the_order_of_arrival_does_not_matter(world: Facts, tmp_path: Path) -> None:
    label = world.calendar.label
    facts = [
        first_fact(world) | {"time": label(world.steps - k), "object": world.entities[k]}
        for k in (3, 1, 2)
    ]
    answers = []
    for name, told in (("a", facts), ("b", facts[::-1])):
        app = create_app(started(world, tmp_path / name), ServiceSettings())
        with client_of(app) as client:
            for fact in told:
                client.post("/facts", json=fact)
            timeline = client.get("/facts", params={"entity": NEW}).json()["facts"]
            assert [fact[3] for fact in timeline] == sorted(fact[3] for fact in timeline)
            answers.append(client.post("/predict", json={"entity": NEW}).json()["forecasts"])
    strip = [[(f["label"], f["probability"]) for f in answer] for answer in answers]
    assert strip[0] == strip[1]


def test_the_graph_is_told_as_its_facts_are_counted_one_by_one(world: Facts, store: Path) -> None:
    service = started(world, store)
    name, relation, last = world.entities[3], world.relations[1], world.calendar.label(world.steps)
    others = [("Nova", relation, "Nova", last), (world.entities[4], relation, "Nova", last)]
    service.add([("Nova", relation, name, last), *others])
    graph = service.forecaster.facts
    rows = [graph.describe(row) for row in range(len(graph))]
    about = service.describe()
    assert (about.facts, about.entities) == (len(rows), len({e for r in rows for e in r[::2]}))
    assert (about.last, about.next) == (last, world.calendar.label(world.steps + 1))
    for told in about.relations:
        assert told.facts == sum(row[1] == told.label for row in rows)
    newcomers = service.newcomers(10)
    assert newcomers[0] == Match("Nova", "Nova", 3, last, last)
    for match in newcomers:
        dates = [row[3] for row in rows if match.label in (row[0], row[2])]
        assert (match.facts, match.first, match.last) == (len(dates), dates[0], dates[-1])
    service.stop()


def test_search_newcomers_and_graph(client: TestClient, world: Facts) -> None:
    name = world.entities[0]
    found = client.get("/entities", params={"q": name[:-1].lower()}).json()["entities"]
    assert found[0]["name"] == name
    assert len(client.get("/entities", params={"q": "a", "limit": 4}).json()["entities"]) == 4
    late = client.get("/newcomers", params={"limit": 5}).json()["entities"]
    dates = [entity["first"] for entity in late]
    assert dates == sorted(dates, reverse=True)
    assert min(entity["facts"] for entity in late) == 1, "one fact is enough"
    for entity in late:
        timeline = client.get("/facts", params={"entity": entity["name"]}).json()["facts"]
        assert (timeline[0][3], timeline[-1][3]) == (entity["first"], entity["last"])
    graph = client.get("/graph").json()
    assert graph["facts"] == len(world)
    assert sum(relation["facts"] for relation in graph["relations"]) == len(world)


FACT = {"subject": "A", "relation": "plays for", "object": "B", "time": "2016-01-04"}
BAD = [
    ("/predict", {}, 422, "entity"),
    ("/predict", [], 422, "valid dictionary"),
    ("/predict", "text", 422, ""),
    ("/predict", {"entity": "Nobody at all"}, 404, "Nobody at all"),
    ("/predict", {"entity": ""}, 422, "at least 1"),
    ("/predict", {"entity": "x" * 501}, 422, "at most 500"),
    ("/predict", {"entity": 5}, 422, "valid string"),
    ("/predict", {"entity": "\x00"}, 422, "pattern"),
    ("/predict", {"entity": "ENTITY", "relation": "plays fr"}, 404, "plays fr"),
    ("/predict", {"entity": "ENTITY", "at": "yesterday"}, 422, "at"),
    ("/predict", {"entity": "ENTITY", "at": "2016-13-45"}, 400, "2016-13-45"),
    ("/predict", {"entity": "ENTITY", "at": "1900-01-01"}, 400, "before the graph begins"),
    ("/predict", {"entity": "ENTITY", "at": -5}, 400, "before the graph begins"),
    ("/predict", {"entity": "ENTITY", "at": 2.5}, 422, "at"),
    ("/predict", {"entity": "ENTITY", "side": "left"}, 422, "side"),
    ("/predict", {"entity": "ENTITY", "top": 0}, 422, "top"),
    ("/predict", {"entity": "ENTITY", "top": True}, 422, "top"),
    ("/predict", {"entity": "ENTITY", "top": "5"}, 422, "top"),
    ("/predict", {"entity": "ENTITY", "within": 10**30}, 422, "within"),
    ("/predict", {"entity": "ENTITY", "colour": "red"}, 422, "colour"),
    ("/explain", {"entity": "ENTITY", "relation": "plays for"}, 422, "answer"),
    ("/explain", {"entity": "ENTITY", "relation": "plays for", "answer": "Nobody"}, 404, "Nobody"),
    ("/facts", {"facts": []}, 422, "at least 1"),
    ("/facts", {"facts": [FACT] * 1001}, 422, "at most 1000"),
    ("/facts", {"facts": [FACT, 3]}, 422, "facts.1"),
    ("/facts", FACT | {"relation": "plays fr"}, 400, "plays fr"),
    ("/facts", FACT | {"time": "1900-01-01"}, 400, "before the graph begins"),
    ("/facts", FACT | {"time": "9999-01-01"}, 400, "too far in the future"),
    ("/facts", FACT | {"time": None}, 422, "time"),
    ("/facts", FACT | {"subject": "\u3000"}, 400, "empty"),
    ("/facts", FACT | {"subject": "a\x85b"}, 400, "control"),
]


@pytest.mark.parametrize(("path", "body", "status", "said"), BAD)
def test_bad_input_gets_a_sentence_that_helps(
    client: TestClient, world: Facts, path: str, body: Any, status: int, said: str
) -> None:
    text = json.dumps(body).replace("ENTITY", world.entities[0])
    answer = client.post(path, content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert said in error["message"] + error["hint"]
    assert len(answer.text) < 2000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nul",
        b"\xff\xfe",
        b'{"entity": "\\ud800"}',
        b'{"entity": NaN}',
        b'{"entity": "a", "top": Infinity}',
        b'{"entity": "a", "at": 1e999}',
        b'{"entity": "a", "top": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"entity": {"entity": ' * 1000,
    ],
)
def test_bodies_that_are_no_json_are_told_as_such(client: TestClient, body: bytes) -> None:
    for path in ("/predict", "/facts"):
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["error"]["message"]


def test_a_body_of_10_megabytes_is_refused_unread(client: TestClient) -> None:
    name = "x" * 10_000_000
    answer = client.post("/predict", json={"entity": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")

    def pieces() -> Iterator[bytes]:
        for _ in range(11):
            yield b"x" * 1_000_000

    json_kind = {"Content-Type": "application/json"}
    assert client.post("/predict", content=pieces(), headers=json_kind).status_code == 413
    assert client.post("/predict", data={"entity": "a"}).status_code == 415


def test_a_body_of_very_many_lists_is_refused_unread(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make a million of them took a second, in which nobody was answered."""
    monkeypatch.setattr("json.loads", None)
    body = b'{"facts": [' + b"[]," * 100_000 + b"[]]}"
    answer = client.post("/facts", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, b"more than 100,000 lists" in answer.content) == (413, True)


def test_other_paths_and_methods(client: TestClient) -> None:
    assert client.get("/nothing").json()["error"]["code"] == "not_found"
    answer = client.delete("/facts")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
    assert client.get("/facts", params={"entity": "Nobody"}).status_code == 404
    assert client.get("/page/../app.py").status_code == 404
    assert client.get("/page/%2e%2e/app.py").status_code == 404


def test_answers_forbid_what_a_page_elsewhere_might_try(client: TestClient) -> None:
    headers = client.get("/").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    # A name that was pointed at this machine from outside.
    for foreign in ("evil.example", "localhost:80.evil.com", "127.0.0.1:80@evil.com", "[::1]x:80",
                    "[::1%evil.com]", "127.1", "localhost."):  # fmt: skip
        assert client.get("/graph", headers={"Host": foreign}).status_code == 403
    assert client.get("/health", headers={"Host": "localhost:8000"}).status_code == 200
    assert client.get("/health", headers={"Host": "[::1]:8000"}).status_code == 200


def test_metrics_count_requests_and_facts(client: TestClient, world: Facts) -> None:
    client.post("/facts", json=first_fact(world))
    client.get("/nothing/at/all")
    client.request("BREW", "/health")
    text = client.get("/metrics").text
    assert 'metatkgr_requests_total{method="POST",path="/facts",status="200"} 1.0' in text
    assert 'method="GET",path="other",status="404"} 1.0' in text
    assert 'method="other",path="/health",status="405"} 1.0' in text
    assert "metatkgr_observed_facts 1.0" in text
    assert "metatkgr_request_seconds_bucket" in text


def test_more_than_can_be_worked_on_is_told_to_come_back(world: Facts, store: Path) -> None:
    service = started(world, store)
    inside, go_on = threading.Event(), threading.Event()
    whole = service.forecaster.timeline

    def slow(entity: str, last: int | None = None) -> Any:
        inside.set()
        go_on.wait(10)
        return whole(entity, last)

    service.forecaster.timeline = slow  # type: ignore[method-assign]
    settings = ServiceSettings(limits=Limits(concurrency=1))
    with client_of(create_app(service, settings)) as client:
        asked = {"entity": world.entities[0]}
        statuses: list[int] = []
        first = threading.Thread(
            target=lambda: statuses.append(client.get("/facts", params=asked).status_code)
        )
        first.start()
        inside.wait(10)
        answer = client.get("/graph")
        assert client.get("/health").status_code == 200
        go_on.set()
        first.join()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert statuses == [200]
        assert client.get("/graph").status_code == 200


def test_a_store_that_does_not_answer_is_a_503_and_changes_nothing(
    client: TestClient, world: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise StoreError("the store does not answer: disk full, password is hunter2")

    monkeypatch.setattr(FactStore, "add", broken)
    monkeypatch.setattr(FactStore, "probe", broken)
    answer = client.post("/facts", json=first_fact(world))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "hunter2" not in answer.text
    assert client.get("/facts", params={"entity": NEW}).status_code == 404
    health = client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "degraded")


def test_what_was_kept_is_acknowledged_and_observed_when_the_store_is_back(
    world: Facts, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = started(world, store, poll_seconds=0.05)

    def broken(*_: object) -> None:
        raise StoreError("gone for a moment")

    with monkeypatch.context() as patch:
        patch.setattr(FactStore, "since", broken)
        assert service.add([tuple(first_fact(world).values())]).accepted == 1
        assert NEW not in service.forecaster.facts.entities
    for _ in range(200):
        if NEW in service.forecaster.facts.entities:
            break
        time.sleep(0.05)
    assert len(service.forecaster.timeline(NEW)) == 1
    service.stop()


def test_an_unexpected_error_says_nothing_of_the_inside(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("metatkgr.forecasting.forecaster.Forecaster.search", broken)
    answer = client.get("/entities", params={"q": "a"})
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_processes_that_share_a_database_share_the_facts(world: Facts) -> None:
    if reason := postgres_server.why_not():
        pytest.skip(reason)
    with postgres_server.postgres() as url:
        one = started(world, url, poll_seconds=0.05)
        other = started(world, url, poll_seconds=0.05)
        one.add([tuple(first_fact(world).values())])
        assert len(one.forecaster.timeline(NEW)) == 1
        for _ in range(200):
            if NEW in other.forecaster.facts.entities:
                break
            time.sleep(0.05)
        assert other.forecaster.timeline(NEW) == one.forecaster.timeline(NEW)
        one.stop()
        other.stop()


def test_a_store_of_another_graph_is_refused_at_the_start(world: Facts, store: Path) -> None:
    with FactStore(store) as other:
        other.add([("A", "plays for", "B", "2016-01-04"), ("A", "plays for", "B", "1916-01-04")])
    with pytest.raises(DataError, match="do not fit this graph"):
        started(world, store)


def test_quality_is_measured_once_and_kept(world: Facts, tmp_path: Path) -> None:
    cache = tmp_path / "quality.json"
    first = measured(world)
    first._cache = cache
    first.start()
    first._thread.join()
    report = first.report()
    assert report.status == "ready"
    assert [model.name for model in report.models] == ["paths", "recurrency"]
    assert sum(span.queries for span in report.spans) >= report.questions == 60
    again = measured(world)
    again._cache = cache
    again.start()
    assert again.report() == report
    again.stop()


def test_who_may_be_listened_to() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))
    with pytest.raises(SettingsError, match="reached from other machines"):
        ServiceSettings(host="0.0.0.0")
    with pytest.raises(SettingsError, match="port"):
        ServiceSettings(port=70_000)
    with pytest.raises(SettingsError, match="concurrency"):
        Limits(concurrency=0)


def test_the_command_refuses_what_would_go_wrong(run: Run, tmp_path: Path) -> None:
    refused = run("serve", "world:2000", "--model", "paths", "--host", "0.0.0.0")
    assert (refused.code, "--token-file" in refused.err) == (2, True)
    refused = run("serve", "world:2000", "--model", "transe")
    assert (refused.code, "has to be trained first" in refused.err) == (2, True)
    (tmp_path / "text").write_text("no database " * 100)
    refused = run("serve", "world:2000", "--model", "paths", "--store", tmp_path / "text")
    assert (refused.code, "not a store of facts" in refused.err) == (2, True)


def test_an_answer_does_not_wait_for_the_clients_acknowledgement(world: Facts, store: Path) -> None:
    """Without TCP_NODELAY its body is sent 40 ms after its header, once a connection is warm."""
    with listening(app_of(world, store)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        seconds = []
        for _ in range(40):
            begin = time.perf_counter()
            connection.request("GET", "/newcomers")
            assert connection.getresponse().read()
            seconds.append(time.perf_counter() - begin)
        connection.close()
    assert min(seconds[20:]) < 0.03


def test_a_request_with_two_lengths_ends_its_connection(world: Facts, store: Path) -> None:
    hidden = b"GET /graph HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    request = (
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    ) % (12 + len(hidden))
    with listening(app_of(world, store)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as line:
            line.sendall(request + hidden)
            told = b"".join(iter(lambda: line.recv(1 << 16), b""))
    assert (told.startswith(b"HTTP/1.1 400"), told.count(b"HTTP/1.1")) == (True, 1), told


def test_a_body_is_what_it_looks_like(client: TestClient, world: Facts) -> None:
    body = json.dumps(first_fact(world)).encode()
    kind = {"Content-Type": "application/json"}
    for encoding in ("gzip", "br", "identity, gzip"):
        headers = kind | {"Content-Encoding": encoding}
        assert client.post("/facts", content=body, headers=headers).status_code == 415
    headers = kind | {"Content-Encoding": "identity"}
    assert client.post("/facts", content=body, headers=headers).status_code == 200


def test_a_request_in_flight_is_answered_when_the_service_is_told_to_stop(
    world: Facts, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = started(world, store)
    begun, go_on = threading.Event(), threading.Event()
    answer = service.answer

    def slowly(questions: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return answer(questions)

    monkeypatch.setattr(service, "answer", slowly)
    settings = ServiceSettings(port=0)
    server, socket = Server(create_app(service, settings), settings), listen(settings)
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    said: list[int] = []

    def ask() -> None:
        url = f"{url_of(socket)}/predict"
        said.append(httpx.post(url, json={"entity": world.entities[0]}, timeout=60).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(60)
    server.handle_exit(signal.SIGTERM, None)
    threading.Timer(0.3, go_on.set).start()
    asking.join()
    thread.join()
    assert said == [200]
