"""What a service does when its store fails it, or its clients do not behave."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from faults.test_disk_full import no_file_beyond
from local_service import client_of, started
from metatkgr.data.facts import Facts
from metatkgr.forecasting.store import FactStore
from metatkgr.serving import service as service_module
from metatkgr.serving.app import create_app
from metatkgr.serving.limits import ServiceSettings


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite"


@pytest.fixture
def client(world: Facts, store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(service_module, "_PROBE_SECONDS", 0.0)
    with client_of(create_app(started(world, store), ServiceSettings())) as found:
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
    assert time.monotonic() - begin < 4
    assert (status, detail[:40]) == (503, "the store of facts has not answered for ")
    other.execute("ROLLBACK")
    other.close()
    for writer in writers:
        writer.join()
    assert statuses == [200] * 20
    assert status_of(client) == (200, "")
