"""What a service does when its store fails it, or its clients do not behave."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from logging import ERROR
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.concurrency import run_in_threadpool

from attack.clients import half_open, more_files, unfinished_bodies
from faults.soak import resident
from faults.test_disk_full import no_file_beyond
from local_service import Command, client_of, listening, started
from metatkgr.data.facts import Facts
from metatkgr.deadlines import StoppedError
from metatkgr.forecasting.store import FactStore
from metatkgr.serving import views
from metatkgr.serving.app import create_app
from metatkgr.serving.limits import Limits, ServiceSettings
from metatkgr.serving.middleware import _unless_gone


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite"


@pytest.fixture
def client(world: Facts, store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(views, "_PROBE_SECONDS", 0.0)
    monkeypatch.setattr("metatkgr.forecasting.database._BUSY_SECONDS", 600)
    settings = ServiceSettings(limits=Limits(answer_seconds=600))
    with client_of(create_app(started(world, store), settings)) as found:
        yield found


def fact_of(world: Facts, subject: str) -> dict[str, str]:
    _, relation, other, _ = world.describe(0)
    last = world.calendar.label(world.steps - 1)
    return {"subject": subject, "relation": relation, "object": other, "time": last}


def status_of(client: TestClient) -> tuple[int, str]:
    answer = client.get("/health")
    assert client.get("/health/live").status_code == 200
    return answer.status_code, answer.json()["detail"]


def test_a_full_disk_shows_in_health_and_passes(client: TestClient, store: Path) -> None:
    assert status_of(client) == (200, "")
    with no_file_beyond(Path(f"{store}-wal").stat().st_size):
        assert status_of(client) == (503, "the store of facts does not take writes")
    assert status_of(client) == (200, "")


def test_a_store_whose_file_was_removed_shows_in_health_and_acknowledges_nothing(
    client: TestClient, world: Facts, store: Path
) -> None:
    assert client.post("/facts", json=fact_of(world, "Nova")).status_code == 200
    store.unlink()
    assert client.post("/facts", json=fact_of(world, "Otto")).status_code == 503
    assert status_of(client) == (503, "the store of facts does not take writes")
    assert client.get("/facts", params={"entity": "Nova"}).status_code == 200
    assert client.get("/facts", params={"entity": "Otto"}).status_code == 404
    with FactStore(store) as again:
        assert len(again) == 0


def test_a_locked_store_shows_in_health_soon_however_many_writers_wait(
    client: TestClient, world: Facts, store: Path
) -> None:
    other = sqlite3.connect(store, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    statuses: list[int] = []

    def write(number: int) -> None:
        statuses.append(client.post("/facts", json=fact_of(world, f"W {number}")).status_code)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for writer in writers:
        writer.start()
    time.sleep(0.2)
    begin = time.monotonic()
    status, detail = status_of(client)
    assert time.monotonic() - begin < 120, "it waits with the writers"
    assert (status, detail[:40]) == (503, "the store of facts has not answered for ")
    other.execute("ROLLBACK")
    other.close()
    for writer in writers:
        writer.join()
    assert statuses == [200] * 20
    assert status_of(client) == (200, "")


def test_health_is_told_while_every_thread_is_taken(world: Facts, store: Path) -> None:
    app = create_app(started(world, store), ServiceSettings())
    go_on = threading.Event()

    async def ask() -> list[int]:
        loop = asyncio.get_running_loop()
        taken = [loop.run_in_executor(None, go_on.wait, 60) for _ in range(100)]
        taken += [asyncio.ensure_future(run_in_threadpool(go_on.wait, 60)) for _ in range(100)]
        transport = httpx.ASGITransport(app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as one:
                asked = [one.get(path) for path in ("/health/live", "/health") * 20]
                answers = await asyncio.wait_for(asyncio.gather(*asked), 30)
                return [answer.status_code for answer in answers]
        finally:
            go_on.set()
            await asyncio.gather(*taken)

    assert asyncio.run(ask()) == [200] * 40


def test_hints_are_sought_only_for_the_rows_that_are_told(
    client: TestClient, world: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought = []

    def nearest(name: str, known: object, **how: object) -> list[str]:
        sought.append(name)
        return ["something like it"]

    monkeypatch.setattr("metatkgr.forecasting.incoming.nearest", nearest)
    facts = [fact_of(world, "Nova") | {"relation": f"unheard of {n}"} for n in range(1000)]
    answer = client.post("/facts", json={"facts": facts})
    assert answer.status_code == 400
    assert list(dict.fromkeys(sought)) == [f"unheard of {n}" for n in range(20)]


def test_bodies_hold_a_bounded_room_together_and_small_ones_get_through(
    world: Facts, store: Path
) -> None:
    limits = Limits(body_bytes=1 << 20, bodies_bytes=3 << 20)
    app = create_app(started(world, store), ServiceSettings(limits=limits))
    megabyte = b" " * ((1 << 20) - 100)
    body = json.dumps(fact_of(world, "Nova")).encode()

    async def post(*parts: bytes, never_ends: bool = True) -> int:
        """The status of a request whose body comes in parts."""
        messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        messages[-1]["more_body"] = never_ends
        status = 0

        async def receive() -> Any:
            if messages:
                return messages.pop(0)
            await asyncio.sleep(600)

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/facts", "headers": headers,
                 "query_string": b"", "http_version": "1.1", "scheme": "http"}  # fmt: skip
        await asyncio.wait_for(app(scope, receive, send), 120)
        return status

    async def attack() -> None:
        big = [asyncio.ensure_future(post(megabyte)) for _ in range(12)]
        refused = [await one for _, one in zip(range(9), asyncio.as_completed(big), strict=False)]
        assert refused == [503] * 9
        assert await post(body[:20], body[20:], never_ends=False) == 200
        held = [one for one in big if not one.done()]
        assert len(held) == 3
        assert await post(b" " * 300_000 + body, never_ends=False) == 503
        for one in held:
            one.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        told = await post(b" " * 300_000 + body, never_ends=False)
        assert told == 200, "the room of those who have gone is free again"

    asyncio.run(attack())


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has ended a connection."""
    connection.settimeout(0)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def answers(connection: http.client.HTTPConnection, path: str = "/health/live") -> bool:
    """Whether a request on a connection is answered well."""
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer.status == 200


def connected(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)


def test_of_too_many_connections_the_oldest_that_never_asked_give_way(
    world: Facts, store: Path
) -> None:
    limits = Limits(header_seconds=600, idle_seconds=600, connections=40, connections_each=30)
    settings = ServiceSettings(port=0, limits=limits)
    with listening(create_app(started(world, store), settings), settings) as url:
        kept = connected(url)
        assert answers(kept)
        some = half_open(url, 60)
        later = connected(url)
        assert answers(later)
        closed = [is_closed(one) for one in some]
        assert closed == [True] * 32 + [False] * 28, "the oldest give way, not who asked properly"
        assert answers(kept)
        for one in some:
            one.close()


def test_half_a_header_has_its_time(world: Facts, store: Path) -> None:
    limits = Limits(header_seconds=0.5, idle_seconds=600)
    settings = ServiceSettings(port=0, limits=limits)
    with listening(create_app(started(world, store), settings), settings) as url:
        end = time.monotonic() + 120
        some = half_open(url, 5)
        while not all(map(is_closed, some)):
            assert time.monotonic() < end, "a header that never ends has no time limit"
            time.sleep(0.05)
        # A byte now and then does not make it last longer, nor does an earlier good request.
        kept = connected(url)
        assert answers(kept)
        kept.sock.sendall(b"GET /health/live HTTP/1.1\r\nX: ")
        while not is_closed(kept.sock):
            assert time.monotonic() < end
            with suppress(OSError):
                kept.sock.sendall(b"x")
            time.sleep(0.05)


def test_a_body_of_very_many_very_small_parts_is_refused(world: Facts, store: Path) -> None:
    """The server's parser took a second for each megabyte of them, in which nobody was answered."""
    settings = ServiceSettings(port=0)
    body = json.dumps({"entity": world.entities[0]}).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    statuses = []
    with listening(create_app(started(world, store), settings), settings) as url:
        for padding in (100, 30_000):
            parts = [b"1\r\n%c\r\n" % byte for byte in body + b" " * padding]
            connection = connected(url)
            connection.connect()
            sent = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(parts)
            with suppress(OSError):  # it may not be read to its end
                connection.sock.sendall(sent + b"0\r\n\r\n")
            statuses.append(connection.sock.makefile("rb").readline().split()[1])
            connection.close()
    assert statuses == [b"200", b"400"]


@pytest.mark.parametrize(
    ("head", "then"),
    [
        (b"GET /health/live HTTP/1.1\r\n", b"\0\r\n\r\n"),
        (b"POST /no HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", b"zz\r\n"),
        (b"POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", b"zz\r\n"),
        (b"GET /newcomers/forecasts HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", b"zz\r\n"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_what_is_no_http_prints_nothing_wherever_it_comes(
    world: Facts, store: Path, caplog: pytest.LogCaptureFixture, head: bytes, then: bytes,
    at_once: bool,
) -> None:  # fmt: skip
    """In the midst of a request, or behind one, it was a traceback of three kilobytes."""
    settings = ServiceSettings(port=0)
    with listening(create_app(started(world, store), settings), settings) as url:
        one = connected(url)
        one.connect()
        one.sock.sendall(head + b"Host: 127.0.0.1\r\n\r\n" + (then if at_once else b""))
        if not at_once and b"/predict" not in head:
            assert one.sock.recv(1)
        with suppress(ConnectionError):
            one.sock.sendall(b"" if at_once else then)
            while one.sock.recv(1 << 16):
                pass
        one.close()
        assert answers(connected(url))
    gc.collect()  # of a task that failed, asyncio tells when it is gone
    assert [record.getMessage() for record in caplog.records if record.levelno >= ERROR] == []


@pytest.mark.parametrize("faults", [[], [ValueError("no such row")]])
def test_of_work_that_ends_as_its_client_goes_only_faults_are_told(
    caplog: pytest.LogCaptureFixture, faults: list[Exception]
) -> None:
    """Tasks that stream an answer together fail as a group; with Starlette 0.40 this is one."""
    inner = ExceptionGroup("unhandled errors in a TaskGroup", [StoppedError("over")])

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ExceptionGroup("unhandled errors in a TaskGroup", [inner, *faults]) from None

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def ended() -> None:
        await _unless_gone(gone, work())
        await asyncio.sleep(0.01)

    asyncio.run(ended())
    assert len([r for r in caplog.records if r.levelno >= ERROR]) == len(faults)


def test_answers_that_nobody_reads_take_a_bounded_room() -> None:
    size = 8 << 20

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x" * size})

    settings = ServiceSettings(port=0, limits=Limits(bodies_bytes=4 * size))
    with listening(app, settings) as url:
        host, port = url.removeprefix("http://").split(":")
        some = []
        for _ in range(12):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            one.connect((host, int(port)))
            one.settimeout(60)
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert one.recv(8) == b"HTTP/1.1"
            some.append(one)
        time.sleep(2.5)
        whole = 0
        for one in some:
            got = 0
            with suppress(ConnectionError):
                while part := one.recv(1 << 20):
                    got += len(part)
            whole += got >= size
            one.close()
    assert whole == 4, "who does not read gives way, and no more than must"


def test_under_1100_half_open_connections_and_300_unfinished_bodies_questions_are_answered(
    world: Facts, tmp_path: Path
) -> None:
    options = ("world:3000:1", "--model", "paths", "--store", tmp_path / "s", "--no-quality")
    with Command(*options, folder=tmp_path) as service, more_files(3000) as enough:
        if not enough:
            pytest.skip("too few files may be open here")
        asked = json.dumps({"entity": world.entities[0], "explain": True})
        kind = {"Content-Type": "application/json"}

        def ask() -> None:
            connection = connected(service.url)
            assert answers(connection)
            connection.request("POST", "/predict", asked, kind)
            assert connection.getresponse().status == 200
            connection.close()

        ask()
        idle = resident(service.process.pid)
        held = half_open(service.url, 1100)
        ask()
        held += unfinished_bodies(service.url, 300)
        ask()
        assert resident(service.process.pid) < 1.5 * idle + (64 << 20)
        for one in held:
            one.close()
        service.process.terminate()
        assert service.wait() == 0
        assert len(service.said) < 10_000, "the log does not grow with what an attacker sends"


def test_reasons_about_a_hub_hold_up_nobody(client: TestClient, world: Facts) -> None:
    """Two thousand facts on one object, then a question about it, took more than a minute."""
    for first in (0, 1000):
        facts = [
            fact_of(world, f"Fan {first + number}") | {"object": "Hub"} for number in range(1000)
        ]
        assert client.post("/facts", json={"facts": facts}).json()["accepted"] == 1000
    begin = time.process_time()
    for asked in ({"entity": "Hub"}, {"entity": "Fan 7"}):
        answer = client.post("/predict", json=asked | {"explain": True, "top": 100})
        assert answer.status_code == 200
        assert answer.json()["forecasts"][0]["reasons"]
    assert time.process_time() - begin < 20
